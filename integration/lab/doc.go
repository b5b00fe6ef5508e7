// Package lab builds two clusters out of network namespaces, with real culvert
// gateways and nodes between them, and checks them with real sockets.
//
//	rome/pod1 ─ rome/node1 ─┐                                   ┌─ milan/node1 ─ milan/pod1
//	rome/pod2 ─ rome/node2 ─┤                                   ├─ milan/node2 ─ milan/pod2
//	          rome/gateway ─┤ rome/router         milan/router ├─ milan/gateway
//	               │        └─ rome/client      milan/client ──┘        │
//	               └──────────────── 192.0.2.0/24 ──────────────────────┘
//
// Every name is a network namespace, every line a veth pair. A router is a
// bridge that joins a cluster's nodes and its gateway (the underlay) and routes
// to a client outside the cluster. Both clusters have the pod CIDR 10.0.0.0/16,
// the external CIDR 10.70.0.0/16 and the internal addresses 10.80.0.0/24; rome
// sees milan as 10.61.0.0/16 and 10.71.0.0/16, milan sees rome as 10.62.0.0/16
// and 10.72.0.0/16. Pods with equal addresses exist on purpose, and so do node
// CIDRs of unequal size.
//
// Labs of one kind, see Outside, have more hosts that are no pods: a second
// address of each client, for which an external address stands; 11.11.11.0/24
// behind each first pod; a VIP on each second node. There the first node is the
// outside's router to the other cluster, and a NodePort is a forwarder in user
// space on the node, which can keep a client's address as the kernel's NAT does.
// While checks ask for Services that a node serves itself, a second culvert node
// runs there, with services alone.
//
// # The holder
//
// One process, the holder, owns the whole lab. Isolate starts it from the same
// executable as the first process of a new PID namespace, in new mount and
// network namespaces and, for an ordinary user, in a new user namespace whose
// root it is. It keeps the hosts' network namespaces as open files and starts
// gateways, nodes and commands inside them; nothing is bound into the machine's
// file system and no link ever exists in a namespace that the lab did not make. When
// the holder ends, in whatever way, the kernel kills every process of its PID
// namespace, and with the last of them all namespaces, links, routes and
// sockets go. What can remain is a folder with the state file, configurations
// and logs, which Down removes.
//
// The state file is written before the holder may make anything. It names the
// holder by process ID and start time, so that Down never kills a stranger, and
// that every command tells a lab that is up from one that was killed.
//
// A command in a host has a UTS namespace of its own, with the host's name, and a
// mount namespace with an /etc/hosts in which names of hosts stand for what is seen
// from there: milan/pod1 is 10.61.1.5 in rome and 10.0.1.5 in milan. A terminal gets
// there as another one, whose master the client holds: so a shell controls its jobs.
//
// # Faults
//
// A fault changes configurations, keeps a process off, or changes a host's kernel.
// Configurations are written anew from the faults that there are, never edited, and
// whose configuration has changed starts again; so faults go together, and go in any
// order. Kernels need neither netfilter nor traffic control: a firewall is a rule of
// policy routing, a hole for large packets a link that is too small for them.
//
// With Options.Sandbox a gateway is an OCI container that runsc runs inside the
// gateway's namespace. Its processes and mounts go as all others do. Its control
// groups outlive a holder that was killed; whoever named them removes them.
//
// # Checks
//
// A check opens its sockets with Host.Do, on a thread that has entered the
// host's network namespace; a socket stays in the namespace it was made in.
// Checks say what they expected and what they saw: the source address the far
// side saw, sizes, SHA-256 sums, the sender of an ICMP error and what it quotes.
//
// # Attacks
//
// Labs of another kind, see Attacks, have an attacker in each check and an innocent
// beside him: another node or pod, or another client of the same service. Attackers
// forge packets with raw sockets, 25,000 a second, with transport checksums that are
// wrong: who receives them stays silent, and only the gateways are attacked. Each
// request of the innocent must be answered. Receive buffers of the kernel cannot be
// shared out, so a request may be repeated, but not more often than the kernel has
// counted losses. Each check starts gateways of its own, with the memory limit that
// they would choose in a control group of 64 MiB.
package lab
