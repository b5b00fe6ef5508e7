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

// relayFromTunnel translates an ICMP error about a packet that left through the tunnel (architecture.md, Section 2.1 no. 6).
func (e *Engine) relayFromTunnel(p *Packet, t *tuple, now Time) Verdict {
	s := e.snapshot
	var q Packet
	if !p.quoted(&q) {
		return drop(ReasonMalformed)
	}
	from := q.tuple(anyNode)
	// The error goes to the sender of what it quotes (RFC 5508, Section 4.2, REQ-4).
	r, ok := s.real.Lookup(from.destination())
	if !ok || from.source() != t.destination() {
		return drop(ReasonICMPUnrelated)
	}
	to := from
	to.setDestination(r.apply(from.destination()))
	pl := s.plan(t, p)
	if r, ok := s.real.Lookup(t.source()); ok {
		pl.to.setSource(r.apply(t.source()))
	} else {
		pl.to.setSource(to.destination())
	}
	if pl.out, ok = s.route(t.destination()); !ok {
		return drop(ReasonNoRoute)
	}
	return e.relay(p, &q, t, &pl, &from, &to, now)
}

// relayFromNode translates an ICMP error about a packet that came out of the tunnel.
func (e *Engine) relayFromNode(p *Packet, t *tuple, now Time) Verdict {
	s := e.snapshot
	var q Packet
	if !p.quoted(&q) {
		return drop(ReasonMalformed)
	}
	from := q.tuple(anyNode)
	if from.source() != t.destination() {
		return drop(ReasonICMPUnrelated)
	}
	to := from
	pl := s.plan(t, p)
	r, ok := s.seen.Lookup(from.source())
	if !ok {
		// About a packet between nodes, which was not translated.
		if pl.out, ok = s.route(t.destination()); !ok {
			return drop(ReasonNoRoute)
		}
		return e.relay(p, &q, t, &pl, &from, &to, now)
	}
	to.setSource(r.apply(from.source()))
	pl.to.setDestination(to.source())
	pl.to.setSource(s.errorSource(t.source(), to.destination()))
	pl.out = Tunnel
	return e.relay(p, &q, t, &pl, &from, &to, now)
}

// errorSource returns the source of an ICMP error towards the tunnel: its own if the remote cluster knows it, else U, else the
// destination of the quoted packet.
func (s *snapshot) errorSource(source, quoted netip.Addr) netip.Addr {
	switch {
	case s.pods.Contains(source):
		return source
	case s.unknown.IsValid() && s.unknown.Is4() == source.Is4():
		return s.unknown
	}
	return quoted
}

// relay forwards an ICMP error whose quotation becomes to, and learns from it.
func (e *Engine) relay(p, q *Packet, t *tuple, pl *plan, from, to *tuple, now Time) Verdict {
	pl.translate(t)
	v := p.forward(pl)
	if v.Action != Forward {
		v.Answer = AnswerNone // RFC 1122, Section 3.2.2: never about an error
		return v
	}
	p.rewriteQuoted(q, from, to)
	if mtu := p.tooBig(); mtu > 0 {
		e.paths.learn(from.destination(), t.zone == Tunnel, mtu, now)
	}
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
