// Package remote routes the addresses of other clusters through links of a node, and preserves the
// source addresses of packets that go there.
//
//	pod ─► route to 10.61.0.0/16 ─► link to the gateway
//	       └ nftables: source stays the pod's
//
// Apply sets the desired Peers of a Keeper, and Run makes the kernel match them: by routes in the
// main table, and by an nftables table for each family, Table. It makes no link. It restores what
// others remove. If it fails for one Peer, that Peer's Status says why.
//
// # Routes
//
// Routes carry the protocol number Protocol, so that the next process recognises them. They
// disappear with their link. Routes of other programs are not replaced: a new Peer is refused if
// this node reaches its addresses by another program's route. A Peer that has routes keeps them,
// and gets none to such addresses: one wrong CIDR of several does not cut off the others, and
// neither does a network that the node gets later.
//
// Where rules of other programs have another table decide about packets of pods, rules of this
// package let the main table decide about those to Peers (rule.go).
//
// # The exception from masquerade
//
// CNIs give packets that leave the cluster the node's source. To the gateway, all pods would then
// be one unknown source. So a chain at priority 99, before the 100 of iptables' and nftables' own
// source NAT, translates the source of a connection to itself: a connection that has a translation
// gets no second one. It does so for packets from local pods to remote addresses, and in the
// opposite direction, because some CNIs masquerade packets from outside the cluster. If the node
// serves Services itself, a packet first leaves through the device for Services, and keeps its
// source there too. What a pod of another node sends to a NodePort here is left to the node's
// masquerade: its answers have to come back by this node.
//
// The same chain keeps the source of packets from the gateway's own pod to nodes through their
// tunnels. Otherwise they would have the node's source whenever the gateway speaks first, and
// agents do not know the gateway by that address.
//
// # The guard
//
// The node's masquerade would also make a pod the node at a gateway, and a pod can send with a
// gateway's source where no reverse path is checked. Two more chains, in both families, drop such
// packets to the tunnels' port (guard.go). A Keeper of NewGuard keeps these alone.
package remote
