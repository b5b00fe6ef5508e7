// Command culvert carries pod traffic between Kubernetes clusters in user space.
//
//	culvert gateway --config FILE [--check [-o json]]
//	culvert gateway --liqo FLAGS
//	culvert node --config FILE [--check]
//	culvert node --services[=all] [--config FILE]
//	culvert init DIR [--here]
//	culvert status [--watch]
//	culvert doctor [--config FILE | --socket SOCKET]
//	culvert connections [--watch] [delete]
//	culvert trace [--from NODE] PROTOCOL SOURCE DESTINATION | --flow ID | --next
//	culvert capture [--at STAGES] [--drops] [-w FILE]
//	culvert reload [--dry-run]
//	culvert rules | routes
//	culvert page [--port PORT]
//	culvert help config
//	culvert lab check | up | down | exec CLUSTER/HOST [--] COMMAND… | status | bench
//	culvert lab break [FAULT…] | mend [FAULT…] | restart CLUSTER/HOST
//	culvert keygen FILE [--public]
//	culvert ipam list | acquire [PEER KIND REAL] | release PEER [KIND REAL] --config FILE | --file FILE
//	culvert ipam check FILE [PEER'S FILE]
//	culvert liqo template [--offline [--release NAME]] | check NAMESPACE/NAME
//	culvert completion bash | zsh | fish
//	culvert version [-o json | yaml]
//
// # Signals
//
// SIGTERM and SIGINT end every command in good order, exit status 0. SIGHUP makes
// the gateway read its file again; a file that is bad in any way, or that changes
// what takes a restart, is refused whole and the running configuration stays.
//
// # Exit status
//
//	0  done
//	1  something that had started failed, or a check of the lab did; ipam check: remaps needed;
//	   liqo check: it would not work; doctor: a gateway cannot work here
//	2  bad input: arguments, configuration, a port in use, a missing privilege;
//	   standard error has one line per cause, and nothing is left behind
//
// The commands that ask a running gateway (status …) end with 2 when none answers or the
// gateway refuses what was asked, and with 1 when it goes away while it answers. trace ends
// with 0 whatever becomes of the packet.
//
// # The control socket
//
// A gateway serves a Unix socket that only its own user may connect to; package
// culvert/gateway/control says what it answers. Commands find it by themselves where one
// gateway runs, else by --socket.
//
// # Privileges
//
// The gateway needs none: two UDP sockets above port 1023 and, unless metrics is
// "", one TCP listener. The node end needs CAP_NET_ADMIN in its network namespace.
// The lab needs root, or user namespaces.
//
// # Environment
//
// GOMAXPROCS, GOMEMLIMIT and GOGC work as in every Go program. Without them the gateway, and a
// node that serves Services by a device, run Go code on one thread where there are at most two
// CPUs; the gateway keeps Go's memory below 7/10 of its control group's limit, and lets it grow
// by half of what is in use before it is collected. KUBECONFIG leads culvert liqo to its cluster,
// as it does kubectl. NODE_NAME is the default of culvert node --node-name. XDG_RUNTIME_DIR says
// where control sockets are, which without it are in /run, or for another user than root in a
// folder of its own of the temporary folder. Nothing else is read.
package main
