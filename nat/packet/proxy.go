package packet

import (
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// A ProxyHeader is a binary header of the PROXY protocol, version 2 (HAProxy's
// doc/proxy-protocol.txt, Section 2.2). Before the first byte of the stream, it tells a server who
// its TCP client is.
type ProxyHeader struct {
	bytes  [proxyHead + 2*16 + 4]byte
	length uint8
}

const (
	// proxyHead is the size of the signature, of version and command, of family and transport, and
	// of the length of the rest.
	proxyHead   = 16
	proxyOfTCP4 = proxyHead + 2*4 + 4
	proxyOfTCP6 = proxyHead + 2*16 + 4
)

// ProxyHeaderLen returns the length in bytes of a ProxyHeader for addresses of a family.
func ProxyHeaderLen(v6 bool) int {
	if v6 {
		return proxyOfTCP6
	}
	return proxyOfTCP4
}

// NewProxyHeader returns the header of a TCP connection from client to server, which have the same
// family.
func NewProxyHeader(client, server netip.AddrPort) ProxyHeader {
	v6 := client.Addr().Is6()
	h := ProxyHeader{length: uint8(ProxyHeaderLen(v6))}
	b := append(h.bytes[:0], "\r\n\r\n\x00\r\nQUIT\n"...)
	b = append(b, 0x21, 0x11) // version 2, PROXY; TCP over IPv4
	if v6 {
		b[13] = 0x21
	}
	b = binary.BigEndian.AppendUint16(b, uint16(h.length)-proxyHead)
	for _, a := range [...]netip.Addr{client.Addr(), server.Addr()} {
		if v6 {
			x := a.As16()
			b = append(b, x[:]...)
		} else {
			x := a.As4()
			b = append(b, x[:]...)
		}
	}
	b = binary.BigEndian.AppendUint16(b, client.Port())
	binary.BigEndian.AppendUint16(b, server.Port())
	return h
}

// Bytes returns the header, which must not be changed.
func (h *ProxyHeader) Bytes() []byte { return h.bytes[:h.length] }

// A StreamShift describes where a server gets bytes inserted into a TCP stream from its client,
// whose sequence numbers do not include them.
type StreamShift struct {
	First  uint32 // sequence number of the first byte after the client's SYN
	Length uint32 // of the inserted bytes before that byte
	// Far: the server has acknowledged so much that nothing of the beginning of the stream is under
	// way any more. Sequence numbers wrap after 4 GiB.
	Far bool
}

// streamPast is how far before First a number still refers to the beginning of a stream that has
// not been acknowledged.
const streamPast = 1 << 16

// Back translates a sequence number that the server acknowledges or quotes to the client's. Numbers
// within the inserted bytes become First.
func (s StreamShift) Back(number uint32) uint32 {
	at := number - s.First
	switch {
	case s.Far || at > s.Length && at <= ^uint32(streamPast):
		return number - s.Length
	case at == 0 || at > ^uint32(streamPast):
		return number
	}
	return s.First
}

// Lead makes a Cutter write h before the payload of p, a whole TCP segment, and compute its
// checksum in any case. The sequence number stays. h must not change until the Cutter is finished.
func (p *Packet) Lead(h *ProxyHeader) {
	p.lead = h
	b := p.data[p.transport:]
	if p.TCPHeaderLen() == len(b) {
		b[13] |= PSH // RFC 9293, Section 3.9.1.2: the sender has no more to say
	}
	if b[13]&urg != 0 {
		pointer := uint32(binary.BigEndian.Uint16(b[18:])) + uint32(h.length) // relative to the sequence number
		binary.BigEndian.PutUint16(b[18:], uint16(min(pointer, 0xffff)))
	}
}

const urg = uint8(header.TCPFlagUrg)

// LeadLen returns how many bytes longer than Len a packet is when it leaves.
func (p *Packet) LeadLen() int {
	if p.lead == nil {
		return 0
	}
	return int(p.lead.length)
}

// IsSumRight verifies the checksum of a TCP segment, as far as its sender has computed it.
// Preconditions: p is TCP and no fragment.
func (p *Packet) IsSumRight() bool {
	b := p.data[p.transport:]
	return p.partial || add(pseudoHeader(p.addresses(), TCP, len(b)), sum(b)) == 0xffff
}

// Acknowledgement returns the acknowledgement number of a TCP segment, or false if it has none.
// Preconditions: p is TCP and p.HasPorts().
func (p *Packet) Acknowledgement() (number uint32, ok bool) {
	b := p.data[p.transport:]
	return binary.BigEndian.Uint32(b[8:]), b[13]&ACK != 0
}

// TCPFlags returns the flag bits of a TCP segment. Preconditions: p is TCP and p.HasPorts().
func (p *Packet) TCPFlags() uint8 { return p.data[p.transport+13] }

// MoveSequence adds to the sequence number of a TCP segment. Preconditions: p is TCP and
// p.HasPorts().
func (p *Packet) MoveSequence(by uint32) {
	p.put32(4, p.SequenceNumber()+by)
}

// put32 writes a number of the TCP header, at an even offset, and updates the checksum.
func (p *Packet) put32(at int, number uint32) {
	b := p.data[p.transport+at:]
	old := add(binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]))
	binary.BigEndian.PutUint32(b, number)
	p.correct(old, add(binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])))
}

// correct adjusts a checksum for a changed sum of bytes that it covers. A partial one does not
// cover them yet.
func (p *Packet) correct(from, to uint16) {
	if p.checksumAt != 0 && !p.partial {
		adjustAt(p.data, p.checksumAt, delta(from, to))
	}
}

// MoveBack translates the acknowledgement and SACK blocks of a server's segment to the client's
// numbers. Empty blocks are removed: they covered nothing that the client sent. Preconditions: p is
// TCP and p.HasPorts().
func (p *Packet) MoveBack(s StreamShift) {
	if number, ok := p.Acknowledgement(); ok {
		p.put32(8, s.Back(number))
	}
	at, length := p.sack()
	if at == 0 {
		return
	}
	option := p.data[at : at+length]
	before := sum(p.data[p.transport+header.TCPMinimumSize : p.transport+p.TCPHeaderLen()])
	kept := 2
	for i := 2; i < length; i += 8 {
		left, right := s.Back(binary.BigEndian.Uint32(option[i:])), s.Back(binary.BigEndian.Uint32(option[i+4:]))
		if left == right {
			continue
		}
		binary.BigEndian.PutUint32(option[kept:], left)
		binary.BigEndian.PutUint32(option[kept+4:], right)
		kept += 8
	}
	option[1] = byte(kept)
	if kept == 2 {
		kept = 0
	}
	for i := kept; i < length; i++ {
		option[i] = header.TCPOptionNOP
	}
	p.correct(before, sum(p.data[p.transport+header.TCPMinimumSize:p.transport+p.TCPHeaderLen()]))
}

// LowerWindow subtracts from the window field of a TCP segment, down to 0. Preconditions: p is TCP
// and p.HasPorts().
func (p *Packet) LowerWindow(by uint16) {
	b := p.data[p.transport+14:]
	old := binary.BigEndian.Uint16(b)
	binary.BigEndian.PutUint16(b, old-min(old, by))
	p.correct(old, old-min(old, by))
}

// DropPayload cuts a TCP segment after its header. Preconditions: p is TCP and no fragment.
func (p *Packet) DropPayload() {
	end := p.transport + p.TCPHeaderLen()
	if end == len(p.data) {
		return
	}
	payload := sum(p.data[end:])
	length := delta(uint16(len(p.data)-p.transport), uint16(end-p.transport)) // in the pseudo-header
	if p.partial {
		field := p.data[p.checksumAt:]
		binary.BigEndian.PutUint16(field, add(binary.BigEndian.Uint16(field), length))
	} else {
		adjustAt(p.data, p.checksumAt, add(delta(payload, 0), length))
	}
	p.data = p.data[:end]
	if p.v6 {
		binary.BigEndian.PutUint16(p.data[4:], uint16(end-header.IPv6MinimumSize))
		return
	}
	old := binary.BigEndian.Uint16(p.data[2:])
	binary.BigEndian.PutUint16(p.data[2:], uint16(end))
	adjustAt(p.data, 10, delta(old, uint16(end)))
}

// multipath is the kind of Multipath TCP's options (RFC 8684, Section 3).
const multipath = 30

// DropMultipath overwrites the Multipath TCP options, so that the receiver of the SYN answers with
// plain TCP (RFC 8684, Section 3.1): Multipath TCP maps sequence numbers. Preconditions: p.IsSYN().
func (p *Packet) DropMultipath() {
	for {
		at, length := p.findOption(multipath, 3, 40)
		if at == 0 {
			return
		}
		options := p.data[p.transport+header.TCPMinimumSize : p.transport+p.TCPHeaderLen()]
		before := sum(options)
		for i := range length {
			p.data[at+i] = header.TCPOptionNOP
		}
		p.correct(before, sum(options))
	}
}

// sack returns the offset and length of a segment's SACK option (RFC 2018, Section 3), or zeros.
func (p *Packet) sack() (at, length int) {
	if at, length = p.findOption(header.TCPOptionSACK, 2+8, 2+4*8); length%8 != 2 {
		return 0, 0
	}
	return at, length
}

// MoveQuotedBack gives the TCP segment q to a server, quoted by ICMP error p, the sequence number
// of its client.
func (p *Packet) MoveQuotedBack(q *Packet, s StreamShift) {
	end := min(len(q.data), q.transport+header.TCPMinimumSize)
	before := sum(q.data[:end])
	q.put32(4, s.Back(q.SequenceNumber()))
	adjustAt(p.data, p.checksumAt, delta(before, sum(q.data[:end])))
}
