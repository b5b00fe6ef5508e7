package nat

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
)

// A tuple names one direction of a connection: addresses, ports or ICMP identifier, protocol, and the port of the gateway
// where its packets come in. It is made of words, so that it is compared and checksummed without a loop.
//
// IPv4: words[0] is source and destination as they stand in the header; the other words are 0.
// IPv6: words[0:2] is the source, words[2:4] the destination.
type tuple struct {
	// ports is source port << 16 | destination port; for ICMP queries the identifier stands in both halves.
	ports    uint32
	zone     Port
	protocol uint8
	v6       bool
	words    [4]uint64
}

func (t *tuple) source() netip.Addr {
	if t.v6 {
		var a [16]byte
		binary.BigEndian.PutUint64(a[:8], t.words[0])
		binary.BigEndian.PutUint64(a[8:], t.words[1])
		return netip.AddrFrom16(a)
	}
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], uint32(t.words[0]>>32))
	return netip.AddrFrom4(a)
}

func (t *tuple) destination() netip.Addr {
	if t.v6 {
		var a [16]byte
		binary.BigEndian.PutUint64(a[:8], t.words[2])
		binary.BigEndian.PutUint64(a[8:], t.words[3])
		return netip.AddrFrom16(a)
	}
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], uint32(t.words[0]))
	return netip.AddrFrom4(a)
}

// setSource replaces the source. Preconditions: a has the tuple's family.
func (t *tuple) setSource(a netip.Addr) {
	if t.v6 {
		b := a.As16()
		t.words[0], t.words[1] = binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
		return
	}
	b := a.As4()
	t.words[0] = uint64(binary.BigEndian.Uint32(b[:]))<<32 | t.words[0]&0xffffffff
}

// setDestination replaces the destination. Preconditions: a has the tuple's family.
func (t *tuple) setDestination(a netip.Addr) {
	if t.v6 {
		b := a.As16()
		t.words[2], t.words[3] = binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
		return
	}
	b := a.As4()
	t.words[0] = t.words[0]&^0xffffffff | uint64(binary.BigEndian.Uint32(b[:]))
}

func (t *tuple) sourcePort() uint16      { return uint16(t.ports >> 16) }
func (t *tuple) destinationPort() uint16 { return uint16(t.ports) }

func (t *tuple) setSourcePort(p uint16)      { t.ports = uint32(p)<<16 | t.ports&0xffff }
func (t *tuple) setDestinationPort(p uint16) { t.ports = t.ports&^0xffff | uint32(p) }

// reply returns the tuple of packets that answer t's and come in at zone.
func (t *tuple) reply(zone Port) tuple {
	r := tuple{zone: zone, protocol: t.protocol, v6: t.v6}
	r.words, r.ports = t.reversed()
	return r
}

// reversed returns the addresses and ports of t with source and destination exchanged.
func (t *tuple) reversed() (words [4]uint64, ports uint32) {
	ports = bits.RotateLeft32(t.ports, 16)
	if t.v6 {
		return [4]uint64{t.words[2], t.words[3], t.words[0], t.words[1]}, ports
	}
	return [4]uint64{bits.RotateLeft64(t.words[0], 32)}, ports
}

// addressSum is the one's complement sum of both addresses.
func (t *tuple) addressSum() uint16 {
	s, c := bits.Add64(t.words[0], t.words[1], 0)
	s, c = bits.Add64(s, t.words[2], c)
	s, c = bits.Add64(s, t.words[3], c)
	return fold64(s, c)
}

// portSum is the one's complement sum of what the packet's checksum covers of ports: both, or one identifier.
func (t *tuple) portSum() uint16 {
	if isICMP(t.protocol) {
		return uint16(t.ports)
	}
	return add(uint16(t.ports>>16), uint16(t.ports))
}

// String is for tests and messages.
func (t *tuple) String() string {
	return fmt.Sprintf("%d %s:%d>%s:%d@%d", t.protocol, t.source(), t.sourcePort(), t.destination(), t.destinationPort(), t.zone)
}
