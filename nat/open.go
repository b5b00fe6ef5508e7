package nat

import (
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// first decides about a packet that belongs to no connection.
func (e *Engine) first(d *decision, p *packet.Packet, now Time) {
	s, tr := e.snapshot, &d.tr
	source, destination := d.from.Source(), d.from.Destination()
	if !d.check("source", s.admits(source, d.in) && (s.owns(destination, d.in) || !linkLocal6(source))) {
		d.drop(ReasonBadSource)
		return
	}
	tr.Start(&d.from, p, d.in, d.trace)
	if !tr.Raw(s.rules) {
		d.dropped(s)
		return
	}
	if s.owns(destination, d.in) {
		e.deliver(d)
		return
	}
	if !d.check("destination", packet.Forwardable(destination)) {
		d.drop(ReasonBadDestination)
		return
	}
	if !d.check("ICMP type", p.Forwardable()) {
		d.drop(ReasonICMPType)
		return
	}
	if !e.traverse(tr, now) {
		if d.in.Outside() && tr.Outcome == rules.NoRoute && !tr.Bound() && s.external.Contains(destination) {
			d.drop(ReasonNoMapping)
			return
		}
		d.dropped(s)
		return
	}
	e.open(d, p, now)
}

// deliver runs the filters for a packet to the gateway itself.
func (e *Engine) deliver(d *decision) {
	if !d.tr.Input(e.snapshot.rules) {
		d.dropped(e.snapshot)
		return
	}
	d.counted = d.tr.HitCount()
	d.verdict = Verdict{Action: Deliver, Packets: 1}
}

// dropped is the verdict of a traversal. The rules that the packet met on its way count it.
func (d *decision) dropped(s *snapshot) {
	d.counted = d.tr.HitCount()
	d.verdict = s.refusal(&d.tr)
}

// open decides about a packet that may pass: it makes a connection or, where the table has no room for it, goes on without if it needs
// no state.
func (e *Engine) open(d *decision, p *packet.Packet, now Time) {
	tr, pl := &d.tr, &d.plan
	*pl = plan{to: tr.To, out: tr.Out, clamp: tr.MaxSegment(e.snapshot.mtu), mtu: e.snapshot.mtu}
	if e.narrow != nil {
		e.keepNarrow(pl, p, d.in)
	}
	if p.IsPartial() {
		e.limits(pl, p, 0, now)
	}
	if !d.forward(p) { // it makes no connection
		d.counted, d.bindings = tr.EnteredHits(), true
		return
	}
	switch {
	case !tr.NoTrack && p.FragmentOffset() == 0:
		reason := e.place(d, p, now)
		if d.check("room in the table and among ports", reason == ReasonNone) {
			pl.to.Words, pl.to.Ports = d.answer.Reversed()
			if pl.translate(&d.from); pl.to.Ports != d.from.Ports && p.Protocol() == packet.SCTP && p.IsFragment() {
				d.drop(ReasonFragment) // its checksum covers bytes that are elsewhere
				return
			}
			d.effect = effectOpen
			return
		}
		if tr.Stateful || !e.returns(tr) {
			d.drop(reason)
			return
		}
		d.verdict.Untracked = true
	case tr.Stateful:
		d.drop(ReasonFragment)
		return
	}
	pl.translate(&d.from)
	d.counted = tr.HitCount()
}

// returns reports whether answers to an outbound packet find their way without a connection: their route does not depend on the node
// that the packet came from.
func (e *Engine) returns(tr *rules.Traversal) bool {
	if tr.In.Outside() || !tr.Out.Outside() {
		return true
	}
	_, ok := e.snapshot.rules.Route(tr.Out, 0, tr.To.Destination(), tr.From.Source())
	return ok
}

// place decides which tuple answers a new connection and what makes room for it, or says why there is none.
func (e *Engine) place(d *decision, p *packet.Packet, now Time) Reason {
	tb, s, tr := &e.table, e.snapshot, &d.tr
	to, link := tr.To, wayOf(tr.Out)
	d.holder, d.shared = e.holder(&d.from), sharesPorts(tr, p, s)
	var space uint64
	full := false
	if d.shared {
		space, full = tb.portsFull(to.Reply(link), d.holder, d.predecessor)
	}
	d.stale = d.predecessor != 0
	switch {
	case e.choosePort(d, p, &to, link, space, full, now):
		return e.room(d, now)
	case full:
		return ReasonPortShare
	}
	return ReasonPortExhausted
}

// yieldTries is how many of the oldest connections of a rank are asked to make room.
const yieldTries = 4

// room decides which connection, if any, makes room for one more of holder, or says why none does. At its share, a holder replaces the
// one whose tuple it takes, or else one of the oldest unreplied or closing connections: its own, that of a holder with no less, or
// one that has expired. Those that it asks in vain queue up again. Established ones stay.
func (e *Engine) room(d *decision, now Time) Reason {
	tb, h := &e.table, d.holder.of(shareConnections)
	if !tb.shares.full(h, tb.used, e.snapshot.maxEntries) || d.predecessor != 0 && e.yields(d.predecessor, h, true) || d.reused != 0 && e.yields(d.reused, h, false) {
		return ReasonNone
	}
	for r := rankUnreplied; r < ranks; r++ {
		number := tb.lists[r].first
		for range min(yieldTries, tb.lists[r].length) {
			c := tb.at(number)
			if number != d.predecessor && e.yields(number, h, !e.alive(c, now)) {
				d.victim = number
				return ReasonNone
			}
			d.asked[r]++
			number = tb.cold(number).next
		}
	}
	if tb.used >= e.snapshot.maxEntries {
		return ReasonTableFull
	}
	return ReasonConnectionShare
}

// yields reports whether a connection makes room for h. over: its time is.
func (e *Engine) yields(number uint32, h holder, over bool) bool {
	tb := &e.table
	if over && !tb.shares.full(h, tb.used-1, e.snapshot.maxEntries) {
		return true
	}
	return tb.shares.yields(tb.holder(tb.at(number)).of(shareConnections), h)
}
