// Package lab builds two clusters out of network namespaces, with real culvert
// gateways and nodes between them, and checks them with real sockets.
//
//	rome/pod1 ─ rome/node1 ─┐                                   ┌─ milan/node1 ─ milan/pod1
//	rome/pod2 ─ rome/node2 ─┤                                   ├─ milan/node2 ─ milan/pod2
//	          rome/gateway ─┤ rome/router         milan/router ├─ milan/gateway
//	               │        └─ rome/client      milan/client ──┘        │
//	               └──────────────── 192.0.2.0/24 ──────────────────────┘
//
// Every name is a network namespace, every line a veth pair. A router is a bridge that joins a
// cluster's nodes and its gateway (the underlay) and routes to a client outside the cluster. Both
// clusters have the pod CIDR 10.0.0.0/16, the external CIDR 10.70.0.0/16 and the internal addresses
// 10.80.0.0/24; rome sees milan as 10.61.0.0/16 and 10.71.0.0/16, milan sees rome as 10.62.0.0/16
// and 10.72.0.0/16. Pods with equal addresses exist on purpose, and so do node CIDRs of unequal
// size.
//
// Labs of one kind, see Outside, have more hosts that are not pods: a second address of each
// client, represented by an external address; 11.11.11.0/24 behind each first pod; a VIP on each
// second node. There the first node routes from outside to the other cluster, and a NodePort is a
// user-space forwarder on the node, which can keep a client's address as the kernel's NAT does. For
// checks of Services that a node serves, a second culvert node runs there, with services only.
//
// # Sandboxes
//
// With Options.Sandbox a gateway is an OCI container that runsc runs inside the gateway's
// namespace. Its processes and mounts disappear with the holder. Its control groups survive a
// killed holder; their creator must remove them.
//
// # Checks
//
// A check opens its sockets with Host.Do, on a thread that has entered the host's network
// namespace; a socket stays in the namespace it was made in. Checks report the expectation and the
// observation: the source address seen by the far side, sizes, SHA-256 sums, the sender of an ICMP
// error and its quotation.
package lab
