package genevetest

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// EtherTypes for Frame.
const (
	IPv4 = 0x0800
	ARP  = 0x0806
	IPv6 = 0x86dd
)

// Geneve returns a Geneve header (RFC 8926) for a protocol type (0x6558 for Ethernet), followed by
// inner.
func Geneve(vni uint32, protocol uint16, inner []byte) []byte {
	return append([]byte{0, 0, byte(protocol >> 8), byte(protocol), byte(vni >> 16), byte(vni >> 8), byte(vni),
		0}, inner...)
}

// VXLAN returns a VXLAN header (RFC 7348), followed by a frame.
func VXLAN(vni uint32, frame []byte) []byte {
	return append([]byte{0x08, 0, 0, 0, byte(vni >> 16), byte(vni >> 8), byte(vni), 0}, frame...)
}

// Frame returns an Ethernet frame.
func Frame(to, from [6]byte, etherType uint16, payload []byte) []byte {
	return slices.Concat(to[:], from[:], []byte{byte(etherType >> 8), byte(etherType)}, payload)
}

// IP returns an IP packet of the family of its addresses with the given protocol number and traffic
// class, the payload as it is.
func IP(src, dst netip.Addr, protocol, tos uint8, payload []byte) []byte {
	if src.Is6() {
		b := binary.BigEndian.AppendUint32(nil, 6<<28|uint32(tos)<<20)
		b = binary.BigEndian.AppendUint16(b, uint16(len(payload)))
		b = append(b, protocol, 64)
		return slices.Concat(b, src.AsSlice(), dst.AsSlice(), payload)
	}
	b := []byte{0x45, tos}
	b = binary.BigEndian.AppendUint16(b, uint16(20+len(payload)))
	b = append(b, 0, 7, 0x40, 0, 64, protocol, 0, 0) // identification 7, don't fragment
	b = slices.Concat(b, src.AsSlice(), dst.AsSlice())
	binary.BigEndian.PutUint16(b[10:], ^Sum(b))
	return append(b, payload...)
}

// UDP returns an IP packet with a UDP datagram whose checksum is right.
func UDP(src, dst netip.AddrPort, payload []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	b = append(append(b, 0, 0), payload...)
	pseudo := slices.Concat(src.Addr().AsSlice(), dst.Addr().AsSlice(), []byte{0, 17, b[4], b[5]})
	sum := ^Sum(append(pseudo, b...))
	if sum == 0 {
		sum = 0xffff // RFC 768: transmitted as all ones
	}
	binary.BigEndian.PutUint16(b[6:], sum)
	return IP(src.Addr(), dst.Addr(), 17, 0, b)
}

// Sum returns the Internet checksum's sum of b (RFC 1071), computed the slow and obvious way.
func Sum(b []byte) uint16 {
	var sum uint64
	for i, v := range b {
		if i%2 == 0 {
			sum += uint64(v) << 8
		} else {
			sum += uint64(v)
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
