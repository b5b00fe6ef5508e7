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

// An edit changes a table: the table itself shares what stays, or, for many changes, a private copy
// is changed in place, which then costs less.
type edit[V any] struct {
	t       *bart.Table[V]
	private bool
}

// editOf begins n changes of t; nil is an empty table.
func editOf[V any](t *bart.Table[V], n int) edit[V] {
	switch {
	case t == nil:
		return edit[V]{new(bart.Table[V]), true}
	case n > t.Size()/16:
		return edit[V]{t.Clone(), true}
	}
	return edit[V]{t, false}
}

func (e *edit[V]) put(p netip.Prefix, v V) {
	if e.private {
		e.t.Insert(p, v)
	} else {
		e.t = e.t.InsertPersist(p, v)
	}
}

func (e *edit[V]) remove(p netip.Prefix) {
	if e.private {
		e.t.Delete(p)
	} else {
		e.t = e.t.DeletePersist(p)
	}
}

// end returns the changed table, nil if it is empty.
func (e *edit[V]) end() *bart.Table[V] {
	if e.t.Size() == 0 {
		return nil
	}
	return e.t
}
