package nat

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// linear is the size up to which a list is scanned rather than indexed: a prefix table equals the scan at about four entries, and
// costs more memory than eight.
const linear = 8

// A prefixIndex numbers a set of prefixes and finds those that cover an address. Each knows the next shorter one that covers it, so
// that one lookup and a walk along parents visit all of them, the longest first.
type prefixIndex struct {
	prefixes []netip.Prefix // longest first
	parent   []int32        // -1: none
	table    *bart.Table[int32]
}

// newPrefixIndex builds the index of a set of masked prefixes, which may repeat, and returns it with the number of each.
func newPrefixIndex(set []netip.Prefix) (prefixIndex, map[netip.Prefix]int32) {
	var x prefixIndex
	numbers := make(map[netip.Prefix]int32, len(set))
	for _, p := range set {
		if _, ok := numbers[p]; !ok {
			numbers[p] = 0
			x.prefixes = append(x.prefixes, p)
		}
	}
	slices.SortFunc(x.prefixes, func(a, b netip.Prefix) int {
		return cmp.Or(b.Bits()-a.Bits(), a.Addr().Compare(b.Addr()))
	})
	table := new(bart.Table[int32])
	for i, p := range x.prefixes {
		numbers[p] = int32(i)
		table.Insert(p, int32(i))
	}
	x.parent = make([]int32, len(x.prefixes))
	for i, p := range x.prefixes {
		x.parent[i] = -1
		if p.Bits() == 0 {
			continue
		}
		wider := netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked()
		if n, ok := table.LookupPrefix(wider); ok {
			x.parent[i] = n
		}
	}
	if len(x.prefixes) > linear {
		x.table = table
	}
	return x, numbers
}

// find returns the number of the longest prefix that covers a, or -1.
func (x *prefixIndex) find(a netip.Addr) int32 {
	if x.table == nil {
		for i := range x.prefixes {
			if x.prefixes[i].Contains(a) {
				return int32(i)
			}
		}
		return -1
	}
	if n, ok := x.table.Lookup(a); ok {
		return n
	}
	return -1
}
