// Command culvert carries pod traffic between Kubernetes clusters in user space.
//
// Two Kubernetes clusters:
//
//	culvert join --context NAME --context NAME... --push REF | --image IMAGE
//	culvert invite | accept FILE
//	culvert verify --context NAME --context NAME...
//	culvert services --context NAME...
//	culvert leave --context NAME --peer NAME | --all
//	culvert kube template
//	culvert image push REF | save FILE | load
//	culvert multicluster [crds]
//
// Under Liqo:
//
//	culvert liqo template --image NAME [--offline [--release NAME]] | check [NAMESPACE/NAME]
//
// What runs:
//
//	culvert gateway --config FILE [--check [-o json]] | --liqo | --kube
//	culvert node --config FILE [--check] | --services[=all] [--config FILE] | --liqo | --kube
//
// A running gateway or node:
//
//	culvert status [--watch | --from FILE]
//	culvert connections [--watch] [delete]
//	culvert trace [-v] [--fail] [--from NODE] PROTOCOL SOURCE DESTINATION | --flow ID
//	culvert capture [--at STAGES] [--drops] [-w FILE]
//	culvert reload [--dry-run]
//	culvert rules | routes
//	culvert page [--port PORT]
//	culvert gather [--context NAME...] [--anonymise] [-w FILE]
//
// The rest:
//
//	culvert init DIR [--here | --side client | --side server]
//	culvert doctor [--config FILE | --socket SOCKET]
//	culvert keygen FILE [--public]
//	culvert ipam list | acquire [PEER KIND REAL] | release PEER [KIND REAL] --config FILE | --file FILE
//	culvert ipam check FILE [PEER'S FILE]
//	culvert lab …
//	culvert help config
//	culvert completion bash | zsh | fish
//	culvert version [-o json | yaml]
//
// # Signals
//
// SIGTERM and SIGINT stop every command cleanly, with exit status 0. SIGHUP makes the gateway read
// its file again; a file that has any fault, or changes anything that needs a restart, is refused
// as a whole and the running configuration stays.
//
// # Exit status
//
//	0  done
//	1  something that had started failed; ipam check: remaps needed;
//	   liqo check: it would not work; doctor: a gateway cannot work here;
//	   gather: the archive lacks something
//	2  bad input: arguments, configuration, a port in use, a missing privilege;
//	   standard error has one line per cause, and nothing is left behind
//
// The commands that talk to a running gateway (status …) exit with 2 if none answers or the gateway
// refuses the request, and with 1 if it disappears while answering. trace exits with 0 whatever the
// outcome for the packet, or with --fail with 1 if the packet is dropped.
//
// lab executes culvert-lab, which must be in the same folder.
//
// # The control socket
//
// A gateway serves a Unix socket to which only its own user may connect; package
// culvert/gateway/control documents the protocol. Commands find the socket themselves if one
// gateway runs, otherwise by --socket.
//
// # Privileges
//
// The gateway needs none: two UDP sockets above port 1023 and, unless metrics is
// "", one TCP listener. The node end needs CAP_NET_ADMIN in its network namespace.
//
// # Environment
//
// GOMAXPROCS, GOMEMLIMIT and GOGC work as in every Go program. Without them, gateways and nodes run
// Go code on as many threads as cpus in their file says, one by default; the gateway keeps Go's
// memory below 7/10 of its control group's limit, and collects garbage whenever the heap has grown
// by half. KUBECONFIG leads to clusters, as it does for kubectl. NODE_NAME, POD_NAMESPACE, POD_NAME
// and POD_IPS are defaults of flags of gateway and node; in a pod, KUBERNETES_SERVICE_HOST and
// KUBERNETES_SERVICE_PORT lead to the API server. Control sockets are in RUNTIME_DIRECTORY under
// systemd, else in XDG_RUNTIME_DIR; without both in /run or, for users other than root, in the
// user's own folder in the temporary folder. NOTIFY_SOCKET and CREDENTIALS_DIRECTORY are systemd's:
// sd_notify(3), and the folder of a key whose file has no path. Clients of API servers take
// HTTPS_PROXY and NO_PROXY as Go's net/http does.
package main
