package nat

import (
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// forwardable reports whether a router passes the packet on: ICMP redirects, router and neighbour discovery and group membership
// belong to one link, source quench is dead (RFC 6633, Section 3).
func (p *Packet) forwardable() bool {
	if !isICMP(p.protocol) || p.fragmentOffset > 0 {
		return true
	}
	kind := p.data[p.transport]
	if p.v6 {
		return kind < 130 || kind > 153 // RFC 4443, Section 2.1; RFC 4861; RFC 3810
	}
	switch kind {
	case 4, 5, 9, 10: // source quench, redirect, router advertisement and solicitation
		return false
	}
	return true
}

// validICMP verifies the checksum of an ICMP error (RFC 5508, Section 4.1, REQ-3): it is short, and may end a host's connection.
func (p *Packet) validICMP() bool {
	if p.fragment {
		return true // its receiver verifies the whole
	}
	b := p.data[p.transport:]
	s := sum(b)
	if p.v6 {
		s = add(s, pseudoHeader(p.addresses(), protocolICMPv6, len(b)))
	}
	return s == 0xffff
}

// quoted makes q a lenient view of the packet that the ICMP error p quotes: headers are checked as far as they are read, lengths
// may exceed what is there. It returns false if the quotation does not reach far enough, or quotes another error.
func (p *Packet) quoted(q *Packet) bool {
	b := p.data[p.transport+8:]
	*q = Packet{data: b, v6: p.v6}
	if p.v6 {
		if len(b) < header.IPv6MinimumSize || b[0]>>4 != 6 || q.parseChain() != ReasonNone {
			return false
		}
	} else {
		if len(b) < header.IPv4MinimumSize || b[0]>>4 != 4 {
			return false
		}
		q.transport = int(b[0]&0xf) * 4
		if q.transport < header.IPv4MinimumSize || q.transport > len(b) {
			return false
		}
		q.protocol = b[9]
		q.fragmentOffset = int(binary.BigEndian.Uint16(b[6:])&0x1fff) * 8
	}
	if q.fragmentOffset > 0 {
		return true
	}
	return q.quotedTransport(b[q.transport:])
}

// quotedTransport wants the 8 bytes that RFC 792 grants. A checksum further back is translated if it was quoted.
func (q *Packet) quotedTransport(b []byte) bool {
	checksum := 0
	switch q.protocol {
	case protocolTCP:
		q.hasPorts, checksum = true, 16
	case protocolUDP, protocolUDPLite, protocolDCCP:
		q.hasPorts, checksum = true, 6
	case protocolSCTP:
		q.hasPorts = true
	case protocolICMP, protocolICMPv6:
		if len(b) < 8 || q.parseICMP(b) != ReasonNone || q.icmpError {
			return false
		}
		return true
	default:
		return true
	}
	if checksum != 0 && len(b) >= checksum+2 {
		q.checksumAt = q.transport + checksum
	}
	return len(b) >= 8
}

// rewriteQuoted gives the quoted packet q, a view into p, the addresses and ports of to, and corrects the ICMP checksum of p.
func (p *Packet) rewriteQuoted(q *Packet, from, to *tuple) {
	end := min(len(q.data), q.transport+header.TCPMinimumSize)
	before := sum(q.data[:end])
	q.rewrite(to, delta(from.addressSum(), to.addressSum()), delta(from.portSum(), to.portSum()))
	adjustAt(p.data, p.checksumAt, delta(before, sum(q.data[:end])))
}

// icmpError translates an ICMP error about a packet that passed here, and the packet that it quotes. Any router may have sent it. It
// goes to the sender of what it quotes or nowhere (RFC 5508, Section 4.2), and neither makes, refreshes nor ends a connection (Section
// 4.3, REQ-6). Sequence numbers that it quotes are for the sender to judge, as with Linux's nf_conntrack; what the gateway itself
// learns from an error, learnPath judges.
func (e *Engine) icmpError(p *Packet, t *tuple, in Port, now Time) Verdict {
	s := e.snapshot
	source, destination := t.source(), t.destination()
	if in == Tunnel && source != s.peer && unusable(source) && !s.real.Contains(source) || in != Tunnel && !s.admits(source, in) {
		return drop(ReasonBadSource)
	}
	var q Packet
	if !p.validICMP() || !p.quoted(&q) {
		return drop(ReasonMalformed)
	}
	var quoted tuple
	q.tuple(&quoted, 0)
	if in != Tunnel && s.foreign(quoted.destination(), in) {
		return drop(ReasonBadSource) // what it quotes was sent to another node
	}
	if quoted.source() != destination {
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
	case unusable(destination):
		return drop(ReasonBadDestination)
	case in == Tunnel:
		return e.relayFromTunnel(p, &q, t, &quoted)
	}
	return e.relayFromNode(p, &q, t, &quoted, in)
}

// quotedConn finds the connection of a quoted packet: its answer would be found. The direction of the hit is that of the answer.
func (e *Engine) quotedConn(quoted *tuple, in Port, now Time) (hit, bool) {
	answer := quoted.reply(in)
	if h, ok := e.find(&answer, now); ok || in == Tunnel {
		return h, ok
	}
	answer.zone = anyNode // sent by way of another node than the error
	return e.find(&answer, now)
}

// relayTracked translates an error about a packet of a connection: the quoted packet becomes what its sender sent.
func (e *Engine) relayTracked(p, q *Packet, t, quoted *tuple, h hit, in Port, now Time) Verdict {
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
	pl.to.setDestination(sent.source())
	pl.to.setSource(s.errorSource(t.source(), sent.destination(), in, pl.out))
	v := p.relay(q, t, &pl, quoted, &sent)
	if v.Action == Forward {
		e.learnPath(c, 1-d, p, q, quoted, in, now)
	}
	return v
}

// relayFromTunnel translates an error about a packet that left through the tunnel without a connection: by prefixes alone.
func (e *Engine) relayFromTunnel(p, q *Packet, t, quoted *tuple) Verdict {
	s := e.snapshot
	r, ok := s.real.Lookup(quoted.destination())
	if !ok || s.external.Contains(t.destination()) {
		return drop(ReasonICMPUnrelated)
	}
	sent := *quoted
	sent.setDestination(r.apply(quoted.destination()))
	hop, ok := s.rules.route(Tunnel, 0, quoted.destination(), t.destination())
	if !ok {
		return drop(ReasonNoRoute)
	}
	pl := plan{to: *t, out: hop.port, mtu: s.mtu}
	pl.to.setSource(s.errorSource(t.source(), sent.destination(), Tunnel, pl.out))
	return p.relay(q, t, &pl, quoted, &sent)
}

// relayFromNode does the same for a packet that came out of the tunnel, or went from node to node.
func (e *Engine) relayFromNode(p, q *Packet, t, quoted *tuple, in Port) Verdict {
	s := e.snapshot
	sent, pl := *quoted, plan{to: *t, out: Tunnel, mtu: s.mtu}
	if r, ok := s.seen.Lookup(quoted.source()); ok {
		sent.setSource(r.apply(quoted.source()))
		pl.to.setDestination(sent.source())
	} else {
		hop, ok := s.rules.route(in, 0, t.source(), t.destination())
		if !ok {
			return drop(ReasonNoRoute)
		}
		pl.out = hop.port
	}
	pl.to.setSource(s.errorSource(t.source(), sent.destination(), in, pl.out))
	return p.relay(q, t, &pl, quoted, &sent)
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
	case out != Tunnel || s.pods.Contains(source):
		return source
	case s.unknown.IsValid() && s.unknown.Is4() == source.Is4():
		return s.unknown
	}
	return sentTo
}

// relay forwards the ICMP error p, whose quotation q becomes to.
func (p *Packet) relay(q *Packet, t *tuple, pl *plan, from, to *tuple) Verdict {
	pl.translate(t)
	var v Verdict
	if !p.forward(pl, &v) {
		v.Answer = AnswerNone // RFC 1122, Section 3.2.2: never about an error
		return v
	}
	p.rewriteQuoted(q, from, to)
	return v
}

// tooBig returns the MTU that a Fragmentation Needed or Packet Too Big message announces, 0 for any other.
func (p *Packet) tooBig() int {
	b := p.data[p.transport:]
	switch {
	case p.v6 && b[0] == byte(header.ICMPv6PacketTooBig):
		return int(min(binary.BigEndian.Uint32(b[4:]), maxMTU))
	case !p.v6 && b[0] == byte(header.ICMPv4DstUnreachable) && b[1] == byte(header.ICMPv4FragmentationNeeded):
		return int(binary.BigEndian.Uint16(b[6:])) // RFC 1191, Section 4
	}
	return 0
}
