package nat

// maxHitLists caps the lists of counting rules that are numbered.
const maxHitLists = 1 << 12

// ruleHits numbers the lists of counting rules that directions of connections hit: there are few different ones, and a connection
// stores its list in 4 bytes. Number 0 is the empty list.
type ruleHits struct {
	numbers map[[maxHits]int32]uint32
	lists   []hitList
}

type hitList struct {
	rules   [maxHits]int32
	length  int
	synOnly bool // all of them count SYN segments only
}

func newRuleHits() ruleHits {
	return ruleHits{numbers: map[[maxHits]int32]uint32{}, lists: make([]hitList, 1)}
}

// number returns the number of a list, or false if there are too many lists.
func (h *ruleHits) number(rules []int32, r *ruleset) (uint32, bool) {
	if len(rules) == 0 {
		return 0, true
	}
	l := hitList{length: len(rules), synOnly: true}
	for i := range l.rules {
		l.rules[i] = -1
	}
	copy(l.rules[:], rules)
	if n, ok := h.numbers[l.rules]; ok {
		return n, true
	}
	if len(h.lists) == maxHitLists {
		return 0, false
	}
	for _, n := range rules {
		l.synOnly = l.synOnly && r.rules[n].action == ActionClampMSS
	}
	n := uint32(len(h.lists))
	h.numbers[l.rules] = n
	h.lists = append(h.lists, l)
	return n, true
}

// at returns a list, borrowed: until the next call of number.
func (h *ruleHits) at(n uint32) (rules []int32, synOnly bool) {
	l := &h.lists[n]
	return l.rules[:l.length], l.synOnly
}
