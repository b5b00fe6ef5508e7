package nat

// maxHitLists caps the lists of counting rules that are numbered.
const maxHitLists = 1 << 12

// ruleHits numbers the lists of counting rules that directions of connections hit: there are few different ones, and a connection
// stores its list in 2 bytes. Number 0 is the empty list.
type ruleHits struct {
	numbers map[[maxHits]int32]uint16
	lists   []hitList
}

type hitList struct {
	rules   [maxHits]int32
	length  int
	synOnly bool // all of them count SYN segments only
}

func newRuleHits() ruleHits {
	return ruleHits{numbers: map[[maxHits]int32]uint16{}, lists: make([]hitList, 1)}
}

// tooManyHits is the number of lists that are not numbered: their directions are evaluated packet by packet.
const tooManyHits = 0xffff

// number returns the number of the list in e.
func (h *ruleHits) number(e *effects, r *ruleset) uint16 {
	rules := e.hits
	if len(rules) == 0 {
		return 0
	}
	l := hitList{length: len(rules), synOnly: true}
	for i := range l.rules {
		l.rules[i] = -1
	}
	copy(l.rules[:], rules)
	if n, ok := h.numbers[l.rules]; ok && !e.overflow {
		return n
	}
	if e.overflow || len(h.lists) == maxHitLists {
		return tooManyHits
	}
	for _, n := range rules {
		l.synOnly = l.synOnly && r.rules[n].action == ActionClampMSS
	}
	n := uint16(len(h.lists))
	h.numbers[l.rules] = n
	h.lists = append(h.lists, l)
	return n
}

// at returns a list, borrowed: until the next call of number.
func (h *ruleHits) at(n uint16) (rules []int32, synOnly bool) {
	l := &h.lists[n]
	return l.rules[:l.length], l.synOnly
}
