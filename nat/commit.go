package nat

import (
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// commit does what d decided: to the packet, the connections, the counters and everything else in
// the Engine.
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
		if d.verdict.Reason == ReasonNotAdmitted {
			c.lastSeen = max(c.lastSeen, now)
		}
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
			if d.plan.stream.commit() {
				e.table.changed(d.hit.number)
			}
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

// countRules counts the packet for the rules it hit, if no connection remembers them.
func (d *decision) countRules(p *packet.Packet) {
	packets, size := uint64(d.verdict.Packets), uint64(p.Len())
	d.tr.CountHits(d.counted, p.IsSYN(), packets, size)
	if d.bindings {
		d.tr.CountBindings(true, packets, size)
	}
}

// advance updates the connection's state and timer for a forwarded packet.
func (e *Engine) advance(x *decision, p *packet.Packet, now Time) {
	c, number, d := x.hit.conn, x.hit.number, x.hit.direction
	was := c.state
	if was != stateSynSent || d == reply || c.has(flagReplied) {
		c.lastSeen = max(c.lastSeen, now)
	} // else repeated SYNs would keep a client that reuses its port at a backend that is gone
	switch {
	case c.keys[original].protocol == packet.TCP:
		if p.HasPorts() {
			var s packet.Segment
			if p.Segment(&s); x.plan.stream.step == streamMoves {
				s.Seq -= x.plan.stream.proxyStream.length() // the client's own number
			}
			c.state = c.tcp.next(c.state, &s, d)
		}
	case c.keys[original].protocol == packet.SCTP:
		if p.HasPorts() {
			c.state = c.tcp.sctpNext(c.state, p, d, d == reply || c.has(flagReplied))
		}
	case c.state == stateUDP && (d == reply || c.has(flagReplied)) &&
		c.packets[original]+c.packets[reply] >= streamPackets:
		c.state = stateUDPStream
	}
	if c.state != was {
		e.table.relist(c, number, was)
	}
	if d == reply && !c.has(flagReplied) {
		e.table.replied(c, number)
		e.table.changed(number)
		e.reschedule(c, number, now)
	} else if c.state != was {
		e.table.changed(number)
		if c.has(flagReplied) {
			e.table.rankAs(c, number, rankOf(c.state))
		}
		e.reschedule(c, number, now)
	}
}

// learn stores what rules and routing said about a direction in its connection.
func (e *Engine) learn(d *decision) {
	c, dir := d.hit.conn, d.hit.direction
	if e.cache(c, d.hit.number, dir, &d.tr); d.finding == findOne {
		c.flags &^= flagEvaluated0 << dir
	}
}

// renew brings a connection to the newest generation, or removes it. home is where its packets go,
// and so where replies come from until their route is found again.
func (e *Engine) renew(c *conn, number uint32, r renewal, home Link, now Time) {
	switch r {
	case renewEvict:
		why := endEvicted
		if c.state.closed() {
			why = endExpired
		}
		e.end(c, number, why, now)
		return
	case renewAnew:
		e.table.changed(number) // its next packet may no longer make it again
		c.flags &^= flagEvaluated0 | flagEvaluated1
		c.out[original] = home
	}
	c.generation = e.snapshot.generation
}

// cache stores the outcome of a traversal.
func (e *Engine) cache(c *conn, number uint32, d int, tr *rules.Traversal) {
	s := e.snapshot
	c.verdict[d] = reasonOf(tr.Outcome)
	c.out[d] = tr.Out
	c.clamp[d] = tr.MaxSegment(s.mtu)
	c.flags |= flagEvaluated0 << d
	if tr.ConnMark != c.mark {
		c.mark = tr.ConnMark
		e.table.changed(number)
		c.flags &^= flagEvaluated0 | flagEvaluated1 // a new mark may change the verdict of both directions
	}
	c.hits[d] = e.hits.number(tr, d)
}

// insert creates a connection from its first packet. It returns false if the packet is dropped
// instead.
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
	if c == nil { // so many equal hashes are no accident
		d.drop(ReasonTableFull)
		return false
	}
	e.stats.Created++
	c.lastSeen = now
	c.addresses, c.ports = d.plan.addresses, d.plan.ports
	if tr.Service != nil {
		c.flags |= flagService
		if tr.Service.Service.OnRemoval == rules.RemovalReset {
			c.tcp.flags[reply] |= tcpEnds
		}
		e.remember(tr.Service, &tr.Client, tr.Backend, now)
	}
	c.state = initialState(p)
	if p.Protocol() == packet.TCP {
		var s packet.Segment
		p.Segment(&s)
		c.state = c.tcp.open(&s, original)
		if d.plan.stream.step == streamOpens {
			tb.begin(c, number, newProxyStream(&d.from, &d.answer, tr.ClientSource() != d.from.Source(), s.Seq+1))
		}
	}
	if d.shared {
		tb.takePort(c, number, d.holder)
	}
	e.cache(c, number, original, tr)
	tr.CountBindings(false, 1, uint64(p.Len()))
	tb.wheel.start(now)
	tb.wheel.arm(tb, number, now.Add(s.lifetime(c, e.pressed())))
	if e.watchers != nil {
		e.notify(c, number, "", now)
	}
	d.hit = hit{conn: c, number: number, direction: original}
	if e.pressed() {
		e.hurry(now)
	}
	return true
}

// clear removes expired connections that hold a tuple of a new one.
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

// requeue moves the connections that could not make room, or could not give up their ports, to the
// end of their list. The predecessor, which renew has just removed, may have been alone in it.
func (e *Engine) requeue(d *decision) {
	tb := &e.table
	for range d.passed {
		number := tb.closed[d.closed].first
		if number == 0 {
			break
		}
		tb.unlist(d.closed, number)
		tb.list(d.closed, number)
	}
	if d.asked == [ranks]uint8{} {
		return
	}
	for r, n := range d.asked {
		for range n {
			number := tb.lists[r].first
			if number == 0 {
				break
			}
			c := tb.at(number)
			tb.rankAs(c, number, rankSettled)
			tb.rankAs(c, number, rank(r))
		}
	}
}

// hurry removes the oldest unsettled connections that have outlived their short life under
// pressure, two for each new one.
func (e *Engine) hurry(now Time) {
	for range 2 {
		number := e.table.lists[rankUnsettled].first
		if number == 0 {
			return
		}
		c := e.table.at(number)
		if e.seen(c, now).Add(shortUnsettled) > now {
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
