package geneve

import (
	"encoding/binary"
	"time"
)

// IP protocol numbers and ICMPv6 types that this file needs.
const (
	protoHopByHop = 0
	protoUDP      = 17
	protoICMPv6   = 58
)

// decap strips the headers of one datagram of tunnel t in encapsulation encap, and returns the
// inner IP packet without padding. For a datagram addressed to ourselves (ARP, neighbour discovery)
// it returns no packet and Accepted. borrowed: the packet is a part of b and may have been
// rewritten (ECN).
func (e *Endpoint) decap(t *tunnel, encap Encap, b []byte, tos uint8, now time.Duration) ([]byte, Reason) {
	inner, protocol, r := t.header(encap, b)
	if r != Accepted {
		return nil, r
	}
	if protocol == etherTypeEthernet {
		return e.frame(t, encap, inner, tos, now)
	}
	if protocol == etherTypeIPv6 && isNeighbourDiscovery(inner) {
		return nil, NeighbourDiscovery
	}
	return packet(inner, protocol, tos)
}

// frame handles an inner Ethernet frame.
func (e *Endpoint) frame(t *tunnel, encap Encap, b []byte, tos uint8, now time.Duration) ([]byte, Reason) {
	if len(b) < ethernetLen {
		return nil, Truncated
	}
	to, from, etherType := parseMAC(b), parseMAC(b[6:]), binary.BigEndian.Uint16(b[12:])
	inner := b[ethernetLen:]
	switch {
	case from == 0 || from&macGroup != 0 || from == t.self:
		return nil, BadMAC
	case etherType == etherTypeARP:
		return nil, e.neighbours.arp(t, to, newSpeaker(encap, from), inner, now)
	case etherType != etherTypeIPv4 && etherType != etherTypeIPv6:
		return nil, UnknownEtherType
	case etherType == etherTypeIPv6 && isNeighbourDiscovery(inner):
		return nil, e.neighbours.discover(t, to, newSpeaker(encap, from), inner, now)
	case to&macGroup != 0:
		return nil, Multicast
	case to != t.self:
		return nil, OtherMAC
	}
	ip, r := packet(inner, etherType, tos)
	if r == Accepted {
		e.neighbours.heard(t, newSpeaker(encap, from), now)
	}
	return ip, r
}

// packet checks the length of an inner IP packet, cuts off padding, and applies the outer
// congestion mark.
func packet(b []byte, etherType uint16, tos uint8) ([]byte, Reason) {
	n := ipLength(b, etherType)
	if n < 0 {
		return nil, BadLength
	}
	b = b[:n:n]
	if !decapECN(b, tos) {
		return nil, ECN
	}
	return b, Accepted
}

// ipLength returns the size in bytes of the IP packet at the start of b, according to its header,
// or -1 if it does not have the header that etherType says or b is too short.
func ipLength(b []byte, etherType uint16) int {
	switch {
	case etherType == etherTypeIPv4 && len(b) >= 20 && b[0]>>4 == 4:
		n, headerLen := int(binary.BigEndian.Uint16(b[2:])), int(b[0]&0xf)*4
		if headerLen >= 20 && n >= headerLen && n <= len(b) {
			return n
		}
	case etherType == etherTypeIPv6 && len(b) >= 40 && b[0]>>4 == 6:
		if n := 40 + int(binary.BigEndian.Uint16(b[4:])); n <= len(b) {
			return n
		}
	}
	return -1
}

// isNeighbourDiscovery reports whether an IPv6 packet is one that a kernel link sends by itself:
// multicast listener discovery (RFC 3810, after a hop-by-hop header), router and neighbour
// discovery (RFC 4861).
func isNeighbourDiscovery(ip []byte) bool {
	if len(ip) < 41 || ip[0]>>4 != 6 {
		return false
	}
	next, rest := ip[6], ip[40:]
	if next == protoHopByHop {
		if len(rest) < 8 {
			return false
		}
		next = rest[0]
		rest = rest[min(8+8*int(rest[1]), len(rest)):]
	}
	if next != protoICMPv6 || len(rest) == 0 {
		return false
	}
	kind := rest[0]
	return kind >= 130 && kind <= 137 || kind == 143
}

// length returns the size in bytes that the datagram at the start of b must have according to its
// own headers, without padding, or -1 if they do not say.
func (t *tunnel) length(e Encap, b []byte) int {
	if len(b) < headerLen {
		return -1
	}
	inner, protocol, r := t.header(e, b)
	if r != Accepted {
		return -1
	}
	if protocol == etherTypeEthernet {
		if len(inner) < ethernetLen {
			return -1
		}
		protocol = binary.BigEndian.Uint16(inner[12:])
		inner = inner[ethernetLen:]
	}
	n := ipLength(inner, protocol)
	if protocol == etherTypeARP && len(inner) >= arpLen {
		n = arpLen
	}
	if n < 0 {
		return -1
	}
	return len(b) - len(inner) + n
}

// maxInnerSegments is the largest UDP_MAX_SEGMENTS of any Linux kernel: no genuine train has more.
const maxInnerSegments = 128

// isUDPTrain reports whether an IP packet accepted by ipLength is one unfragmented UDP datagram
// whose payload is more than one segment and no more than a kernel sends at once.
func isUDPTrain(ip []byte, segment int) bool {
	var udp []byte
	if ip[0]>>4 == 4 {
		const fragment = 0x3fff // more fragments, or an offset
		if ip[9] != protoUDP || binary.BigEndian.Uint16(ip[6:])&fragment != 0 {
			return false
		}
		udp = ip[int(ip[0]&0xf)*4:]
	} else {
		if ip[6] != protoUDP {
			return false
		}
		udp = ip[40:]
	}
	return len(udp) > 8+segment && len(udp) <= 8+segment*maxInnerSegments &&
		int(binary.BigEndian.Uint16(udp[4:])) == len(udp)
}
