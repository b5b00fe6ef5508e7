// Package links gives a node tunnel links: TUN devices whose packets one UDP socket carries to
// gateways in Geneve (RFC 8926). It serves nodes whose kernel has no Geneve links, and leaves addresses
// outside the tunnel, routes and rules to whoever asked for the links.
//
//	routes of others ─ liqo.abc ─┐
//	                             ├─ UDP 6091 ══ gateways, told apart by address and VNI
//	routes of others ─ liqo.xyz ─┘
//
// A Set is told the desired links (Apply) and makes the machine follow (Run): devices, their MTU and their
// address, never a route or a rule. What it cannot do for one link it says in that link's Status; other
// links are not affected.
//
// # What outlives the process
//
// Devices are persistent and belong to the link group Group. Each has its tunnel in its alias (ip link
// shows it), so that the next process carries its packets at once, before anybody has told it what is
// desired. Routes through a device stay meanwhile. Remove deletes all devices of the group.
//
// # Goroutines and locks
//
// Run reconciles in its own goroutine. One goroutine receives for all links and writes to their devices; each
// device has a goroutine that reads it and sends. Apply and Status are safe for all.
package links
