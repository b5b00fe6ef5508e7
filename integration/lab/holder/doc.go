// Package holder has the one process, the holder, that owns a whole lab. Isolate starts it from the
// same executable as the first process of a new PID namespace, in new mount and network namespaces
// and, for an ordinary user, in a new user namespace whose root it is. It keeps the hosts' network
// namespaces as open files and starts gateways, nodes and commands inside them; nothing is mounted
// in the machine's file system, and no link ever exists in a namespace that the lab did not make.
// When the holder ends, for any reason, the kernel kills every process of its PID namespace, and
// with the last of them all namespaces, links, routes and sockets disappear. Only a folder with the
// state file, configurations and logs can remain, which Down removes.
//
// The state file is written before the holder may make anything. It names the holder by process ID
// and start time, so that Down never kills an unrelated process, and every command can tell a
// running lab from a killed one.
//
// A command in a host has a UTS namespace with the host's name, and a mount namespace with an
// /etc/hosts that has the other hosts' addresses as seen from there: milan/pod1 is 10.61.1.5 in
// rome and 10.0.1.5 in milan. If the client has a terminal, the command gets a pseudo-terminal
// whose master the client holds, so that a shell can control its jobs.
package holder
