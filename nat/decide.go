package nat

import (
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// A decision is what becomes of a packet, and what commit does about it.
type decision struct {
	trace   rules.Tracer // nil, but for Explain
	verdict Verdict
	from    packet.Tuple // as the packet came
	in      Link
	outline
	hit  hit  // the packet's connection, if effect or renewal is about one
	plan plan // how a packet that is forwarded is rewritten
	tr   rules.Traversal

	// Of effectOpen.
	holder holder
	answer packet.Tuple
	// Of an ICMP error that is forwarded: what it quotes, and the tuple that the quotation has and the one that it gets.
	quote      packet.Packet
	quoted     [2]packet.Tuple
	shift      packet.StreamShift // of quotesStream
	path       path               // what it teaches
	reassembly reassembly
}

// An outline is the part of a decision that says which others count. All of it is 0 at first.
type outline struct {
	effect   effect
	renewal  renewal
	finding  finding
	part     part
	counted  uint8 // how many of the rules that tr has hit count the packet
	bindings bool  // so does what bound its destination
	shared   bool  // effectOpen: others use the connection's source
	stale    bool  // effectOpen: expired connections have its tuples
	relays   bool  // the packet is an ICMP error with a quotation
	teaches  bool  // it tells a path MTU
	// quotesStream: the quotation has a server's numbers of a client's stream.
	quotesStream bool
	home         Link // renewAnew: where the connection's packets go
	asked        [ranks]uint8
	victim       uint32 // the connection that makes room
	predecessor  uint32 // the connection that had the packet's tuple, and is over
	reused       uint32 // the one that leaves the tuple of its answers to this one's, and is closed
}

// An effect is what a packet does to connections.
type effect uint8

const (
	effectNone    effect = iota
	effectPass           // it is one of those of hit
	effectUnfit          // it would be, but for its size or TTL
	effectRefused        // rules or routing refuse it, as all of its direction
	effectOpen           // it is the first one of a new connection
)

// A renewal is what becomes of a connection of an older generation.
type renewal uint8

const (
	renewNone  renewal = iota
	renewAsIs          // no change concerns it
	renewAnew          // it survives; verdicts and routes are found anew
	renewEvict         // its configuration has gone
)

// A finding is what rules and routing have said about a direction of hit, in tr.
type finding uint8

const (
	findNone finding = iota
	findAll          // it holds for all packets
	findOne          // it holds for this packet alone
)

// decide fills d. It only reads: the packet, the connections and all else that the Engine knows.
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

// dispatch finds the connection of a whole packet, or of a fragment whose ports are known, or has one made.
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

// notracked reports whether the rules keep the packet from connections, or drop it before them.
func (e *Engine) notracked(d *decision, p *packet.Packet) bool {
	d.tr.Start(&d.from, p, d.in, nil) // whoever comes next runs the rules again, and tells
	return !d.tr.Raw(e.snapshot.rules) || d.tr.NoTrack
}

// find looks up a connection that is alive and not gone. Where there is none, it returns the hit on one of those that it passed over.
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

// alive reports whether a connection's time is not over, whether or not the timer wheel has reached it.
func (e *Engine) alive(c *conn, now Time) bool {
	return c.lastSeen.Add(e.snapshot.lifetime(c, e.pressed())) > now
}
