package nat

import (
	"slices"

	"culvert/nat/packet"
)

// Virtual reassembly: fragments are forwarded one by one but share the ports of their first
// fragment. Later fragments that arrive before it wait for it (RFC 4787, Section 11, REQ-14).

// A part is what commit does with a fragment.
type part uint8

const (
	partNone     part = iota
	partUnknown       // it belongs to no remembered datagram
	partNew           // it is recorded
	partHeld          // it is recorded, and waits for the first fragment
	partReleased      // it was recorded when it arrived
	partOverlap       // it ends its datagram
)

// A reassembly is the effect of a fragment on datagrams.
type reassembly struct {
	datagram       *datagram // nil: a new one
	expired        *datagram // the expired one with the same key
	victim, waiter *datagram // evicted for the datagram, and for the waiting fragment
}

// fragment decides about a fragment, the first one or a later one.
func (e *Engine) fragment(d *decision, p *packet.Packet, now Time) {
	d.part = partUnknown
	known := e.datagram(d, p, now)
	g := d.reassembly.datagram
	switch d.check("room among datagrams", known); {
	case !known && p.FragmentOffset() == 0:
		e.dispatch(d, p, now)
		return
	case !known:
		e.early(d, p, false, now)
		return
	case !d.check("overlap", g == nil || g.reason != ReasonFragmentOverlap && !g.overlaps(p)):
		d.drop(ReasonFragmentOverlap)
		if !g.complete && !g.covers(p) {
			d.part = partOverlap
		}
		return
	}
	d.part = partNew
	if p.FragmentOffset() > 0 {
		e.later(d, p, now)
		return
	}
	e.dispatch(d, p, now)
	if g != nil {
		for h := g.held; h != nil; h = h.next {
			d.verdict.Held++
		}
	}
}

// later decides about a fragment that is not the first.
func (e *Engine) later(d *decision, p *packet.Packet, now Time) {
	g := d.reassembly.datagram
	switch {
	case !d.check("first fragment", g != nil && g.known):
		e.early(d, p, true, now)
	case g.reason != ReasonNone:
		d.drop(g.reason)
	case g.icmpError && g.action == Deliver:
		d.verdict = Verdict{Action: Deliver, Packets: 1}
	case g.icmpError:
		d.plan = plan{to: g.to, out: g.out, mtu: e.narrow.of(g.out, p.IsIPv6(), e.snapshot.mtu)}
		d.plan.translate(&d.from)
		if !d.forward(p) {
			d.verdict.Refusal = packet.NoRefusal // RFC 1122, Section 3.2.2: no error about an error
		}
	default:
		d.from.Ports, d.from.Protocol = g.ports, g.protocol
		e.dispatch(d, p, now)
	}
}

// early decides about a later fragment that comes before its first one: it waits, because it may
// belong to a connection whose translation no rule tells, such as that of a service's backend.
// Where it cannot wait, it goes on if its own translation needs no connection.
func (e *Engine) early(d *decision, p *packet.Packet, room bool, now Time) {
	s, in := e.snapshot, d.in
	source, destination := d.from.Source(), d.from.Destination()
	admitted, owned := s.admits(source, in), s.owns(destination, in)
	// It may belong to an ICMP error, which any router may send.
	ofError := in.Outside() && packet.IsICMP(d.from.Protocol) && packet.Forwardable(source)
	switch {
	case !admitted && !ofError, !owned && (linkLocal6(source) || !packet.Forwardable(destination) ||
		s.closed(destination, in)):
		e.first(d, p, now)
	case room && e.wait(d, p, now):
	case admitted && owned:
		e.first(d, p, now)
	case !admitted || !e.stateless(d, p, now):
		d.drop(ReasonFragmentLimit)
	}
}

// stateless decides about a later fragment without a known first one, if it needs no connection.
func (e *Engine) stateless(d *decision, p *packet.Packet, now Time) bool {
	s, in, tr := e.snapshot, d.in, &d.tr
	if s.restricts && in.Outside() {
		return false // only its first one says whether it is admitted
	}
	tr.Start(&d.from, nil, in, d.trace)
	if !tr.Raw(s.rules) {
		d.dropped(s)
		return true
	}
	tracked := !tr.NoTrack
	if tracked && in.Outside() && s.external.Contains(d.from.Destination()) {
		return false
	}
	if !e.traverse(tr, now) {
		d.dropped(s)
		return true
	}
	if tracked && !e.free(tr) {
		return false
	}
	e.open(d, p, now)
	return true
}

// wait decides whether a fragment may wait for the first one.
func (e *Engine) wait(d *decision, p *packet.Packet, now Time) bool {
	f, s, r := &e.fragments, &e.table.shares, &d.reassembly
	h := e.holder(&d.from)
	full := p.Len() > heldSize
	if !full && s.full(h.of(shareHeld), f.holds, maxHeld) {
		// Evicting a datagram may free room for the fragment too.
		if r.victim == nil || r.victim.held == nil || !s.yields(r.victim.holder.of(shareHeld), h.of(shareHeld)) {
			r.waiter = f.victim(s, h, shareHeld, r.datagram, now)
			full = r.waiter == nil
		}
	}
	if !d.check("room to wait for the first fragment", !full) {
		return false
	}
	d.part, d.verdict = partHeld, Verdict{Action: Hold, Packets: 1}
	return true
}

// commitFragment updates the fragment's datagram as d says.
func (e *Engine) commitFragment(d *decision, p *packet.Packet, now Time) {
	f, r := &e.fragments, &d.reassembly
	g := r.datagram
	switch d.part {
	case partOverlap:
		f.abandon(e, g, now)
		fallthrough
	case partUnknown:
		f.expire(e, now)
		return
	}
	if r.waiter != nil {
		f.replace(e, r.waiter, now)
	}
	if r.expired != nil && r.expired != r.waiter {
		f.forget(e, r.expired, ReasonFragment)
	}
	if r.victim != nil && r.victim != r.waiter && r.victim != r.expired {
		f.replace(e, r.victim, now)
	}
	if g == nil {
		g = f.add(e, newDatagramKey(p, &d.from), e.holder(&d.from), now)
	}
	if d.part != partReleased {
		g.see(p)
	}
	if p.FragmentOffset() == 0 {
		f.know(g, d, p)
	} else if d.part == partHeld {
		f.hold(e, g, p)
	}
	f.completeIf(e, g, now)
	f.expire(e, now)
}

// know records the first fragment's fate, which all others share.
func (f *fragmentTable) know(g *datagram, d *decision, p *packet.Packet) {
	g.known, g.ports, g.protocol = true, d.from.Ports, d.from.Protocol
	if d.verdict.Action == Drop {
		g.reason = d.verdict.Reason
	} else if p.IsICMPError() {
		g.icmpError, g.action, g.out = true, d.verdict.Action, d.verdict.Out
		p.Tuple(&g.to, 0)
	}
	if g.held != nil {
		f.ready = append(f.ready, g)
	}
}

// hold keeps a fragment until the first one arrives.
func (f *fragmentTable) hold(e *Engine, g *datagram, p *packet.Packet) {
	h := f.heldSpare
	if h != nil {
		f.heldSpare = h.next
	} else {
		h = new(heldFragment)
	}
	h.length = copy(h.bytes[:], p.Bytes())
	h.next, g.held = g.held, h
	f.holds++
	e.table.shares.take(g.holder.of(shareHeld))
}

// unhold removes a fragment from those that wait for g.
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

// Release processes a fragment that waited for its first one. After Process of that first one, the
// caller calls Release Verdict.Held times. The fragment is copied to b, which needs room for 2048
// bytes, and p becomes its view. Release returns false if none is left.
func (e *Engine) Release(p *packet.Packet, b []byte, in Link, now Time) (Verdict, bool) {
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
	d := &e.scratch
	d.reset(in)
	p.Tuple(&d.from, in)
	d.part, d.reassembly = partReleased, reassembly{datagram: g}
	e.later(d, p, now)
	st := e.stats.of(in)
	st.Held--
	st.Received-- // counted when it was held
	e.commit(d, p, now)
	return d.verdict, true
}

// TapFragments registers tap, which is called for each fragment dropped while it waits; nil
// unregisters. tap must not call methods of e, because it runs under e's lock, and must not keep
// the fragment.
func (e *Engine) TapFragments(tap func(fragment []byte, in Link, why Reason)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lost = tap
}
