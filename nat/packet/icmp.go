package packet

import (
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// Forwardable reports whether a router forwards the packet: ICMP redirects, router and neighbour
// discovery and group membership belong to one link, and source quench is obsolete (RFC 6633,
// Section 3).
func (p *Packet) Forwardable() bool {
	if !IsICMP(p.protocol) || p.fragmentOffset > 0 {
		return true
	}
	kind := p.data[p.transport]
	if p.v6 {
		return kind < 130 || kind > 153 // RFC 4443, Section 2.1; RFC 4861; RFC 3810
	}
	switch kind {
	case 4, 5, 9, 10: // source quench, redirect, router advertisement and solicitation
		return false
	}
	return true
}

// minMTU6 is what every link of IPv6 carries (RFC 8200, Section 5).
const minMTU6 = 1280

// IsValidICMP verifies the checksum of an ICMP error (RFC 5508, Section 4.1, REQ-3): an error is
// short, and may end a host's connection. It does not verify first fragments. A Packet Too Big
// message with an MTU below the IPv6 minimum is invalid (RFC 8201, Section 4). Preconditions:
// p.IsICMPError().
func (p *Packet) IsValidICMP() bool {
	if p.v6 && p.data[p.transport] == byte(header.ICMPv6PacketTooBig) && p.AnnouncedMTU() < minMTU6 {
		return false
	}
	if p.fragment {
		return true // the receiver verifies the whole
	}
	b := p.data[p.transport:]
	s := sum(b)
	if p.v6 {
		s = add(s, pseudoHeader(p.addresses(), ICMPv6, len(b)))
	}
	return s == 0xffff
}

// Quoted makes q a lenient view of the packet that the ICMP error p quotes: headers are checked as
// far as they are read, lengths may exceed what is there. It returns false if the quotation is too
// short, or quotes another error. Only Tuple, Rewrite and the methods about Parse's findings,
// except Fault, may be called on q. Preconditions: p.IsICMPError().
//
// borrowed: q refers to the bytes of p.
func (p *Packet) Quoted(q *Packet) bool {
	b := p.data[p.transport+8:]
	*q = Packet{data: b, v6: p.v6}
	if p.v6 {
		if len(b) < header.IPv6MinimumSize || b[0]>>4 != 6 || q.parseChain() != NoFault {
			return false
		}
	} else {
		if len(b) < header.IPv4MinimumSize || b[0]>>4 != 4 {
			return false
		}
		q.transport = int(b[0]&0xf) * 4
		if q.transport < header.IPv4MinimumSize || q.transport > len(b) {
			return false
		}
		q.protocol = b[9]
		q.fragmentOffset = int(binary.BigEndian.Uint16(b[6:])&0x1fff) * 8
	}
	if q.fragmentOffset > 0 {
		return true
	}
	return q.quotedTransport(b[q.transport:])
}

// quotedTransport needs the 8 bytes that RFC 792 guarantees. A checksum after them is adjusted if
// it was quoted.
func (q *Packet) quotedTransport(b []byte) bool {
	checksum := 0
	switch q.protocol {
	case TCP:
		q.hasPorts, checksum = true, 16
	case UDP, UDPLite, DCCP:
		q.hasPorts, checksum = true, 6
	case SCTP:
		q.hasPorts = true
	case ICMP, ICMPv6:
		if len(b) < 8 || q.parseICMP(b) != NoFault || q.icmpError {
			return false
		}
		return true
	default:
		return true
	}
	if checksum != 0 && len(b) >= checksum+2 {
		q.checksumAt = q.transport + checksum
	}
	return len(b) >= 8
}

// RewriteQuoted gives the quoted packet q, a view into p, the addresses and ports of to, and
// corrects the ICMP checksum of p. q's tuple is from. The checksum of SCTP is left unchanged.
func (p *Packet) RewriteQuoted(q *Packet, from, to *Tuple) {
	end := min(len(q.data), q.transport+header.TCPMinimumSize)
	before := sum(q.data[:end])
	addresses, ports := Deltas(from, to)
	q.Rewrite(to, addresses, ports)
	adjustAt(p.data, p.checksumAt, delta(before, sum(q.data[:end])))
}

// AnnouncedMTU returns the MTU, in bytes, that a Fragmentation Needed or Packet Too Big message
// announces, 0 for any other. Preconditions: p.IsICMPError().
func (p *Packet) AnnouncedMTU() int {
	b := p.data[p.transport:]
	switch {
	case p.v6 && b[0] == byte(header.ICMPv6PacketTooBig):
		return int(min(binary.BigEndian.Uint32(b[4:]), 0xffff))
	case !p.v6 && b[0] == byte(header.ICMPv4DstUnreachable) && b[1] == byte(header.ICMPv4FragmentationNeeded):
		return int(binary.BigEndian.Uint16(b[6:])) // RFC 1191, Section 4
	}
	return 0
}

// Forwardable reports whether a router forwards packets from and to a: it is not multicast,
// broadcast, loopback, link-local or "this network".
func Forwardable(a netip.Addr) bool {
	if a.IsMulticast() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsUnspecified() {
		return false
	}
	if a.Is4() {
		b := a.As4()
		return b[0] != 0 && b[0] < 240 // RFC 1122, Section 3.2.1.3; RFC 1112, Section 4
	}
	return !a.Is4In6()
}
