// Package announce makes one node answer at layer 2 for addresses that no host has: its kernel
// answers ARP and neighbour solicitations, so no packet socket is needed. With CAP_NET_RAW,
// neighbours get gratuitous ARP and unsolicited advertisements (garp.go).
package announce
