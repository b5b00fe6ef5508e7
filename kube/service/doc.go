// Package service makes of a cluster's Services and EndpointSlices what a node serves, as kube-proxy does.
//
//	API server ─ watches ─► Object ─► State ─► services.Config ─► gateway/services
//	     ▲                              │
//	     └──────────── Source ◄─────────┴─ Events
//
// A State is the pure half: it knows no clock, and the order in which objects come does not matter. Each port of a Service becomes a
// services.Service for each family that the Service has, with the endpoints that kube-proxy would choose on this node (endpoint.go).
// What cannot be served is left out as finely as it can be named: an endpoint, an address, a port, or the whole object. The field is
// named, and all else is served.
//
// Health checks of load balancers (healthCheckNodePort) are answered by health.go.
//
// Which node answers at layer 2 for an address of a load balancer, announce.go chooses, from what all nodes see alike: Services, their
// endpoints, Nodes, and which nodes are alive. That last is what Leases say (lease.go, holder.go).
package service
