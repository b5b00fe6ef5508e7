package nat

import (
	"culvert/nat/packet"
	"culvert/nat/rules"
)

const (
	// portTries bounds the search for a free port.
	portTries = 128
	// takeTries bounds that for one to take over. Who floods a space in which he has his share costs no more.
	takeTries = 32
	// Of 16 ports of a range, 15 are given out: as long as one is free, portTries tries miss it three times in ten thousand.
	portsNumerator, portsDenominator = 15, 16
	// Below a 64th of them, nobody is short of ports, and their holders are not counted.
	portsUncontended = 64
)

// portUse knows how many ports are in use, and in which space most are, as its last new connections tell.
type portUse struct {
	all        int
	busiest    uint64
	used, most int // of the busiest
}

// take notes that a space has one port more in use.
func (u *portUse) take(space uint64, used, most int) {
	u.all++
	if space == u.busiest || used*u.most >= u.used*most {
		u.busiest, u.used, u.most = space, used, most
	}
}

// give notes that a space has one port less in use.
func (u *portUse) give(space uint64) {
	u.all--
	if space == u.busiest {
		u.used--
	}
}

// sharesPorts reports whether others use the source that the packets of a new connection get: U, or what another rule binds sources to.
func sharesPorts(tr *rules.Traversal, p *packet.Packet, s *snapshot) bool {
	if !p.HasPorts() && !p.HasIdentifier() {
		return false
	}
	return tr.SharesSource() || s.unknown.Has(tr.To.Source())
}

// portSpace returns the identity of the ports that keep connections with answers like t apart, those of one source towards one
// protocol, address and port, and how many may be in use.
func (tb *table) portSpace(t *packet.Tuple) (space uint64, most int) {
	port, remote := t.DestinationPort(), t.SourcePort()
	if packet.IsICMP(t.Protocol) {
		remote = 0
	}
	low, n := tb.portRange(port, packet.IsICMP(t.Protocol))
	k := &tb.shares.secrets
	space = fold(t.Words[0]^k[0], t.Words[1]^k[1])
	space = fold(space^t.Words[2], t.Words[3]^k[2])
	space = fold(space^k[3], uint64(t.Link)<<48|uint64(low)<<32|uint64(t.Protocol)<<16|uint64(remote))
	return space ^ uint64(sharePorts)<<32, int(n) * portsNumerator / portsDenominator
}

// portsFull reports whether h may take no more ports of the space of answer. It may have that of the connection whose place it takes.
func (tb *table) portsFull(answer packet.Tuple, h holder, predecessor uint32) (space uint64, full bool) {
	space, most := tb.portSpace(&answer)
	used := tb.shares.held(space)
	if used < most/portsUncontended || !tb.shares.full(h.within(space), used, most) {
		return space, false
	}
	if predecessor == 0 || !tb.at(predecessor).has(flagPort) {
		return space, true
	}
	t := tb.tuple(tb.at(predecessor), reply)
	given, _ := tb.portSpace(&t)
	return space, given != space
}

// takePort counts the port of a new connection.
func (tb *table) takePort(c *conn, h holder) {
	t := tb.tuple(c, reply)
	space, most := tb.portSpace(&t)
	if tb.shares.held(space) >= most/portsUncontended {
		c.flags |= flagPortShare
		tb.shares.take(h.within(space))
	}
	c.flags |= flagPort
	tb.ports.take(space, tb.shares.add(space), most)
}

// givePort takes back what takePort has counted.
func (tb *table) givePort(c *conn) {
	if !c.has(flagPort) {
		return
	}
	t := tb.tuple(c, reply)
	space, _ := tb.portSpace(&t)
	tb.shares.drop(space)
	tb.ports.give(space)
	if c.has(flagPortShare) {
		tb.shares.give(tb.holder(c).within(space))
	}
}

// choosePort makes the reply tuple of a connection unique: it keeps the source port or ICMP identifier of to if it can, and else probes
// from a keyed hash of (node, source, destination), so that a packet in mid-stream gets the port that its connection had. Where none of
// those is free, it takes one over from a connection that is closed. It returns false if all tries fail, or if the packet has neither.
//
// full: the holder may take no more ports of a space, but only over, from who has no fewer.
//
// The choice depends on address and port of the destination: RFC 4787, Section 4.1, REQ-1, is not met on purpose; one U serves 64,512
// connections to each remote address and port.
func (e *Engine) choosePort(d *decision, p *packet.Packet, to *packet.Tuple, link Link, space uint64, full bool, now Time) bool {
	low, n := e.table.portRange(to.SourcePort(), p.HasIdentifier())
	if !full && e.table.keeps(to.SourcePort()) {
		if _, taken := e.answers(d, to, link, now); !taken {
			return true
		}
	}
	if !p.HasPorts() && !p.HasIdentifier() {
		return false
	}
	tries := portTries
	if full {
		if tries = takeTries; !p.IsSYN() {
			return false
		}
	}
	var closed uint16 // the port of d.reused
	from := &d.from
	h := e.hashKey.Sum(from.Words[0], from.Words[1], from.Words[2], from.Words[3], uint64(from.Ports), uint64(from.Link)<<8|uint64(from.Protocol))
	for range tries {
		port := uint16(low + uint32(h>>32)%n)
		to.SetSourcePort(port)
		if p.HasIdentifier() {
			to.SetDestinationPort(port)
		}
		other, taken := e.answers(d, to, link, now)
		if !taken && !full {
			d.reused = 0
			return true
		}
		if taken && d.reused == 0 && other.leaves(p) && (!full || e.table.shares.yields(e.table.holder(other.conn).within(space), d.holder.within(space))) {
			d.reused, closed = other.number, port
			if full {
				return true
			}
		}
		h = h*6364136223846793005 + 1442695040888963407 // anywhere else: ports in use cluster (Knuth's MMIX generator)
	}
	if d.reused == 0 {
		return false
	}
	to.SetSourcePort(closed)
	d.answer = to.Reply(link)
	return true
}

// answers makes the reply of to the answer of a new connection, and returns the one that has it already.
func (e *Engine) answers(d *decision, to *packet.Tuple, link Link, now Time) (other hit, taken bool) {
	d.answer = to.Reply(link)
	other, taken = e.find(&d.answer, d.predecessor, now)
	if !taken && other.number != 0 {
		d.stale = true
	}
	return other, taken
}

// leaves reports whether the connection of h leaves its answer's tuple to the one that p opens: it was reset, or both ends have closed it,
// and the end that remembers it tells p from what is old by the sequence number (RFC 9293, Section 3.6.1; RFC 1122, Section 4.2.2.13).
func (h *hit) leaves(p *packet.Packet) bool {
	if h.direction != reply || !p.IsSYN() || h.conn.state != stateClosed && h.conn.state != stateTimeWait {
		return false
	}
	var s packet.Segment
	p.Segment(&s)
	return s.Flags&packet.ACK == 0 && (h.conn.state == stateClosed || before(h.conn.tcp.end[original], s.Seq))
}

// keeps reports whether a connection may have its own source port: a Host gives those of its own only.
func (tb *table) keeps(port uint16) bool {
	return tb.given.Last == 0 || tb.given.First <= port && port <= tb.given.Last
}

// portRange returns the ports that may stand for port.
func (tb *table) portRange(port uint16, identifier bool) (low, n uint32) {
	if r := tb.given; r.Last != 0 {
		return uint32(r.First), uint32(r.Last-r.First) + 1
	}
	return portRange(port, identifier)
}

// portRange returns the ports that may stand for port: a privileged one is replaced by a privileged one, others by others (RFC 4787,
// Section 4.2, REQ-3 a). An identifier is any but 0.
func portRange(port uint16, identifier bool) (low, n uint32) {
	switch {
	case identifier:
		return 1, 0xffff
	case port < 1024:
		return 512, 512
	}
	return 1024, 0x10000 - 1024
}
