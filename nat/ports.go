package nat

import (
	"culvert/nat/packet"
	"culvert/nat/rules"
)

const (
	// portTries bounds the search for a free port.
	portTries = 128
	// takeTries bounds each of the two searches for a port to take over, and so the cost of a
	// source that floods a space in which it has its share.
	takeTries = 32
	// Of 16 ports of a range, 15 are given out: while one is free, portTries tries miss it three
	// times in ten thousand.
	portsNumerator, portsDenominator = 15, 16
	// Below a 64th of them, ports are not scarce, and are not counted by holder.
	portsUncontended = 64
)

// portUse tracks how many ports are in use, and which space has most of them, updated by its new
// connections.
type portUse struct {
	all        int
	busiest    uint64
	used, most int // of the busiest space
}

// take counts one more port in use in a space.
func (u *portUse) take(space uint64, used, most int) {
	u.all++
	if space == u.busiest || used*u.most >= u.used*most {
		u.busiest, u.used, u.most = space, used, most
	}
}

// give counts one port less in use in a space.
func (u *portUse) give(space uint64) {
	u.all--
	if space == u.busiest {
		u.used--
	}
}

// sharesPorts reports whether the source of a new connection's packets is shared: U, or an address
// that another rule binds sources to.
func sharesPorts(tr *rules.Traversal, p *packet.Packet, s *snapshot) bool {
	if !p.HasPorts() && !p.HasIdentifier() {
		return false
	}
	return tr.SharesSource() || s.unknown.Has(tr.To.Source())
}

// portSpace returns the identity of the ports that tell apart connections with answers like t,
// those of one source towards one protocol, address and port, and how many of them may be in use.
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

// portsFull reports whether h may take no more ports in the space of answer. It may take the port
// of the connection that it replaces.
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

// takePort counts the port of a new connection whose state is known.
func (tb *table) takePort(c *conn, number uint32, h holder) {
	t := tb.tuple(c, reply)
	space, most := tb.portSpace(&t)
	if tb.shares.held(space) >= most/portsUncontended {
		c.flags |= flagPortShare
		h = h.within(space)
		tb.shares.take(h)
		if c.state.closed() {
			tb.list(h.address, number)
		}
	}
	c.flags |= flagPort
	tb.ports.take(space, tb.shares.add(space), most)
}

// givePort undoes takePort.
func (tb *table) givePort(c *conn, number uint32) {
	if !c.has(flagPort) {
		return
	}
	t := tb.tuple(c, reply)
	space, _ := tb.portSpace(&t)
	tb.shares.drop(space)
	tb.ports.give(space)
	if c.has(flagPortShare) {
		h := tb.holder(c).within(space)
		tb.shares.give(h)
		if c.state.closed() {
			tb.unlist(h.address, number)
		}
	}
}

// choosePort makes the reply tuple of a connection unique. It keeps the source port or ICMP
// identifier of to if it can, and else probes from a keyed hash of (node, source, destination), so
// a packet in mid-stream gets the port that its connection had. If none is free, it takes over the
// port of a closed connection. It returns false if all tries fail, or if the packet has no port or
// identifier.
//
// full: the holder is at its share of a space. It may only take over a port: one of its own, or
// else one of a holder that has as many.
//
// The choice depends on the destination's address and port: RFC 4787, Section 4.1, REQ-1, is not
// met on purpose, so that one U serves 64,512 connections to each remote address and port.
func (e *Engine) choosePort(d *decision, p *packet.Packet, to *packet.Tuple, link Link, among portChoice, space uint64,
	full bool, now Time) bool {
	low, n := among.low, among.n
	if !full && among.keeps {
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
		if e.ownPort(d, p, to, link, space, now) {
			return true
		}
	}
	var closed uint16 // the port of d.reused
	from := &d.from
	h := e.hashKey.Sum(from.Words[0], from.Words[1], from.Words[2], from.Words[3], uint64(from.Ports),
		uint64(from.Link)<<8|uint64(from.Protocol))
	if full {
		h ^= uint64(now) // a retransmitted SYN tries other ports
	}
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
		if taken && d.reused == 0 && other.leaves(p) &&
			(!full || e.table.shares.yields(e.table.holder(other.conn).within(space), d.holder.within(space))) {
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

// ownPort gives a new connection the port of one that its holder has closed, among the oldest few.
// If all of these must keep theirs, they go to the end of the list, so that a retransmitted SYN
// tries others. Otherwise they stay in front: moving them one by one would gather connections with
// similar sequence numbers, which would then refuse the same SYN together.
func (e *Engine) ownPort(d *decision, p *packet.Packet, to *packet.Tuple, link Link, space uint64, now Time) bool {
	tb := &e.table
	d.closed = d.holder.within(space).address
	number := tb.closed[d.closed].first
	for ; number != 0 && d.passed < takeTries; number = tb.cold(number).newer {
		c := tb.at(number)
		t := tb.tuple(c, reply)
		to.SetSourcePort(t.DestinationPort())
		d.answer = to.Reply(link)
		h := hit{c, number, reply}
		if alive := e.alive(c, now); number != d.predecessor && d.answer == t && (!alive || h.leaves(p)) {
			d.reused, d.stale, d.passed = number, d.stale || !alive, 0
			return true
		}
		d.passed++
	}
	return false
}

// answers computes the reply tuple of a new connection from to, and returns the connection that
// already has it.
func (e *Engine) answers(d *decision, to *packet.Tuple, link Link, now Time) (other hit, taken bool) {
	d.answer = to.Reply(link)
	other, taken = e.find(&d.answer, d.predecessor, now)
	if !taken && other.number != 0 {
		d.stale = true
	}
	return other, taken
}

// leaves reports whether the connection of h gives up its reply tuple to the one that p opens: it
// was reset, or both ends have closed it and the end in TIME-WAIT tells p from old segments by the
// sequence number (RFC 9293, Section 3.6.1; RFC 1122, Section 4.2.2.13).
func (h *hit) leaves(p *packet.Packet) bool {
	if h.direction != reply || !p.IsSYN() || !h.conn.state.closed() {
		return false
	}
	var s packet.Segment
	p.Segment(&s)
	return s.Flags&packet.ACK == 0 && (h.conn.state == stateClosed || before(h.conn.tcp.end[original], s.Seq))
}

// closed reports whether a TCP connection is over, so that another may use its port.
func (s state) closed() bool { return s == stateClosed || s == stateTimeWait }

// A closedList is a list of closed connections, the first closed in front.
type closedList struct{ first, last uint32 }

// relist adds a connection to the list of closed ones, or removes it, after its state changed from
// was.
func (tb *table) relist(c *conn, number uint32, was state) {
	if !c.has(flagPortShare) || c.state.closed() == was.closed() {
		return
	}
	t := tb.tuple(c, reply)
	space, _ := tb.portSpace(&t)
	if of := tb.holder(c).within(space).address; c.state.closed() {
		tb.list(of, number)
	} else {
		tb.unlist(of, number)
	}
}

// list appends an entry to a list of closed connections.
func (tb *table) list(of uint64, number uint32) {
	l, at := tb.closed[of], tb.cold(number)
	at.older, at.newer = l.last, 0
	if l.last != 0 {
		tb.cold(l.last).newer = number
	} else {
		l.first = number
	}
	l.last = number
	tb.closed[of] = l
}

// unlist removes an entry from a list of closed connections. Preconditions: it is in it.
func (tb *table) unlist(of uint64, number uint32) {
	l, at := tb.closed[of], tb.cold(number)
	if at.older != 0 {
		tb.cold(at.older).newer = at.newer
	} else {
		l.first = at.newer
	}
	if at.newer != 0 {
		tb.cold(at.newer).older = at.older
	} else {
		l.last = at.older
	}
	at.older, at.newer = 0, 0
	if tb.closed[of] = l; l.first == 0 {
		delete(tb.closed, of)
	}
}

// A portChoice says which source ports a new connection may get: its own, if it keeps it, or one of
// n ports from low.
type portChoice struct {
	low, n uint32
	keeps  bool
}

// sourcePorts returns the choice for a new connection: a Host's depends on what its node's kernel
// routes here.
func (e *Engine) sourcePorts(tr *rules.Traversal, identifier bool) (from portChoice) {
	port := tr.To.SourcePort()
	if e.table.given.Last == 0 {
		from.keeps = true
		from.low, from.n = portRange(port, identifier)
		return from
	}
	given, keeps := e.snapshot.rules.HostPorts(tr)
	return portChoice{uint32(given.First), uint32(given.Last-given.First) + 1, keeps}
}

// portRange returns the ports to which one belongs that a connection has.
func (tb *table) portRange(port uint16, identifier bool) (low, n uint32) {
	if r := tb.given; r.Last != 0 && port > rules.Privileged.Last {
		return uint32(r.First), uint32(r.Last-r.First) + 1
	}
	return portRange(port, identifier)
}

// portRange returns the ports that may replace port: privileged ones replace a privileged one,
// others the others (RFC 4787, Section 4.2, REQ-3 a). An identifier may be any but 0.
func portRange(port uint16, identifier bool) (low, n uint32) {
	switch {
	case identifier:
		return 1, 0xffff
	case port <= rules.Privileged.Last:
		return uint32(rules.Privileged.First), uint32(rules.Privileged.Last-rules.Privileged.First) + 1
	}
	return 1024, 0x10000 - 1024
}
