// Package fabric derives a node's tunnel links from Liqo's resources, for nodes whose kernel has no
// Geneve.
//
//	API server ─ watches ─► State ─► []links.Link ─► gateway/node/links
//
// A State is pure: resources in, links and faults out. A Source follows the resources, passes the
// links on, and writes an Event for each fault. Liqo's own agent makes the routes and rules through
// the links. Links lead to the pod that is labelled as the active gateway, so that Liqo's
// controller may be away when a gateway moves.
package fabric
