package nat

import (
	"net/netip"
	"slices"
)

// A ruleIndex finds the rules of one stage that a packet could match without looking at the others. Rules are told apart first by
// the device that they ask for, then by their longest prefix. Each is in exactly one list; lists are in the order of evaluation.
type ruleIndex struct {
	in, out map[uint32]*ruleBucket // by port; a map finds keys of this size fastest
	any     *ruleBucket
}

// A ruleBucket holds the rules of one device.
type ruleBucket struct {
	bySource, byDestination prefixLists
	rest                    []int32
}

// prefixLists are lists of rules by the prefix that an address must lie in.
type prefixLists struct {
	index prefixIndex
	lists [][]int32 // by number of the prefix
}

// A keyed rule is one that needs an address to lie in a prefix.
type keyed struct {
	rule   int32
	prefix netip.Prefix
}

func newPrefixLists(rules []keyed) prefixLists {
	prefixes := make([]netip.Prefix, len(rules))
	for i, k := range rules {
		prefixes[i] = k.prefix
	}
	var l prefixLists
	var numbers map[netip.Prefix]int32
	l.index, numbers = newPrefixIndex(prefixes)
	l.lists = make([][]int32, len(l.index.prefixes))
	for _, k := range rules {
		n := numbers[k.prefix]
		l.lists[n] = append(l.lists[n], k.rule)
	}
	return l
}

// A draft is a ruleBucket that is being filled.
type draft struct {
	source, destination []keyed
	rest                []int32
}

func (d *draft) build() *ruleBucket {
	if len(d.source)+len(d.destination)+len(d.rest) > linear {
		return &ruleBucket{newPrefixLists(d.source), newPrefixLists(d.destination), d.rest}
	}
	for _, k := range slices.Concat(d.source, d.destination) {
		d.rest = append(d.rest, k.rule)
	}
	slices.Sort(d.rest)
	return &ruleBucket{rest: d.rest}
}

// newRuleIndex indexes rules[first:end], leaving out those that match nothing.
func newRuleIndex(rules []rule, first, end int32) *ruleIndex {
	in, out, any := map[Port]*draft{}, map[Port]*draft{}, &draft{}
	for n := first; n < end; n++ {
		k := rules[n].key()
		if k.never {
			continue
		}
		d := any
		switch {
		case k.device == fieldIn:
			d = draftOf(in, k.port)
		case k.device == fieldOut:
			d = draftOf(out, k.port)
		}
		switch {
		case !k.prefix.IsValid():
			d.rest = append(d.rest, n)
		case k.source:
			d.source = append(d.source, keyed{n, k.prefix})
		default:
			d.destination = append(d.destination, keyed{n, k.prefix})
		}
	}
	return &ruleIndex{in: buckets(in), out: buckets(out), any: any.build()}
}

func draftOf(m map[Port]*draft, p Port) *draft {
	d := m[p]
	if d == nil {
		d = &draft{}
		m[p] = d
	}
	return d
}

func buckets(m map[Port]*draft) map[uint32]*ruleBucket {
	all := make(map[uint32]*ruleBucket, len(m))
	for p, d := range m {
		all[uint32(p)] = d.build()
	}
	return all
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

// maxLists bounds the lists that one walk merges. Only prefixes nested deeper than in any real rule set need more.
const maxLists = 16

// A walk visits the rules of one stage that a packet could match, in the order of evaluation.
type walk struct {
	lists [maxLists][]int32
	n     int
	end   int32 // > 0: visit every rule below end, without an index
}

// start prepares the walk of section s for v.
func (w *walk) start(s *section, v *view) {
	w.n, w.end = 0, 0
	if s.index == nil {
		w.end = s.end
		return
	}
	ok := w.addBucket(s.index.any, v)
	if len(s.index.in) > 0 {
		ok = w.addBucket(s.index.in[uint32(v.in)], v) && ok
	}
	if len(s.index.out) > 0 {
		ok = w.addBucket(s.index.out[uint32(v.out)], v) && ok
	}
	if !ok {
		w.end = s.end
	}
}

// addBucket reports whether the walk had room for all lists of b.
func (w *walk) addBucket(b *ruleBucket, v *view) bool {
	if b == nil {
		return true
	}
	ok := w.add(b.rest)
	ok = w.addCovering(&b.byDestination, v.dst) && ok
	return w.addCovering(&b.bySource, v.src) && ok
}

func (w *walk) addCovering(l *prefixLists, a netip.Addr) bool {
	if len(l.lists) == 0 {
		return true
	}
	for n := l.index.find(a); n >= 0; n = l.index.parent[n] {
		if !w.add(l.lists[n]) {
			return false
		}
	}
	return true
}

func (w *walk) add(list []int32) bool {
	switch {
	case len(list) == 0:
	case w.n == maxLists:
		return false
	default:
		w.lists[w.n] = list
		w.n++
	}
	return true
}

// next returns the first rule from number n on, or -1.
func (w *walk) next(n int32) int32 {
	if w.end > 0 {
		if n < w.end {
			return n
		}
		return -1
	}
	best := int32(-1)
	for i := 0; i < w.n; {
		l := w.lists[i]
		if l[0] < n {
			at := 1
			if len(l) > linear {
				at, _ = slices.BinarySearch(l, n)
			}
			for at < len(l) && l[at] < n {
				at++
			}
			l = l[at:]
			w.lists[i] = l
		}
		if len(l) == 0 {
			w.n--
			w.lists[i] = w.lists[w.n]
			continue
		}
		if best < 0 || l[0] < best {
			best = l[0]
		}
		i++
	}
	return best
}
