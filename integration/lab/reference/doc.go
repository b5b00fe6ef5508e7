// Package reference is the gateway with which the lab compares culvert: wireguard-go on a TUN
// device, and the kernel's VXLAN links, routes and nftables. It reads a gateway's configuration.
package reference
