package nat

import (
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// maxHitLists caps the lists of counting rules that are numbered. They take less than 3 MiB.
const maxHitLists = 1 << 14

// hitEpoch is the number of lists at which a commit numbers them again: some may be of rules that
// are gone.
const hitEpoch = maxHitLists / 4 * 3

// ruleHits numbers the lists of counting rules that directions of connections hit. There are few
// different ones, so a connection stores its list in 2 bytes. Number 0 is the empty list. Number 1
// stands for all lists beyond maxHitLists: their rules do not count; Stats.Uncounted does. Numbers
// stay valid when rules change, because lists hold counters, which surviving rules keep.
type ruleHits struct {
	numbers map[rules.Hits]uint16
	lists   []rules.Hits
	last    [2]uint16 // the last of each direction, which is often the next too
}

const unlisted = 1

func newRuleHits() ruleHits {
	return ruleHits{numbers: map[rules.Hits]uint16{}, lists: []rules.Hits{{}, unlisted: {Short: true}}}
}

// number returns the number of the list that tr has hit for a packet of direction d.
func (h *ruleHits) number(tr *rules.Traversal, d int) uint16 {
	if tr.HitCount() == 0 {
		return 0
	}
	l := tr.Hits()
	if last := h.last[d]; l == h.lists[last] {
		return last
	}
	if n, ok := h.numbers[l]; ok {
		h.last[d] = n
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
func (e *Engine) countHits(c *conn, d int, p *packet.Packet, packets uint64) {
	l := &e.hits.lists[c.hits[d]]
	if l.Short {
		e.stats.Uncounted += packets
	}
	if syn := p.IsSYN(); syn || !l.SYNOnly() {
		l.Count(l.Length, syn, packets, uint64(p.Len()))
	}
}
