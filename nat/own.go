package nat

import (
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// LetsOut reports whether the output and postrouting filters let b, a packet made by the gateway
// itself, leave by link out, and counts it for the filters it meets.
func (e *Engine) LetsOut(b []byte, out Link) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	p, tr := &e.made, &e.scratch.tr
	met, ok := e.output(p, tr, b, out, nil)
	if met {
		tr.CountHits(tr.HitCount(), p.IsSYN(), 1, uint64(len(b)))
	}
	return ok
}

// ExplainOut traces to t which filters b would meet in LetsOut, and counts nothing.
func (e *Engine) ExplainOut(b []byte, out Link, t rules.Tracer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.output(new(packet.Packet), new(rules.Traversal), b, out, t)
}

// output runs b through the output and postrouting filters, if there are any for it.
//
// Preconditions: e.mu is held.
// +checklocks:e.mu
func (e *Engine) output(p *packet.Packet, tr *rules.Traversal, b []byte, out Link, trace rules.Tracer) (met, ok bool) {
	r := e.snapshot.rules
	if !r.FiltersOutput() || p.Parse(b) == packet.Malformed { // not a packet that rules could match
		return false, true
	}
	var t packet.Tuple
	p.Tuple(&t, out)
	tr.Start(&t, p, out, trace)
	return true, tr.Output(r, out)
}
