// Package peering joins Kubernetes clusters without Liqo, by two kinds of its own: a Peering is one cluster's end of a tunnel to another,
// a TunnelNode what the agent on a node tells gateways of it.
//
//	API server ─ watches ─► Gateway ─► config.Config ─► gateway ─► Peering.status: nodes, active, conditions
//	API server ─ watches ─► Node ─► links, routes, exceptions ─► kernel ─► TunnelNode
//
// Gateway and Node are pure: objects in, what is wanted and what is wrong out. They know no clock, and the order in which objects come
// does not matter. A GatewaySource and a NodeSource follow the API server, and write what became of it. What cannot be obeyed is left
// out, and its field is named.
//
// # Services by name
//
//	Services, EndpointSlices ─► Gateway ─► config.Service       ─► gateway
//	                               └─────► exports.Export ─► package exports ═► peer
//	                                                 peer ═► package exports ─► Services, EndpointSlices of one namespace
//
// A Service with LabelExport has an address of the external CIDR, at which the gateway serves it as an entry of nat.services with its ready
// endpoints. So no Service CIDR crosses, and the pod sees its client. The address is in the Peering's status, although a backup drops that. Remaps are
// in spec, because the other cluster has them in its routes, and because the gateway, which could not write a spec, does not choose them. An address
// of an export is told to the peer, which follows it within seconds; and it follows from the Service's name, so that most come back as they were.
//
// What the peer tells becomes Services and EndpointSlices of the one namespace that spec.imports names. Nothing of it is believed: import.go says
// what a name, an address and a port have to be. An importer writes only what has its own label, is bounded in its writes, and deletes nothing while
// the peer is silent: it compares with the last list that was whole. Events are about the Peering, because a gateway may write none elsewhere.
//
// Only IPv4 crosses these peerings so far.
package peering
