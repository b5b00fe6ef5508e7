package packet

import "encoding/binary"

// A Fault is why the bytes given to Parse cannot be forwarded.
type Fault uint8

// The faults.
const (
	NoFault     Fault = iota
	Malformed         // a length, version or header checksum is wrong
	SourceRoute       // an IPv4 source route option or an IPv6 routing header with segments left
)

// A Packet is a view of one IPv4 or IPv6 packet. Parse fills it, Rewrite and others change its
// bytes, a Cutter reads them.
type Packet struct {
	// SegmentSize is set by the caller, after Parse, for a train of UDP datagrams under one header:
	// the payload, in bytes, of each datagram but the last. 0 means a single packet.
	SegmentSize int
	// Hint is set by code that looks the packet up ahead of time, for its own use. Parse sets it to
	// 0.
	Hint uint32

	// borrowed: the caller's bytes, valid until the caller reuses its buffer; cut to the length in
	// the IP header.
	data []byte
	lead *ProxyHeader // what a Cutter writes before the payload; nil: nothing

	transport      int // offset of the transport header; everything before it belongs to IP
	checksumAt     int // offset of the transport checksum; 0 if there is none or it is out of reach
	fragmentAt     int // offset of the IPv6 Fragment header, 0 if none
	fragmentOffset int // in bytes
	protocol       uint8
	v6             bool
	fragment       bool // offset or more-fragments flag set
	more           bool // more fragments follow
	partial        bool // the TCP or UDP checksum holds only the pseudo-header sum
	hasPorts       bool // ports at transport
	hasIdent       bool // ICMP identifier at transport+4
	icmpError      bool // the ICMP body quotes a packet at transport+8
	parsed         bool
	fault          Fault // what Parse found
}

// Parse makes p a view of the packet at the start of b and checks everything that the other methods
// rely on: versions, lengths, the IPv4 header checksum, the chain of IPv6 extension headers, the
// transport header unless b is a later fragment. Bytes after the packet (link padding) are ignored.
// SegmentSize becomes 0. Parse returns the same as p.Fault, and does not change b.
//
// borrowed: p refers to b until the next Parse.
func (p *Packet) Parse(b []byte) Fault {
	*p = Packet{}
	p.fault = p.parse(b)
	p.parsed = p.fault == NoFault
	return p.fault
}

func (p *Packet) parse(b []byte) Fault {
	if len(b) == 0 {
		return Malformed
	}
	var f Fault
	switch b[0] >> 4 {
	case 4:
		f = p.parseIPv4(b)
	case 6:
		f = p.parseIPv6(b)
	default:
		f = Malformed
	}
	if f != NoFault {
		return f
	}
	if f := p.checkFragment(); f != NoFault {
		return f
	}
	if p.fragmentOffset > 0 {
		return NoFault
	}
	return p.parseTransport()
}

// checkFragment refuses fragments that no sender makes: lengths that are not a multiple of 8 bytes,
// empty ones, and those that reach beyond the largest datagram.
func (p *Packet) checkFragment() Fault {
	if !p.fragment {
		return NoFault
	}
	n := len(p.data) - p.transport
	if n == 0 || p.more && n%8 != 0 || p.fragmentOffset+n > 0xffff {
		return Malformed
	}
	// RFC 3128, Section 3: a fragment at offset 1 would rewrite the flags of a TCP header.
	if p.protocol == TCP && p.fragmentOffset == 8 {
		return Malformed
	}
	return NoFault
}

// The methods below return what Parse found. Except for Fault, they need a packet without a fault.

// Fault returns what Parse found: NoFault for a valid packet, Malformed for one that was never
// parsed.
func (p *Packet) Fault() Fault {
	if p.parsed {
		return NoFault
	}
	return max(p.fault, Malformed)
}

// Bytes returns the packet, without what followed it in the buffer given to Parse. borrowed: valid
// as long as that buffer.
func (p *Packet) Bytes() []byte { return p.data }

// Len returns the length of the packet in bytes.
func (p *Packet) Len() int { return len(p.data) }

// HeaderLen returns the length, in bytes, of the IP header with its options or extension headers.
func (p *Packet) HeaderLen() int { return p.transport }

// IsIPv6 reports whether the packet is of IPv6; otherwise it is of IPv4.
func (p *Packet) IsIPv6() bool { return p.v6 }

// Protocol returns the number of the transport protocol, the one after the IPv6 extension headers.
func (p *Packet) Protocol() uint8 { return p.protocol }

// HasPorts reports whether the packet contains ports: its protocol has them, and it is not a later
// fragment.
func (p *Packet) HasPorts() bool { return p.hasPorts }

// HasIdentifier reports whether the packet contains the identifier of an ICMP query or reply.
func (p *Packet) HasIdentifier() bool { return p.hasIdent }

// IsICMPError reports whether the packet is an ICMP error, which quotes another packet.
func (p *Packet) IsICMPError() bool { return p.icmpError }

// IsPartial reports whether the TCP or UDP checksum holds only the sum of the pseudo-header,
// because the sender left the rest, and the segmentation, to a network card.
func (p *Packet) IsPartial() bool { return p.partial }

// IsFragment reports whether the packet is one of several fragments.
func (p *Packet) IsFragment() bool { return p.fragment }

// FragmentOffset returns the offset of a fragment in the payload of its datagram, in bytes. It is
// positive for later fragments only.
func (p *Packet) FragmentOffset() int { return p.fragmentOffset }

// FragmentLen returns how many bytes of its datagram a fragment holds, including IPv6 extension
// headers after the Fragment header (RFC 8200, Section 4.5). Preconditions: p.IsFragment().
func (p *Packet) FragmentLen() int {
	if p.v6 {
		return len(p.data) - p.fragmentAt - 8
	}
	return len(p.data) - p.transport
}

// MoreFragments reports whether more fragments follow.
func (p *Packet) MoreFragments() bool { return p.more }

// FragmentID returns the identification that the fragments of one datagram share. Preconditions:
// p.IsFragment().
func (p *Packet) FragmentID() uint32 {
	if p.v6 {
		return binary.BigEndian.Uint32(p.data[p.fragmentAt+4:])
	}
	return uint32(binary.BigEndian.Uint16(p.data[4:]))
}

// DontFragment reports whether a router may not fragment the packet.
func (p *Packet) DontFragment() bool { return p.v6 || p.data[6]&0x40 != 0 }

// Hops returns the TTL or hop limit.
func (p *Packet) Hops() uint8 {
	if p.v6 {
		return p.data[7]
	}
	return p.data[8]
}

// addresses returns the bytes of source and destination, which are adjacent in both families.
func (p *Packet) addresses() []byte {
	if p.v6 {
		return p.data[8:40]
	}
	return p.data[12:20]
}
