package packet

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
)

// A Tuple identifies one direction of a connection: addresses, ports or ICMP identifier, protocol,
// and the link by which its packets arrive. It consists of words, so that it is compared and
// checksummed without a loop. Two tuples are equal if all fields are.
type Tuple struct {
	// Ports is source port << 16
	// destination port; for ICMP queries the identifier is in both halves. 0 if there are neither.
	Ports    uint32
	Link     Link
	Protocol uint8
	IPv6     bool
	// Words holds the addresses as in the header. IPv4: Words[0] is source and destination, the
	// other words are 0. IPv6: Words[0:2] is the source, Words[2:4] the destination.
	Words [4]uint64
}

// Tuple fills the zero Tuple t with that of the packet arriving at link. Later fragments and
// protocols without ports have ports 0.
func (p *Packet) Tuple(t *Tuple, link Link) {
	t.Link, t.Protocol, t.IPv6 = link, p.protocol, p.v6
	if p.v6 {
		b := p.data[8:40]
		t.Words[0], t.Words[1] = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
		t.Words[2], t.Words[3] = binary.BigEndian.Uint64(b[16:]), binary.BigEndian.Uint64(b[24:])
	} else {
		t.Words[0] = binary.BigEndian.Uint64(p.data[12:])
	}
	if p.hasPorts {
		t.Ports = binary.BigEndian.Uint32(p.data[p.transport:])
	} else if p.hasIdent {
		ident := uint32(binary.BigEndian.Uint16(p.data[p.transport+4:]))
		t.Ports = ident<<16 | ident
	}
}

// Source returns the source address.
func (t *Tuple) Source() netip.Addr {
	if t.IPv6 {
		var a [16]byte
		binary.BigEndian.PutUint64(a[:8], t.Words[0])
		binary.BigEndian.PutUint64(a[8:], t.Words[1])
		return netip.AddrFrom16(a)
	}
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], uint32(t.Words[0]>>32))
	return netip.AddrFrom4(a)
}

// Destination returns the destination address.
func (t *Tuple) Destination() netip.Addr {
	if t.IPv6 {
		var a [16]byte
		binary.BigEndian.PutUint64(a[:8], t.Words[2])
		binary.BigEndian.PutUint64(a[8:], t.Words[3])
		return netip.AddrFrom16(a)
	}
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], uint32(t.Words[0]))
	return netip.AddrFrom4(a)
}

// SetSource replaces the source. Preconditions: a has the tuple's family.
func (t *Tuple) SetSource(a netip.Addr) {
	if t.IPv6 {
		b := a.As16()
		t.Words[0], t.Words[1] = binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
		return
	}
	b := a.As4()
	t.Words[0] = uint64(binary.BigEndian.Uint32(b[:]))<<32 | t.Words[0]&0xffffffff
}

// SetDestination replaces the destination. Preconditions: a has the tuple's family.
func (t *Tuple) SetDestination(a netip.Addr) {
	if t.IPv6 {
		b := a.As16()
		t.Words[2], t.Words[3] = binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
		return
	}
	b := a.As4()
	t.Words[0] = t.Words[0]&^0xffffffff | uint64(binary.BigEndian.Uint32(b[:]))
}

// SourcePort returns the source port or ICMP identifier.
func (t *Tuple) SourcePort() uint16 { return uint16(t.Ports >> 16) }

// DestinationPort returns the destination port or ICMP identifier.
func (t *Tuple) DestinationPort() uint16 { return uint16(t.Ports) }

// SetSourcePort replaces the source port. An ICMP identifier has to be set as destination port too.
func (t *Tuple) SetSourcePort(p uint16) { t.Ports = uint32(p)<<16 | t.Ports&0xffff }

// SetDestinationPort replaces the destination port.
func (t *Tuple) SetDestinationPort(p uint16) { t.Ports = t.Ports&^0xffff | uint32(p) }

// Reply returns the tuple of packets that answer t's and arrive at link.
func (t *Tuple) Reply(link Link) Tuple {
	r := Tuple{Link: link, Protocol: t.Protocol, IPv6: t.IPv6}
	r.Words, r.Ports = t.Reversed()
	return r
}

// Reversed returns the addresses and ports of t with source and destination exchanged.
func (t *Tuple) Reversed() (words [4]uint64, ports uint32) {
	ports = bits.RotateLeft32(t.Ports, 16)
	if t.IPv6 {
		return [4]uint64{t.Words[2], t.Words[3], t.Words[0], t.Words[1]}, ports
	}
	return [4]uint64{bits.RotateLeft64(t.Words[0], 32)}, ports
}

// addressSum is the one's complement sum of both addresses.
func (t *Tuple) addressSum() uint16 {
	s, c := bits.Add64(t.Words[0], t.Words[1], 0)
	s, c = bits.Add64(s, t.Words[2], c)
	s, c = bits.Add64(s, t.Words[3], c)
	return fold64(s, c)
}

// portSum is the one's complement sum of the ports as far as the packet's checksum covers them:
// both, or one identifier.
func (t *Tuple) portSum() uint16 {
	if IsICMP(t.Protocol) {
		return uint16(t.Ports)
	}
	return add(uint16(t.Ports>>16), uint16(t.Ports))
}

// Deltas returns the deltas between the checksums' sums (RFC 1624, Section 3) of a packet with
// tuple from and with tuple to, for Rewrite: that of the addresses, and that of the ports.
func Deltas(from, to *Tuple) (addresses, ports uint16) {
	return delta(from.addressSum(), to.addressSum()), delta(from.portSum(), to.portSum())
}

// Negate returns the delta of the opposite direction.
func Negate(delta uint16) uint16 {
	if delta == 0 {
		return 0
	}
	return ^delta
}

// String is for tests and messages.
func (t *Tuple) String() string {
	return fmt.Sprintf("%d %s:%d>%s:%d@%d", t.Protocol, t.Source(), t.SourcePort(), t.Destination(),
		t.DestinationPort(), t.Link)
}
