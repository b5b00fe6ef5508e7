// Command culvert carries pod traffic between Kubernetes clusters in user space.
//
//	culvert gateway --config FILE [--check [-o json]]
//	culvert gateway --liqo FLAGS
//	culvert node --config FILE [--check]
//	culvert node --services[=all] [--config FILE]
//	culvert init DIR [--here | --side client | --side server]
//	culvert status [--watch]
//	culvert doctor [--config FILE | --socket SOCKET]
//	culvert connections [--watch] [delete]
//	culvert trace [-v] [--fail] [--from NODE] PROTOCOL SOURCE DESTINATION | --flow ID | --next
//	culvert capture [--at STAGES] [--drops] [-w FILE]
//	culvert reload [--dry-run]
//	culvert rules | routes
//	culvert page [--port PORT]
//	culvert help config
//	culvert lab …
//	culvert keygen FILE [--public]
//	culvert ipam list | acquire [PEER KIND REAL] | release PEER [KIND REAL] --config FILE | --file FILE
//	culvert ipam check FILE [PEER'S FILE]
//	culvert liqo template --image NAME [--offline [--release NAME]] | check NAMESPACE/NAME
//	culvert completion bash | zsh | fish
//	culvert version [-o json | yaml]
//
// # Signals
//
// SIGTERM and SIGINT stop every command cleanly, with exit status 0. SIGHUP makes the gateway read its file again; a file that has any fault, or
// changes anything that needs a restart, is refused as a whole and the running configuration stays.
//
// # Exit status
//
//	0  done
//	1  something that had started failed; ipam check: remaps needed;
//	   liqo check: it would not work; doctor: a gateway cannot work here
//	2  bad input: arguments, configuration, a port in use, a missing privilege;
//	   standard error has one line per cause, and nothing is left behind
//
// The commands that talk to a running gateway (status …) exit with 2 if none answers or the gateway refuses the request, and with 1 if it disappears
// while answering. trace exits with 0 whatever the outcome for the packet, or with --fail with 1 if the packet is dropped.
//
// lab executes culvert-lab, which must be in the same folder.
//
// # The control socket
//
// A gateway serves a Unix socket to which only its own user may connect; package culvert/gateway/control documents the protocol. Commands find the
// socket themselves if one gateway runs, otherwise by --socket.
//
// # Privileges
//
// The gateway needs none: two UDP sockets above port 1023 and, unless metrics is
// "", one TCP listener. The node end needs CAP_NET_ADMIN in its network namespace.
//
// # Environment
//
// GOMAXPROCS, GOMEMLIMIT and GOGC work as in every Go program. Without them, gateways and nodes run Go code on as many
// threads as cpus in their file says, one by default; the gateway keeps Go's memory below 7/10 of its control group's
// limit, and collects garbage whenever the heap has grown by half. KUBECONFIG leads culvert liqo to its cluster, as it
// does for kubectl. NODE_NAME is the default of culvert node --node-name. Control sockets are in XDG_RUNTIME_DIR;
// without it in /run or, for users other than root, in the user's own folder in the temporary folder. No other variable
// is read.
package main
