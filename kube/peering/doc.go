// Package peering joins Kubernetes clusters without Liqo, by two resource kinds of its own: a
// Peering is one cluster's end of a tunnel to another; a TunnelNode is what the agent on a node
// tells gateways about the node.
//
//	API server ─ watches ─► Gateway ─► config.Config ─► gateway ─► Peering.status: nodes, active, conditions
//	API server ─ watches ─► Node ─► links, routes, exceptions ─► kernel ─► TunnelNode
//
// Gateway and Node are pure: objects in, desired state and faults out. They know no clock, and the
// order of objects does not matter. A GatewaySource and a NodeSource follow the API server, and
// write the results. The gateway that runs is not Gateway: a GatewaySource drives it as Running.
// Objects or parts that cannot be applied are left out, and their fields are named. What ran before
// a wrong change goes on.
//
// # The way of a Pod's address
//
//	kube.Loop            lists and watches, passes each object to its Set, begins rounds   kube/loop.go
//	into                 the Set that reads a Pod and keeps the result                     follow.go
//	podIndex             has the addresses of the pods of each node                        pods.go
//	GatewaySource.round  makes a Plan and applies it, at most ten times a second           gatewaysource.go
//	Gateway.Plan         derives all from the objects; unchanged address lists are shared  gateway.go
//	Plan.Config          has the addresses in config.Node.PodCIDRs, each as a prefix       gateway.go
//	gateway.Amend        applies a configuration with other pods alone; else Apply does    gateway/apply.go
//	nat Engine.Reroute   replaces the addresses for the source check, and the routes       nat/reroute.go
//
// The number of a node's link (config.Links) is the route's target, and its Geneve tunnel's ID.
//
// An EndpointSlice goes the same way, through sliceIndex and exportTo (export.go), and ends in
// Engine.Amend, which replaces the service's Balancer in package rules.
//
// # The way of a node's trouble
//
//	Gateway.Findings     the causes that package health has found; its doc says how       gateway/gateway.go
//	NodeTroubles         those that let nothing pass, without their remedies              cmd/culvert/gateway_kube.go
//	GatewaySource.round  asks for them each second, after it has applied a Plan           gatewaysource.go
//	Plan.troubles        adds them to what the objects say of nodes that are not ready    gateway.go
//	conditions           NodesReady, and message, which takes the most urgent condition   condition.go
//	writeStatus          the Peering's status, at most once a second for such changes     gatewaystatus.go
//
// A lost node makes no Event: they are about objects that cannot be applied, and about elections.
//
// # Services by name
//
//	Services, EndpointSlices ─► Gateway ─► config.Service       ─► gateway
//	                               └─────► exports.Export ─► package exports ═► peer
//	                                     peer ═► package exports ─► Services, EndpointSlices of one namespace
//
// A Service with LabelExport gets an address of the external CIDR of each family that it has, at
// which the gateway serves it as an entry of nat.services with its ready endpoints. So no Service
// CIDR crosses, and the pod sees its client.
//
// The address is in the Peering's status, although backups drop a status. Remaps are in spec,
// because the other cluster has them in its routes, and because the gateway may not write a spec
// and does not choose them. The peer learns the address of an export and follows changes within
// seconds. The address is derived from the Service's name, so after a loss most addresses come back
// as they were.
//
// The peer's list becomes Services and EndpointSlices in the one namespace that spec.imports names.
// The list is not trusted: import.go checks each name, address and port. An importer writes only
// objects with its own label, limits the rate of its writes, and deletes nothing while the peer is
// silent: it compares with the last complete list. Events are about the Peering, because a gateway
// may not write any elsewhere.
//
// # Multi-cluster Services
//
//	ServiceExports, Services, EndpointSlices ─► Gateway.share ─► exports.Service ─► package exports ═► peer
//	                                            peer ═► package exports ─► PeerExports ─► culvert multicluster
//
// The peer hears of the ServiceExports of the namespaces in spec.services.export, with the
// addresses that endpoints have here (share.go). What it tells of its own goes into one object,
// PeerExports (peerexports.go), and nothing of it is judged: a gateway may write nothing else for
// it, so its token is of no use to reach Services. To package exports, the Services with
// LabelExport and those of ServiceExports are one list.
//
// # Families
//
// Pods, tunnels, remaps and Services may have IPv4, IPv6 or both. A node has the same number in the
// internal CIDR of each family, and an exported Service in each external one, so that status has
// one address of it, and a second family assigns nothing anew.
package peering
