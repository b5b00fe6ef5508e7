package nat

import "culvert/nat/packet"

// If Config.Admit is set, other clusters may open connections only to what is exported to them: its
// Endpoints and the services. Everything else they send must belong to a connection, which first
// passed in the other direction, or be an ICMP error about one.
//
// So all connections across the tunnel need the table then, those between pods too: where it has no
// room, or no room is left for a sender, a new one is dropped. A packet from inside opens a
// connection unless it may belong to one that others opened, because what is withdrawn must stay
// closed although its servers go on sending:
//
//   - TCP opens by SYN alone. A segment in mid-stream without a connection passes if its source is
//     exported, and is reset otherwise.
//   - What comes from an exported endpoint passes without opening anything. Its answers are
//     admitted anyway.
//   - A connection of another protocol stays in the table when its destination is withdrawn, as a
//     memory that refuses both directions, until neither has sent for its timeout.

// bars reports whether first, the tuple of the first packet of a connection, comes from another
// cluster, and nothing is exported at its destination.
func (s *snapshot) bars(first *packet.Tuple) bool {
	return s.restricts && first.Link.Outside() &&
		!s.rules.LetsIn(first.Destination(), first.Protocol, first.DestinationPort())
}

// withdrawn reports whether what a connection was opened to is not exported any more.
func (e *Engine) withdrawn(c *conn) bool {
	if !e.snapshot.restricts || !c.keys[original].link.Outside() {
		return false
	}
	first := e.table.tuple(c, original)
	return e.snapshot.bars(&first)
}

// bar drops a packet that is not admitted. Its sender learns why, and TCP in mid-stream ends.
func (d *decision) bar(p *packet.Packet) {
	d.verdict = refuse(ReasonNotAdmitted, packet.Prohibited)
	if p.Protocol() == packet.TCP && !p.IsSYN() {
		d.verdict.Refusal = packet.Reset
	}
}

// begins reports whether a packet that may pass the tunnel opens a connection, and, if it does not,
// whether it may pass without one.
func (e *Engine) begins(d *decision, p *packet.Packet) (opens, ok bool) {
	tr, free := &d.tr, e.free(&d.tr)
	if tr.In.Outside() { // it is admitted
		return !free || !p.IsAnswer(), true
	}
	answer := p.IsAnswer() || p.Protocol() == packet.TCP && !p.IsSYN()
	from := &tr.From
	switch {
	case free && p.IsAnswer(),
		free && (answer || p.Protocol() != packet.TCP) &&
			e.snapshot.rules.LetsIn(from.Source(), from.Protocol, from.SourcePort()):
		return false, true
	case answer:
		return false, false
	}
	return true, true
}

// turned reports whether a packet from another cluster has the direction of a connection's answers
// but is none: a SYN, or an ICMP query; and may not open a connection of its own. While a
// connection of TCP opens, both ends may send a SYN (RFC 9293, Section 3.5); later the port may
// belong to somebody else.
func (e *Engine) turned(d *decision, p *packet.Packet) bool {
	if d.hit.direction == original || !d.in.Outside() || p.IsAnswer() {
		return false
	}
	return (p.IsSYN() && d.hit.conn.state > stateSynReceived || p.HasIdentifier()) && e.snapshot.bars(&d.from)
}
