package rules

import (
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// linear is how many rules of a stage are looked at one by one rather than through an index.
const linear = 8

// A stageRules holds the rules of one stage. It is immutable: with makes the one that follows it.
type stageRules struct {
	n   int
	few []*rule // all of them in the order of evaluation, as long as there is no index
	*ruleIndex
}

// A ruleIndex finds the rules of one stage that a packet could match without looking at the others. Rules are told apart first by
// the device that they ask for, then by their longest prefix. Each is in exactly one list; lists are in the order of evaluation.
type ruleIndex struct {
	in, out byLink[ruleBucket]
	any     *ruleBucket
}

// A ruleBucket holds the rules of one device. Tables hold those for single addresses if there are more than linear rules, and those for
// wider prefixes if more than linear rules are for no single address.
type ruleBucket struct {
	n, wide int     // how many rules there are, and how many of them are for no single address
	list    []*rule // those that no table holds
	tables  [ruleTables]*ruleTable
}

// A ruleTable finds rules by the prefix that they need an address to lie in.
type ruleTable = bart.Table[[]*rule]

// The tables of a ruleBucket. Single addresses, of which there are many, are apart, so that no search through them all finds only that
// no wider prefix covers one.
const (
	byDestination = iota
	byDestinationNet
	bySource
	bySourceNet
	ruleTables
)

// has reports whether table n holds the rules that can be in it.
func (b *ruleBucket) has(n int) bool {
	if n == byDestination || n == bySource {
		return b.n > linear
	}
	return b.wide > linear
}

// withBuckets returns m after changes to the rules of links.
func withBuckets(m byLink[ruleBucket], changes map[Link]*listDelta) byLink[ruleBucket] {
	next := make(map[Link]*ruleBucket, len(changes))
	for l, change := range changes {
		next[l] = m.get(l).with(change)
	}
	return m.with(next)
}

// A listDelta is how a list of rules changes.
type listDelta struct{ add, remove []*rule }

// apply returns list with d, in the order of evaluation. It leaves list as it is.
func (d *listDelta) apply(list []*rule) []*rule {
	if len(d.add)+len(d.remove) == 0 {
		return list
	}
	next := make([]*rule, 0, max(0, len(list)-len(d.remove)+len(d.add)))
	if len(d.remove) > 0 {
		gone := make(map[*rule]struct{}, len(d.remove))
		for _, r := range d.remove {
			gone[r] = struct{}{}
		}
		for _, r := range list {
			if _, ok := gone[r]; !ok {
				next = append(next, r)
			}
		}
	} else {
		next = append(next, list...)
	}
	if len(d.add) > 0 {
		next = append(next, d.add...)
		slices.SortFunc(next, compareRules) // in one pass where it is sorted already
	}
	return next
}

// with returns the rules of the stage after d.
func (s stageRules) with(d *listDelta) stageRules {
	if len(d.add)+len(d.remove) == 0 {
		return s
	}
	next := s
	next.n += len(d.add) - len(d.remove)
	switch {
	case s.ruleIndex != nil:
		next.ruleIndex = s.ruleIndex.with(d)
	case next.n <= linear:
		next.few = d.apply(s.few)
	default:
		remain := (&listDelta{remove: d.remove}).apply(s.few)
		next.few, next.ruleIndex = nil, new(ruleIndex).with(&listDelta{add: append(remain, d.add...)})
	}
	return next
}

func (x *ruleIndex) with(d *listDelta) *ruleIndex {
	var any listDelta
	in, out := map[Link]*listDelta{}, map[Link]*listDelta{}
	of := func(k *ruleKey) *listDelta {
		m := in
		switch k.device {
		case fieldIn:
		case fieldOut:
			m = out
		default:
			return &any
		}
		if m[k.link] == nil {
			m[k.link] = &listDelta{}
		}
		return m[k.link]
	}
	for _, r := range d.add {
		if k := r.key(); !k.never {
			b := of(&k)
			b.add = append(b.add, r)
		}
	}
	for _, r := range d.remove {
		if k := r.key(); !k.never {
			b := of(&k)
			b.remove = append(b.remove, r)
		}
	}
	return &ruleIndex{in: withBuckets(x.in, in), out: withBuckets(x.out, out), any: x.any.with(&any)}
}

// with returns the bucket that follows b, which may be nil, or nil if nothing is left.
func (b *ruleBucket) with(d *listDelta) *ruleBucket {
	if len(d.add)+len(d.remove) == 0 {
		return b
	}
	if b == nil {
		b = &ruleBucket{}
	}
	next := &ruleBucket{n: b.n + len(d.add) - len(d.remove), wide: b.wide + wide(d.add) - wide(d.remove)}
	if next.n == 0 {
		return nil
	}
	var list listDelta
	var tables [ruleTables]map[netip.Prefix]*listDelta
	at := func(b *ruleBucket, r *rule) *listDelta {
		k := r.key()
		n := k.table()
		if n == ruleTables || !b.has(n) {
			return &list
		}
		if tables[n] == nil {
			tables[n] = map[netip.Prefix]*listDelta{}
		}
		if tables[n][k.prefix] == nil {
			tables[n][k.prefix] = &listDelta{}
		}
		return tables[n][k.prefix]
	}
	for _, r := range d.add {
		l := at(next, r)
		l.add = append(l.add, r)
	}
	for _, r := range d.remove {
		l := at(b, r)
		l.remove = append(l.remove, r)
	}
	for _, r := range b.moving(next) {
		if !slices.Contains(d.remove, r) {
			to, from := at(next, r), at(b, r)
			to.add, from.remove = append(to.add, r), append(from.remove, r)
		}
	}
	next.list = list.apply(b.list)
	for n := range next.tables {
		next.tables[n] = withLists(b.tables[n], tables[n])
	}
	return next
}

// wide returns how many rules are for no single address.
func wide(rules []*rule) (n int) {
	for _, r := range rules {
		if k := r.key(); !k.prefix.IsSingleIP() {
			n++
		}
	}
	return n
}

// moving returns the rules of b that the bucket which follows it has in tables and b has not, or the other way round.
func (b *ruleBucket) moving(next *ruleBucket) (all []*rule) {
	for n, t := range b.tables {
		if t != nil && !next.has(n) {
			for _, list := range t.All() {
				all = append(all, list...)
			}
		}
	}
	for _, r := range b.list {
		if k := r.key(); k.table() != ruleTables && next.has(k.table()) {
			all = append(all, r)
		}
	}
	return all
}

// withLists returns the table that follows t, nil if it is empty.
func withLists(t *ruleTable, d map[netip.Prefix]*listDelta) *ruleTable {
	if len(d) == 0 {
		return t
	}
	t, fresh := forChanges(t, len(d))
	for p, change := range d {
		old, _ := t.Get(p)
		next := change.apply(old)
		switch {
		case len(next) == 0 && fresh:
			t.Delete(p)
		case len(next) == 0:
			t = t.DeletePersist(p)
		case fresh:
			t.Insert(p, next)
		default:
			t = t.InsertPersist(p, next)
		}
	}
	if t.Size() == 0 {
		return nil
	}
	return t
}

// A ruleKey is what every packet that a rule matches has in common.
type ruleKey struct {
	never  bool  // no packet matches
	device field // fieldIn or fieldOut with link; any other field means no device
	link   Link
	source bool         // prefix holds the source, not the destination
	prefix netip.Prefix // the zero Prefix: no common prefix
}

// table returns the table that a rule can be in, ruleTables if none.
func (k *ruleKey) table() int {
	if !k.prefix.IsValid() {
		return ruleTables
	}
	n := byDestination
	if k.source {
		n = bySource
	}
	if !k.prefix.IsSingleIP() {
		n++
	}
	return n
}

func (r *rule) key() ruleKey {
	var k ruleKey
	for i := range r.tests {
		c := &r.tests[i]
		if c.never() {
			return ruleKey{never: true}
		}
		if c.negate {
			continue
		}
		switch c.field {
		case fieldIn:
			k.device, k.link = fieldIn, Link(c.lo)
		case fieldOut:
			if k.device != fieldIn {
				k.device, k.link = fieldOut, Link(c.lo)
			}
		case fieldSource, fieldDestination:
			if c.prefix.Bits() > max(0, k.prefix.Bits()) {
				k.prefix, k.source = c.prefix, c.field == fieldSource
			}
		}
	}
	return k
}
