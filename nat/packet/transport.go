package packet

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// Protocol numbers of the IANA registry that are handled by name.
const (
	ICMP    = 1
	TCP     = 6
	UDP     = 17
	DCCP    = 33
	ICMPv6  = 58
	SCTP    = 132
	UDPLite = 136
)

// IsICMP reports whether protocol is ICMP of either family.
func IsICMP(protocol uint8) bool { return protocol == ICMP || protocol == ICMPv6 }

// parseTransport checks the transport header. RFC 1858, Section 3.2.1: a first fragment must hold
// all of it.
func (p *Packet) parseTransport() Fault {
	b := p.data[p.transport:]
	switch p.protocol {
	case TCP:
		if len(b) < header.TCPMinimumSize {
			return Malformed
		}
		if n := int(b[12]>>4) * 4; n < header.TCPMinimumSize || n > len(b) {
			return Malformed
		}
		p.hasPorts, p.checksumAt = true, p.transport+16
	case UDP:
		if len(b) < header.UDPMinimumSize {
			return Malformed
		}
		n := int(binary.BigEndian.Uint16(b[4:]))
		// A length below the payload leaves a surplus area (RFC 9868, Section 5).
		if n < header.UDPMinimumSize || !p.fragment && n > len(b) {
			return Malformed
		}
		p.hasPorts, p.checksumAt = true, p.transport+6
	case SCTP:
		if len(b) < sctpHeaderSize {
			return Malformed
		}
		p.hasPorts = true
	case UDPLite, DCCP:
		if len(b) < 8 {
			return Malformed
		}
		p.hasPorts, p.checksumAt = true, p.transport+6
	case ICMP, ICMPv6:
		return p.parseICMP(b)
	}
	if !p.fragment && (p.protocol == TCP || p.protocol == UDP) {
		p.partial = p.looksPartial()
	}
	return NoFault
}

func (p *Packet) parseICMP(b []byte) Fault {
	if len(b) < header.ICMPv4MinimumSize || p.v6 != (p.protocol == ICMPv6) {
		return Malformed
	}
	p.checksumAt = p.transport + 2
	if p.v6 {
		switch header.ICMPv6Type(b[0]) {
		case header.ICMPv6DstUnreachable, header.ICMPv6PacketTooBig, header.ICMPv6TimeExceeded,
			header.ICMPv6ParamProblem:
			p.icmpError = true
		case header.ICMPv6EchoRequest, header.ICMPv6EchoReply:
			p.hasIdent = true
		}
		return NoFault
	}
	switch header.ICMPv4Type(b[0]) {
	case header.ICMPv4DstUnreachable, header.ICMPv4TimeExceeded, header.ICMPv4ParamProblem:
		p.icmpError = true
	case header.ICMPv4Echo, header.ICMPv4EchoReply, header.ICMPv4Timestamp, header.ICMPv4TimestampReply:
		p.hasIdent = true
	}
	return NoFault
}

// looksPartial recognises the checksum of a sender on this machine whose kernel left the work to a
// network card that the packet never met: the field holds the folded pseudo-header sum. A complete
// checksum has this value once in 65,536 packets; completing it again gives the same field.
func (p *Packet) looksPartial() bool {
	field := binary.BigEndian.Uint16(p.data[p.checksumAt:])
	if field == 0 {
		return false
	}
	return field == pseudoHeader(p.addresses(), p.protocol, len(p.data)-p.transport)
}

// TransportHead returns the first 4 bytes of the transport header, or false if the packet has none:
// for most protocols, the ports.
func (p *Packet) TransportHead() (head [4]byte, ok bool) {
	if p.fragmentOffset > 0 || len(p.data) < p.transport+4 {
		return head, false
	}
	return [4]byte(p.data[p.transport:]), true
}

// IsDatagram reports whether the packet is a whole UDP datagram without a surplus area, so that it
// may be a train.
func (p *Packet) IsDatagram() bool {
	return p.protocol == UDP && !p.fragment && int(binary.BigEndian.Uint16(p.data[p.transport+4:])) ==
		len(p.data)-p.transport
}
