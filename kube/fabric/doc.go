// Package fabric has a node's tunnel links follow Liqo's resources, where the node's kernel has no Geneve.
//
//	API server ─ watches ─► State ─► []links.Link ─► gateway/node/links
//
// A State is pure: resources in, links and faults out. A Source follows the resources, hands links on, and
// writes an Event for each fault. Routes and rules through the links are Liqo's own agent's.
//
// Each watch has a goroutine, which changes the State under a mutex; Source.Run does the rest in one.
package fabric
