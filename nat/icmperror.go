package nat

import (
	"net/netip"

	"culvert/nat/packet"
)

// icmpError translates an ICMP error about a packet that passed here, and the packet that it quotes. Any router may have sent it. It
// goes to the sender of what it quotes or nowhere (RFC 5508, Section 4.2), and neither makes, refreshes nor ends a connection (Section
// 4.3, REQ-6). Sequence numbers that it quotes are for the sender to judge, as with Linux's nf_conntrack; what the gateway itself
// learns from an error, learnPath judges.
func (e *Engine) icmpError(p *packet.Packet, t *packet.Tuple, in Port, now Time) Verdict {
	s := e.snapshot
	source, destination := t.Source(), t.Destination()
	if in == Tunnel && source != s.peer && !packet.Forwardable(source) && !s.admitted.Contains(source) || in != Tunnel && !s.admits(source, in) {
		return drop(ReasonBadSource)
	}
	var q packet.Packet
	if !p.IsValidICMP() || !p.Quoted(&q) {
		return drop(ReasonMalformed)
	}
	var quoted packet.Tuple
	q.Tuple(&quoted, 0)
	if in != Tunnel && s.foreign(quoted.Destination(), in) {
		return drop(ReasonBadSource) // what it quotes was sent to another node
	}
	if quoted.Source() != destination {
		if s.owns(destination, in) {
			return Verdict{Action: Deliver, Packets: 1}
		}
		return drop(ReasonICMPUnrelated)
	}
	if h, ok := e.quotedConn(&quoted, in, now); ok {
		return e.relayTracked(p, &q, t, &quoted, h, in, now)
	}
	switch {
	case s.owns(destination, in):
		return Verdict{Action: Deliver, Packets: 1}
	case !packet.Forwardable(destination):
		return drop(ReasonBadDestination)
	case in == Tunnel:
		return e.relayFromTunnel(p, &q, t, &quoted)
	}
	return e.relayFromNode(p, &q, t, &quoted, in)
}

// quotedConn finds the connection of a quoted packet: its answer would be found. The direction of the hit is that of the answer.
func (e *Engine) quotedConn(quoted *packet.Tuple, in Port, now Time) (hit, bool) {
	answer := quoted.Reply(in)
	if h, ok := e.find(&answer, now); ok || in == Tunnel {
		return h, ok
	}
	answer.Link = anyNode // sent by way of another node than the error
	return e.find(&answer, now)
}

// relayTracked translates an error about a packet of a connection: the quoted packet becomes what its sender sent.
func (e *Engine) relayTracked(p, q *packet.Packet, t, quoted *packet.Tuple, h hit, in Port, now Time) Verdict {
	s, c, d := e.snapshot, h.conn, h.direction
	if c.generation != s.generation {
		if _, ok := e.revalidate(c, h.number, now); !ok {
			return drop(ReasonICMPUnrelated)
		}
	}
	if c.flags&(flagEvaluated0<<d) == 0 {
		e.evaluate(c, d, nil, in, now)
		c.flags &^= flagEvaluated0 << d // the error is not one of the direction's packets
	}
	if r := c.verdict[d]; r != ReasonNone {
		return drop(r)
	}
	sent := c.tuples[1-d]
	pl := plan{to: *t, out: c.out[d], mtu: s.mtu}
	pl.to.SetDestination(sent.Source())
	pl.to.SetSource(s.errorSource(t.Source(), sent.Destination(), in, pl.out))
	v := pl.relay(p, q, t, quoted, &sent)
	if v.Action == Forward {
		e.learnPath(c, 1-d, p, q, quoted, in, now)
	}
	return v
}

// relayFromTunnel translates an error about a packet that left through the tunnel without a connection: by prefixes alone.
func (e *Engine) relayFromTunnel(p, q *packet.Packet, t, quoted *packet.Tuple) Verdict {
	s := e.snapshot
	r, ok := s.real.Lookup(quoted.Destination())
	if !ok || s.external.Contains(t.Destination()) {
		return drop(ReasonICMPUnrelated)
	}
	sent := *quoted
	sent.SetDestination(r.apply(quoted.Destination()))
	hop, ok := s.rules.route(Tunnel, 0, quoted.Destination(), t.Destination())
	if !ok {
		return drop(ReasonNoRoute)
	}
	pl := plan{to: *t, out: hop.port, mtu: s.mtu}
	pl.to.SetSource(s.errorSource(t.Source(), sent.Destination(), Tunnel, pl.out))
	return pl.relay(p, q, t, quoted, &sent)
}

// relayFromNode does the same for a packet that came out of the tunnel, or went from node to node.
func (e *Engine) relayFromNode(p, q *packet.Packet, t, quoted *packet.Tuple, in Port) Verdict {
	s := e.snapshot
	sent, pl := *quoted, plan{to: *t, out: Tunnel, mtu: s.mtu}
	if r, ok := s.seen.Lookup(quoted.Source()); ok {
		sent.SetSource(r.apply(quoted.Source()))
		pl.to.SetDestination(sent.Source())
	} else {
		hop, ok := s.rules.route(in, 0, t.Source(), t.Destination())
		if !ok {
			return drop(ReasonNoRoute)
		}
		pl.out = hop.port
	}
	pl.to.SetSource(s.errorSource(t.Source(), sent.Destination(), in, pl.out))
	return pl.relay(p, q, t, quoted, &sent)
}

// errorSource returns the source of a translated error. From the tunnel: as seen here if it lies in a remote CIDR, else the address
// that the quoted packet was sent to, as Linux's NAT has it and strict reverse-path filters accept. To the tunnel: its own if the
// remote cluster knows it, else U, else again the destination of the quoted packet. Between nodes: its own.
func (s *snapshot) errorSource(source, sentTo netip.Addr, in, out Port) netip.Addr {
	if in == Tunnel {
		if r, ok := s.real.Lookup(source); ok {
			return r.apply(source)
		}
		return sentTo
	}
	switch {
	case out != Tunnel || s.isPod(source):
		return source
	case s.unknown.IsValid() && s.unknown.Is4() == source.Is4():
		return s.unknown
	}
	return sentTo
}

// relay forwards the ICMP error p, whose quotation q becomes to.
func (pl *plan) relay(p, q *packet.Packet, t, from, to *packet.Tuple) Verdict {
	pl.translate(t)
	var v Verdict
	if !pl.forward(p, &v) {
		v.Refusal = packet.NoRefusal // RFC 1122, Section 3.2.2: never about an error
		return v
	}
	p.RewriteQuoted(q, from, to)
	return v
}
