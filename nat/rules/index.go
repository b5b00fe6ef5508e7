package rules

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// linear is up to how many rules of a stage are scanned instead of indexed.
const linear = 8

// A stageRules holds the rules of one stage. It is immutable: with returns its successor.
type stageRules struct {
	n   int
	few []*rule // all rules in order of evaluation, while there is no index
	*ruleIndex
}

// A ruleIndex finds the rules of one stage that could match a packet. It selects rules first by the
// device that they require, then by their longest prefix. Each rule is in exactly one list; lists
// are in order of evaluation.
type ruleIndex struct {
	in, out byLink[ruleBucket]
	any     *ruleBucket
}

// A ruleBucket holds the rules of one device. There are tables for single addresses if there are
// more than linear rules, and tables for wider prefixes if more than linear rules have no single
// address.
type ruleBucket struct {
	n, wide int     // number of rules, and of those without a single address
	list    []*rule // rules that are in no table
	tables  [ruleTables]*ruleTable
}

// A ruleTable finds rules by the prefix that they require of an address.
type ruleTable = bart.Table[[]*rule]

// The tables of a ruleBucket. Single addresses, which are many, have tables of their own: searching
// them only to find that no wider prefix matches would be wasteful.
const (
	byDestination uint8 = iota
	byDestinationNet
	bySource
	bySourceNet
	ruleTables
)

// has reports whether table n is in use.
func (b *ruleBucket) has(n uint8) bool {
	switch n {
	case byDestination, bySource:
		return b.n > linear
	case byDestinationNet, bySourceNet:
		return b.wide > linear
	}
	return false
}

// A ruleChange is a change of a rule with the rule's key.
type ruleChange struct {
	change[*rule]
	key ruleKey
}

// with returns the successor of s after changes.
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
		all := make([]change[*rule], 0, len(s.few)+len(changes))
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
	room, all := make([]ruleChange, len(changes)), make([]*ruleChange, 0, len(changes))
	for i, c := range changes {
		if room[i] = (ruleChange{c, c.of.key()}); !room[i].key.never {
			all = append(all, &room[i])
		}
	}
	slices.SortFunc(all, compareKeys)
	any, in, out := x.any, map[Link]*ruleBucket{}, map[Link]*ruleBucket{}
	for n := 0; len(all) > 0; all = all[n:] {
		k := &all[0].key
		for n = 1; n < len(all) && all[n].key.device == k.device && all[n].key.link == k.link; n++ {
		}
		switch k.device {
		case fieldIn:
			in[k.link] = x.in.get(k.link).with(all[:n])
		case fieldOut:
			out[k.link] = x.out.get(k.link).with(all[:n])
		default:
			any = any.with(all[:n])
		}
	}
	return &ruleIndex{in: x.in.with(in), out: x.out.with(out), any: any}
}

// compareKeys groups rules by device, then by table, then by prefix.
func compareKeys(a, b *ruleChange) int {
	switch k, l := &a.key, &b.key; {
	case k.device != l.device:
		return cmp.Compare(k.device, l.device)
	case k.link != l.link:
		return cmp.Compare(k.link, l.link)
	case k.table != l.table:
		return cmp.Compare(k.table, l.table)
	}
	return comparePrefixes(a.key.prefix, b.key.prefix)
}

// with returns the successor of b, or nil if it is empty; b may be nil. It overwrites changes,
// which are in the order of compareKeys.
func (b *ruleBucket) with(changes []*ruleChange) *ruleBucket {
	if b == nil {
		b = &ruleBucket{}
	}
	next := &ruleBucket{n: b.n, wide: b.wide, tables: b.tables}
	for _, c := range changes {
		next.n += c.by()
		if !c.key.prefix.IsSingleIP() {
			next.wide += c.by()
		}
	}
	if next.n == 0 {
		return nil
	}
	moving := b.moving(next)
	if len(moving) > 0 { // of these, removals refer to the old place
		gone := make(map[*rule]struct{}, len(changes))
		for _, c := range changes {
			if c.remove {
				gone[c.of] = struct{}{}
			}
		}
		moving = slices.DeleteFunc(moving, func(m *ruleChange) bool { _, ok := gone[m.of]; return ok })
	}
	if len(moving) > 0 {
		changes = slices.Concat(changes, moving)
		slices.SortFunc(changes, compareKeys)
	}
	var list []change[*rule]
	for n := 0; len(changes) > 0; changes = changes[n:] {
		table := changes[0].key.table
		indexed := changes[:0]
		for n = 0; n < len(changes) && changes[n].key.table == table; n++ {
			of := next
			if changes[n].remove {
				of = b
			}
			if of.has(table) {
				indexed = append(indexed, changes[n])
			} else {
				list = append(list, changes[n].change)
			}
		}
		if len(indexed) > 0 {
			next.tables[table] = withLists(b.tables[table], indexed)
		}
	}
	next.list = changed(b.list, list, compareRules)
	return next
}

// moving returns the changes that move rules of b between lists and tables, where next has other
// tables than b.
func (b *ruleBucket) moving(next *ruleBucket) (all []*ruleChange) {
	move := func(r *rule) {
		k := r.key()
		all = append(all, &ruleChange{change[*rule]{r, true}, k}, &ruleChange{change[*rule]{r, false}, k})
	}
	for n, t := range b.tables {
		if t != nil && !next.has(uint8(n)) {
			for _, list := range t.All() {
				for _, r := range list {
					move(r)
				}
			}
		}
	}
	for _, r := range b.list {
		if k := r.key(); next.has(k.table) {
			move(r)
		}
	}
	return all
}

// withLists returns the successor of t, nil if it is empty.
func withLists(t *ruleTable, changes []*ruleChange) *ruleTable {
	e := editOf(t, len(changes))
	var list []change[*rule]
	for i := range changes {
		p := changes[i].key.prefix
		if list = append(list, changes[i].change); i+1 < len(changes) && changes[i+1].key.prefix == p {
			continue
		}
		old, _ := e.t.Get(p)
		if next := changed(old, list, compareRules); len(next) > 0 {
			e.put(p, next)
		} else {
			e.remove(p)
		}
		list = list[:0]
	}
	return e.end()
}

// A ruleKey is what all packets that a rule matches have in common.
type ruleKey struct {
	never  bool  // no packet matches
	table  uint8 // in which the rule can be, ruleTables if none
	device field // fieldIn or fieldOut with link; any other field means no device
	link   Link
	prefix netip.Prefix // the zero Prefix: no common prefix
}

func (r *rule) key() ruleKey {
	k := ruleKey{table: ruleTables}
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
				k.prefix, k.table = c.prefix, byDestination
				if c.field == fieldSource {
					k.table = bySource
				}
				if !c.prefix.IsSingleIP() {
					k.table++
				}
			}
		}
	}
	return k
}
