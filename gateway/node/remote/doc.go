// Package remote leads the addresses of other clusters through links of a node, and keeps the node from giving such packets another
// source.
//
//	pod ─► route to 10.61.0.0/16 ─► link to the gateway
//	       └ nftables: source stays the pod's
//
// A Keeper is told the desired Peers (Apply) and makes the kernel follow (Run): routes in the main table, and one nftables table, Table. It
// makes no link. What others remove it puts back. What it cannot do for one Peer it says in that Peer's Status.
//
// # Routes
//
// Routes carry the protocol number Protocol, by which the next process knows them. They go with their link. No route of others is
// replaced: a Peer whose addresses this node reaches in another way is refused.
//
// # The exception from masquerade
//
// CNIs give packets that leave the cluster the node's source. For the gateway that would be one unknown source for all pods. A chain at
// priority 99, before the 100 of iptables' and nftables' own source NAT, translates the source of a connection to what it is already: a
// connection that has a translation gets no second one. It does so from local pods to remote addresses, and back, where some CNIs
// masquerade what comes from outside of the cluster. Where the node serves Services itself, a packet leaves for their device before it leaves for the
// other cluster: there too its source stays.
//
// The same chain keeps the source of what the gateway's own pod sends to nodes through their tunnels. Otherwise it would be the node's
// whenever the gateway speaks first, and no agent knows the gateway by that.
package remote
