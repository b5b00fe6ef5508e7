package nat

import (
	"net/netip"

	"culvert/nat/packet"
	"culvert/nat/rules"
)

// established decides about a packet of an existing connection. It returns false if the
// configuration no longer admits the connection, so that the packet is the first of another.
func (e *Engine) established(d *decision, p *packet.Packet, now Time) bool {
	s, c, dir := e.snapshot, d.hit.conn, d.hit.direction
	home, evaluated := c.out[original], c.flags&(flagEvaluated0<<dir) != 0
	if c.generation != s.generation {
		reason := e.recheck(d, now)
		switch {
		case reason != ReasonNone:
			d.verdict = refuse(reason, packet.PortUnreachable)
			if p.Protocol() == packet.TCP {
				d.verdict.Refusal = packet.Reset
			}
			return true
		case d.renewal == renewEvict:
			return false
		case d.renewal == renewAnew:
			home, evaluated = d.home, false
		}
	}
	if d.trace != nil {
		e.traceConnection(d, evaluated)
	}
	if c.state.closed() && dir == original && p.HasPorts() && p.TCPFlags()&(packet.SYN|packet.ACK) == packet.SYN {
		// The ports are reused (RFC 9293, Section 3.6.1) for a connection of its own: the backends
		// and the rules of now decide about it, as in nf_conntrack, which looks such a SYN up
		// again.
		d.renewal, d.predecessor = renewEvict, d.hit.number
		return false
	}
	if s.restricts && e.turned(d, p) {
		d.check("admitted", false)
		d.bar(p)
		return true
	}
	// A reply tuple from inside matches whichever node the packet comes from.
	asymmetric := dir == reply && c.keys[reply].link == anyNode && d.in != home
	if asymmetric && s.foreign(d.from.Source(), d.in) {
		d.drop(ReasonBadSource)
		return true
	}
	pl := &d.plan
	reason := c.verdict[dir]
	pl.out, pl.clamp = c.out[dir], c.clamp[dir]
	switch {
	case !evaluated || asymmetric:
		e.evaluate(d, p, now)
		// The verdict for a reply from another link than expected holds for this packet only; it is
		// not cached.
		if d.finding = findAll; asymmetric {
			d.finding = findOne
		}
		reason, pl.out, pl.clamp = reasonOf(d.tr.Outcome), d.tr.Out, d.tr.MaxSegment(s.mtu)
	case d.trace != nil:
		e.evaluate(d, p, now) // to trace what the direction's first packet met
	}
	if reason != ReasonNone {
		e.refused(d, reason)
		return true
	}
	e.table.reverse(&pl.to, c, 1-dir)
	pl.addresses, pl.ports = c.deltas(dir)
	if pl.mtu = s.mtu; e.narrow != nil {
		e.keepNarrow(pl, p, d.in)
	}
	pl.stream.step = streamAsIs
	if c.tcp.flags[original]&tcpShifted != 0 && p.HasPorts() && !e.stream(d, p) {
		return true
	}
	if p.IsPartial() || pl.stream.step == streamLeads {
		e.limits(d, p, c.tcp.mss[1-dir], now)
	}
	if pl.to.Ports != d.from.Ports && p.Protocol() == packet.SCTP && p.IsFragment() {
		d.drop(ReasonFragment) // its checksum covers bytes in other fragments
		return true
	}
	if !d.forward(p) {
		d.effect = effectUnfit
		return true
	}
	d.effect = effectPass
	d.verdict.Asymmetric = asymmetric
	return true
}

// limits records what bounds the size of a packet's segments.
func (e *Engine) limits(d *decision, p *packet.Packet, peerMSS uint16, now Time) {
	pl := &d.plan
	if pl.peerMSS, pl.pathMTU = peerMSS, 0; e.paths.live(now) {
		pl.to.IPv6 = p.IsIPv6()
		ends := endsOf(&d.from, &pl.to, pl.out)
		pl.pathMTU = e.paths.lookup(&ends, now)
	}
}

// refused sets the verdict for a connection's packet that filters or routing refuse.
func (e *Engine) refused(d *decision, r Reason) {
	d.effect = effectRefused
	switch r {
	case ReasonRejected:
		d.verdict = refuse(r, packet.NetUnreachable)
	case ReasonNotAdmitted:
		d.verdict = refuse(r, packet.Prohibited)
	case ReasonNoRoute:
		to := e.table.to(d.hit.conn, d.hit.direction)
		d.verdict = e.snapshot.noRoute(to.Destination())
	default:
		d.drop(r)
	}
}

// evaluate runs filters and routing for the direction of hit.
func (e *Engine) evaluate(d *decision, p *packet.Packet, now Time) {
	c, dir, tr := d.hit.conn, d.hit.direction, &d.tr
	from := e.table.tuple(c, dir)
	tr.Start(&from, p, d.in, d.trace)
	to := e.table.to(c, dir)
	tr.Follow(to, c.mark, c.out[dir])
	tr.Stays = e.snapshot.stays(c, to.Destination())
	e.traverse(tr, now)
	if e.withdrawn(c) {
		d.check("admitted", false)
		tr.Outcome = rules.NotAdmitted
	}
	if dir == reply && e.snapshot.rules.Generated() {
		// Filters mark by the incoming node. The node of a reply must not replace the node of
		// origin.
		tr.ConnMark = c.mark
	}
}

// stays reports whether a connection keeps the node by which it leaves after the last route to its
// backend has gone: the backend is outside the cluster, and the route was its service's.
func (s *snapshot) stays(c *conn, backend netip.Addr) bool {
	return c.has(flagService) && !s.pods.Contains(backend)
}
