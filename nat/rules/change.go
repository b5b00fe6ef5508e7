package rules

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// A change is the addition or removal of a rule or an offer.
type change[T comparable] struct {
	of     T
	remove bool
}

// by returns by how many elements a list grows.
func (c *change[T]) by() int {
	if c.remove {
		return -1
	}
	return 1
}

// grown returns by how many elements a list grows.
func grown[T comparable](changes []change[T]) (n int) {
	for i := range changes {
		n += changes[i].by()
	}
	return n
}

// changed returns a sorted copy of list after changes. An element that is both removed and added
// stays.
func changed[T comparable](list []T, changes []change[T], compare func(a, b T) int) []T {
	if len(changes) == 0 {
		return list
	}
	next := make([]T, 0, max(0, len(list)+grown(changes)))
	if !slices.ContainsFunc(changes, func(c change[T]) bool { return c.remove }) {
		next = append(next, list...)
		for i := range changes {
			next = append(next, changes[i].of)
		}
	} else {
		count := make(map[T]int, len(changes))
		for i := range changes {
			count[changes[i].of] += changes[i].by()
		}
		for _, e := range list {
			if count[e] >= 0 {
				next = append(next, e)
			}
		}
		for e, n := range count {
			if n > 0 {
				next = append(next, e)
			}
		}
	}
	slices.SortFunc(next, compare) // one pass if already sorted
	return next
}

// comparePrefixes orders prefixes, wider ones first.
func comparePrefixes(a, b netip.Prefix) int {
	if a.Bits() != b.Bits() {
		return cmp.Compare(a.Bits(), b.Bits())
	}
	return a.Addr().Compare(b.Addr())
}

// forChanges returns the table to which n changes are to be made: t or, if there are many, a
// private copy to change in place, which then costs less than sharing the rest.
func forChanges[V any](t *bart.Table[V], n int) (changing *bart.Table[V], fresh bool) {
	switch {
	case t == nil:
		return new(bart.Table[V]), true
	case n > t.Size()/16:
		return t.Clone(), true
	}
	return t, false
}
