package nat

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"time"

	"culvert/nat/packet"
)

// Records writes down what an Engine knows and packets could not tell another one that takes over: connections, but for those of pods that
// need nothing of it, and clients of services with affinity.
//
// Times are ages: who restores records goes on where the connections were, however long ago that was. No clock that survives a restart
// could be trusted with more, and what is restored too late costs a place in the table, until it expires.
type Records struct {
	e     *Engine
	since Time
	now   Time
	name  func(Link) string
	pause func()
	work  int // since the last pause, in entries that are passed by

	at       uint32 // the entry that was read last
	clientAt uint32
	services map[uint32]serviceIdentity // of affinityKey.list; nil before the connections are done
	ready    []connRecord               // read, not yet written
	room     [listBudget]connRecord     // for ready
	known    []clientRecord             // read, not yet written, after all connections
	all      [2]uint64                  // written: connections and clients
	// Of the block.
	links []Link
	named []serviceIdentity
}

// Records begins to write down what is worth it at now. name names a Link; what is of links with the name "" is left out. If since is not
// 0, only connections are written down that have had a packet at since or later: a second round, after one of all, then takes the time
// of what has changed.
func (e *Engine) Records(since, now Time, name func(Link) string) *Records {
	return &Records{e: e, since: since, now: now, name: name, pause: func() {}}
}

const (
	// RecordWrite is how many bytes Write writes at a time, at most.
	RecordWrite = 16 * RecordBlock
	// recordBurst is how much work lies between two pauses, half a millisecond of a processor: it passes by that many entries without a
	// packet since, in memory that is read ahead. One that is judged or recorded, and a client, is the work of recordWork of them.
	recordBurst = 1024 * recordWork
	recordWork  = 16
)

// Write writes all blocks to w, and calls pause whenever it has worked so long that packets should have their turn, however little there
// was to be written. It returns the error of w.
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

// Next appends the next block to dst; more is false after the last one. Packets wait for it as long as for the reading of listBudget
// entries of the table at a time.
func (r *Records) Next(dst []byte) (all []byte, more bool) {
	begin := len(dst)
	all = append(dst, make([]byte, recordHeader)...)
	r.links, r.named = r.links[:0], r.named[:0]
	limit := begin + RecordBlock
	for r.read() {
		n, links, named := len(all), len(r.links), len(r.named)
		if len(r.ready) > 0 {
			all = r.appendConnection(all, &r.ready[0])
		} else {
			all = r.appendClient(all, &r.known[0])
		}
		if len(all) > limit {
			all, r.links, r.named = all[:n], r.links[:links], r.named[:named]
			more = true
			break
		}
		if len(all) == n {
			r.links, r.named = r.links[:links], r.named[:named] // nor are they in the block
		}
		r.wrote(len(all) > n)
	}
	if !more {
		n := len(all)
		all = append(all, itemEnd)
		all = binary.AppendUvarint(binary.AppendUvarint(all, r.all[0]), r.all[1])
		if len(all) > limit {
			all, more = all[:n], true
		}
	}
	used := len(all) - begin - recordHeader
	all = append(all, make([]byte, limit-len(all))...)
	b := all[begin:]
	binary.LittleEndian.PutUint16(b[4:], recordVersion)
	binary.LittleEndian.PutUint16(b[6:], uint16(used))
	binary.LittleEndian.PutUint64(b[8:], r.e.rounds())
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], recordSum))
	return all, more
}

// wrote goes on to the next record. counts: the last one was worth it.
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

// read sees to it that there is a record to be written. It returns false at the end.
func (r *Records) read() bool {
	for len(r.ready)+len(r.known) == 0 {
		if r.work >= recordBurst {
			r.work = 0
			r.pause()
		}
		if r.services == nil {
			r.readConnections()
		} else if !r.readClients() {
			return false
		}
	}
	return true
}

// readConnections reads those of the next entries that are to be recorded.
func (r *Records) readConnections() {
	e := r.e
	r.ready = r.room[:0]
	r.work += listBudget
	next, more := e.some(Cursor(r.at), func(c *conn, number uint32) {
		if r.since != 0 && c.lastSeen < r.since || !e.alive(c, r.now) {
			return
		}
		r.work += recordWork
		x := connRecord{
			first: e.table.tuple(c, original), answer: e.table.tuple(c, reply), idle: time.Duration(max(r.now-c.lastSeen, 0)), mark: c.mark,
			state: c.state, packets: c.packets, bytes: c.bytes, tcp: c.tcp,
		}
		if pr := e.table.prologueOf(c, number); pr != nil {
			x.prologue = pr.record()
		}
		if e.tellsItself(c, &x.first, &x.answer) {
			return
		}
		if x.first.IPv6 {
			x.facts |= recordIPv6
		}
		if e.snapshot.rules.Generated() && x.mark == uint32(x.first.Link) {
			x.facts |= recordOwnMark
		}
		for _, f := range recordFlags {
			if c.has(f.flag) {
				x.facts |= f.fact
			}
		}
		r.ready = append(r.ready, x)
	})
	if r.at = uint32(next); !more {
		r.services = r.e.affinities()
	}
}

// tellsItself reports whether the next packet of a connection, of either direction, would make it again: a pod's with the other cluster, if
// the translation is that of the clusters' CIDRs, and if the answers go to the same node without its mark. What given rules would say to
// a first packet, they are not asked.
func (e *Engine) tellsItself(c *conn, first, answer *packet.Tuple) bool {
	s, inside, outside := e.snapshot, first, answer
	if first.Link.Outside() {
		inside, outside = answer, first
	}
	if !s.rules.Generated() || c.has(flagService|flagPort) || c.tcp.flags[original]&tcpShifted != 0 || inside.Link.Outside() || !outside.Link.Outside() {
		return false
	}
	local, seen := inside.Source(), inside.Destination()
	r, ok := s.seen.Lookup(seen)
	if !ok || !s.pods.Contains(local) {
		return false
	}
	to, real := inside.Reply(0), r.apply(seen)
	if to.SetSource(real); to.Words != outside.Words || to.Ports != outside.Ports {
		return false
	}
	node, routed := s.rules.Route(outside.Link, 0, real, local)
	marked, _ := s.rules.Route(outside.Link, c.mark, real, local)
	return routed && node == marked
}

// affinities returns the services that have clients. Packets wait while they are copied, but not while a map is made of them.
func (e *Engine) affinities() map[uint32]serviceIdentity {
	type named struct {
		list    uint32
		service serviceIdentity
	}
	e.mu.Lock()
	n := len(e.clients.lists)
	e.mu.Unlock()
	all := make([]named, 0, 2*n+listBudget)
	e.mu.Lock()
	for identity, l := range e.clients.lists {
		all = append(all, named{l.id, identity})
	}
	e.mu.Unlock()
	services := make(map[uint32]serviceIdentity, len(all))
	for _, x := range all {
		services[x.list] = x.service
	}
	return services
}

// readClients reads some of the clients. It returns false if there are no more.
func (r *Records) readClients() bool {
	e, t := r.e, &r.e.clients
	if r.since > 0 {
		return false // what a client has got since then, the keyed choice gives it again
	}
	r.known = r.known[:0]
	r.work += listBudget
	e.mu.Lock()
	defer e.mu.Unlock()
	first := r.clientAt + 1
	end := min(first+listBudget, t.high)
	for n := first; n < end; n++ {
		a := t.at(n)
		if service, ok := r.services[a.key.list]; ok && a.expires > r.now {
			r.work += recordWork
			r.known = append(r.known, clientRecord{service, a.key.client, a.backend, time.Duration(a.expires - r.now)})
		}
		r.clientAt = n
	}
	return end > first
}

// rounds returns how often an entry of the table was used, at most.
func (e *Engine) rounds() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.table.lastID / idStep
}
