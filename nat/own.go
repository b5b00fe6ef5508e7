package nat

import (
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// LetsOut reports whether the filters of output and postrouting let b, a packet that the gateway itself has made, leave by link out, and
// counts it for those that it meets.
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

// ExplainOut tells t which filters b would meet by LetsOut, and counts nothing.
func (e *Engine) ExplainOut(b []byte, out Link, t rules.Tracer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.output(new(packet.Packet), new(rules.Traversal), b, out, t)
}

// output has b meet the filters of output and postrouting, if there are any for it.
//
// Preconditions: e.mu is held.
// +checklocks:e.mu
func (e *Engine) output(p *packet.Packet, tr *rules.Traversal, b []byte, out Link, trace rules.Tracer) (met, ok bool) {
	r := e.snapshot.rules
	if !r.FiltersOutput() || p.Parse(b) == packet.Malformed { // that is no packet which rules could look at
		return false, true
	}
	var t packet.Tuple
	p.Tuple(&t, out)
	tr.Start(&t, p, out, trace)
	return true, tr.Output(r, out)
}
