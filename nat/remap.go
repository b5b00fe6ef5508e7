package nat

import "net/netip"

// A remap is a stateless 1:1 translation of a prefix to one of equal length: network bits replaced, host bits kept.
type remap struct {
	bits int
	to   [16]byte // the first 4 bytes for IPv4
}

// remapPair returns the remaps from a to b and back. Preconditions: equal families and lengths.
func remapPair(a, b netip.Prefix) (there, back *remap) {
	return newRemap(b), newRemap(a)
}

func newRemap(to netip.Prefix) *remap {
	r := &remap{bits: to.Bits()}
	copy(r.to[:], to.Masked().Addr().AsSlice())
	return r
}

// apply translates a. Preconditions: a lies in the remap's source prefix.
func (r *remap) apply(a netip.Addr) netip.Addr {
	if a.Is4() {
		b := a.As4()
		substitute(b[:], r.to[:4], r.bits)
		return netip.AddrFrom4(b)
	}
	b := a.As16()
	substitute(b[:], r.to[:], r.bits)
	return netip.AddrFrom16(b)
}

// substitute copies the first n bits of from to b.
func substitute(b, from []byte, n int) {
	whole := n / 8
	copy(b[:whole], from)
	if rest := n % 8; rest > 0 {
		mask := byte(0xff) << (8 - rest)
		b[whole] = from[whole]&mask | b[whole]&^mask
	}
}
