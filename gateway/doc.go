// Package gateway opens the parts of one gateway, joins them, applies configurations and closes
// them: pod traffic between the nodes of the local cluster and one remote cluster, in one process
// with two UDP sockets.
//
// # Words
//
// Outbound is traffic that leaves the local cluster through the WireGuard tunnel, inbound
// traffic that enters through it. The internal network is one Geneve (or VXLAN) tunnel per
// node, the external network one WireGuard tunnel per peering.
//
// # Packages
//
// To follow a packet, start with package path; package wg feeds wireguard-go and keeps it in
// bounds. Three packages stand beside the path, which imports none of them: monitor finds
// faults, inspect answers questions, lifecycle passes state between the processes before and
// after this one. This package opens them, joins them, runs and closes them (gateway.go), and
// applies configurations to them (apply.go). sweep.go does what is due each second.
//
// # Memory
//
// budget.go divides the process's memory. Packets that wireguard-go cannot take yet stay in
// the sockets' receive buffers, and overflow there (see package wg).
package gateway
