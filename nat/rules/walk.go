package rules

import (
	"net/netip"
	"slices"
)

// maxLists is how many lists one walk merges without allocating. Only prefixes nested deeper than
// in any realistic rule set need more.
const maxLists = 16

// A walk visits the rules of one stage that could match a packet, in order of evaluation. Usually
// they are in one list.
type walk struct {
	list []*rule
	many *lists // nil: list is all
}

// lists are merged by a walk through several of them.
type lists struct {
	first [maxLists][]*rule
	n     int
	more  [][]*rule // the lists that do not fit into first
}

// walk returns a walk over the rules that could match a packet. found is empty and has room for
// their lists.
func (s *stageRules) walk(v *view, found *lists) walk {
	if s.ruleIndex == nil {
		return walk{list: s.few}
	}
	found.find(s.ruleIndex, v)
	w := walk{list: found.first[0]}
	if found.n > 1 {
		w.many = found
	}
	return w
}

// find fills l with the lists in x for v.
func (l *lists) find(x *ruleIndex, v *view) {
	l.addBucket(x.any, v)
	l.addBucket(x.in.get(v.in), v)
	l.addBucket(x.out.get(v.out), v)
}

func (l *lists) addBucket(b *ruleBucket, v *view) {
	if b == nil {
		return
	}
	if len(b.list) > 0 {
		l.add(b.list)
	}
	if b.n > linear {
		l.addCovering(b.tables[byDestination], b.tables[byDestinationNet], v.dst)
		l.addCovering(b.tables[bySource], b.tables[bySourceNet], v.src)
	}
}

// addCovering adds the lists of a and of all prefixes that cover it.
func (l *lists) addCovering(hosts, nets *ruleTable, a netip.Addr) {
	if hosts != nil {
		if list, ok := hosts.Lookup(a); ok {
			l.add(list)
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
		l.add(list)
		bits = p.Bits()
	}
}

func (l *lists) add(list []*rule) {
	if l.n == maxLists {
		l.more = append(l.more, list)
		return
	}
	l.first[l.n] = list
	l.n++
}

// next returns the first rule that has not been visited, nil after the last one.
func (w *walk) next() *rule {
	if w.many != nil {
		return w.many.next()
	}
	if len(w.list) == 0 {
		return nil
	}
	r := w.list[0]
	w.list = w.list[1:]
	return r
}

func (l *lists) next() *rule {
	var least *[]*rule
	for i := 0; i < l.n; i++ {
		switch list := &l.first[i]; {
		case len(*list) == 0:
			l.n--
			*list = l.first[l.n]
			i--
		case least == nil || (*list)[0].before((*least)[0]):
			least = list
		}
	}
	for i := range l.more {
		if list := &l.more[i]; len(*list) > 0 && (least == nil || (*list)[0].before((*least)[0])) {
			least = list
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
func (l *lists) leave(c *chain) {
	for i := range l.n {
		l.first[i] = c.after(l.first[i])
	}
	for i := range l.more {
		l.more[i] = c.after(l.more[i])
	}
}

// after returns the rules of a list that follow the chain.
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
