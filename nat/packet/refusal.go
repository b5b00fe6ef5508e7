package packet

import (
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// A Refusal is what the sender of a dropped packet is told.
type Refusal uint8

// The refusals, as ICMP and ICMPv6 messages.
const (
	NoRefusal       Refusal = iota
	NetUnreachable          // RFC 792 type 3 code 0; RFC 4443 type 1 code 0
	HostUnreachable         // 3/1; 1/3
	PortUnreachable         // 3/3; 1/4
	Prohibited              // 3/13 (RFC 1812, Section 5.2.7.1); 1/1
	TooBig                  // 3/4 with the MTU of RFC 1191; 2/0
	TimeExceeded            // 11/0; 3/0
	Reset                   // a TCP segment with RST (RFC 9293, Section 3.10.7.1)
)

const (
	// quoteLimit and quoteLimit6 cap the size of an ICMP error (RFC 1812, Section 4.3.2.3; RFC
	// 4443, Section 2.4 (c)).
	quoteLimit  = 576
	quoteLimit6 = 1280
	refusalHops = 64
	// refusalTOS is precedence 6, internetwork control (RFC 1812, Section 4.3.2.5).
	refusalTOS = 0xc0
)

// Refusable reports whether the sender of p, a packet with or without Fault, may be sent r: r is
// not NoRefusal, and none of RFC 1122, Section 3.2.2, RFC 1812, Section 4.3.2.7, RFC 4443, Section
// 2.4 (e), and, for a Reset, RFC 9293, Section 3.10.7.1, forbids it.
func (p *Packet) Refusable(r Refusal) bool {
	if r == NoRefusal || !p.parsed || p.icmpError || p.isICMPv6Error() || p.fragmentOffset > 0 || !p.Forwardable() ||
		r == Reset && !p.resettable() {
		return false
	}
	var t Tuple
	p.Tuple(&t, 0)
	return Forwardable(t.Source()) && Forwardable(t.Destination())
}

// isICMPv6Error reports whether p is an ICMPv6 error, possibly of an unassigned type: all types
// below 128 are errors (RFC 4443, Section 2.1).
func (p *Packet) isICMPv6Error() bool {
	return p.protocol == ICMPv6 && p.fragmentOffset == 0 && p.data[p.transport] < 128
}

// resettable reports whether a RST may answer p: it is a whole TCP segment and not itself a RST.
func (p *Packet) resettable() bool {
	return p.protocol == TCP && !p.fragment && p.data[p.transport+13]&RST == 0
}

// AppendRefusal appends to dst the packet that reports r to the sender of p, and returns the
// extended slice. An ICMP error comes from address from and quotes p; TooBig reports mtu, in bytes.
// A Reset comes from p's destination. AppendRefusal allocates nothing if dst has room for 1280
// bytes. Preconditions: p.Refusable(r), and from has the family of p.
func (p *Packet) AppendRefusal(dst []byte, r Refusal, from netip.Addr, mtu int) []byte {
	var t Tuple
	p.Tuple(&t, 0)
	switch {
	case r == Reset:
		return p.appendReset(dst, &t)
	case p.v6:
		return p.appendICMPv6(dst, r, from, t.Source(), mtu)
	}
	return p.appendICMPv4(dst, r, from, t.Source(), mtu)
}

// icmpv4 and icmpv6 are type and code of each refusal.
var (
	icmpv4 = [...][2]byte{
		NetUnreachable:  {3, 0},
		HostUnreachable: {3, 1},
		PortUnreachable: {3, 3},
		Prohibited:      {3, 13},
		TooBig:          {3, 4},
		TimeExceeded:    {11, 0},
	}
	icmpv6 = [...][2]byte{
		NetUnreachable:  {1, 0},
		HostUnreachable: {1, 3},
		PortUnreachable: {1, 4},
		Prohibited:      {1, 1},
		TooBig:          {2, 0},
		TimeExceeded:    {3, 0},
	}
)

func (p *Packet) appendICMPv4(dst []byte, r Refusal, from, to netip.Addr, mtu int) []byte {
	const head = header.IPv4MinimumSize + header.ICMPv4MinimumSize
	quote := p.data[:min(len(p.data), quoteLimit-head)]
	start := len(dst)
	dst = append(dst, make([]byte, head)...)
	dst = append(dst, quote...)
	b := dst[start:]
	putIPv4(b, from, to, ICMP)
	m := b[header.IPv4MinimumSize:]
	m[0], m[1] = icmpv4[r][0], icmpv4[r][1]
	if r == TooBig {
		binary.BigEndian.PutUint16(m[6:], uint16(mtu))
	}
	binary.BigEndian.PutUint16(m[2:], ^sum(m))
	return dst
}

func (p *Packet) appendICMPv6(dst []byte, r Refusal, from, to netip.Addr, mtu int) []byte {
	const head = header.IPv6MinimumSize + header.ICMPv6MinimumSize
	quote := p.data[:min(len(p.data), quoteLimit6-head)]
	start := len(dst)
	dst = append(dst, make([]byte, head)...)
	dst = append(dst, quote...)
	b := dst[start:]
	putIPv6(b, from, to, ICMPv6)
	m := b[header.IPv6MinimumSize:]
	m[0], m[1] = icmpv6[r][0], icmpv6[r][1]
	if r == TooBig {
		binary.BigEndian.PutUint32(m[4:], uint32(mtu))
	}
	binary.BigEndian.PutUint16(m[2:], ^add(sum(m), pseudoHeader(b[8:40], ICMPv6, len(m))))
	return dst
}

// appendReset appends the RST that answers the segment p (RFC 9293, Section 3.10.7.1), as if its
// destination had sent it.
func (p *Packet) appendReset(dst []byte, t *Tuple) []byte {
	in := p.data[p.transport:]
	start, head := len(dst), header.IPv4MinimumSize
	if p.v6 {
		head = header.IPv6MinimumSize
	}
	var zero [header.IPv6MinimumSize + header.TCPMinimumSize]byte
	dst = append(dst, zero[:head+header.TCPMinimumSize]...)
	b := dst[start:]
	if p.v6 {
		putIPv6(b, t.Destination(), t.Source(), TCP)
	} else {
		putIPv4(b, t.Destination(), t.Source(), TCP)
	}
	m := b[head:]
	binary.BigEndian.PutUint16(m, t.DestinationPort())
	binary.BigEndian.PutUint16(m[2:], t.SourcePort())
	m[12] = header.TCPMinimumSize / 4 << 4
	if in[13]&ACK != 0 {
		copy(m[4:8], in[8:])
		m[13] = RST
	} else {
		binary.BigEndian.PutUint32(m[8:], p.SequenceNumber()+p.sequenceLength())
		m[13] = RST | ACK
	}
	addresses := b[12:20]
	if p.v6 {
		addresses = b[8:40]
	}
	binary.BigEndian.PutUint16(m[16:], ^add(sum(m), pseudoHeader(addresses, TCP, len(m))))
	return dst
}

// putIPv4 fills the zeroed IPv4 header of the packet b. The packet is atomic (RFC 6864, Section
// 4.1): DF set, ID 0.
func putIPv4(b []byte, from, to netip.Addr, protocol uint8) {
	b[0], b[1] = 0x45, refusalTOS
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	b[6] = 0x40
	b[8], b[9] = refusalHops, protocol
	source, destination := from.As4(), to.As4()
	copy(b[12:], source[:])
	copy(b[16:], destination[:])
	binary.BigEndian.PutUint16(b[10:], ^sum(b[:header.IPv4MinimumSize]))
}

// putIPv6 fills the zeroed IPv6 header of the packet b.
func putIPv6(b []byte, from, to netip.Addr, protocol uint8) {
	b[0], b[1] = 0x60|refusalTOS>>4, refusalTOS<<4&0xff
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)-header.IPv6MinimumSize))
	b[6], b[7] = protocol, refusalHops
	source, destination := from.As16(), to.As16()
	copy(b[8:], source[:])
	copy(b[24:], destination[:])
}

// A Quote is a packet to be quoted by an ICMP error that is made without the packet.
type Quote struct {
	Tuple          Tuple
	Length         int    // of the packet, in bytes
	SequenceNumber uint32 // of TCP
}

// MaxTooBig is the most that AppendTooBig appends, in bytes.
const MaxTooBig = 2*header.IPv6MinimumSize + header.ICMPv6MinimumSize + header.TCPMinimumSize

// AppendTooBig appends to dst the packet that tells the sender of q, over TCP or UDP, that packets
// may have at most mtu bytes, and returns the extended slice. It comes from address from, which has
// the family of q. AppendTooBig allocates nothing if dst has room for MaxTooBig bytes.
func (q *Quote) AppendTooBig(dst []byte, from netip.Addr, mtu int) []byte {
	var b [header.IPv6MinimumSize + header.TCPMinimumSize]byte
	t, head, rest := &q.Tuple, header.IPv4MinimumSize, header.UDPMinimumSize
	if t.Protocol == TCP {
		rest = header.TCPMinimumSize
	}
	if t.IPv6 {
		head = header.IPv6MinimumSize
		putIPv6(b[:head], t.Source(), t.Destination(), t.Protocol)
		b[0], b[1] = 0x60, 0
		binary.BigEndian.PutUint16(b[4:], uint16(q.Length-head))
	} else {
		putIPv4(b[:head], t.Source(), t.Destination(), t.Protocol)
		adjustAt(b[:], 10, delta(refusalTOS, 0))
		adjustAt(b[:], 10, delta(uint16(head), uint16(q.Length)))
		b[1] = 0
		binary.BigEndian.PutUint16(b[2:], uint16(q.Length))
	}
	m := b[head:]
	binary.BigEndian.PutUint32(m, t.Ports)
	if t.Protocol == TCP {
		binary.BigEndian.PutUint32(m[4:], q.SequenceNumber)
		m[12], m[13] = header.TCPMinimumSize/4<<4, ACK
	} else {
		binary.BigEndian.PutUint16(m[4:], uint16(q.Length-head))
	}
	p := Packet{data: b[:head+rest], v6: t.IPv6}
	return p.AppendRefusal(dst, TooBig, from, mtu)
}
