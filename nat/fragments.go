package nat

import (
	"slices"

	"culvert/nat/packet"
)

// Virtual reassembly: fragments are forwarded one by one, but share the ports of their first one. Later fragments that come before it
// wait, unless their translation does not depend on a connection (RFC 4787, Section 11, REQ-14).

// fragment handles a fragment, the first one or a later one.
func (e *Engine) fragment(p *packet.Packet, t *packet.Tuple, in Port, now Time) (v Verdict) {
	g := e.datagram(p, t, now)
	switch {
	case g == nil && p.FragmentOffset() == 0:
		e.dispatch(p, t, in, now, &v)
		return v
	case g == nil:
		v, ok := e.stateless(p, t, in, now)
		if !ok {
			v = drop(ReasonFragmentLimit)
		}
		return v
	case g.overlaps(p):
		return drop(ReasonFragmentOverlap)
	case p.FragmentOffset() == 0:
		v = e.firstFragment(g, p, t, in, now)
	default:
		v = e.later(g, p, t, in, now)
	}
	e.fragments.settle(e, g, now)
	return v
}

// firstFragment handles the one that says what becomes of all.
func (e *Engine) firstFragment(g *datagram, p *packet.Packet, t *packet.Tuple, in Port, now Time) (v Verdict) {
	e.dispatch(p, t, in, now, &v)
	g.known, g.ports = true, t.Ports
	if v.Action == Drop {
		g.reason = v.Reason
	} else if p.IsICMPError() {
		g.icmpError, g.action, g.out = true, v.Action, v.Out
		p.Tuple(&g.to, 0)
	}
	if g.held != nil {
		for h := g.held; h != nil; h = h.next {
			v.Held++
		}
		e.fragments.ready = append(e.fragments.ready, g)
	}
	return v
}

// later handles a later fragment of g.
func (e *Engine) later(g *datagram, p *packet.Packet, t *packet.Tuple, in Port, now Time) (v Verdict) {
	switch {
	case !g.known:
		v, ok := e.stateless(p, t, in, now)
		if !ok {
			v = e.hold(g, p)
		}
		return v
	case g.reason != ReasonNone:
		return drop(g.reason)
	case g.icmpError && g.action == Deliver:
		return Verdict{Action: Deliver, Packets: 1}
	case g.icmpError:
		pl := plan{to: g.to, out: g.out, mtu: e.snapshot.mtu}
		pl.translate(t)
		if !pl.forward(p, &v) {
			v.Refusal = packet.NoRefusal // RFC 1122, Section 3.2.2: never about an error
		}
		return v
	}
	t.Ports = g.ports
	e.dispatch(p, t, in, now, &v)
	return v
}

// stateless decides about a later fragment whose first one is unknown, if no connection has a say in it.
func (e *Engine) stateless(p *packet.Packet, t *packet.Tuple, in Port, now Time) (Verdict, bool) {
	s := e.snapshot
	admitted := s.admits(t.Source(), in)
	if !admitted && in == Tunnel && packet.IsICMP(t.Protocol) && packet.Forwardable(t.Source()) {
		return Verdict{}, false // it may be of an ICMP error, which any router sends
	}
	if !admitted || s.owns(t.Destination(), in) || !packet.Forwardable(t.Destination()) {
		return e.first(p, t, in, now), true
	}
	tr := &e.scratch
	*tr = traversal{from: *t, in: in, first: true}
	if s.rules.has(stageRaw) && !tr.raw(s.rules) {
		return e.dropped(p, tr), true
	}
	tracked := !tr.effects.notrack
	if tracked && in == Tunnel && s.external.Contains(t.Destination()) {
		return Verdict{}, false
	}
	if !tr.run(e, s, now) {
		return e.dropped(p, tr), true
	}
	if tracked && (tr.stateful || !e.returns(tr)) {
		return Verdict{}, false
	}
	return e.open(p, tr, now), true
}

// hold keeps a fragment until the first one comes.
func (e *Engine) hold(g *datagram, p *packet.Packet) Verdict {
	f, s := &e.fragments, &e.table.shares
	if p.Len() > heldSize || s.full(g.holder.of(shareHeld), f.holds, maxHeld) && !f.makeRoom(e, g.holder, shareHeld, g) {
		return drop(ReasonFragmentLimit)
	}
	h := f.heldSpare
	if h != nil {
		f.heldSpare = h.next
	} else {
		h = new(heldFragment)
	}
	h.length = copy(h.bytes[:], p.Bytes())
	h.next, g.held = g.held, h
	f.holds++
	s.take(g.holder.of(shareHeld))
	return Verdict{Action: Hold, Packets: 1}
}

// unhold takes a fragment from those that wait for g.
func (f *fragmentTable) unhold(e *Engine, g *datagram) *heldFragment {
	h := g.held
	g.held = h.next
	h.next, f.heldSpare = f.heldSpare, h
	f.holds--
	e.table.shares.give(g.holder.of(shareHeld))
	if g.held == nil {
		f.ready = slices.DeleteFunc(f.ready, func(r *datagram) bool { return r == g })
	}
	return h
}

// Release processes a fragment that waited for its first one, which the caller has just processed: while Verdict.Held of that one was
// positive, it calls Release once for each. The fragment is copied to b, which needs room for 2048 bytes, and p made its view. It
// returns false if none is left.
func (e *Engine) Release(p *packet.Packet, b []byte, in Port, now Time) (Verdict, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := &e.fragments
	i := slices.IndexFunc(f.ready, func(g *datagram) bool { return g.key.link == in })
	if i < 0 {
		return Verdict{}, false
	}
	g := f.ready[i]
	h := f.unhold(e, g)
	p.Parse(b[:copy(b, h.bytes[:h.length])])
	var t packet.Tuple
	p.Tuple(&t, in)
	v := e.later(g, p, &t, in, now)
	f.settle(e, g, now)
	d := e.stats.of(in)
	d.Held--
	d.Received-- // counted when it was held
	d.count(&v)
	return v, true
}
