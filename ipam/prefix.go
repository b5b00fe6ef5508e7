package ipam

import (
	"net/netip"
	"slices"
	"sort"
)

// spans are ordered prefixes that do not overlap.
type spans []netip.Prefix

// order orders canonical prefixes by address, and a prefix directly before those within it. It is
// netip.Prefix.Compare without masking.
func order(p, q netip.Prefix) int {
	if c := p.Addr().Compare(q.Addr()); c != 0 {
		return c
	}
	return p.Bits() - q.Bits()
}

// newSpans returns spans that cover the same as ps; it sorts ps and reuses its memory.
func newSpans(ps []netip.Prefix) spans {
	slices.SortFunc(ps, order)
	kept := ps[:0]
	for _, p := range ps {
		if n := len(kept); n == 0 || !kept[n-1].Contains(p.Addr()) {
			kept = append(kept, p)
		}
	}
	return spans(kept)
}

// touching returns the elements of s that overlap p: one that contains p, or all within p.
func (s spans) touching(p netip.Prefix) spans {
	low := sort.Search(len(s), func(i int) bool { return !s[i].Addr().Less(p.Addr()) })
	if low > 0 && s[low-1].Overlaps(p) {
		return s[low-1 : low]
	}
	n := sort.Search(len(s)-low, func(i int) bool { return !p.Contains(s[low+i].Addr()) })
	return s[low : low+n]
}

// free finds a prefix of the given length in p that overlaps nothing in s.
func (s spans) free(p netip.Prefix, bits int) (netip.Prefix, bool) {
	if p.Bits() > bits {
		return netip.Prefix{}, false
	}
	s = s.touching(p)
	if len(s) == 0 {
		return netip.PrefixFrom(p.Addr(), bits), true
	}
	if s[0].Bits() <= p.Bits() || p.Bits() == bits {
		return netip.Prefix{}, false
	}
	first, second := halves(p)
	if len(s.touching(first)) == 0 {
		first, second = second, first
	}
	if found, ok := s.free(first, bits); ok {
		return found, true
	}
	return s.free(second, bits)
}

// largest returns the length of the largest prefix in p that overlaps nothing in s.
func (s spans) largest(p netip.Prefix) (bits int, ok bool) {
	s = s.touching(p)
	if len(s) == 0 {
		return p.Bits(), true
	}
	if s[0].Bits() <= p.Bits() {
		return 0, false
	}
	low, high := halves(p)
	a, okA := s.largest(low)
	b, okB := s.largest(high)
	if okA && okB {
		return min(a, b), true
	}
	return max(a, b), okA || okB // the missing one is 0
}

// halves splits p, which must not be a single address.
func halves(p netip.Prefix) (low, high netip.Prefix) {
	bytes := p.Addr().AsSlice()
	bytes[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	upper, _ := netip.AddrFromSlice(bytes)
	return netip.PrefixFrom(p.Addr(), p.Bits()+1), netip.PrefixFrom(upper, p.Bits()+1)
}

// last returns the highest address of p.
func last(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for i := p.Bits(); i < len(bytes)*8; i++ {
		bytes[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(bytes)
	return a
}

// single returns a as a prefix.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// canonical reports whether p is in the stored form: without host bits, zone, or an IPv4-mapped
// IPv6 address.
func canonical(p netip.Prefix) bool {
	return p.IsValid() && p == p.Masked() && !p.Addr().Is4In6()
}
