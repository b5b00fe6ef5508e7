package nat

import "culvert/nat/packet"

// maxHitLists caps the lists of counting rules that are numbered. They take less than 3 MiB.
const maxHitLists = 1 << 14

// hitEpoch is the number of lists with which a commit begins to number anew: some of them may be of rules that are gone.
const hitEpoch = maxHitLists / 4 * 3

// ruleHits numbers the lists of counting rules that directions of connections hit: there are few different ones, and a connection
// stores its list in 2 bytes. Number 0 is the empty list. Number 1 stands for all lists that come when there are maxHitLists: their
// rules do not count, and Stats.Uncounted does. Numbers stay valid when rules change: lists hold counters, which rules that stay keep.
type ruleHits struct {
	numbers map[hitList]uint16
	lists   []hitList
}

// A hitList is the counters of the rules that one direction's packets hit, or the first maxHits of them.
type hitList struct {
	counters [maxHits]*counter
	length   uint8
	entered  uint8 // how many of them come before routing
	syn      uint8 // a bit for each that counts SYN segments only
	short    bool  // there are more rules than are listed
}

const unlisted = 1

func newRuleHits() ruleHits {
	return ruleHits{numbers: map[hitList]uint16{}, lists: []hitList{{}, unlisted: {short: true}}}
}

// number returns the number of the list in e.
func (h *ruleHits) number(e *effects) uint16 {
	if len(e.hits) == 0 {
		return 0
	}
	l := hitList{length: uint8(len(e.hits)), entered: uint8(entered(e.hits)), short: e.overflow}
	for i, r := range e.hits {
		l.counters[i] = r.counter
		if r.synOnly() {
			l.syn |= 1 << i
		}
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

// count adds packets and their bytes to the first n counters.
func (l *hitList) count(n uint8, syn bool, packets, bytes uint64) {
	for i, c := range l.counters[:n] {
		if syn || l.syn>>i&1 == 0 {
			c.add(packets, bytes)
		}
	}
}

// countHits counts packets of direction d of c.
func (e *Engine) countHits(c *conn, d int, p *packet.Packet, packets uint64) {
	l := &e.hits.lists[c.hits[d]]
	if l.short {
		e.stats.Uncounted += packets
	}
	if syn := p.IsSYN(); syn || l.syn != 1<<l.length-1 {
		l.count(l.length, syn, packets, uint64(p.Len()))
	}
}

// entered returns how many of hits, which are in the order of stages, a packet meets that is refused for its size or TTL. A kernel
// looks at these between routing and the forward hook.
func entered(hits []*rule) int {
	n := 0
	for n < len(hits) && hits[n].chain.stage < stageForward {
		n++
	}
	return n
}
