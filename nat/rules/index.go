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
func withBuckets(m byLink[ruleBucket], changes map[Link][]ruleChange) byLink[ruleBucket] {
	next := make(map[Link]*ruleBucket, len(changes))
	for l, change := range changes {
		next[l] = m.get(l).with(change)
	}
	return m.with(next)
}

// A ruleChange is a change of a rule with what tells the rule apart from others.
type ruleChange struct {
	change[*rule]
	key ruleKey
}

// with returns the rules of the stage after changes.
func (s stageRules) with(changes []change[*rule]) stageRules {
	if len(changes) == 0 {
		return s
	}
	next := s
	next.n += grown(changes)
	switch {
	case s.ruleIndex != nil:
		next.ruleIndex = s.ruleIndex.with(changes)
	case next.n <= linear:
		next.few = changed(s.few, changes, compareRules)
	default:
		var all []change[*rule]
		for _, r := range s.few {
			if !slices.Contains(changes, change[*rule]{r, true}) {
				all = append(all, change[*rule]{of: r})
			}
		}
		for _, c := range changes {
			if !c.remove {
				all = append(all, c)
			}
		}
		next.few, next.ruleIndex = nil, new(ruleIndex).with(all)
	}
	return next
}

func (x *ruleIndex) with(changes []change[*rule]) *ruleIndex {
	var any []ruleChange
	in, out := map[Link][]ruleChange{}, map[Link][]ruleChange{}
	for _, c := range changes {
		switch k := c.of.key(); {
		case k.never:
		case k.device == fieldIn:
			in[k.link] = append(in[k.link], ruleChange{c, k})
		case k.device == fieldOut:
			out[k.link] = append(out[k.link], ruleChange{c, k})
		default:
			any = append(any, ruleChange{c, k})
		}
	}
	return &ruleIndex{in: withBuckets(x.in, in), out: withBuckets(x.out, out), any: x.any.with(any)}
}

// with returns the bucket that follows b, which may be nil, or nil if nothing is left.
func (b *ruleBucket) with(changes []ruleChange) *ruleBucket {
	if len(changes) == 0 {
		return b
	}
	if b == nil {
		b = &ruleBucket{}
	}
	next := &ruleBucket{n: b.n, wide: b.wide}
	for i := range changes {
		c := &changes[i]
		next.n += c.by()
		if !c.key.prefix.IsSingleIP() {
			next.wide += c.by()
		}
	}
	if next.n == 0 {
		return nil
	}
	var list []change[*rule]
	var tables [ruleTables][]ruleChange
	moving := slices.DeleteFunc(b.moving(next), func(m ruleChange) bool {
		return slices.ContainsFunc(changes, func(c ruleChange) bool { return c.remove && c.of == m.of })
	})
	for _, c := range append(changes, moving...) {
		of := next
		if c.remove {
			of = b
		}
		n := c.key.table()
		if n == ruleTables || !of.has(n) {
			list = append(list, c.change)
			continue
		}
		if tables[n] == nil {
			tables[n] = make([]ruleChange, 0, len(changes)+len(moving))
		}
		tables[n] = append(tables[n], c)
	}
	next.list = changed(b.list, list, compareRules)
	for n := range next.tables {
		next.tables[n] = withLists(b.tables[n], tables[n])
	}
	return next
}

// moving returns the changes by which the bucket that follows b has rules in tables that b has not there, or the other way round.
func (b *ruleBucket) moving(next *ruleBucket) (all []ruleChange) {
	move := func(r *rule) {
		k := r.key()
		all = append(all, ruleChange{change[*rule]{r, true}, k}, ruleChange{change[*rule]{r, false}, k})
	}
	for n, t := range b.tables {
		if t != nil && !next.has(n) {
			for _, list := range t.All() {
				for _, r := range list {
					move(r)
				}
			}
		}
	}
	for _, r := range b.list {
		if k := r.key(); k.table() != ruleTables && next.has(k.table()) {
			move(r)
		}
	}
	return all
}

// withLists returns the table that follows t, nil if it is empty.
func withLists(t *ruleTable, changes []ruleChange) *ruleTable {
	if len(changes) == 0 {
		return t
	}
	slices.SortFunc(changes, func(a, b ruleChange) int { return comparePrefixes(a.key.prefix, b.key.prefix) })
	t, fresh := forChanges(t, len(changes))
	var list []change[*rule]
	for i := range changes {
		p := changes[i].key.prefix
		if list = append(list, changes[i].change); i+1 < len(changes) && changes[i+1].key.prefix == p {
			continue
		}
		old, _ := t.Get(p)
		next := changed(old, list, compareRules)
		list = list[:0]
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
