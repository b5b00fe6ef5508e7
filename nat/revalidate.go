package nat

import "net/netip"

// revalidate looks at a connection after the configuration has changed: a first packet must still be admitted and get the same
// addresses. It returns false if not, and removes the connection; for ReasonNoBackend its ends are to be told.
func (e *Engine) revalidate(c *conn, number uint32, now Time) (Reason, bool) {
	s := e.snapshot
	reason, ok := e.stillBound(c, now)
	if !ok {
		e.table.remove(c, number)
		e.stats.Evicted++
		return reason, false
	}
	c.generation = s.generation
	c.flags &^= flagEvaluated0 | flagEvaluated1
	return ReasonNone, true
}

// stillBound compares the translation of c with the one that it would get now. Ports are kept, and so are backends of a service
// unless its onRemoval says otherwise.
func (e *Engine) stillBound(c *conn, now Time) (Reason, bool) {
	s := e.snapshot
	in := c.tuples[original].zone
	if _, ok := s.nodes[in]; in != Tunnel && !ok || !s.admits(c.tuples[original].source(), in) {
		return ReasonNone, false
	}
	tr := &e.scratch
	*tr = traversal{from: c.tuples[original], in: in, first: true, keep: c.to(original), keeping: true}
	tr.effects.connMark = c.mark
	ok := tr.run(e, s, now)
	if tr.backend >= 0 {
		backend := netip.AddrPortFrom(tr.keep.destination(), tr.keep.destinationPort())
		service := s.rules.services.all[tr.backend]
		if !c.has(flagService) || !service.has(backend) && service.config.OnRemoval == RemovalReset {
			return ReasonNoBackend, false
		}
	} else if c.has(flagService) && (ok || tr.reason == ReasonNoRoute) {
		return ReasonNoBackend, false // the service is gone
	}
	if !ok {
		// Filters may change their mind once more; what is addressed to nowhere is over.
		return ReasonNone, tr.reason == ReasonFiltered || tr.reason == ReasonRejected
	}
	return ReasonNone, tr.to.words == tr.keep.words
}

// Sweep looks at up to sweepRounds × sweepBudget connections, and lets packets pass between rounds.
const sweepRounds, sweepBudget = 64, 64

// Sweep removes connections whose time has come or whose configuration has gone. Process does so too, a few at a time; a caller without
// packets calls Sweep every second or so. It returns false if there is more to do at once.
func (e *Engine) Sweep(now Time) bool {
	for range sweepRounds {
		if e.sweep(now) {
			return true
		}
	}
	return false
}

func (e *Engine) sweep(now Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fragments.expire(e, now)
	e.clients.expire(e, now)
	return e.expire(now, sweepBudget) && e.revalidateSome(now, sweepBudget)
}

// revalidateSome goes on through the slab after a change of the configuration.
func (e *Engine) revalidateSome(now Time, budget int) bool {
	for ; e.cursor < e.table.high; e.cursor++ {
		if budget--; budget < 0 {
			return false
		}
		c := e.table.at(e.cursor)
		if c.live() && c.generation != e.snapshot.generation {
			e.revalidate(c, e.cursor, now)
		}
	}
	return true
}
