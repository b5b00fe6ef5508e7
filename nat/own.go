package nat

import "culvert/nat/packet"

// LetsOut reports whether the filters of output and postrouting let b, a packet that the gateway itself has made, leave by link out, and
// counts it for those that it meets.
func (e *Engine) LetsOut(b []byte, out Link) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	p, tr, r := &e.made, &e.scratch.tr, e.snapshot.rules
	if !r.FiltersOutput() || p.Parse(b) == packet.Malformed { // that is no packet which rules could look at
		return true
	}
	var t packet.Tuple
	p.Tuple(&t, out)
	tr.Start(&t, p, out, nil)
	ok := tr.Output(r, out)
	tr.CountHits(tr.HitCount(), p.IsSYN(), 1, uint64(len(b)))
	return ok
}
