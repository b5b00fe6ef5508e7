// Package nattest builds packets for tests of nat and checks what nat made of them. It shares no
// code with nat: every checksum is computed over the whole packet, never from a difference.
package nattest

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
)

// An IP is a packet to build. Its addresses decide the family.
type IP struct {
	Source, Destination string
	TTL                 uint8 // 0 means 64
	TOS                 uint8
	ID                  uint16
	DF, MF              bool
	Offset              int    // of a fragment, in bytes
	Options             []byte // IPv4 options, a multiple of 4 bytes
	// Extensions are IPv6 extension headers. The next header field of the last one is filled in.
	Extensions [][]byte
	First      uint8 // protocol number of the first of Extensions
	Body       Body
}

// A Body is what an IP packet carries.
type Body interface {
	// bytes returns the body with its checksum over the pseudo-header of source and destination.
	bytes(source, destination netip.Addr) (protocol uint8, b []byte)
}

// A TCP is a TCP segment to build.
type TCP struct {
	SourcePort, DestinationPort uint16
	Seq, Ack                    uint32
	Flags                       uint8
	Window                      uint16
	Options                     []byte // a multiple of 4 bytes
	Payload                     []byte
	Partial                     bool // leave the checksum to hardware: the field holds the pseudo-header sum
}

// TCP flags.
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
	ECE
	CWR
)

// A UDP is a UDP datagram to build.
type UDP struct {
	SourcePort, DestinationPort uint16
	Payload                     []byte
	Partial                     bool
	NoChecksum                  bool
}

// An ICMP is an ICMP or ICMPv6 message to build.
type ICMP struct {
	Type, Code uint8
	Rest       uint32 // identifier and sequence number, or MTU
	Payload    []byte
}

// An SCTP is an SCTP packet to build.
type SCTP struct {
	SourcePort, DestinationPort uint16
	Tag                         uint32
	Chunks                      []byte
}

// A Raw is a body as it is, such as that of a later fragment.
type Raw struct {
	Protocol uint8
	Payload  []byte
}

// Bytes returns the packet.
func (p IP) Bytes() []byte {
	source, destination := netip.MustParseAddr(p.Source), netip.MustParseAddr(p.Destination)
	protocol, body := p.Body.bytes(source, destination)
	ttl := p.TTL
	if ttl == 0 {
		ttl = 64
	}
	if source.Is4() {
		b := make([]byte, 20, 20+len(p.Options)+len(body))
		b[0], b[1] = 0x45+byte(len(p.Options)/4), p.TOS
		binary.BigEndian.PutUint16(b[2:], uint16(20+len(p.Options)+len(body)))
		binary.BigEndian.PutUint16(b[4:], p.ID)
		field := uint16(p.Offset / 8)
		if p.DF {
			field |= 0x4000
		}
		if p.MF {
			field |= 0x2000
		}
		binary.BigEndian.PutUint16(b[6:], field)
		b[8], b[9] = ttl, protocol
		copy(b[12:], source.AsSlice())
		copy(b[16:], destination.AsSlice())
		b = append(b, p.Options...)
		binary.BigEndian.PutUint16(b[10:], Checksum(b))
		return append(b, body...)
	}
	b := make([]byte, 40)
	b[0], b[1] = 0x60|p.TOS>>4, p.TOS<<4
	b[6], b[7] = protocol, ttl
	copy(b[8:], source.AsSlice())
	copy(b[24:], destination.AsSlice())
	next := 6
	for i, e := range p.Extensions {
		if i == 0 {
			b[next] = p.First
		}
		next = len(b)
		b = append(b, e...)
	}
	b[next] = protocol
	for i, at := 0, 40; i < len(p.Extensions)-1; i++ {
		b[at] = p.Extensions[i][0]
		at += len(p.Extensions[i])
	}
	b = append(b, body...)
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)-40))
	return b
}

// Pieces returns the packet p in fragments of size bytes.
func Pieces(p IP, size int, id uint32) [][]byte {
	whole := p.Bytes()
	protocol, body := whole[9], whole[20:]
	if whole[0]>>4 == 6 {
		protocol, body = whole[6], whole[40:]
	}
	var out [][]byte
	for at := 0; at < len(body); at += size {
		end := min(at+size, len(body))
		out = append(out, Piece(p, Raw{protocol, body[at:end]}, at, end < len(body), id))
	}
	return out
}

// Piece returns one fragment of a packet with the headers of p: what is at this offset in bytes,
// and whether more follows.
func Piece(p IP, part Raw, at int, more bool, id uint32) []byte {
	p.Body = part
	if netip.MustParseAddr(p.Source).Is4() {
		p.ID, p.Offset, p.MF = uint16(id), at, more
		return p.Bytes()
	}
	field := at
	if more {
		field |= 1
	}
	p.First, p.Extensions = 44, [][]byte{{0, 0, byte(field >> 8), byte(field), byte(id >> 24), byte(id >> 16),
		byte(id >> 8), byte(id)}}
	return p.Bytes()
}

func (t TCP) bytes(source, destination netip.Addr) (uint8, []byte) {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, t.SourcePort)
	binary.BigEndian.PutUint16(b[2:], t.DestinationPort)
	binary.BigEndian.PutUint32(b[4:], t.Seq)
	binary.BigEndian.PutUint32(b[8:], t.Ack)
	b[12] = byte(5+len(t.Options)/4) << 4
	b[13] = t.Flags
	binary.BigEndian.PutUint16(b[14:], t.Window)
	b = append(append(b, t.Options...), t.Payload...)
	putChecksum(b[16:], b, source, destination, 6, t.Partial)
	return 6, b
}

func (u UDP) bytes(source, destination netip.Addr) (uint8, []byte) {
	b := make([]byte, 8)
	binary.BigEndian.PutUint16(b, u.SourcePort)
	binary.BigEndian.PutUint16(b[2:], u.DestinationPort)
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(u.Payload)))
	b = append(b, u.Payload...)
	if !u.NoChecksum {
		putChecksum(b[6:], b, source, destination, 17, u.Partial)
		if b[6] == 0 && b[7] == 0 {
			b[6], b[7] = 0xff, 0xff
		}
	}
	return 17, b
}

func (m ICMP) bytes(source, destination netip.Addr) (uint8, []byte) {
	b := make([]byte, 8)
	b[0], b[1] = m.Type, m.Code
	binary.BigEndian.PutUint32(b[4:], m.Rest)
	b = append(b, m.Payload...)
	if source.Is6() {
		putChecksum(b[2:], b, source, destination, 58, false)
		return 58, b
	}
	binary.BigEndian.PutUint16(b[2:], Checksum(b))
	return 1, b
}

func (s SCTP) bytes(_, _ netip.Addr) (uint8, []byte) {
	b := make([]byte, 12)
	binary.BigEndian.PutUint16(b, s.SourcePort)
	binary.BigEndian.PutUint16(b[2:], s.DestinationPort)
	binary.BigEndian.PutUint32(b[4:], s.Tag)
	b = append(b, s.Chunks...)
	// RFC 9260, Appendix A: least significant byte first.
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return 132, b
}

func (r Raw) bytes(_, _ netip.Addr) (uint8, []byte) { return r.Protocol, r.Payload }

// Bodies has one of each transport, with every kind of checksum that a sender may leave.
func Bodies(v6 bool) map[string]Body {
	payload := Payload(57, 9)
	m := map[string]Body{
		"tcp":         TCP{SourcePort: 40000, DestinationPort: 80, Flags: ACK, Payload: payload},
		"tcp partial": TCP{SourcePort: 40001, DestinationPort: 80, Flags: ACK, Payload: payload, Partial: true},
		"udp":         UDP{SourcePort: 40000, DestinationPort: 53, Payload: payload},
		"udp partial": UDP{SourcePort: 40001, DestinationPort: 53, Payload: payload, Partial: true},
		"sctp":        SCTP{SourcePort: 40000, DestinationPort: 9899, Tag: 7, Chunks: []byte{0, 0, 0, 4}},
		"gre":         Raw{Protocol: 47, Payload: payload},
		"empty":       Raw{Protocol: 50, Payload: make([]byte, 1)},
	}
	if v6 {
		m["echo"] = ICMP{Type: 128, Rest: 0x12340001, Payload: payload}
		return m
	}
	m["udp without checksum"] = UDP{SourcePort: 40002, DestinationPort: 53, Payload: payload, NoChecksum: true}
	m["echo"] = ICMP{Type: 8, Rest: 0x12340001, Payload: payload}
	return m
}

// putChecksum fills the zeroed field, a part of b.
func putChecksum(field, b []byte, source, destination netip.Addr, protocol uint8, partial bool) {
	pseudo := pseudoHeader(source, destination, protocol, len(b))
	if partial {
		binary.BigEndian.PutUint16(field, ^Checksum(pseudo))
		return
	}
	binary.BigEndian.PutUint16(field, Checksum(append(pseudo, b...)))
}

// pseudoHeader returns the bytes of a pseudo-header; RFC 8200's form gives the same sum for IPv4.
func pseudoHeader(source, destination netip.Addr, protocol uint8, length int) []byte {
	b := append(source.AsSlice(), destination.AsSlice()...)
	b = binary.BigEndian.AppendUint32(b, uint32(length))
	return binary.BigEndian.AppendUint32(b, uint32(protocol))
}

// Checksum is the Internet checksum (RFC 1071), two bytes at a time. Over bytes that hold their own
// checksum it is 0.
func Checksum(b []byte) uint16 {
	var s uint64
	for i := 0; i < len(b); i += 2 {
		w := uint64(b[i]) << 8
		if i+1 < len(b) {
			w |= uint64(b[i+1])
		}
		s += w
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

// Payload returns n bytes that depend on seed.
func Payload(n int, seed uint32) []byte {
	b := make([]byte, n)
	for i := range b {
		seed = seed*1664525 + 1013904223
		b[i] = byte(seed >> 24)
	}
	return b
}
