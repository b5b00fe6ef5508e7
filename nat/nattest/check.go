package nattest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
)

// A View is a packet taken apart.
type View struct {
	Source, Destination         netip.Addr
	TTL, TOS, Protocol          uint8
	ID                          uint16
	DF, MF                      bool
	Offset                      int
	Header                      []byte // the IP header with options or extension headers
	Body                        []byte // everything behind it
	SourcePort, DestinationPort uint16 // or the ICMP identifier in both
	Flags                       uint8  // of TCP
	Seq, Ack                    uint32 // of TCP
	Options                     []byte // of TCP
	Payload                     []byte // behind the transport header
}

// Check takes b apart and verifies every length and every checksum in full. Later fragments and
// truncated quotations are not checked behind the IP header; first fragments are not summed.
func Check(b []byte) (View, error) { return check(b, false) }

// CheckPartial is Check for a packet whose transport checksum holds only the sum of the
// pseudo-header.
func CheckPartial(b []byte) (View, error) { return check(b, true) }

func check(b []byte, partial bool) (View, error) {
	v, err := Open(b)
	if err != nil {
		return v, err
	}
	if len(v.Header)+len(v.Body) != len(b) {
		return v, fmt.Errorf("%d bytes, the header says %d", len(b), len(v.Header)+len(v.Body))
	}
	if v.Source.Is4() && Checksum(v.Header) != 0 {
		return v, errors.New("bad IPv4 header checksum")
	}
	if v.Offset > 0 || v.MF {
		return v, nil
	}
	return v, v.verify(partial)
}

// Open takes b apart and verifies no checksum. It may be the beginning of a packet.
func Open(b []byte) (v View, err error) {
	if len(b) < 20 {
		return v, errors.New("short")
	}
	var total int
	if b[0]>>4 == 4 {
		n := int(b[0]&15) * 4
		total = int(binary.BigEndian.Uint16(b[2:]))
		if n < 20 || n > len(b) || total < n {
			return v, errors.New("bad IPv4 lengths")
		}
		v.Header = b[:n]
		v.TOS, v.TTL, v.Protocol = b[1], b[8], b[9]
		v.ID = binary.BigEndian.Uint16(b[4:])
		field := binary.BigEndian.Uint16(b[6:])
		v.DF, v.MF, v.Offset = field&0x4000 != 0, field&0x2000 != 0, int(field&0x1fff)*8
		v.Source, _ = netip.AddrFromSlice(b[12:16])
		v.Destination, _ = netip.AddrFromSlice(b[16:20])
	} else {
		if b[0]>>4 != 6 || len(b) < 40 {
			return v, errors.New("neither IPv4 nor IPv6")
		}
		total = 40 + int(binary.BigEndian.Uint16(b[4:]))
		v.TOS, v.TTL, v.Protocol = b[0]<<4|b[1]>>4, b[7], b[6]
		v.Source, _ = netip.AddrFromSlice(b[8:24])
		v.Destination, _ = netip.AddrFromSlice(b[24:40])
		n := 40
		for v.Protocol == 0 || v.Protocol == 43 || v.Protocol == 44 || v.Protocol == 60 {
			if n+8 > len(b) {
				return v, errors.New("short extension header")
			}
			size := int(b[n+1])*8 + 8
			if v.Protocol == 44 {
				size = 8
				field := binary.BigEndian.Uint16(b[n+2:])
				v.Offset, v.MF = int(field&^7), field&1 != 0
			}
			v.Protocol = b[n]
			n += size
			if n > len(b) {
				return v, errors.New("short extension header")
			}
			if v.Offset > 0 {
				break
			}
		}
		v.Header = b[:n]
	}
	if total < len(v.Header) {
		return v, errors.New("bad total length")
	}
	v.Body = b[len(v.Header):max(len(v.Header), min(total, len(b)))]
	if v.Offset == 0 {
		v.transport()
	}
	return v, nil
}

func (v *View) transport() {
	b := v.Body
	if len(b) < 8 {
		return
	}
	ports := func() {
		v.SourcePort, v.DestinationPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	}
	switch v.Protocol {
	case 6:
		ports()
		if len(b) >= 20 && int(b[12]>>4)*4 <= len(b) && b[12]>>4 >= 5 {
			v.Seq, v.Ack, v.Flags = binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:]), b[13]
			v.Options, v.Payload = b[20:int(b[12]>>4)*4], b[int(b[12]>>4)*4:]
		}
	case 17:
		ports()
		v.Payload = b[8:]
	case 132:
		ports()
		if len(b) >= 12 {
			v.Payload = b[12:]
		}
	case 1, 58:
		v.SourcePort = binary.BigEndian.Uint16(b[4:])
		v.DestinationPort = v.SourcePort
		v.Payload = b[8:]
	}
}

func (v *View) verify(partial bool) error {
	b := v.Body
	field := map[uint8]int{6: 16, 17: 6, 58: 2}
	at, ok := field[v.Protocol]
	switch {
	case v.Protocol == 1 && Checksum(b) != 0:
		return errors.New("bad ICMP checksum")
	case v.Protocol == 132:
		c := append([]byte(nil), b...)
		copy(c[8:12], []byte{0, 0, 0, 0})
		if crc32.Checksum(c, crc32.MakeTable(crc32.Castagnoli)) != binary.LittleEndian.Uint32(b[8:]) {
			return errors.New("bad SCTP checksum")
		}
	case !ok:
		return nil
	}
	if !ok {
		return nil
	}
	if len(b) < at+2 {
		return errors.New("transport header too short")
	}
	if v.Protocol == 17 {
		if int(binary.BigEndian.Uint16(b[4:])) != len(b) {
			return fmt.Errorf("UDP length %d, %d bytes", binary.BigEndian.Uint16(b[4:]), len(b))
		}
		if b[6] == 0 && b[7] == 0 {
			if v.Source.Is6() {
				return errors.New("UDP over IPv6 without checksum (RFC 8200, Section 8.1)")
			}
			return nil
		}
	}
	pseudo := pseudoHeader(v.Source, v.Destination, v.Protocol, len(b))
	if partial {
		if got := binary.BigEndian.Uint16(b[at:]); got != ^Checksum(pseudo) {
			return fmt.Errorf("partial checksum %#04x of protocol %d is not the pseudo-header's %#04x", got, v.Protocol,
				^Checksum(pseudo))
		}
		return nil
	}
	if Checksum(append(pseudo, b...)) != 0 {
		return fmt.Errorf("bad checksum of protocol %d", v.Protocol)
	}
	return nil
}

// Quoted takes apart the packet that the ICMP error b quotes. Its IPv4 header checksum is verified.
func Quoted(b []byte) (View, error) {
	outer, err := Check(b)
	if err != nil {
		return outer, err
	}
	v, err := Open(outer.Payload)
	if err == nil && v.Source.Is4() && Checksum(v.Header) != 0 {
		err = errors.New("bad checksum of the quoted IPv4 header")
	}
	return v, err
}

// CheckQuoted takes apart the packet that the ICMP error b quotes whole, and verifies its transport
// checksum too.
func CheckQuoted(b []byte) (View, error) {
	outer, err := Check(b)
	if err != nil {
		return outer, err
	}
	return Check(outer.Payload)
}

// Reassemble puts the fragments of one IPv4 packet together by byte, and returns the packet with a
// header like that of the first fragment, or nil if bytes are missing or overlap.
func Reassemble(fragments [][]byte) []byte {
	have := map[int]byte{}
	var head []byte
	end := -1
	for _, b := range fragments {
		v, err := Open(b)
		if err != nil {
			return nil
		}
		if v.Offset == 0 {
			head = append([]byte(nil), v.Header...)
		}
		for i, x := range v.Body {
			if _, ok := have[v.Offset+i]; ok {
				return nil
			}
			have[v.Offset+i] = x
		}
		if !v.MF {
			end = v.Offset + len(v.Body)
		}
	}
	if head == nil || len(have) != end {
		return nil
	}
	body := make([]byte, end)
	for i, x := range have {
		if i >= end {
			return nil
		}
		body[i] = x
	}
	binary.BigEndian.PutUint16(head[2:], uint16(len(head)+end))
	head[6] &= 0x40
	head[7], head[10], head[11] = 0, 0, 0
	binary.BigEndian.PutUint16(head[10:], Checksum(head))
	return append(head, body...)
}

// Fix computes the IPv4 header checksum of b anew, and returns b.
func Fix(b []byte) []byte {
	n := int(b[0]&15) * 4
	b[10], b[11] = 0, 0
	binary.BigEndian.PutUint16(b[10:], Checksum(b[:n]))
	return b
}
