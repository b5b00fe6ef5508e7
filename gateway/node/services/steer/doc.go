// Package steer makes the kernel lead packets to a TUN device, by routes and policy rules, and lets
// packets from the device pass. It knows which packets (Plan), and not what they are for.
//
// # The local table
//
// A rule before the local table needs the local table's own rule moved, because that has priority 0
// and nothing can come before it. local.go adds a later rule for the local table, and only then
// removes the one at 0; at the end it restores that one before it removes the other. So one of them
// exists at any moment, whenever this process dies. The device and its routes end with the process,
// and rules for an empty table have no effect, so leftovers do not affect the node's own traffic.
//
// # Leftovers
//
// All rules and routes have the kernel's protocol number, because systemd-networkd removes those of
// others whenever it starts (ManageForeignRoutingPolicyRules), and the only rule for the local
// table may be among them. A later run recognises the leftovers of an earlier one by that number
// and by their content (steering.go).
//
// # Addresses that the kernel answers for
//
// The kernel must stop answering when this process dies, so that another node can take over, even
// if a kill leaves the device behind. So the answering addresses have a route by a device that
// never outlives the process (vip.go), and packets to them have another route.
package steer
