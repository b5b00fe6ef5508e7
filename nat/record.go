package nat

import (
	"time"

	"culvert/nat/packet"
	"culvert/nat/rules"
)

// Records returns a Feed of what an Engine knows and its successor could not learn from packets:
// connections, except those that the next packet would make again, and clients of services with
// affinity. It has one pass, and gets no changes. name is that of Feed. If since is not 0, the pass
// has only connections with a packet at or after since: a second round after a complete one then
// costs only what has changed. It has no clients, because the keyed choice gives the others their
// backends again.
//
// Times are saved as ages, and age does not advance between saving and restoring. No clock that
// survives a restart can be trusted with more; a connection restored too late costs a table entry
// until it expires.
func (e *Engine) Records(since Time, name func(Link) string) *Feed {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := e.newFeed(name)
	f.since, f.copying = since, true
	f.connections.all()
	if since == 0 {
		f.clients.all()
	}
	return f
}

// record returns what is saved of a connection; ok is false if the next packet would make it again.
//
// Preconditions: e.mu is held.
// +checklocksignore: the closures that call it cannot be annotated
func (e *Engine) record(c *conn, number uint32, now Time) (x connRecord, ok bool) {
	x = connRecord{
		first: e.table.tuple(c, original), answer: e.table.tuple(c, reply),
		idle: time.Duration(max(now-e.seen(c, now), 0)), mark: c.mark,
		state: c.state, packets: c.packets, bytes: c.bytes, tcp: c.tcp,
	}
	if pr := e.table.proxyStreamOf(c, number); pr != nil {
		x.prologue = pr.record()
	}
	if e.reproducible(c, &x.first, &x.answer) {
		return x, false
	}
	if x.first.IPv6 {
		x.facts |= recordIPv6
	}
	if e.snapshot.rules.Generated() && x.mark == uint32(x.first.Link) {
		x.facts |= recordOwnMark
	}
	if s := e.snapshot.rules; c.out[original] != 0 && x.first.Link.Outside() &&
		(s.Keeps(x.first.Link, x.mark, x.first.Source(), x.answer.Source()) || e.snapshot.stays(c, x.answer.Source())) {
		x.facts |= recordHome
		x.home = c.out[original]
	}
	if c.tcp.flags[reply]&tcpEnds != 0 {
		x.facts |= recordEnds
	}
	for _, f := range recordFlags {
		if c.has(f.flag) {
			x.facts |= f.fact
		}
	}
	return x, true
}

// reproducible reports whether the next packet of a connection, in either direction, would make it
// again: it is a pod's with the other cluster, translated only by the clusters' CIDRs, and its
// answers go to the same node without a mark. It does not ask configured rules about a first
// packet.
func (e *Engine) reproducible(c *conn, first, answer *packet.Tuple) bool {
	s, inside, outside := e.snapshot, first, answer
	if first.Link.Outside() {
		inside, outside = answer, first
	}
	if !s.rules.Generated() || s.restricts || c.has(flagService|flagPort) || c.tcp.flags[original]&tcpShifted != 0 ||
		inside.Link.Outside() || !outside.Link.Outside() {
		return false
	}
	local, seen := inside.Source(), inside.Destination()
	of, ok := s.seen.Lookup(seen)
	if !ok || !s.pods.Contains(local) {
		return false
	}
	to, real := inside.Reply(0), rules.Combine(*of, seen)
	if to.SetSource(real); to.Words != outside.Words || to.Ports != outside.Ports {
		return false
	}
	node, routed := s.rules.Route(outside.Link, 0, real, local)
	marked, _ := s.rules.Route(outside.Link, c.mark, real, local)
	return routed && node == marked
}

// record returns what is saved of an entry; ok is false if it is free or its time is over.
func (t *affinityTable) record(number uint32, now Time) (x clientRecord, ok bool) {
	a := t.at(number)
	service, ok := t.services[a.key.list]
	if !ok || a.expires <= now {
		return x, false
	}
	return clientRecord{service, a.key.client, a.backend, time.Duration(a.expires - now)}, true
}

// rounds returns an upper bound for how often a table entry was used.
func (e *Engine) rounds() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.table.lastID / idStep
}
