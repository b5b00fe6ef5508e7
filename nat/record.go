package nat

import (
	"io"
	"time"

	"culvert/nat/packet"
	"culvert/nat/rules"
)

// Records saves what an Engine knows and its successor could not learn from packets: connections,
// except those that the next packet would make again, and clients of services with affinity.
//
// Times are saved as ages, and age does not advance between saving and restoring. No clock that
// survives a restart can be trusted with more; a connection restored too late costs a table entry
// until it expires.
type Records struct {
	e     *Engine
	since Time
	now   Time
	pause func()
	work  int // since the last pause, in skipped entries

	at       uint32 // the last entry read
	clientAt uint32
	finished bool                   // all connections are read; clients follow
	ready    []connRecord           // read, not yet written
	room     [listBudget]connRecord // for ready
	known    []clientRecord         // read, not yet written; written after all connections
	all      [2]uint64              // connections and clients written
	blockWriter
}

// Records starts saving at now. name names a Link; connections on links with the name "" are left
// out. If since is not 0, only connections with a packet at or after since are saved: a second
// round after a complete one then costs only what has changed.
func (e *Engine) Records(since, now Time, name func(Link) string) *Records {
	return &Records{e: e, since: since, now: now, blockWriter: blockWriter{name: name}, pause: func() {}}
}

const (
	// RecordWrite is the most that Write writes at a time, in bytes.
	RecordWrite = 16 * RecordBlock
	// recordBurst is how much work is done between two pauses, about half a millisecond of a
	// processor. Its unit is skipping one idle entry, in memory that is read ahead. Judging or
	// saving an entry, or saving a client, costs as much as skipping recordWork of them.
	recordBurst = 1024 * recordWork
	recordWork  = 16
)

// Write writes all blocks to w. It calls pause whenever it has worked long enough that packets
// should have their turn, even if there was little to write. It returns the error of w.
func (r *Records) Write(w io.Writer, pause func()) error {
	r.pause = pause
	buffer := make([]byte, 0, RecordWrite)
	for more := true; more; {
		buffer = buffer[:0]
		for more && len(buffer) < RecordWrite {
			buffer, more = r.Next(buffer)
		}
		if _, err := w.Write(buffer); err != nil {
			return err
		}
	}
	return nil
}

// Next appends the next block to dst; more is false after the last one. Packets wait while it reads
// listBudget table entries at a time.
func (r *Records) Next(dst []byte) (all []byte, more bool) {
	r.begin(dst)
	for !more && r.read() {
		var written, fits bool
		if len(r.ready) > 0 {
			written, fits = r.add(func(b []byte) []byte { return r.appendConnection(b, &r.ready[0]) })
		} else {
			written, fits = r.add(func(b []byte) []byte { return r.appendClient(b, &r.known[0]) })
		}
		if more = !fits; fits {
			r.wrote(written)
		}
	}
	if !more {
		_, fits := r.add(func(b []byte) []byte { return appendEnd(b, r.all) })
		more = !fits
	}
	return r.finish(r.e.rounds()), more
}

// wrote advances to the next record. counts: the last one was written.
func (r *Records) wrote(counts bool) {
	kind := 0
	if len(r.ready) > 0 {
		r.ready = r.ready[1:]
	} else {
		r.known, kind = r.known[1:], 1
	}
	if counts {
		r.all[kind]++
	}
}

// read makes sure that a record is ready. It returns false at the end.
func (r *Records) read() bool {
	for len(r.ready)+len(r.known) == 0 {
		if r.work >= recordBurst {
			r.work = 0
			r.pause()
		}
		if !r.finished {
			r.readConnections()
		} else if !r.readClients() {
			return false
		}
	}
	return true
}

// readConnections reads those of the next entries that need saving.
func (r *Records) readConnections() {
	e := r.e
	r.ready = r.room[:0]
	r.work += listBudget
	next, more := e.some(Cursor(r.at), func(c *conn, number uint32) {
		if r.since != 0 && c.lastSeen < r.since || !e.alive(c, r.now) {
			return
		}
		r.work += recordWork
		if x, ok := e.record(c, number, r.now); ok {
			r.ready = append(r.ready, x)
		}
	})
	r.at, r.finished = uint32(next), !more
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
	if !s.rules.Generated() || c.has(flagService|flagPort) || c.tcp.flags[original]&tcpShifted != 0 ||
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

// readClients reads some clients. It returns false if there are no more.
func (r *Records) readClients() bool {
	e, t := r.e, &r.e.clients
	if r.since > 0 {
		return false // the keyed choice gives the others their backends again
	}
	r.known = r.known[:0]
	r.work += listBudget
	e.mu.Lock()
	defer e.mu.Unlock()
	first := r.clientAt + 1
	end := min(first+listBudget, t.high)
	for n := first; n < end; n++ {
		if x, ok := t.record(n, r.now); ok {
			r.work += recordWork
			r.known = append(r.known, x)
		}
		r.clientAt = n
	}
	return end > first
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
