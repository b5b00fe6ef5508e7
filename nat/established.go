package nat

import "culvert/nat/packet"

// find looks up a connection. It removes one that has expired even if the timer wheel has not reached it.
func (e *Engine) find(t *packet.Tuple, now Time) (hit, bool) {
	s := e.snapshot
	for {
		h, ok := e.table.lookup(t)
		if !ok {
			return h, false
		}
		c := h.conn
		if c.lastSeen.Add(s.timeouts[c.state]) > now && (c.has(flagReplied) || c.lastSeen.Add(s.lifetime(c, e.pressed())) > now) {
			return h, true
		}
		e.table.remove(c, h.number)
		e.stats.Expired++
	}
}

// established handles a packet of a connection that exists. It returns false if the connection turned out to be gone, and the packet
// is the first of another.
func (e *Engine) established(h hit, p *packet.Packet, in Port, now Time, v *Verdict) bool {
	s, c, d := e.snapshot, h.conn, h.direction
	if c.generation != s.generation {
		switch reason, ok := e.revalidate(c, h.number, now); {
		case reason != ReasonNone:
			*v = refuse(reason, packet.PortUnreachable)
			if p.Protocol() == packet.TCP {
				v.Refusal = packet.Reset
			}
			return true
		case !ok:
			return false
		}
	}
	// The tuple of an answer from a node fits whichever node it comes from.
	asymmetric := d == reply && c.tuples[reply].Link == anyNode && in != c.out[original]
	if asymmetric && s.foreign(c.tuples[reply].Source(), in) {
		*v = drop(ReasonBadSource)
		return true
	}
	if c.flags&(flagEvaluated0<<d) == 0 || asymmetric {
		e.evaluate(c, d, p, in, now)
		if asymmetric {
			c.flags &^= flagEvaluated1 // what rules say about another port than the entry holds, only that port's packets are told
		}
	}
	if c.verdict[d] != ReasonNone {
		e.refused(c, d, p, v)
		return true
	}
	var pl plan
	pl.to.Words, pl.to.Ports = c.tuples[1-d].Reversed()
	pl.addresses, pl.ports = c.deltas(d)
	pl.out, pl.clamp, pl.mtu = c.out[d], c.clamp[d], s.mtu
	if p.IsPartial() && p.Protocol() == packet.TCP {
		pl.peerMSS = c.tcp.mss[1-d]
		if e.paths.live(now) {
			to := c.to(d)
			pl.pathMTU = e.paths.lookup(to.Destination(), pl.out == Tunnel, now)
		}
	}
	sctp := p.Protocol() == packet.SCTP && pl.ports != 0
	if sctp && p.IsFragment() {
		*v = drop(ReasonFragment) // its checksum covers bytes that are elsewhere
		return true
	}
	if !pl.forward(p, v) {
		l := &e.hits.lists[c.hits[d]]
		l.count(l.entered, p.IsSYN(), 1, uint64(p.Len()))
		return true
	}
	if sctp {
		p.SumSCTP()
	}
	v.Asymmetric = asymmetric
	c.packets[d] += uint64(v.Packets)
	c.bytes[d] += uint64(p.Len())
	e.countHits(c, d, p, uint64(v.Packets))
	e.advance(c, h.number, d, p, now)
	return true
}

// refused is the verdict on a packet of a connection that filters or routing refuse.
func (e *Engine) refused(c *conn, d int, p *packet.Packet, v *Verdict) {
	e.countHits(c, d, p, 1)
	switch r := c.verdict[d]; r {
	case ReasonRejected:
		*v = refuse(r, packet.NetUnreachable)
	case ReasonNoRoute:
		to := c.to(d)
		*v = e.snapshot.noRoute(to.Destination())
	default:
		*v = drop(r)
	}
}

// advance takes a forwarded packet into the connection's state and timer.
func (e *Engine) advance(c *conn, number uint32, d int, p *packet.Packet, now Time) {
	c.lastSeen = max(c.lastSeen, now)
	was := c.state
	switch {
	case c.tuples[original].Protocol == packet.TCP:
		if p.HasPorts() {
			var s packet.Segment
			p.Segment(&s)
			c.state = c.tcp.next(c.state, &s, d)
		}
	case c.tuples[original].Protocol == packet.SCTP:
		if p.HasPorts() {
			c.state = c.tcp.sctpNext(c.state, p, d, d == reply || c.has(flagReplied))
		}
	case c.state == stateUDP && d == reply:
		c.state = stateUDPStream
	}
	if d == reply && !c.has(flagReplied) {
		e.table.replied(c, number)
		e.reschedule(c, number, now)
	} else if c.state != was {
		if c.has(flagReplied) {
			e.table.rankAs(c, number, rankOf(c.state))
		}
		e.reschedule(c, number, now)
	}
}

// evaluate runs the filters and the route for a direction, and caches what they say for the rest of the generation.
func (e *Engine) evaluate(c *conn, d int, p *packet.Packet, in Port, now Time) {
	tr := &e.scratch
	*tr = traversal{from: c.tuples[d], to: c.to(d), in: in}
	tr.effects.connMark = c.mark
	tr.see(p)
	tr.run(e, e.snapshot, now)
	if d == reply && e.snapshot.rules.generated {
		// They mark by the node that a packet comes from. That of an answer must not replace the node of origin.
		tr.effects.connMarkSet = false
	}
	e.cache(c, d, tr)
}

// cache stores the outcome of a traversal.
func (e *Engine) cache(c *conn, d int, tr *traversal) {
	s := e.snapshot
	c.verdict[d] = tr.reason
	c.out[d] = tr.out
	c.clamp[d] = tr.clampFor(s)
	c.flags |= flagEvaluated0 << d
	if tr.effects.connMarkSet && tr.effects.connMark != c.mark {
		c.mark = tr.effects.connMark
		c.flags &^= flagEvaluated0 | flagEvaluated1 // with another mark the next packet may fare otherwise, in both directions
	}
	c.hits[d] = e.hits.number(&tr.effects)
}
