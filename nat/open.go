package nat

import "culvert/nat/packet"

// first handles a packet that belongs to no connection.
func (e *Engine) first(p *packet.Packet, t *packet.Tuple, in Port, now Time) Verdict {
	s := e.snapshot
	source, destination := t.Source(), t.Destination()
	if !s.admits(source, in) {
		return drop(ReasonBadSource)
	}
	tr := &e.scratch
	*tr = traversal{from: *t, in: in, first: true}
	tr.see(p)
	if s.rules.has(stageRaw) && !tr.raw(s.rules) {
		return e.dropped(p, tr)
	}
	if s.owns(destination, in) {
		return e.deliver(p, tr)
	}
	if !packet.Forwardable(destination) {
		return drop(ReasonBadDestination)
	}
	if !p.Forwardable() {
		return drop(ReasonICMPType)
	}
	if !tr.run(e, s, now) {
		if in == Tunnel && tr.reason == ReasonNoRoute && tr.dnat.kind == bindNone && s.external.Contains(destination) {
			return drop(ReasonNoMapping)
		}
		return e.dropped(p, tr)
	}
	return e.open(p, tr, now)
}

// raw runs the filters before connection tracking.
func (tr *traversal) raw(r *ruleset) bool {
	v := tr.view()
	tr.effects.hits = tr.hits[:0]
	return tr.filter(r, stageRaw, &v)
}

// deliver runs the input filters for a packet to the gateway itself.
func (e *Engine) deliver(p *packet.Packet, tr *traversal) Verdict {
	r := e.snapshot.rules
	if r.has(stageInput) {
		v := tr.view()
		v.untracked = true
		if !tr.filter(r, stageInput, &v) {
			return e.dropped(p, tr)
		}
		countRules(tr.effects.hits, p.IsSYN(), 1, uint64(p.Len()))
	}
	return Verdict{Action: Deliver, Packets: 1}
}

// dropped counts the rules that a packet met on its way to being dropped.
func (e *Engine) dropped(p *packet.Packet, tr *traversal) Verdict {
	countRules(tr.effects.hits, p.IsSYN(), 1, uint64(p.Len()))
	return refuse(tr.reason, tr.refusal)
}

// open makes the connection of its first packet and forwards it. Where the table has no room for it, what needs no state goes on
// without.
func (e *Engine) open(p *packet.Packet, tr *traversal, now Time) Verdict {
	s := e.snapshot
	pl := plan{to: tr.to, out: tr.out, clamp: tr.clampFor(s), mtu: s.mtu}
	var v Verdict
	if !pl.passable(p, &v) {
		countRules(tr.effects.hits[:entered(tr.effects.hits)], p.IsSYN(), 1, uint64(p.Len()))
		tr.snat.rule = nil
		tr.countBindings(1, uint64(p.Len()))
		return v // it makes no connection
	}
	untracked := false
	if !tr.effects.notrack && p.FragmentOffset() == 0 {
		h, reason := e.create(p, tr, now)
		if h.conn != nil {
			size := uint64(p.Len())
			tr.countBindings(1, size)
			v = Verdict{}
			evaluated := h.conn.flags & flagEvaluated0
			h.conn.flags |= flagEvaluated0 // for this packet in any case
			e.established(h, p, tr.in, now, &v)
			h.conn.flags = h.conn.flags&^flagEvaluated0 | evaluated
			return v
		}
		if tr.stateful || !e.returns(tr) {
			return drop(reason)
		}
		untracked = true
	} else if tr.stateful {
		return drop(ReasonFragment)
	}
	pl.translate(&tr.from)
	if p.IsPartial() && p.Protocol() == packet.TCP && e.paths.live(now) {
		pl.pathMTU = e.paths.lookup(pl.to.Destination(), pl.out == Tunnel, now)
	}
	size := uint64(p.Len())
	v = Verdict{Untracked: untracked}
	pl.forward(p, &v)
	countRules(tr.effects.hits, p.IsSYN(), uint64(v.Packets), size)
	return v
}

// returns reports whether answers to an outbound packet find their way without a connection: their route does not depend on the node
// that the packet came from.
func (e *Engine) returns(tr *traversal) bool {
	if tr.in == Tunnel || tr.out != Tunnel {
		return true
	}
	_, ok := e.snapshot.rules.route(Tunnel, 0, tr.to.Destination(), tr.from.Source())
	return ok
}

// create makes a connection, or says why there is none.
func (e *Engine) create(p *packet.Packet, tr *traversal, now Time) (hit, Reason) {
	tb, s := &e.table, e.snapshot
	to, zone := tr.to, tr.out
	if zone != Tunnel {
		zone = anyNode
	}
	h, shared := tb.shares.holder(&tr.from), tr.sharesPorts(p, s)
	if shared && tb.portsFull(to.Reply(zone), h) {
		return hit{}, ReasonPortShare
	}
	answer, ok := e.choosePort(p, &tr.from, &to, zone, now)
	if !ok {
		return hit{}, ReasonPortExhausted
	}
	if e.pressed() {
		e.hurry(now)
	}
	if reason := e.room(h.of(shareConnections)); reason != ReasonNone {
		return hit{}, reason
	}
	c, number := tb.add(&tr.from, &answer, s.generation)
	if c == nil {
		return hit{}, ReasonTableFull
	}
	e.stats.Created++
	if shared {
		tb.takePort(c, h)
	}
	c.lastSeen = now
	c.addresses, c.ports = packet.Deltas(&tr.from, &to)
	if tr.service != nil {
		c.flags |= flagService
	}
	c.state = initialState(p)
	if p.Protocol() == packet.TCP {
		var s packet.Segment
		p.Segment(&s)
		c.state = c.tcp.open(&s, original)
	}
	e.cache(c, original, tr)
	tb.wheel.arm(tb, c, number, now.Add(s.lifetime(c, e.pressed())))
	return hit{c, number, original}, ReasonNone
}

func initialState(p *packet.Packet) state {
	switch p.Protocol() {
	case packet.UDP, packet.UDPLite:
		return stateUDP
	case packet.ICMP, packet.ICMPv6:
		return stateICMP
	case packet.SCTP:
		return stateSCTPOpening
	}
	return stateOther
}

// hurry removes unreplied connections whose short life under pressure is over, the oldest first, two for each new one.
func (e *Engine) hurry(now Time) {
	for range 2 {
		number := e.table.lists[rankUnreplied].first
		if number == 0 {
			return
		}
		c := e.table.at(number)
		if c.lastSeen.Add(shortUnreplied) > now {
			return
		}
		e.table.remove(c, number)
		e.stats.Expired++
	}
}

// yieldTries is how many of the oldest connections of a rank are asked to make room.
const yieldTries = 4

// room sees to it that h may have one more connection, or says why not. At its share, it replaces one of the oldest unreplied or else
// closing connections: its own, or that of a holder with no less. Those that it asks in vain queue up again. Established ones stay.
func (e *Engine) room(h holder) Reason {
	tb := &e.table
	if !tb.shares.full(h, tb.used, e.snapshot.maxEntries) {
		return ReasonNone
	}
	for r := rankUnreplied; r < ranks; r++ {
		for range min(yieldTries, tb.lists[r].length) {
			number := tb.lists[r].first
			c := tb.at(number)
			if tb.shares.yields(tb.shares.holder(&c.tuples[original]).of(shareConnections), h) {
				tb.remove(c, number)
				e.stats.EarlyDropped++
				return ReasonNone
			}
			tb.rankAs(c, number, rankSettled)
			tb.rankAs(c, number, r)
		}
	}
	if tb.used >= e.snapshot.maxEntries {
		return ReasonTableFull
	}
	return ReasonConnectionShare
}
