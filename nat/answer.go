package nat

import (
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

const (
	// quoteLimit and quoteLimit6 cap the size of an ICMP error (RFC 1812, Section 4.3.2.3; RFC 4443, Section 2.4 (c)).
	quoteLimit  = 576
	quoteLimit6 = 1280
	answerHops  = 64
	// answerTOS is precedence 6, internetwork control (RFC 1812, Section 4.3.2.5).
	answerTOS = 0xc0
)

// AppendError appends to dst the packet that tells the sender of p what v says, to be sent to port in, and returns the extended
// slice: an ICMP error that quotes p, or a TCP reset. It returns nil if none is due, because v holds no answer or RFC 1122,
// Section 3.2.2, RFC 1812, Section 4.3.2.7, or RFC 4443, Section 2.4 (e), forbid one, or if the rate limit says no. p must be as
// Process left it. It allocates nothing if dst has room for 1280 bytes.
func (e *Engine) AppendError(dst []byte, p *Packet, in Port, v Verdict, now Time) []byte {
	if v.Action != Drop || v.Answer == AnswerNone || !p.answerable() || v.Answer == AnswerReset && !p.resettable() {
		return nil
	}
	var t tuple
	p.tuple(&t, in)
	to := t.source()
	e.mu.Lock()
	from := e.snapshot.answerSource(in, p.v6)
	if v.Answer == AnswerReset {
		from = t.destination()
	}
	ok := from.IsValid() && e.limit.allow(in, to, now)
	if ok {
		e.stats.of(in).Answered++
	}
	e.mu.Unlock()
	switch {
	case !ok:
		return nil
	case v.Answer == AnswerReset:
		return appendReset(dst, p, &t)
	case p.v6:
		return appendICMPv6(dst, p, from, to, v)
	}
	return appendICMPv4(dst, p, from, to, v)
}

// answerable reports whether an error about p may be sent at all.
func (p *Packet) answerable() bool {
	if !p.parsed || p.icmpError || p.fragmentOffset > 0 || !p.forwardable() {
		return false
	}
	var t tuple
	p.tuple(&t, 0)
	return !unusable(t.source()) && !unusable(t.destination())
}

// resettable reports whether a RST may answer p: it is a whole TCP segment and no RST itself (RFC 9293, Section 3.10.7.1).
func (p *Packet) resettable() bool {
	return p.protocol == protocolTCP && !p.fragment && p.tcp().Flags()&header.TCPFlagRst == 0
}

// answerSource returns the address that errors of our own come from: the gateway's internal address towards nodes; U, or else its tunnel
// address, towards the tunnel. It returns the zero Addr if there is none of the family.
func (s *snapshot) answerSource(in Port, v6 bool) netip.Addr {
	candidates := [...]netip.Addr{s.gateway}
	if in == Tunnel {
		candidates[0] = s.unknown
		if !s.unknown.IsValid() {
			candidates[0] = s.tunnel
		}
	}
	if a := candidates[0]; a.Is6() == v6 {
		return a
	}
	return netip.Addr{}
}

// icmpv4 and icmpv6 are type and code of each answer.
var (
	icmpv4 = [...][2]byte{
		AnswerNetUnreachable:  {3, 0},
		AnswerHostUnreachable: {3, 1},
		AnswerPortUnreachable: {3, 3},
		AnswerProhibited:      {3, 13},
		AnswerTooBig:          {3, 4},
		AnswerTimeExceeded:    {11, 0},
	}
	icmpv6 = [...][2]byte{
		AnswerNetUnreachable:  {1, 0},
		AnswerHostUnreachable: {1, 3},
		AnswerPortUnreachable: {1, 4},
		AnswerProhibited:      {1, 1},
		AnswerTooBig:          {2, 0},
		AnswerTimeExceeded:    {3, 0},
	}
)

func appendICMPv4(dst []byte, p *Packet, from, to netip.Addr, v Verdict) []byte {
	const head = header.IPv4MinimumSize + header.ICMPv4MinimumSize
	quote := p.data[:min(len(p.data), quoteLimit-head)]
	start := len(dst)
	dst = append(dst, make([]byte, head)...)
	dst = append(dst, quote...)
	b := dst[start:]
	putIPv4(b, from, to, protocolICMP)
	m := b[header.IPv4MinimumSize:]
	m[0], m[1] = icmpv4[v.Answer][0], icmpv4[v.Answer][1]
	if v.Answer == AnswerTooBig {
		binary.BigEndian.PutUint16(m[6:], uint16(v.MTU))
	}
	binary.BigEndian.PutUint16(m[2:], ^sum(m))
	return dst
}

func appendICMPv6(dst []byte, p *Packet, from, to netip.Addr, v Verdict) []byte {
	const head = header.IPv6MinimumSize + header.ICMPv6MinimumSize
	quote := p.data[:min(len(p.data), quoteLimit6-head)]
	start := len(dst)
	dst = append(dst, make([]byte, head)...)
	dst = append(dst, quote...)
	b := dst[start:]
	putIPv6(b, from, to, protocolICMPv6)
	m := b[header.IPv6MinimumSize:]
	m[0], m[1] = icmpv6[v.Answer][0], icmpv6[v.Answer][1]
	if v.Answer == AnswerTooBig {
		binary.BigEndian.PutUint32(m[4:], uint32(v.MTU))
	}
	binary.BigEndian.PutUint16(m[2:], ^add(sum(m), pseudoHeader(b[8:40], protocolICMPv6, len(m))))
	return dst
}

// appendReset appends the RST that answers the segment p (RFC 9293, Section 3.10.7.1), as if its destination had sent it. Preconditions:
// p.resettable().
func appendReset(dst []byte, p *Packet, t *tuple) []byte {
	in := p.tcp()
	flags := in.Flags()
	start, head := len(dst), header.IPv4MinimumSize
	if p.v6 {
		head = header.IPv6MinimumSize
	}
	var zero [header.IPv6MinimumSize + header.TCPMinimumSize]byte
	dst = append(dst, zero[:head+header.TCPMinimumSize]...)
	b := dst[start:]
	if p.v6 {
		putIPv6(b, t.destination(), t.source(), protocolTCP)
	} else {
		putIPv4(b, t.destination(), t.source(), protocolTCP)
	}
	m := b[head:]
	binary.BigEndian.PutUint16(m, t.destinationPort())
	binary.BigEndian.PutUint16(m[2:], t.sourcePort())
	m[12] = header.TCPMinimumSize / 4 << 4
	if flags&header.TCPFlagAck != 0 {
		binary.BigEndian.PutUint32(m[4:], in.AckNumber())
		m[13] = byte(header.TCPFlagRst)
	} else {
		binary.BigEndian.PutUint32(m[8:], in.SequenceNumber()+p.sequenceLength())
		m[13] = byte(header.TCPFlagRst | header.TCPFlagAck)
	}
	addresses := b[12:20]
	if p.v6 {
		addresses = b[8:40]
	}
	binary.BigEndian.PutUint16(m[16:], ^add(sum(m), pseudoHeader(addresses, protocolTCP, len(m))))
	return dst
}

// sequenceLength is what a segment occupies in sequence space: its payload, and one each for SYN and FIN.
func (p *Packet) sequenceLength() uint32 {
	b := p.data[p.transport:]
	n := uint32(len(b) - int(b[12]>>4)*4)
	if b[13]&byte(header.TCPFlagSyn) != 0 {
		n++
	}
	if b[13]&byte(header.TCPFlagFin) != 0 {
		n++
	}
	return n
}

// putIPv4 fills the zeroed IPv4 header of the packet b. The packet is atomic (RFC 6864, Section 4.1): DF set, ID 0.
func putIPv4(b []byte, from, to netip.Addr, protocol uint8) {
	b[0], b[1] = 0x45, answerTOS
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	b[6] = 0x40
	b[8], b[9] = answerHops, protocol
	source, destination := from.As4(), to.As4()
	copy(b[12:], source[:])
	copy(b[16:], destination[:])
	binary.BigEndian.PutUint16(b[10:], ^sum(b[:header.IPv4MinimumSize]))
}

// putIPv6 fills the zeroed IPv6 header of the packet b.
func putIPv6(b []byte, from, to netip.Addr, protocol uint8) {
	b[0], b[1] = 0x60|answerTOS>>4, answerTOS<<4&0xff
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)-header.IPv6MinimumSize))
	b[6], b[7] = protocol, answerHops
	source, destination := from.As16(), to.As16()
	copy(b[8:], source[:])
	copy(b[24:], destination[:])
}
