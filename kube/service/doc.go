// Package service derives what a node serves from a cluster's Services and EndpointSlices, as
// kube-proxy does.
//
//	API server ─ watches ─► Object ─► State ─► services.Config ─► gateway/node/services
//	     ▲                              │
//	     └──────────── Source ◄─────────┴─ Events
//
// A State is the pure half: it uses no clock, and the order of objects does not matter. Each port
// of a Service becomes a services.Service per family, with the endpoints that kube-proxy would
// choose on this node (endpoint.go). What cannot be served is left out at the smallest possible
// scope: an endpoint, an address, a port, or the whole object. The field is reported, and
// everything else is served.
//
// health.go answers the health checks of load balancers (healthCheckNodePort).
//
// announce.go chooses which node announces a load balancer address at layer 2, from what all nodes
// see alike: Services, their endpoints, Nodes, and which nodes are alive according to Leases
// (lease.go, holder.go).
package service
