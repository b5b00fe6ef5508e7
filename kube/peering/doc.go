// Package peering joins Kubernetes clusters without Liqo, by two resource kinds of its own: a
// Peering is one cluster's end of a tunnel to another; a TunnelNode is what the agent on a node
// tells gateways about the node.
//
//	API server ─ watches ─► Gateway ─► config.Config ─► gateway ─► Peering.status: nodes, active, conditions
//	API server ─ watches ─► Node ─► links, routes, exceptions ─► kernel ─► TunnelNode
//
// Gateway and Node are pure: objects in, desired state and faults out. They know no clock, and the
// order of objects does not matter. A GatewaySource and a NodeSource follow the API server, and
// write the results. Objects or parts that cannot be applied are left out, and their fields are
// named. What ran before a wrong change goes on.
//
// # Services by name
//
//	Services, EndpointSlices ─► Gateway ─► config.Service       ─► gateway
//	                               └─────► exports.Export ─► package exports ═► peer
//	                                     peer ═► package exports ─► Services, EndpointSlices of one namespace
//
// A Service with LabelExport gets an address of the external CIDR, at which the gateway serves it
// as an entry of nat.services with its ready endpoints. So no Service CIDR crosses, and the pod
// sees its client. The address is in the Peering's status, although backups drop a status. Remaps
// are in spec, because the other cluster has them in its routes, and because the gateway may not
// write a spec and does not choose them. The peer learns the address of an export and follows
// changes within seconds. The address is derived from the Service's name, so after a loss most
// addresses come back as they were.
//
// The peer's list becomes Services and EndpointSlices in the one namespace that spec.imports names.
// The list is not trusted: import.go checks each name, address and port. An importer writes only
// objects with its own label, limits the rate of its writes, and deletes nothing while the peer is
// silent: it compares with the last complete list. Events are about the Peering, because a gateway
// may not write any elsewhere.
//
// Only IPv4 crosses these peerings so far.
package peering
