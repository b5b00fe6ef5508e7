package nat

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
	in, out bucketsByPort
	any     *ruleBucket
}

// A ruleBucket holds the rules of one device.
type ruleBucket struct {
	tables [ruleTables]*ruleTable
	rest   []*rule
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

// A bucketsByPort finds a ruleBucket in pages by the two bytes of a port. It is immutable.
type bucketsByPort struct{ pages *[256]*[256]*ruleBucket }

func (m bucketsByPort) get(p Port) *ruleBucket {
	if m.pages == nil || m.pages[p>>8] == nil {
		return nil
	}
	return m.pages[p>>8][p&0xff]
}

// with returns m after changes, sharing the pages of all other ports.
func (m bucketsByPort) with(changes map[Port]*bucketDelta) bucketsByPort {
	if len(changes) == 0 {
		return m
	}
	pages, own := new([256]*[256]*ruleBucket), [256]bool{}
	if m.pages != nil {
		*pages = *m.pages
	}
	for p, change := range changes {
		page := &pages[p>>8]
		if !own[p>>8] {
			own[p>>8] = true
			old := *page
			if *page = new([256]*ruleBucket); old != nil {
				**page = *old
			}
		}
		(*page)[p&0xff] = change.apply(m.get(p))
	}
	return bucketsByPort{pages}
}

// A listDelta is how a list of rules changes.
type listDelta struct{ add, remove []*rule }

// apply returns list with d, in the order of evaluation. It leaves list as it is.
func (d *listDelta) apply(list []*rule) []*rule {
	if d == nil {
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
	var any *bucketDelta
	in, out := map[Port]*bucketDelta{}, map[Port]*bucketDelta{}
	of := func(k *ruleKey) *bucketDelta {
		m := in
		switch k.device {
		case fieldIn:
		case fieldOut:
			m = out
		default:
			if any == nil {
				any = &bucketDelta{}
			}
			return any
		}
		b := m[k.port]
		if b == nil {
			b = &bucketDelta{}
			m[k.port] = b
		}
		return b
	}
	for _, r := range d.add {
		if k := r.key(); !k.never {
			l := of(&k).list(&k)
			l.add = append(l.add, r)
		}
	}
	for _, r := range d.remove {
		if k := r.key(); !k.never {
			l := of(&k).list(&k)
			l.remove = append(l.remove, r)
		}
	}
	next := &ruleIndex{in: x.in.with(in), out: x.out.with(out), any: x.any}
	if any != nil {
		next.any = any.apply(x.any)
	}
	return next
}

// A bucketDelta is how a ruleBucket changes.
type bucketDelta struct {
	tables [ruleTables]map[netip.Prefix]*listDelta
	rest   *listDelta
}

// list returns the listDelta of the list that a rule with key k belongs to.
func (b *bucketDelta) list(k *ruleKey) *listDelta {
	if !k.prefix.IsValid() {
		if b.rest == nil {
			b.rest = &listDelta{}
		}
		return b.rest
	}
	n := byDestination
	if k.source {
		n = bySource
	}
	if !k.prefix.IsSingleIP() {
		n++
	}
	m := &b.tables[n]
	if *m == nil {
		*m = map[netip.Prefix]*listDelta{}
	}
	d := (*m)[k.prefix]
	if d == nil {
		d = &listDelta{}
		(*m)[k.prefix] = d
	}
	return d
}

// apply returns the bucket that follows old, or nil if nothing is left.
func (b *bucketDelta) apply(old *ruleBucket) *ruleBucket {
	if old == nil {
		old = &ruleBucket{}
	}
	next := &ruleBucket{rest: b.rest.apply(old.rest)}
	empty := len(next.rest) == 0
	for n := range next.tables {
		next.tables[n] = withLists(old.tables[n], b.tables[n])
		empty = empty && next.tables[n] == nil
	}
	if empty {
		return nil
	}
	return next
}

// withLists returns the table that follows t. A table that is new belongs to nobody else yet and is filled in place.
func withLists(t *ruleTable, d map[netip.Prefix]*listDelta) *ruleTable {
	fresh := t == nil
	for p, change := range d {
		if t == nil {
			t = new(ruleTable)
		}
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
	if t != nil && t.Size() == 0 {
		return nil
	}
	return t
}

// A ruleKey is what every packet that a rule matches has in common.
type ruleKey struct {
	never  bool  // no packet matches
	device field // fieldIn or fieldOut with port; any other field means no device
	port   Port
	source bool         // prefix holds the source, not the destination
	prefix netip.Prefix // the zero Prefix: no common prefix
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
			k.device, k.port = fieldIn, Port(c.lo)
		case fieldOut:
			if k.device != fieldIn {
				k.device, k.port = fieldOut, Port(c.lo)
			}
		case fieldSource, fieldDestination:
			if c.prefix.Bits() > max(0, k.prefix.Bits()) {
				k.prefix, k.source = c.prefix, c.field == fieldSource
			}
		}
	}
	return k
}

// maxLists is how many lists one walk merges without allocating. Only prefixes nested deeper than in any real rule set need more.
const maxLists = 16

// A walk visits the rules of one stage that a packet could match, in the order of evaluation.
type walk struct {
	first [maxLists][]*rule
	n     int
	more  [][]*rule // those that first has no room for
}

// start prepares the walk of s for v.
func (w *walk) start(s *stageRules, v *view) {
	w.n, w.more = 0, nil
	x := s.ruleIndex
	if x == nil {
		w.add(s.few)
		return
	}
	w.addBucket(x.any, v)
	w.addBucket(x.in.get(v.in), v)
	w.addBucket(x.out.get(v.out), v)
}

func (w *walk) addBucket(b *ruleBucket, v *view) {
	if b == nil {
		return
	}
	w.add(b.rest)
	w.addCovering(b.tables[byDestination], b.tables[byDestinationNet], v.dst)
	w.addCovering(b.tables[bySource], b.tables[bySourceNet], v.src)
}

// addCovering adds the lists of a and of all prefixes that cover it.
func (w *walk) addCovering(hosts, nets *ruleTable, a netip.Addr) {
	if hosts != nil {
		if list, ok := hosts.Lookup(a); ok {
			w.add(list)
		}
	}
	if nets == nil {
		return
	}
	for bits := a.BitLen(); bits >= 0; bits-- {
		p, list, ok := nets.LookupPrefixLPM(netip.PrefixFrom(a, bits))
		if !ok {
			return
		}
		w.add(list)
		bits = p.Bits()
	}
}

func (w *walk) add(list []*rule) {
	switch {
	case len(list) == 0:
	case w.n < maxLists:
		w.first[w.n] = list
		w.n++
	default:
		w.more = append(w.more, list)
	}
}

// next returns the first rule that has not been visited, nil after the last one.
func (w *walk) next() *rule {
	var least *[]*rule
	for i := range w.n {
		if l := &w.first[i]; len(*l) > 0 && (least == nil || (*l)[0].before((*least)[0])) {
			least = l
		}
	}
	for i := range w.more {
		if l := &w.more[i]; len(*l) > 0 && (least == nil || (*l)[0].before((*least)[0])) {
			least = l
		}
	}
	if least == nil {
		return nil
	}
	r := (*least)[0]
	*least = (*least)[1:]
	return r
}

// leave skips the rest of a chain.
func (w *walk) leave(c *chain) {
	for i := range w.n {
		w.first[i] = c.after(w.first[i])
	}
	for i := range w.more {
		w.more[i] = c.after(w.more[i])
	}
}

// after returns the part of a list whose rules come after the chain.
func (c *chain) after(list []*rule) []*rule {
	if len(list) == 0 || list[0].chain != c {
		return list
	}
	n, _ := slices.BinarySearchFunc(list, c, func(r *rule, c *chain) int {
		if r.chain == c {
			return -1
		}
		return 1
	})
	return list[n:]
}
