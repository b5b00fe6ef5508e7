package genevetest

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// Solicit returns the IPv6 packet of a neighbour solicitation (RFC 4861, Section 4.3) to the
// multicast group of the target's address, or to the address itself. It has the option with the
// sender's MAC address unless that is zero.
func Solicit(source, target netip.Addr, mac [6]byte, multicast bool) []byte {
	destination := target
	if multicast {
		a := target.As16()
		destination = netip.AddrFrom16([16]byte{0xff, 0x02, 11: 1, 12: 0xff, 13: a[13], 14: a[14], 15: a[15]})
	}
	body := slices.Concat([]byte{135, 0, 0, 0, 0, 0, 0, 0}, target.AsSlice())
	if mac != [6]byte{} {
		body = slices.Concat(body, []byte{1, 1}, mac[:])
	}
	return Discovery(source, destination, body)
}

// Advertise returns the IPv6 packet of a neighbour advertisement (RFC 4861, Section 4.4) with the
// given flags, and with the option unless the MAC address is zero.
func Advertise(target, destination netip.Addr, flags byte, mac [6]byte) []byte {
	body := slices.Concat([]byte{136, 0, 0, 0, flags, 0, 0, 0}, target.AsSlice())
	if mac != [6]byte{} {
		body = slices.Concat(body, []byte{2, 1}, mac[:])
	}
	return Discovery(target, destination, body)
}

// Discovery returns the IPv6 packet of an ICMPv6 message of neighbour discovery, whose checksum it
// fills in.
func Discovery(source, destination netip.Addr, body []byte) []byte {
	pseudo := slices.Concat(source.AsSlice(), destination.AsSlice(), []byte{0, 0, 0, byte(len(body)), 0, 0, 0, 58})
	binary.BigEndian.PutUint16(body[2:], ^Sum(append(pseudo, body...)))
	b := IP(source, destination, 58, 0, body)
	b[7] = 255
	return b
}

// GroupMAC returns the MAC address of frames to an IPv6 group (RFC 2464, Section 7).
func GroupMAC(group netip.Addr) [6]byte {
	a := group.As16()
	return [6]byte{0x33, 0x33, a[12], a[13], a[14], a[15]}
}

// discover handles neighbour discovery from the gateway, and returns false for anything else.
func (n *Node) discover(to, from [6]byte, ip []byte) bool {
	if len(ip) < 64 || ip[0]>>4 != 6 || ip[6] != 58 || ip[40] != 135 && ip[40] != 136 {
		return false
	}
	source, destination, target := netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:])),
		netip.AddrFrom16([16]byte(ip[48:]))
	if to != n.MAC && (!destination.IsMulticast() || to != GroupMAC(destination)) {
		n.tb.Errorf("genevetest: node %v: discovery to % x for %v", n.Address6, to, destination)
	}
	if source == n.GatewayAddress6 {
		n.learn(from)
	}
	if ip[40] == 135 && target == n.Address6 {
		const solicited, override = 0x40, 0x20
		n.SendRaw(n.tunnel(Frame(from, n.MAC, IPv6, Advertise(n.Address6, source, solicited|override, n.MAC))))
	}
	return true
}
