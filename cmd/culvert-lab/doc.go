// Command culvert-lab runs two clusters in network namespaces, with culvert as their gateways and
// nodes: to explore, to check, to break and to measure.
//
//	culvert-lab check [ipv4|dual|restart|attacks|v6-inside|v6-outside]…
//	culvert-lab up | down | exec CLUSTER/HOST [--] COMMAND… | status | restart CLUSTER/HOST
//	culvert-lab break [FAULT…] | mend [FAULT…]
//	culvert-lab bench
//	culvert-lab probe
//	culvert-lab completion bash | zsh | fish
//	culvert-lab version [-o json | yaml]
//
// check, up and bench run the culvert in the same folder as this program, or the one named by
// --culvert. Both must have the same version, because the lab depends on that version's files and
// output.
//
// # Exit status
//
//	0  done
//	1  something that had started failed, or a check did
//	2  bad input: arguments, a missing privilege, no culvert or another version of it;
//	   standard error has one line per cause, and nothing is left behind
//
// exec ends with the status of its command, or with 128 plus the signal's number if a signal ended
// it.
//
// # Privileges
//
// The lab needs root, or user namespaces.
//
// # Environment
//
// Labs have their folders in XDG_RUNTIME_DIR; without it in /run or, for users other than root, in
// the user's own folder in the temporary folder.
package main
