package nat

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// Protocol numbers of the IANA registry that are handled by name.
const (
	protocolICMP    = 1
	protocolTCP     = 6
	protocolUDP     = 17
	protocolDCCP    = 33
	protocolICMPv6  = 58
	protocolSCTP    = 132
	protocolUDPLite = 136
)

func isICMP(protocol uint8) bool { return protocol == protocolICMP || protocol == protocolICMPv6 }

// A Packet is a view of one IPv4 or IPv6 packet. Parse fills it, Process may rewrite the bytes behind it, a Cutter reads them.
type Packet struct {
	// SegmentSize is set by the caller, before Process, for a train of UDP datagrams under one header: the payload, in bytes,
	// of each datagram but the last. 0 means a single packet.
	SegmentSize int

	// borrowed: the caller's bytes, valid until the caller reuses its buffer; cut to the length in the IP header.
	data []byte

	transport      int // offset of the transport header: everything before belongs to IP
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
	fault          Reason // what Parse found; ReasonNone
}

// Bytes returns the packet, without what followed it in the buffer given to Parse. borrowed: valid as long as that buffer.
func (p *Packet) Bytes() []byte { return p.data }

// Parse makes p a view of the packet at the start of b and checks everything that later code relies on: versions, lengths, the
// IPv4 header checksum, the chain of IPv6 extension headers, the transport header unless b is a later fragment. Bytes behind the
// packet (link padding) are ignored. SegmentSize becomes 0. The result is ReasonNone, ReasonMalformed or ReasonSourceRoute, for
// which Process drops p; b is not changed.
//
// borrowed: p refers to b until the next Parse.
func (p *Packet) Parse(b []byte) Reason {
	*p = Packet{}
	p.fault = p.parse(b)
	p.parsed = p.fault == ReasonNone
	return p.fault
}

func (p *Packet) parse(b []byte) Reason {
	if len(b) == 0 {
		return ReasonMalformed
	}
	var r Reason
	switch b[0] >> 4 {
	case 4:
		r = p.parseIPv4(b)
	case 6:
		r = p.parseIPv6(b)
	default:
		r = ReasonMalformed
	}
	if r != ReasonNone {
		return r
	}
	if r := p.checkFragment(); r != ReasonNone {
		return r
	}
	if p.fragmentOffset > 0 {
		return ReasonNone
	}
	return p.parseTransport()
}

func (p *Packet) parseIPv4(b []byte) Reason {
	if len(b) < header.IPv4MinimumSize {
		return ReasonMalformed
	}
	length, total := int(b[0]&0xf)*4, int(binary.BigEndian.Uint16(b[2:]))
	if length < header.IPv4MinimumSize || length > total || total > len(b) {
		return ReasonMalformed
	}
	// RFC 1812, Section 5.2.2: a router MUST verify the header checksum.
	s := sum20(b)
	if length > header.IPv4MinimumSize {
		s = add(s, sum(b[header.IPv4MinimumSize:length]))
	}
	if s != 0xffff {
		return ReasonMalformed
	}
	p.data = b[:total]
	p.transport = length
	p.protocol = b[9]
	field := binary.BigEndian.Uint16(b[6:])
	p.more = field&0x2000 != 0
	p.fragmentOffset = int(field&0x1fff) * 8
	p.fragment = field&0x3fff != 0
	if length > header.IPv4MinimumSize {
		return checkOptions(b[header.IPv4MinimumSize:length])
	}
	return ReasonNone
}

// checkOptions walks IPv4 options (RFC 791, Section 3.1) and refuses source routes, which no prefix translation can follow.
func checkOptions(o []byte) Reason {
	for len(o) > 0 {
		switch o[0] {
		case 0: // End of Option List
			return ReasonNone
		case 1: // No Operation
			o = o[1:]
			continue
		case 131, 137: // Loose and Strict Source and Record Route
			return ReasonSourceRoute
		}
		if len(o) < 2 || o[1] < 2 || int(o[1]) > len(o) {
			return ReasonMalformed
		}
		o = o[o[1]:]
	}
	return ReasonNone
}

// checkFragment refuses fragments that no sender makes: pieces that are no multiple of 8 bytes, empty ones, and those that reach
// beyond the largest datagram.
func (p *Packet) checkFragment() Reason {
	if !p.fragment {
		return ReasonNone
	}
	n := len(p.data) - p.transport
	if n == 0 || p.more && n%8 != 0 || p.fragmentOffset+n > 0xffff {
		return ReasonMalformed
	}
	// RFC 3128, Section 3: a fragment at offset 1 would rewrite the flags of a TCP header.
	if p.protocol == protocolTCP && p.fragmentOffset == 8 {
		return ReasonMalformed
	}
	return ReasonNone
}

// parseTransport checks the transport header. RFC 1858, Section 3.2.1: a first fragment must hold all of it.
func (p *Packet) parseTransport() Reason {
	b := p.data[p.transport:]
	switch p.protocol {
	case protocolTCP:
		if len(b) < header.TCPMinimumSize {
			return ReasonMalformed
		}
		if n := int(b[12]>>4) * 4; n < header.TCPMinimumSize || n > len(b) {
			return ReasonMalformed
		}
		p.hasPorts, p.checksumAt = true, p.transport+16
	case protocolUDP:
		if len(b) < header.UDPMinimumSize {
			return ReasonMalformed
		}
		n := int(binary.BigEndian.Uint16(b[4:]))
		// A length below the payload leaves a surplus area (RFC 9868, Section 5).
		if n < header.UDPMinimumSize || !p.fragment && n > len(b) {
			return ReasonMalformed
		}
		p.hasPorts, p.checksumAt = true, p.transport+6
	case protocolSCTP:
		if len(b) < 12 { // RFC 9260, Section 3.1
			return ReasonMalformed
		}
		p.hasPorts = true
	case protocolUDPLite, protocolDCCP:
		if len(b) < 8 {
			return ReasonMalformed
		}
		p.hasPorts, p.checksumAt = true, p.transport+6
	case protocolICMP, protocolICMPv6:
		return p.parseICMP(b)
	}
	if !p.fragment && (p.protocol == protocolTCP || p.protocol == protocolUDP) {
		p.partial = p.isPartial()
	}
	return ReasonNone
}

func (p *Packet) parseICMP(b []byte) Reason {
	if len(b) < header.ICMPv4MinimumSize || p.v6 != (p.protocol == protocolICMPv6) {
		return ReasonMalformed
	}
	p.checksumAt = p.transport + 2
	if p.v6 {
		switch header.ICMPv6Type(b[0]) {
		case header.ICMPv6DstUnreachable, header.ICMPv6PacketTooBig, header.ICMPv6TimeExceeded, header.ICMPv6ParamProblem:
			p.icmpError = true
		case header.ICMPv6EchoRequest, header.ICMPv6EchoReply:
			p.hasIdent = true
		}
		return ReasonNone
	}
	switch header.ICMPv4Type(b[0]) {
	case header.ICMPv4DstUnreachable, header.ICMPv4TimeExceeded, header.ICMPv4ParamProblem:
		p.icmpError = true
	case header.ICMPv4Echo, header.ICMPv4EchoReply, header.ICMPv4Timestamp, header.ICMPv4TimestampReply:
		p.hasIdent = true
	}
	return ReasonNone
}

// isPartial recognises the checksum of a sender on this machine whose kernel left the work to a network card that the packet
// never met: the field holds the folded pseudo-header sum. A finished checksum has this value once in 65,536 packets; finishing
// it again gives the same field.
func (p *Packet) isPartial() bool {
	field := binary.BigEndian.Uint16(p.data[p.checksumAt:])
	if field == 0 {
		return false
	}
	return field == pseudoHeader(p.addresses(), p.protocol, len(p.data)-p.transport)
}

// addresses returns the bytes of source and destination, which stand next to each other in both families.
func (p *Packet) addresses() []byte {
	if p.v6 {
		return p.data[8:40]
	}
	return p.data[12:20]
}

// tuple fills the zero tuple t with that of the packet as it comes in at zone. Later fragments and protocols without ports have
// ports 0.
func (p *Packet) tuple(t *tuple, zone Port) {
	t.zone, t.protocol, t.v6 = zone, p.protocol, p.v6
	if p.v6 {
		b := p.data[8:40]
		t.words[0], t.words[1] = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
		t.words[2], t.words[3] = binary.BigEndian.Uint64(b[16:]), binary.BigEndian.Uint64(b[24:])
	} else {
		t.words[0] = binary.BigEndian.Uint64(p.data[12:])
	}
	if p.hasPorts {
		t.ports = binary.BigEndian.Uint32(p.data[p.transport:])
	} else if p.hasIdent {
		ident := uint32(binary.BigEndian.Uint16(p.data[p.transport+4:]))
		t.ports = ident<<16 | ident
	}
}

// dontFragment reports whether a router may not fragment the packet.
func (p *Packet) dontFragment() bool { return p.v6 || p.data[6]&0x40 != 0 }

// hops returns the TTL or hop limit.
func (p *Packet) hops() uint8 {
	if p.v6 {
		return p.data[7]
	}
	return p.data[8]
}

// tcp returns the TCP header and payload. Preconditions: the protocol is TCP and p is no later fragment.
func (p *Packet) tcp() header.TCP { return header.TCP(p.data[p.transport:]) }

// isSYN reports whether p opens a TCP connection in its direction, by SYN or SYN-ACK.
func (p *Packet) isSYN() bool {
	return p.protocol == protocolTCP && p.hasPorts && p.data[p.transport+13]&byte(header.TCPFlagSyn) != 0
}
