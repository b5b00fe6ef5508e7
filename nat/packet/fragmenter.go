package packet

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// A fragmenter cuts one IPv4 packet, which may itself be a fragment, into fragments (RFC 791,
// Section 3.2). All but the last have the same size, a multiple of 8 bytes; they are in order and
// do not overlap, as the algorithm of RFC 815 prefers.
type fragmenter struct {
	// borrowed: the header and the payload of the packet in the Cutter.
	head, payload []byte
	lead          [header.UDPMinimumSize]byte // what goes before payload
	leads         int                         // bytes of lead not written yet
	at            int                         // bytes of lead and payload written
	piece         int
	id            uint16
	base          int  // offset of the packet, if it is a fragment
	more          bool // more fragments follow the packet
}

func (f *fragmenter) start(head, lead, payload []byte, mtu int) {
	field := binary.BigEndian.Uint16(head[6:])
	*f = fragmenter{
		head:    head,
		payload: payload,
		leads:   len(lead),
		piece:   (mtu - len(head)) &^ 7,
		id:      binary.BigEndian.Uint16(head[4:]),
		base:    int(field & 0x1fff),
		more:    field&0x2000 != 0,
	}
	copy(f.lead[:], lead)
}

func (f *fragmenter) left() bool { return len(f.payload) > 0 }

// next writes the next fragment. Preconditions: f.left().
func (f *fragmenter) next(dst []byte) int {
	n := copy(dst[:len(f.head)], f.head)
	if f.at > 0 {
		n = laterOptions(dst[:n])
	}
	start := n
	n += copy(dst[n:], f.lead[:f.leads])
	take := min(f.piece-f.leads, len(f.payload))
	n += copy(dst[n:n+take], f.payload)
	f.payload = f.payload[take:]
	f.leads = 0

	field := uint16(f.base + f.at/8)
	if f.more || len(f.payload) > 0 {
		field |= 0x2000
	}
	f.at += n - start
	binary.BigEndian.PutUint16(dst[2:], uint16(n))
	binary.BigEndian.PutUint16(dst[4:], f.id)
	binary.BigEndian.PutUint16(dst[6:], field)
	dst[10], dst[11] = 0, 0
	binary.BigEndian.PutUint16(dst[10:], ^sum(dst[:start]))
	return n
}

// laterOptions removes from the IPv4 header b the options that only the first fragment has (RFC
// 791, Section 3.1, copied flag), and returns its new length. Preconditions: the options are well
// formed.
func laterOptions(b []byte) int {
	n := header.IPv4MinimumSize
	for o := b[n:]; len(o) > 0 && o[0] != 0; {
		size := 1
		if o[0] != 1 {
			size = int(o[1])
		}
		if o[0]&0x80 != 0 {
			n += copy(b[n:], o[:size])
		}
		o = o[size:]
	}
	for n%4 != 0 {
		b[n] = 0 // End of Option List
		n++
	}
	b[0] = 0x40 | byte(n/4)
	return n
}

// Fragments returns into how many IPv4 packets of at most mtu bytes a Cutter cuts a packet of n
// bytes with an IP header of header bytes.
func Fragments(header, n, mtu int) int {
	if n <= mtu {
		return 1
	}
	piece := (mtu - header) &^ 7
	return (n - header + piece - 1) / piece
}
