package geneve

import (
	"encoding/binary"
	"net/netip"
)

// Neighbour discovery for IPv6 over Ethernet (RFC 4861, RFC 2464): the messages of two hosts that
// look for each other.
const (
	ndSolicitation  = 135
	ndAdvertisement = 136

	ndRouter    = 0x80 // flags of an advertisement (RFC 4861, Section 4.4)
	ndSolicited = 0x40
	ndOverride  = 0x20

	ndSource = 1 // options with the sender's link-layer address, and with the target's
	ndTarget = 2

	ipv6Len     = 40
	ndLen       = 24                            // bytes of a message without options
	ndOptionLen = 8                             // bytes of a link-layer address option (RFC 2464, Section 6)
	ndPacketLen = ipv6Len + ndLen + ndOptionLen // of a packet sent here
)

var (
	allNodes   = netip.MustParseAddr("ff02::1")
	linkLocals = netip.MustParsePrefix("fe80::/10")
)

// nd is a neighbour solicitation or advertisement.
type nd struct {
	kind, flags                 byte
	source, destination, target netip.Addr
	link                        mac // from the option; 0: there is none
}

// parseND reads the message in the IPv6 packet at the start of b, of at least ipv6Len+1 bytes. The
// rest is Ethernet padding. ok is false for messages that RFC 4861, Sections 7.1.1 and 7.1.2,
// require to be silently discarded.
func parseND(b []byte) (m nd, ok bool) {
	n := ipLength(b, etherTypeIPv6)
	if n < ipv6Len+ndLen {
		return nd{}, false
	}
	icmp := b[ipv6Len:n]
	// A hop limit of 255 proves that no router has forwarded the message, so it is not from a pod.
	if b[7] != 255 || icmp[1] != 0 || checksumICMPv6(b[:n]) != 0 {
		return nd{}, false
	}
	m = nd{
		kind: icmp[0], flags: icmp[4],
		source: netip.AddrFrom16([16]byte(b[8:])), destination: netip.AddrFrom16([16]byte(b[24:])),
		target: netip.AddrFrom16([16]byte(icmp[8:])),
	}
	wanted := byte(ndSource)
	if m.kind == ndAdvertisement {
		wanted = ndTarget
	}
	for options := icmp[ndLen:]; len(options) > 0; {
		if len(options) < 2 || options[1] == 0 || int(options[1])*8 > len(options) {
			return nd{}, false
		}
		if options[0] == wanted {
			if options[1] != 1 {
				return nd{}, false
			}
			m.link = parseMAC(options[2:])
		}
		options = options[int(options[1])*8:]
	}
	switch {
	case m.target.IsMulticast(), m.source.IsMulticast():
		return nd{}, false
	case m.kind == ndAdvertisement:
		return m, !m.destination.IsMulticast() || m.flags&ndSolicited == 0
	case m.source.IsUnspecified(): // duplicate address detection (RFC 4862, Section 5.4.2)
		return m, m.destination == solicitedNode(m.target) && m.link == 0
	}
	return m, true
}

// put writes the message, with its option, as a packet to the first ndPacketLen bytes of b.
func (m *nd) put(b []byte) {
	b = b[:ndPacketLen]
	clear(b)
	b[0], b[5], b[6], b[7] = 6<<4, ndLen+ndOptionLen, protoICMPv6, 255
	source, destination, target := m.source.As16(), m.destination.As16(), m.target.As16()
	copy(b[8:], source[:])
	copy(b[24:], destination[:])
	icmp := b[ipv6Len:]
	icmp[0], icmp[4] = m.kind, m.flags
	copy(icmp[8:], target[:])
	icmp[ndLen], icmp[ndLen+1] = ndSource, 1
	if m.kind == ndAdvertisement {
		icmp[ndLen] = ndTarget
	}
	m.link.put(icmp[ndLen+2:])
	binary.BigEndian.PutUint16(icmp[2:], checksumICMPv6(b))
}

// checksumICMPv6 returns the checksum (RFC 4443, Section 2.3) of an IPv6 packet whose first header
// is followed by ICMPv6. If the field is 0, the result belongs into it; if the field is right, the
// result is 0.
func checksumICMPv6(b []byte) uint16 {
	sum := uint32(len(b)-ipv6Len) + protoICMPv6
	for b = b[8:]; len(b) > 1; b = b[2:] { // the addresses, then the message
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) > 0 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// solicitedNode returns the solicited-node multicast address of a (RFC 4291, Section 2.7.1).
func solicitedNode(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]})
}

// groupMAC returns the MAC address of frames to an IPv6 group (RFC 2464, Section 7).
func groupMAC(group netip.Addr) mac {
	b := group.As16()
	return 0x3333<<32 | mac(binary.BigEndian.Uint32(b[12:]))
}

// linkLocal returns the link-local address that a host derives from m (RFC 4291, Appendix A).
func (m mac) linkLocal() netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: byte(m>>40) ^ 2, 9: byte(m >> 32), 10: byte(m >> 24),
		11: 0xff, 12: 0xfe,
		13: byte(m >> 16), 14: byte(m >> 8), 15: byte(m)})
}
