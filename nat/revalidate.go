package nat

import (
	"net/netip"

	"culvert/nat/packet"
	"culvert/nat/rules"
)

// recheck decides about the connection of hit after the configuration has changed. If the change
// affects it, a first packet must still be admitted with the same addresses; verdicts and routes
// are then computed again. Otherwise the connection ends; if there is a Reason, both ends are
// notified.
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

// stillBound compares the translation of c with the one it would get now. Ports are kept. A
// service's backends are kept unless its onRemoval says otherwise, and so is the backend of a
// service that has gone, as with the kernel's connection tracking.
func (e *Engine) stillBound(tr *rules.Traversal, c *conn, now Time) (Reason, bool) {
	s := e.snapshot
	from := e.table.tuple(c, original)
	in := from.Link
	if !s.rules.HasLink(in) || !s.admits(from.Source(), in) || s.closed(from.Destination(), in) {
		return ReasonNone, false
	}
	keep := e.table.to(c, original)
	tr.Start(&from, nil, in, nil)
	if s.bars(&from) {
		// TCP ends here, because none of its packets can open it again; others stay as a memory:
		// see admission.go.
		if tr.Out = c.out[original]; from.Protocol == packet.TCP {
			return ReasonNotAdmitted, false
		}
		return ReasonNone, true
	}
	tr.Keep(keep, c.mark, c.out[original])
	outlives := c.has(flagService) && c.tcp.flags[reply]&tcpEnds == 0 && s.rules.Outlives(&from, &keep)
	tr.Outlives, tr.Stays = outlives, s.stays(c, keep.Destination())
	ok := e.traverse(tr, now)
	outlives = outlives && s.rules.IsHost()
	if b := tr.Service; b != nil {
		backend := netip.AddrPortFrom(keep.Destination(), keep.DestinationPort())
		if !c.has(flagService) || !b.Has(backend) && b.Service.OnRemoval == rules.RemovalReset {
			return ReasonNoBackend, false
		}
		if !b.Has(backend) && b.Service.EndsUDP(keep.Protocol) {
			return ReasonNone, false // its next packet opens another connection
		}
	} else if c.has(flagService) && (ok || tr.Outcome == rules.NoRoute || tr.Outcome == rules.Unserved) {
		// the service is gone
		switch {
		case outlives:
			tr.Out = in
			return ReasonNone, true
		case !ok || !tr.Outlives || tr.To.Words != keep.Words:
			return ReasonNoBackend, false
		}
	}
	if !ok {
		// Filters may change their verdict again; a connection whose destination is unreachable or
		// belongs to somebody else now is over.
		filtered := tr.Outcome == rules.Filtered || tr.Outcome == rules.Rejected
		return ReasonNone, filtered && tr.KeepsAddresses()
	}
	return ReasonNone, outlives || tr.To.Words == keep.Words && (tr.Out.Outside() || !s.reserved(keep.Destination()))
}

// sweepBudget is how many connections Sweep handles per call: a full traversal of the rules for
// each takes about as long as a batch of packets.
const sweepBudget = 64

// Sweep removes connections that have expired or that the configuration no longer admits, up to
// sweepBudget at a time. Process does the same for connections that packets hit. Callers call Sweep
// about once a second; while it returns false, they call it again after packets had their turn.
func (e *Engine) Sweep(now Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fragments.expire(e, now)
	e.clients.expire(e, now)
	left := e.expire(now, sweepBudget)
	return left > 0 && e.revalidateSome(now, left)
}

// A round is the pass of revalidateSome over the slab after a change of the configuration. Another
// change extends the round instead of restarting it, so the last entries are reached however often
// the configuration changes.
type round struct {
	at   uint32 // the last entry visited
	end  uint32 // of the slab when the configuration changed; later entries are of its generation
	left uint32 // how many entries are still to be visited
}

// extend makes a round visit all entries below end.
func (r *round) extend(end uint32) { r.end, r.left = end, end-1 }

// revalidateSome revalidates up to budget connections, and returns false if the round is not
// finished.
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
	e.history.reset(e.snapshot.generation)
	return true
}
