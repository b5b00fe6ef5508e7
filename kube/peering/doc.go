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
// Only IPv4 crosses these peerings so far.
package peering
