package nat

import (
	"net/netip"

	"culvert/nat/packet"
	"culvert/nat/rules"
)

// icmpError translates an ICMP error about a packet that passed here, and the packet it quotes. Any
// router may have sent it. It goes to the sender of the quoted packet or nowhere (RFC 5508, Section
// 4.2), and neither makes, refreshes nor ends a connection (Section 4.3, REQ-6). The sender judges
// the quoted sequence numbers, as with Linux's nf_conntrack; learnPath judges them before the
// gateway itself learns from an error.
func (e *Engine) icmpError(d *decision, p *packet.Packet, now Time) {
	s, in := e.snapshot, d.in
	source, destination := d.from.Source(), d.from.Destination()
	bad := !s.admits(source, in) && !(in.Outside() && packet.Forwardable(source))
	if !d.check("source", !bad) {
		d.drop(ReasonBadSource)
		return
	}
	if !d.check("quotation", p.IsValidICMP() && p.Quoted(&d.quote)) {
		d.drop(ReasonMalformed)
		return
	}
	quoted := &d.quoted[0]
	*quoted = packet.Tuple{}
	d.quote.Tuple(quoted, 0)
	if !in.Outside() && s.foreign(quoted.Destination(), in) {
		d.drop(ReasonBadSource) // the quoted packet was sent to another node
		return
	}
	owned := s.owns(destination, in)
	if quoted.Source() != destination {
		if d.drop(ReasonICMPUnrelated); owned {
			d.verdict = Verdict{Action: Deliver, Packets: 1}
		}
		return
	}
	var tracked bool
	d.hit, tracked = e.quotedConn(quoted, in, now)
	switch d.check("connection of what is quoted", tracked); {
	case tracked:
		e.relayTracked(d, p, now)
	case owned:
		d.verdict = Verdict{Action: Deliver, Packets: 1}
	case !packet.Forwardable(destination):
		d.drop(ReasonBadDestination)
	case in.Outside():
		e.relayFromTunnel(d, p)
	default:
		e.relayFromNode(d, p)
	}
}

// quotedConn finds the connection of a quoted packet by the packet's answer. The hit has the
// answer's direction.
func (e *Engine) quotedConn(quoted *packet.Tuple, in Link, now Time) (hit, bool) {
	answer := quoted.Reply(in)
	if h, ok := e.find(&answer, 0, now); ok || in.Outside() {
		return h, ok
	}
	answer.Link = anyNode // the sender may be reached by another node than the error's
	return e.find(&answer, 0, now)
}

// relayTracked translates an error about a connection's packet: the quotation becomes what its
// sender sent.
func (e *Engine) relayTracked(d *decision, p *packet.Packet, now Time) {
	s, c, dir := e.snapshot, d.hit.conn, d.hit.direction
	evaluated := c.flags&(flagEvaluated0<<dir) != 0
	if c.generation != s.generation {
		if e.recheck(d, now); d.renewal == renewEvict {
			d.drop(ReasonICMPUnrelated)
			return
		}
		evaluated = evaluated && d.renewal == renewAsIs
	}
	reason, out := c.verdict[dir], c.out[dir]
	if !evaluated {
		e.evaluate(d, nil, now)
		d.finding = findOne // the error is not a packet of the direction
		reason, out = reasonOf(d.tr.Outcome), d.tr.Out
	}
	if reason != ReasonNone {
		d.drop(reason)
		return
	}
	sent := e.table.tuple(c, 1-dir)
	d.plan = plan{to: d.from, out: out}
	d.plan.to.SetDestination(sent.Source())
	e.relay(d, p, &sent)
	if d.verdict.Action == Forward {
		if pr := e.table.proxyStreamOf(c, d.hit.number); pr != nil && dir == reply && d.quote.HasPorts() {
			d.quotesStream, d.shift = true, pr.shift()
		}
		e.learnPath(d, p)
	}
}

// relayFromTunnel translates an error about an untracked packet that left through the tunnel, by
// prefixes alone.
func (e *Engine) relayFromTunnel(d *decision, p *packet.Packet) {
	s, quoted := e.snapshot, &d.quoted[0]
	if s.restricts { // all that may have an answer has a connection
		d.drop(ReasonICMPUnrelated)
		return
	}
	seen, ok := s.real.Lookup(quoted.Destination())
	if destination := d.from.Destination(); !ok || s.external.Contains(destination) || s.closed(destination, d.in) ||
		s.reserved(destination) {
		d.drop(ReasonICMPUnrelated)
		return
	}
	sent := *quoted
	sent.SetDestination(rules.Combine(*seen, quoted.Destination()))
	out, ok := s.rules.Route(d.in, 0, quoted.Destination(), d.from.Destination())
	if !d.check("route", ok) {
		d.drop(ReasonNoRoute)
		return
	}
	d.plan = plan{to: d.from, out: out}
	e.relay(d, p, &sent)
}

// relayFromNode does the same for a packet that came out of the tunnel, or went between nodes.
func (e *Engine) relayFromNode(d *decision, p *packet.Packet) {
	s, quoted := e.snapshot, &d.quoted[0]
	sent := *quoted
	d.plan = plan{to: d.from, out: Tunnel} // the remote CIDRs of the Config belong to this link
	if real, ok := s.seen.Lookup(quoted.Source()); ok {
		sent.SetSource(rules.Combine(*real, quoted.Source()))
		d.plan.to.SetDestination(sent.Source())
	} else {
		out, ok := s.rules.Route(d.in, 0, d.from.Source(), d.from.Destination())
		if !d.check("route", ok) {
			d.drop(ReasonNoRoute)
			return
		}
		d.plan.out = out
	}
	e.relay(d, p, &sent)
}

// relay forwards an ICMP error to the destination and port in plan. Its quotation becomes sent.
func (e *Engine) relay(d *decision, p *packet.Packet, sent *packet.Tuple) {
	pl := &d.plan
	pl.mtu = e.narrow.of(pl.out, p.IsIPv6(), e.snapshot.mtu)
	pl.to.SetSource(e.snapshot.errorSource(d.from.Source(), sent.Destination(), d.in, pl.out))
	pl.translate(&d.from)
	if !d.forward(p) {
		d.verdict.Refusal = packet.NoRefusal // RFC 1122, Section 3.2.2: no error about an error
		return
	}
	d.relays, d.quoted[1] = true, *sent
}

// errorSource returns the source of a translated error. From the tunnel: the address as seen here
// if it lies in a remote CIDR, else the destination of the quoted packet, as Linux's NAT does and
// strict reverse-path filters accept. To the tunnel: its own if the remote cluster knows it, else
// U, else again the destination of the quoted packet. Between nodes: its own.
func (s *snapshot) errorSource(source, sentTo netip.Addr, in, out Link) netip.Addr {
	if in.Outside() {
		if seen, ok := s.real.Lookup(source); ok {
			return rules.Combine(*seen, source)
		}
		return sentTo
	}
	if !out.Outside() || s.isPod(source, out) {
		return source
	}
	if u := s.unknown.Of(source.Is6()); u.IsValid() {
		return u
	}
	return sentTo
}
