package nat

import (
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// commit does what d says: to the packet, the connections, the counters and all else that the Engine keeps.
func (e *Engine) commit(d *decision, p *packet.Packet, now Time) {
	c := d.hit.conn
	if d.renewal != renewNone {
		e.renew(c, d.hit.number, d.renewal, d.home, now)
	}
	if d.finding != findNone {
		e.learn(d)
	}
	switch d.effect {
	case effectNone:
		e.requeue(d)
		d.apply(p)
		d.countRules(p)
		if d.teaches {
			e.paths.learn(d.path, now)
		}
	case effectRefused:
		e.countHits(c, d.hit.direction, p, 1)
	case effectUnfit:
		l := &e.hits.lists[c.hits[d.hit.direction]]
		l.Count(l.Entered, p.IsSYN(), 1, uint64(p.Len()))
	case effectOpen:
		e.requeue(d)
		if !e.insert(d, p, now) {
			break
		}
		c = d.hit.conn
		fallthrough
	case effectPass:
		dir := d.hit.direction
		d.plan.rewrite(p)
		if d.plan.stream.step != streamAsIs {
			d.plan.stream.commit()
		}
		c.packets[dir] += uint64(d.verdict.Packets)
		c.bytes[dir] += uint64(p.Len())
		if c.hits[dir] != 0 {
			e.countHits(c, dir, p, uint64(d.verdict.Packets))
		}
		e.advance(d, p, now)
	}
	if d.part != partNone {
		e.commitFragment(d, p, now)
	}
	e.stats.of(d.in).count(&d.verdict)
}

// apply rewrites a packet that is forwarded.
func (d *decision) apply(p *packet.Packet) {
	if d.verdict.Action != Forward {
		return
	}
	d.plan.rewrite(p)
	if d.relays {
		if d.quotesStream {
			p.MoveQuotedBack(&d.quote, d.shift)
		}
		p.RewriteQuoted(&d.quote, &d.quoted[0], &d.quoted[1])
	}
}

// countRules counts the packet for the rules that it met, where no connection remembers them.
func (d *decision) countRules(p *packet.Packet) {
	packets, size := uint64(d.verdict.Packets), uint64(p.Len())
	d.tr.CountHits(d.counted, p.IsSYN(), packets, size)
	if d.bindings {
		d.tr.CountBindings(true, packets, size)
	}
}

// advance takes a forwarded packet into the connection's state and timer.
func (e *Engine) advance(x *decision, p *packet.Packet, now Time) {
	c, number, d := x.hit.conn, x.hit.number, x.hit.direction
	c.lastSeen = max(c.lastSeen, now)
	was := c.state
	switch {
	case c.keys[original].protocol == packet.TCP:
		if p.HasPorts() {
			var s packet.Segment
			if p.Segment(&s); x.plan.stream.step == streamMoves {
				s.Seq -= x.plan.stream.prologue.length() // the client's own number
			}
			c.state = c.tcp.next(c.state, &s, d)
		}
	case c.keys[original].protocol == packet.SCTP:
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

// learn has a connection keep what rules and routing have said about a direction.
func (e *Engine) learn(d *decision) {
	c, dir := d.hit.conn, d.hit.direction
	if e.cache(c, dir, &d.tr); d.finding == findOne {
		c.flags &^= flagEvaluated0 << dir
	}
}

// renew takes a connection into the newest generation, or removes it. home is where its packets go, which is where answers come from,
// until that is found anew.
func (e *Engine) renew(c *conn, number uint32, r renewal, home Link, now Time) {
	switch r {
	case renewEvict:
		e.end(c, number, endEvicted, now)
		return
	case renewAnew:
		c.flags &^= flagEvaluated0 | flagEvaluated1
		c.out[original] = home
	}
	c.generation = e.snapshot.generation
}

// cache stores the outcome of a traversal.
func (e *Engine) cache(c *conn, d int, tr *rules.Traversal) {
	s := e.snapshot
	c.verdict[d] = reasonOf(tr.Outcome)
	c.out[d] = tr.Out
	c.clamp[d] = tr.MaxSegment(s.mtu)
	c.flags |= flagEvaluated0 << d
	if tr.ConnMark != c.mark {
		c.mark = tr.ConnMark
		c.flags &^= flagEvaluated0 | flagEvaluated1 // with another mark the next packet may fare otherwise, in both directions
	}
	c.hits[d] = e.hits.number(tr, d)
}

// insert makes a connection of its first packet. It returns false if that is dropped instead.
func (e *Engine) insert(d *decision, p *packet.Packet, now Time) bool {
	tb, s, tr := &e.table, e.snapshot, &d.tr
	if d.stale {
		e.clear(&d.from, now)
		e.clear(&d.answer, now)
	}
	for _, number := range [...]uint32{d.reused, d.victim} {
		if number != 0 && tb.at(number).live() {
			e.makeRoom(number, now)
		}
	}
	c, number := tb.add(&d.from, &d.answer, d.holder, s.generation)
	if c == nil { // more equal hashes than chance makes
		d.drop(ReasonTableFull)
		return false
	}
	e.stats.Created++
	if d.shared {
		tb.takePort(c, d.holder)
	}
	c.lastSeen = now
	c.addresses, c.ports = d.plan.addresses, d.plan.ports
	if tr.Service != nil {
		c.flags |= flagService
		e.remember(tr.Service, &tr.Client, tr.Backend, now)
	}
	c.state = initialState(p)
	if p.Protocol() == packet.TCP {
		var s packet.Segment
		p.Segment(&s)
		c.state = c.tcp.open(&s, original)
		if d.plan.stream.step == streamOpens {
			tb.begin(c, number, newPrologue(&d.from, &d.answer, tr.ClientSource() != d.from.Source(), s.Seq+1))
		}
	}
	e.cache(c, original, tr)
	tr.CountBindings(false, 1, uint64(p.Len()))
	tb.wheel.start(now)
	tb.wheel.arm(tb, number, now.Add(s.lifetime(c, e.pressed())))
	if e.watchers != nil {
		e.tell(c, number, "", now)
	}
	d.hit = hit{conn: c, number: number, direction: original}
	if e.pressed() {
		e.hurry(now)
	}
	return true
}

// clear removes the expired connections of a tuple that a new one gets.
func (e *Engine) clear(t *packet.Tuple, now Time) {
	tb := &e.table
	hash := tb.directory.hash(t)
	for {
		h, _, ok := tb.search(t, hash, hash%segmentSlots)
		if !ok || e.alive(h.conn, now) {
			return
		}
		e.end(h.conn, h.number, endExpired, now)
	}
}

// makeRoom removes a connection for another.
func (e *Engine) makeRoom(number uint32, now Time) {
	c := e.table.at(number)
	why := endExpired
	if e.alive(c, now) {
		why = endEarlyDropped
	}
	e.end(c, number, why, now)
}

// requeue puts the connections that were asked in vain to make room behind the others of their rank.
func (e *Engine) requeue(d *decision) {
	if d.asked == [ranks]uint8{} {
		return
	}
	tb := &e.table
	for r, n := range d.asked {
		for range n {
			number := tb.lists[r].first
			c := tb.at(number)
			tb.rankAs(c, number, rankSettled)
			tb.rankAs(c, number, rank(r))
		}
	}
}

// hurry removes unreplied connections whose short life under pressure is over, the oldest first, two for each new one.
func (e *Engine) hurry(now Time) {
	for range 2 {
		number := e.table.lists[rankUnreplied].first
		if number == 0 {
			return
		}
		c := e.table.at(number)
		if c.lastSeen.Add(shortUnreplied) > now {
			return
		}
		e.end(c, number, endExpired, now)
	}
}

func initialState(p *packet.Packet) state {
	switch p.Protocol() {
	case packet.UDP, packet.UDPLite:
		return stateUDP
	case packet.ICMP, packet.ICMPv6:
		return stateICMP
	case packet.SCTP:
		return stateSCTPOpening
	}
	return stateOther
}
