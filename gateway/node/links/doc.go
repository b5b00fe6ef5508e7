// Package links gives a node tunnel links: TUN devices whose packets one UDP socket carries to
// gateways in Geneve (RFC 8926). It serves nodes whose kernel has no Geneve links. Addresses
// outside the tunnel, routes and rules are left to the program that requests the links.
//
//	routes of others ─ liqo.abc ─┐
//	                             ├─ UDP 6091 ══ gateways, told apart by address and VNI
//	routes of others ─ liqo.xyz ─┘
//
// Apply sets the desired links of a Set, and Run makes the machine match them: devices, their MTU
// and their addresses, never a route or a rule. If it fails for one link, that link's Status says
// why; other links are not affected.
//
// # What outlives the process
//
// Devices are persistent, have this process's user as owner, and belong to the link group Group.
// Each device's alias describes its tunnel (ip link shows it), so that the next process carries its
// packets at once, before it knows the desired links. Routes through a device stay meanwhile.
// Remove deletes all devices of the group.
//
// # Goroutines and locks
//
// Run reconciles in its own goroutine. One goroutine receives for all links and writes to their
// devices; each device has a goroutine that reads from it and sends. Apply and Statuses are safe
// for concurrent use.
package links
