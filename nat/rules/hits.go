package rules

import "sync/atomic"

// A Counter counts the packets that a rule matched.
type Counter struct{ packets, bytes atomic.Uint64 }

func (c *Counter) add(packets, bytes uint64) {
	c.packets.Add(packets)
	c.bytes.Add(bytes)
}

// Hits are the counters of the rules that one direction's packets hit, in order of stages; the list
// may be cut off. Equal Hits count alike.
type Hits struct {
	counters [maxHits]*Counter
	Length   uint8
	Entered  uint8 // how many of them run before routing
	Short    bool  // there are more rules than are listed
	syn      uint8 // a bit for each that counts SYN segments only
}

// Hits returns the counters of the rules that the packet has hit so far.
func (tr *Traversal) Hits() Hits {
	hits := tr.hits
	h := Hits{Length: uint8(len(hits)), Entered: tr.EnteredHits(), Short: tr.overflow}
	for i, r := range hits {
		h.counters[i] = r.counter
		if r.synOnly() {
			h.syn |= 1 << i
		}
	}
	return h
}

// Count adds packets and their bytes to the first n counters.
func (h *Hits) Count(n uint8, syn bool, packets, bytes uint64) {
	for i, c := range h.counters[:n] {
		if syn || h.syn>>i&1 == 0 {
			c.add(packets, bytes)
		}
	}
}

// SYNOnly reports whether none of the rules counts anything but SYN segments.
func (h *Hits) SYNOnly() bool { return h.syn == 1<<h.Length-1 }

// HitCount returns how many rules the packet has hit so far, of those that are listed.
func (tr *Traversal) HitCount() uint8 { return uint8(len(tr.hits)) }

// EnteredHits returns how many of them a packet meets that is refused for its size or TTL. A kernel
// checks these between routing and the forward hook.
func (tr *Traversal) EnteredHits() uint8 {
	n := 0
	for hits := tr.hits; n < len(hits) && hits[n].chain.stage < stageForward; {
		n++
	}
	return uint8(n)
}

// CountHits counts the packet for the first n of them.
func (tr *Traversal) CountHits(n uint8, syn bool, packets, bytes uint64) {
	countRules(tr.hits[:n], syn, packets, bytes)
}

// CountBindings counts the packet for the nat rules, which see only the first packet of a
// connection. refused: the packet ended between routing and the forward hook, so its source was not
// translated.
func (tr *Traversal) CountBindings(refused bool, packets, bytes uint64) {
	if tr.dnat.rule != nil {
		tr.dnat.rule.counter.add(packets, bytes)
	}
	if tr.snat.rule != nil && !refused {
		tr.snat.rule.counter.add(packets, bytes)
	}
}

// countRules adds packets and their bytes to the counters of rules.
func countRules(hits []*rule, syn bool, packets, bytes uint64) {
	for _, rule := range hits {
		if syn || !rule.synOnly() {
			rule.counter.add(packets, bytes)
		}
	}
}
