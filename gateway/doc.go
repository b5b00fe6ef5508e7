// Package gateway is one gateway: pod traffic between the nodes of the local
// cluster and one remote cluster, in one process with two UDP sockets.
//
// # Words
//
// Outbound is what leaves the local cluster by the WireGuard tunnel, inbound what
// enters it. The internal network is one Geneve (or VXLAN) tunnel per node, the
// external network one WireGuard tunnel per peering.
//
// # Packages
//
// To read what becomes of a packet, begin with package path; package wg keeps wireguard-go fed and in bounds. Three others stand beside the
// path, which imports none of them: monitor says what is the case, inspect tells whoever asks, lifecycle has to do with the process before and
// after this one. This package opens them, joins them, applies configurations to them (package config), and closes them in order: gateway.go.
// What is due each second: sweep.go.
//
// # Memory
//
// budget.go divides what the process may have. What wireguard-go cannot take yet (package
// wg says what bounds it) stays in the sockets' receive buffers, and overflows there.
package gateway
