package nat

import (
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// A decision is what happens to a packet, and what commit has to do for it.
type decision struct {
	trace   rules.Tracer // nil except for Explain
	verdict Verdict
	from    packet.Tuple // as the packet came
	in      Link
	outline
	hit  hit  // the packet's connection, if effect or renewal concerns one
	plan plan // how a packet that is forwarded is rewritten
	tr   rules.Traversal

	// For effectOpen.
	holder holder
	answer packet.Tuple
	closed uint64 // the list of closed connections among which the holder looks for a port, if passed is not 0
	// For a forwarded ICMP error: the quoted packet, and the quotation's tuple before and after
	// translation.
	quote      packet.Packet
	quoted     [2]packet.Tuple
	shift      packet.StreamShift // for quotesStream
	path       path               // the path MTU learnt from it
	reassembly reassembly
}

// An outline says which other parts of a decision are in use. It starts as zero.
type outline struct {
	effect   effect
	renewal  renewal
	finding  finding
	part     part
	counted  uint8 // how many of the rules that tr has hit count the packet
	bindings bool  // the rules that bound its destination count it too
	shared   bool  // effectOpen: the connection's source address is shared with others
	stale    bool  // effectOpen: expired connections hold its tuples
	relays   bool  // the packet is an ICMP error to be translated with its quotation
	teaches  bool  // the error reports a path MTU
	// quotesStream: the quotation has the server's sequence numbers of a stream with a PROXY
	// header.
	quotesStream bool
	home         Link // renewAnew: link to which the connection's packets go
	asked        [ranks]uint8
	passed       uint8  // how many connections of the list closed may not give up their ports to this packet
	victim       uint32 // the connection that is evicted
	predecessor  uint32 // the finished connection that had the packet's tuple
	reused       uint32 // the closed connection that gives up its reply tuple
}

// An effect is what a packet does to connections.
type effect uint8

const (
	effectNone    effect = iota
	effectPass           // it belongs to the connection of hit
	effectUnfit          // it would, except for its size or TTL
	effectRefused        // rules or routing refuse it, like all packets of its direction
	effectOpen           // it opens a new connection
)

// A renewal is what happens to a connection of an older generation.
type renewal uint8

const (
	renewNone  renewal = iota
	renewAsIs          // no change concerns it
	renewAnew          // it survives; verdicts and routes are computed again
	renewEvict         // the configuration no longer admits it
)

// A finding says how far the verdict in tr, about a direction of hit, applies.
type finding uint8

const (
	findNone finding = iota
	findAll          // to all packets of the direction
	findOne          // to this packet alone
)

// decide fills d. It only reads: the packet, the connections and everything else in the Engine.
func (e *Engine) decide(d *decision, p *packet.Packet, in Link, now Time) {
	d.reset(in)
	switch p.Fault() {
	case packet.Malformed:
		d.drop(ReasonMalformed)
		return
	case packet.SourceRoute:
		d.drop(ReasonSourceRoute)
		return
	}
	p.Tuple(&d.from, in)
	if p.IsFragment() {
		e.fragment(d, p, now)
		return
	}
	e.dispatch(d, p, now)
}

func (d *decision) reset(in Link) {
	d.in = in
	d.outline = outline{}
	d.verdict = Verdict{}
	d.from = packet.Tuple{}
}

func (d *decision) drop(r Reason) { d.verdict = drop(r) }

// dispatch finds or opens the connection of a whole packet, or of a fragment whose ports are known.
func (e *Engine) dispatch(d *decision, p *packet.Packet, now Time) {
	if p.Forwardable() && (!e.snapshot.rules.NoTracks() || !e.notracked(d, p)) {
		if p.IsICMPError() {
			e.icmpError(d, p, now)
			return
		}
		var ok bool
		if d.hit, ok = e.loaded(reference(p.Hint), &d.from, now); !ok {
			d.hit, ok = e.find(&d.from, 0, now)
		}
		if ok {
			if e.established(d, p, now) {
				return
			}
		}
		d.predecessor = d.hit.number
	}
	e.first(d, p, now)
}

// notracked reports whether the rules exempt the packet from connection tracking, or drop it
// before.
func (e *Engine) notracked(d *decision, p *packet.Packet) bool {
	d.tr.Start(&d.from, p, d.in, nil) // no tracer: the next stage runs these rules again and traces them
	return !d.tr.Raw(e.snapshot.rules) || d.tr.NoTrack
}

// find looks up a live connection other than gone. If there is none, it returns a hit on one of the
// connections it skipped.
func (e *Engine) find(t *packet.Tuple, gone uint32, now Time) (hit, bool) {
	tb := &e.table
	hash := tb.directory.hash(t)
	h, slot, ok := tb.search(t, hash, hash%segmentSlots)
	if !ok || gone == 0 && e.alive(h.conn, now) {
		return h, ok
	}
	over := h
	for ok && (h.number == gone || !e.alive(h.conn, now)) {
		h, slot, ok = tb.search(t, hash, (slot+1)%segmentSlots)
	}
	if !ok {
		return over, false
	}
	return h, true
}

// alive reports whether a connection has not expired, even if the timer wheel has not reached it.
func (e *Engine) alive(c *conn, now Time) bool {
	return e.seen(c, now).Add(e.snapshot.lifetime(c, e.pressed())) > now
}

// seen is since when a connection has been idle. While e is frozen, that is now.
func (e *Engine) seen(c *conn, now Time) Time {
	if c.lastSeen >= e.floor {
		return c.lastSeen
	}
	return max(c.lastSeen, min(e.floor, now))
}
