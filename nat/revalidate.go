package nat

import (
	"net/netip"

	"culvert/nat/rules"
)

// recheck decides what becomes of the connection of hit after the configuration has changed. If that concerns it, a first packet must
// still be admitted and get the same addresses, and verdicts and routes are found anew. Else its configuration has gone; for
// ReasonNoBackend its ends are to be told.
func (e *Engine) recheck(d *decision, now Time) Reason {
	c := d.hit.conn
	if !e.history.concerns(&e.table, c, e.snapshot.generation) {
		d.renewal = renewAsIs
		return ReasonNone
	}
	reason, ok := e.stillBound(&d.tr, c, now)
	if d.renewal, d.home = renewAnew, d.tr.Out; !ok {
		d.renewal, d.predecessor = renewEvict, d.hit.number
	}
	return reason
}

// stillBound compares the translation of c with the one that it would get now. Ports are kept, and so are backends of a service
// unless its onRemoval says otherwise.
func (e *Engine) stillBound(tr *rules.Traversal, c *conn, now Time) (Reason, bool) {
	s := e.snapshot
	from := e.table.tuple(c, original)
	in := from.Link
	if !s.rules.HasLink(in) || !s.admits(from.Source(), in) {
		return ReasonNone, false
	}
	keep := e.table.to(c, original)
	tr.Start(&from, nil, in, nil)
	tr.Keep(keep, c.mark)
	ok := e.traverse(tr, now)
	if b := tr.Service; b != nil {
		backend := netip.AddrPortFrom(keep.Destination(), keep.DestinationPort())
		if !c.has(flagService) || !b.Has(backend) && b.Service.OnRemoval == rules.RemovalReset {
			return ReasonNoBackend, false
		}
		if !b.Has(backend) && b.Service.EndsUDP(keep.Protocol) {
			return ReasonNone, false // its next packet is the first of another
		}
	} else if c.has(flagService) && (ok || tr.Outcome == rules.NoRoute || tr.Outcome == rules.Unserved) {
		return ReasonNoBackend, false // the service is gone
	}
	if !ok {
		// Filters may change their mind once more; what is addressed to nowhere, or now to somebody else, is over.
		filtered := tr.Outcome == rules.Filtered || tr.Outcome == rules.Rejected
		return ReasonNone, filtered && tr.KeepsAddresses()
	}
	return ReasonNone, tr.To.Words == keep.Words
}

// sweepBudget is how many connections Sweep looks at: a full traversal of the rules for each takes about as long as a batch of packets.
const sweepBudget = 64

// Sweep removes connections whose time has come or whose configuration has gone, up to sweepBudget at a time. Process does so too, for
// those that packets meet. A caller calls Sweep every second or so and, while it returns false, again after packets had their turn.
func (e *Engine) Sweep(now Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fragments.expire(e, now)
	e.clients.expire(e, now)
	left := e.expire(now, sweepBudget)
	return left > 0 && e.revalidateSome(now, left)
}

// A round is the way around the slab that revalidateSome goes after a change of the configuration. Another change makes it longer and
// does not start it anew, so that the last entries have their turn however often the configuration changes.
type round struct {
	at   uint32 // the entry that was seen last
	end  uint32 // of the slab when the configuration changed; later entries are of its generation
	left uint32 // how many entries are to be seen
}

// extend makes a round see all entries below end.
func (r *round) extend(end uint32) { r.end, r.left = end, end-1 }

// revalidateSome returns false if some of the round is left.
func (e *Engine) revalidateSome(now Time, budget int) bool {
	r := &e.round
	if r.left == 0 {
		return true
	}
	for ; r.left > 0 && budget > 0; budget-- {
		r.left--
		r.at++
		if r.at >= r.end {
			r.at = 1
		}
		c := e.table.at(r.at)
		if c.live() && c.generation != e.snapshot.generation {
			d := &e.scratch
			d.outline, d.hit = outline{}, hit{conn: c, number: r.at}
			e.recheck(d, now)
			e.renew(c, r.at, d.renewal, d.home, now)
		}
	}
	if r.left > 0 {
		return false
	}
	e.history.settle(e.snapshot.generation)
	return true
}
