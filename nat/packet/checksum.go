package packet

import (
	"encoding/binary"
	"math/bits"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
)

// Sums are one's complement sums (RFC 1071) before the final complement. A delta, added to the sum
// of the old bytes, gives the sum of the new ones (RFC 1624, Section 3, equation 3).

// add returns the one's complement sum of a and b.
func add(a, b uint16) uint16 {
	s := uint32(a) + uint32(b)
	return uint16(s + s>>16)
}

// delta returns the delta between two sums. Of the two zeros it returns the one that changes
// nothing.
func delta(from, to uint16) uint16 {
	if from == to {
		return 0
	}
	return add(^from, to)
}

// fold64 folds a sum of 64-bit words and its carry to 16 bits.
func fold64(s, carry uint64) uint16 {
	s = s>>32 + s&0xffffffff + carry
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return uint16(s>>16 + s)
}

// sum20 is sum for the 20 bytes of an IPv4 header without options.
func sum20(b []byte) uint16 {
	s, c := bits.Add64(binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), 0)
	s, c = bits.Add64(s, uint64(binary.BigEndian.Uint32(b[16:])), c)
	return fold64(s, c)
}

// sum returns the sum of b, whose first byte has an even offset.
func sum(b []byte) uint16 { return checksum.Checksum(b, 0) }

// adjust returns the checksum field c after the covered sum changed by d.
func adjust(c, d uint16) uint16 { return ^add(^c, d) }

// adjustAt adjusts the checksum field at b[i:].
func adjustAt(b []byte, i int, d uint16) {
	c := adjust(uint16(b[i])<<8|uint16(b[i+1]), d)
	b[i], b[i+1] = byte(c>>8), byte(c)
}

// pseudoHeader returns the sum of a pseudo-header (RFC 9293, Section 3.1; RFC 8200, Section 8.1)
// over addresses, the 8 or 32 bytes of source and destination.
func pseudoHeader(addresses []byte, protocol uint8, length int) uint16 {
	s, c := uint64(length)+uint64(protocol), uint64(0)
	for len(addresses) >= 8 {
		s, c = bits.Add64(s, binary.BigEndian.Uint64(addresses), c)
		addresses = addresses[8:]
	}
	return fold64(s, c)
}
