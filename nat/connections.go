package nat

import (
	"net/netip"
	"slices"
	"time"

	"culvert/nat/packet"
)

// A ConnInfo describes a tracked connection. Its tuples are those of arriving packets: Original of
// the first packet, Reply of the answer. Packets of one direction leave with the reverse of the
// other tuple. IDs are unique over the Engine's life.
type ConnInfo struct {
	ID              uint64 // 0: there is no connection
	Original, Reply packet.Tuple
	Out             [2]Link // where packets of each direction go; that of Reply is set only after Replied
	State           string
	Replied         bool
	Service         bool      // its destination is a backend of a Service
	ProxyProtocol   bool      // the backend got a PROXY protocol header, or will get one
	Verdict         [2]Reason // ReasonNone: packets of the direction are forwarded
	Mark            uint32
	Idle            time.Duration // since its last packet
	Left            time.Duration // until it expires if no packet comes
	Packets, Bytes  [2]uint64     // by direction
}

// States returns the states that a connection can have.
func States() []string { return slices.Clone(stateNames[:]) }

func (e *Engine) info(c *conn, number uint32, now Time) ConnInfo {
	idle := time.Duration(max(now-e.seen(c, now), 0))
	return ConnInfo{
		ID: e.id(number), Original: e.table.tuple(c, original), Reply: e.table.tuple(c, reply), Out: c.out,
		State: c.state.String(), Replied: c.has(flagReplied),
		Service: c.has(flagService), ProxyProtocol: c.tcp.flags[original]&tcpShifted != 0, Verdict: c.verdict,
		Mark: c.mark, Idle: idle, Left: max(e.snapshot.lifetime(c, e.pressed())-idle, 0),
		Packets: c.packets, Bytes: c.bytes,
	}
}

// A ConnFilter selects connections; its zero fields select all.
type ConnFilter struct {
	Addresses []netip.Prefix // each has an address of the connection, before or after translation
	Ports     []uint16       // each is a port of the connection, before or after translation, or its ICMP identifier
	Protocol  uint8
	Link      *Link // its packets come from this link or go there
	State     string
}

// Selects reports whether f selects c.
func (f *ConnFilter) Selects(c *ConnInfo) bool {
	return f.tuples(&c.Original, &c.Reply) && f.link(c.Original.Link, c.Out) && (f.State == "" || f.State == c.State)
}

// selects is Selects for a table entry. It runs under the Engine's lock and must be fast.
func (f *ConnFilter) selects(tb *table, c *conn) bool {
	first, answer := tb.tuple(c, original), tb.tuple(c, reply)
	return f.tuples(&first, &answer) && f.link(first.Link, c.out) && (f.State == "" || f.State == c.state.String())
}

func (f *ConnFilter) link(in Link, out [2]Link) bool {
	return f.Link == nil || *f.Link == in || *f.Link == out[original]
}

func (f *ConnFilter) tuples(first, answer *packet.Tuple) bool {
	if f.Protocol != 0 && f.Protocol != first.Protocol {
		return false
	}
	for _, port := range f.Ports {
		if port != first.SourcePort() && port != first.DestinationPort() && port != answer.SourcePort() &&
			port != answer.DestinationPort() {
			return false
		}
	}
	for i := range f.Addresses {
		p := &f.Addresses[i]
		if !p.Contains(first.Source()) && !p.Contains(first.Destination()) && !p.Contains(answer.Source()) &&
			!p.Contains(answer.Destination()) {
			return false
		}
	}
	return true
}

// A Cursor is a position in the table of connections; the zero Cursor is its start.
type Cursor uint32

// listBudget is how many table entries Connections and DeleteConnections visit per call, while
// packets wait.
const listBudget = 64

// Connections appends to list the connections among the next listBudget table entries that f
// selects, and returns where to continue; more is false at the end. A connection that exists from
// the first call to the last is listed once.
func (e *Engine) Connections(at Cursor, f *ConnFilter, now Time, list []ConnInfo) (all []ConnInfo,
	next Cursor, more bool) {
	next, more = e.some(at, func(c *conn, number uint32) {
		if f.selects(&e.table, c) {
			list = append(list, e.info(c, number, now))
		}
	})
	return list, next, more
}

// DeleteConnections ends the connections among the next listBudget table entries that f selects.
// Their next packets open new connections.
func (e *Engine) DeleteConnections(at Cursor, f *ConnFilter, now Time) (deleted int, next Cursor, more bool) {
	next, more = e.some(at, func(c *conn, number uint32) {
		if f.selects(&e.table, c) {
			e.end(c, number, endDeleted, now)
			deleted++
		}
	})
	return deleted, next, more
}

// some calls visit under the lock for each connection among the next listBudget entries.
func (e *Engine) some(at Cursor, visit func(c *conn, number uint32)) (next Cursor, more bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	first := uint32(at) + 1 // entry 0 is never used
	end := min(first+listBudget, e.table.high)
	for n := first; n < end; n++ {
		if c := e.table.at(n); c.live() {
			visit(c, n)
		}
	}
	if end <= first {
		return at, false
	}
	return Cursor(end - 1), end < e.table.high
}

// FindConnection returns the connection that a packet with tuple t belongs to.
func (e *Engine) FindConnection(t *packet.Tuple, now Time) (c ConnInfo, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h, ok := e.find(t, 0, now)
	if ok {
		c = e.info(h.conn, h.number, now)
	}
	return c, ok
}

// id returns the ID that ConnInfo shows.
func (e *Engine) id(number uint32) uint64 { return e.table.cold(number).id }

// Connection returns the live connection with this ID.
func (e *Engine) Connection(id uint64, now Time) (c ConnInfo, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	number := uint32(id % idStep)
	if number == 0 || number >= e.table.high || e.id(number) != id {
		return ConnInfo{}, false
	}
	x := e.table.at(number)
	if !x.live() || !e.alive(x, now) {
		return ConnInfo{}, false
	}
	return e.info(x, number, now), true
}
