package nat

import (
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// first decides about a packet without a connection.
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
	if s.closed(destination, d.in) {
		d.check("the destination is no node's own address", false)
		d.drop(ReasonToNode)
		return
	}
	if !d.check("ICMP type", p.Forwardable()) {
		d.drop(ReasonICMPType)
		return
	}
	if s.restricts && d.in.Outside() && !d.check("admitted", !s.bars(&d.from)) {
		d.bar(p)
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

// deliver runs the filters for a packet addressed to the gateway itself.
func (e *Engine) deliver(d *decision) {
	if !d.tr.Input(e.snapshot.rules) {
		d.dropped(e.snapshot)
		return
	}
	d.counted = d.tr.HitCount()
	d.verdict = Verdict{Action: Deliver, Packets: 1}
}

// dropped sets the verdict of a traversal. The rules that the packet met count it.
func (d *decision) dropped(s *snapshot) {
	d.counted = d.tr.HitCount()
	d.verdict = s.refusal(&d.tr)
}

// open decides about a packet that may pass: it opens a connection or, if the table has no room,
// forwards it without one where no state is needed.
func (e *Engine) open(d *decision, p *packet.Packet, now Time) {
	tr, pl := &d.tr, &d.plan
	if !tr.Out.Outside() && e.snapshot.reserved(tr.To.Destination()) {
		d.check("the destination is a host's own address", false)
		d.drop(ReasonBadDestination)
		d.counted, d.bindings = tr.EnteredHits(), true
		return
	}
	*pl = plan{to: tr.To, out: tr.Out, clamp: tr.MaxSegment(e.snapshot.mtu), mtu: e.snapshot.mtu}
	if e.narrow != nil {
		e.keepNarrow(pl, p, d.in)
	}
	if !d.openStream(p) {
		return
	}
	if p.IsPartial() {
		e.limits(d, p, 0, now)
	}
	if !d.forward(p) { // it opens no connection
		d.counted, d.bindings = tr.EnteredHits(), true
		return
	}
	switch {
	case !tr.NoTrack && p.FragmentOffset() == 0:
		opens := !p.IsAnswer() && !e.crowded(tr) || !e.free(tr)
		restricted := e.snapshot.restricts && (tr.In.Outside() || tr.Out.Outside())
		if restricted {
			var ok bool
			if opens, ok = e.begins(d, p); !d.check("it may open a connection", ok) {
				d.bar(p)
				d.counted = tr.HitCount()
				return
			}
		}
		if !d.check("it opens a connection", opens) {
			d.verdict.Untracked = true
			break
		}
		reason := e.place(d, p, now)
		if d.check("room in the table and among ports", reason == ReasonNone) {
			pl.to.Words, pl.to.Ports = d.answer.Reversed()
			if pl.translate(&d.from); pl.to.Ports != d.from.Ports && p.Protocol() == packet.SCTP && p.IsFragment() {
				d.drop(ReasonFragment) // its checksum covers bytes in other fragments
				return
			}
			d.effect = effectOpen
			return
		}
		if restricted || !e.free(tr) {
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

// free reports whether a packet may pass without a connection.
func (e *Engine) free(tr *rules.Traversal) bool { return !tr.Stateful && e.returns(tr) }

// returns reports whether answers to an outbound packet find their way without a connection: their
// route does not depend on the packet's node.
func (e *Engine) returns(tr *rules.Traversal) bool {
	if tr.In.Outside() || !tr.Out.Outside() {
		return true
	}
	_, ok := e.snapshot.rules.Route(tr.Out, 0, tr.To.Destination(), tr.From.Source())
	return ok
}

// crowded reports whether a packet's destination is at its share of connections. The packet may be
// the answer to one that passed untracked; it must not open a connection that counts against the
// host that answers.
func (e *Engine) crowded(tr *rules.Traversal) bool {
	tb := &e.table
	if 3*tb.used < e.snapshot.maxEntries { // shortcut: see shares.full
		return false
	}
	answer := tr.To.Reply(tr.Out)
	h := e.holder(&answer)
	return tb.shares.full(h.of(shareConnections), tb.used, e.snapshot.maxEntries)
}

// place chooses the reply tuple of a new connection and the one to evict for it, or says why there
// is neither.
func (e *Engine) place(d *decision, p *packet.Packet, now Time) Reason {
	tb, s, tr := &e.table, e.snapshot, &d.tr
	to, link := tr.To, wayOf(tr.Out)
	d.holder, d.shared = e.holder(&d.from), sharesPorts(tr, p, s)
	among := e.sourcePorts(tr, p.HasIdentifier())
	var space uint64
	full := false
	if d.shared {
		one := to
		one.SetSourcePort(uint16(among.low))
		space, full = tb.portsFull(one.Reply(link), d.holder, d.predecessor)
	}
	d.stale = d.predecessor != 0
	switch {
	case e.choosePort(d, p, &to, link, among, space, full, now):
		return e.room(d, now)
	case full:
		return ReasonPortShare
	}
	return ReasonPortExhausted
}

// yieldTries is how many of the oldest connections of a rank are considered for eviction.
const yieldTries = 4

// room decides which connection, if any, is evicted for one more of holder, or says why there is
// none. At its share, a holder replaces the connection whose tuple it takes, or else one of the
// oldest unsettled, closing or half-closed connections that is its own, of a holder with at least
// as many, or expired. Those passed over go to the end of the list. Established connections stay.
func (e *Engine) room(d *decision, now Time) Reason {
	tb, h := &e.table, d.holder.of(shareConnections)
	if !tb.shares.full(h, tb.used, e.snapshot.maxEntries) || d.predecessor != 0 && e.yields(d.predecessor, h, true) ||
		d.reused != 0 && e.yields(d.reused, h, false) {
		return ReasonNone
	}
	for r := rankUnsettled; r < ranks; r++ {
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

// yields reports whether a connection may be evicted for h. over: it has expired.
func (e *Engine) yields(number uint32, h holder, over bool) bool {
	tb := &e.table
	if over && !tb.shares.full(h, tb.used-1, e.snapshot.maxEntries) {
		return true
	}
	return tb.shares.yields(tb.holder(tb.at(number)).of(shareConnections), h)
}
