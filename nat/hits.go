package nat

// maxHitLists caps the lists of counting rules that are numbered. They take less than 3 MiB.
const maxHitLists = 1 << 14

// ruleHits numbers the lists of counting rules that directions of connections hit: there are few different ones, and a connection
// stores its list in 2 bytes. Number 0 is the empty list. Number 1 stands for all lists that come when there are maxHitLists: their
// rules do not count, and Stats.Uncounted does.
type ruleHits struct {
	numbers map[hitList]uint16
	lists   []hitList
}

// A hitList is the rules that one direction's packets hit, or the first maxHits of them.
type hitList struct {
	rules   [maxHits]int32
	length  int
	synOnly bool // all of them count SYN segments only
	short   bool // there are more rules than are listed
}

const unlisted = 1

func newRuleHits() ruleHits {
	return ruleHits{numbers: map[hitList]uint16{}, lists: []hitList{{}, unlisted: {short: true}}}
}

// number returns the number of the list in e.
func (h *ruleHits) number(e *effects, r *ruleset) uint16 {
	if len(e.hits) == 0 {
		return 0
	}
	l := hitList{synOnly: true, short: e.overflow}
	l.length = copy(l.rules[:], e.hits)
	for _, n := range e.hits {
		l.synOnly = l.synOnly && r.rules[n].action == ActionClampMSS
	}
	if n, ok := h.numbers[l]; ok {
		return n
	}
	if len(h.lists) == maxHitLists {
		return unlisted
	}
	n := uint16(len(h.lists))
	h.numbers[l] = n
	h.lists = append(h.lists, l)
	return n
}

// countHits counts packets of direction d of c.
func (e *Engine) countHits(c *conn, d int, p *Packet, packets uint64) {
	if c.hits[d] == 0 {
		return
	}
	l := &e.snapshot.hits.lists[c.hits[d]]
	if l.short {
		e.stats.Uncounted += packets
	}
	if syn := p.isSYN(); syn || !l.synOnly {
		e.snapshot.rules.count(l.rules[:l.length], syn, packets, uint64(len(p.data)))
	}
}

// countEntered counts a packet that is refused for its size or TTL. A kernel looks at these between routing and the forward hook, so that
// it meets the rules before only. hits are in the order of stages.
func (r *ruleset) countEntered(hits []int32, p *Packet) {
	n := 0
	for n < len(hits) && hits[n] < r.sections[stageForward].first {
		n++
	}
	r.count(hits[:n], p.isSYN(), 1, uint64(len(p.data)))
}
