package nat

import (
	"cmp"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"sort"
	"time"

	"culvert/nat/packet"
)

// idMargin is how often a table entry may have been used since its records were written: ids
// continue after that.
const idMargin = 1 << 16

// A Restore gives an Engine the connections and clients from records. It accepts the output of
// Records in pieces of any size.
//
// A connection is restored if it has not expired and the Engine's configuration would admit its
// first packet with the same addresses; it keeps its port. Its next packets meet the rules, as
// after a commit that affects it. It replaces whatever has its addresses and ports: that allows a
// second Restore with records of later changes.
type Restore struct {
	e        *Engine
	link     func(name string) (Link, bool)
	now      Time
	order    bool   // the table was empty at the start, so entries must be sorted by age at the end
	most     int    // limit of clients
	rest     []byte // of a block
	links    []restoredLink
	services []serviceIdentity
	prologue proxyRecord  // of the next connection
	ready    []connRecord // read, not yet restored
	clients  []clientRecord
	since    [2]int // connections and clients since the last end item
	result   Restored
	mirror   *Mirror // nil: these are the records of a process that has ended
}

// A restoredLink is a link named in a block.
type restoredLink struct {
	link Link
	ok   bool // it exists
}

// Restored counts what happened to the records.
type Restored struct {
	Connections, Clients int  // restored
	Whole                bool // nothing that was written is missing
	Damaged, Foreign     int  // blocks with a wrong checksum, or of an unknown version

	// Connections that were not restored.
	Expired     int // timed out
	UnknownLink int // their link, or that of their answers, is unknown
	Unbound     int // the configuration does not admit them, or gives them other addresses
	NoRoom      int // the table is full
}

// Restore starts restoring records at now. link finds a Link by the name that Records saved.
// Packets should wait until it is done: a packet of a connection not yet restored opens a new one.
func (e *Engine) Restore(link func(name string) (Link, bool), now Time) *Restore {
	e.mu.Lock()
	defer e.mu.Unlock()
	return &Restore{e: e, link: link, now: now, order: e.table.used == 0, most: e.snapshot.maxEntries / affinityRatio}
}

// Write restores the records in b. It never fails.
func (r *Restore) Write(b []byte) (int, error) {
	n := len(b)
	if len(r.rest) > 0 {
		need := min(RecordBlock-len(r.rest), len(b))
		r.rest, b = append(r.rest, b[:need]...), b[need:]
		if len(r.rest) < RecordBlock {
			return n, nil
		}
		r.block(r.rest)
		r.rest = r.rest[:0]
	}
	for ; len(b) >= RecordBlock; b = b[RecordBlock:] {
		r.block(b[:RecordBlock])
	}
	r.rest = append(r.rest, b...)
	return n, nil
}

// End completes the restore and returns its counts.
func (r *Restore) End() Restored {
	if len(r.rest) > 0 {
		r.damaged()
	}
	if r.order {
		r.e.order()
	}
	sort.SliceStable(r.clients, func(i, j int) bool { return r.clients[i].left < r.clients[j].left })
	for some := range slices.Chunk(r.clients, listBudget) {
		r.remember(some)
	}
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	r.result.Connections = min(r.result.Connections, r.e.table.used) // duplicates of a record are one connection
	return r.result
}

func (r *Restore) damaged() {
	r.result.Damaged++
	r.result.Whole = false
}

func (r *Restore) block(b []byte) {
	r.result.Whole = false
	used := int(binary.LittleEndian.Uint16(b[6:]))
	switch {
	case crc32.Checksum(b[4:], recordSum) != binary.LittleEndian.Uint32(b):
		r.damaged()
		return
	case binary.LittleEndian.Uint16(b[4:]) != recordVersion:
		r.result.Foreign++
		return
	case used > RecordBlock-recordHeader:
		r.damaged()
		return
	}
	r.e.idsAfter(binary.LittleEndian.Uint64(b[8:]))
	r.links, r.services, r.prologue = r.links[:0], r.services[:0], proxyRecord{}
	in := fields{b: b[recordHeader:][:used]}
	for len(in.b) > 0 && !in.short {
		r.item(&in)
	}
	if in.short {
		r.damaged()
	}
	if r.put(); r.mirror != nil {
		r.mirror.putClients()
	}
}

// idsAfter gives connections ids that were never used by a table whose entries were used that
// often.
func (e *Engine) idsAfter(rounds uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if tb := &e.table; rounds < 1<<38 {
		tb.firstID = max(tb.firstID, (rounds+idMargin)*idStep)
		tb.lastID = max(tb.lastID, tb.firstID)
	}
}

// put restores the ready records, listBudget connections at a time.
func (r *Restore) put() {
	for some := range slices.Chunk(r.ready, listBudget) {
		r.putSome(some)
	}
	r.ready = r.ready[:0]
}

func (r *Restore) putSome(some []connRecord) {
	e := r.e
	e.mu.Lock()
	defer e.mu.Unlock()
	e.loadPlaces(some)
	for i := range some {
		*e.restore(&some[i], r)++
	}
}

// loadPlaces prefetches what restore reads first for at most listBudget connections, and returns
// how many of these places are in use, so that the compiler keeps the reads. In a large table
// restore would wait for memory three times per connection; here the waits overlap, as in Load.
//
// Preconditions: e.mu is held.
// +checklocks:e.mu
func (e *Engine) loadPlaces(some []connRecord) (used int) {
	var hashes [2 * listBudget]uint32
	var holders [listBudget]uint64
	tb := &e.table
	for i := range some {
		x := &some[i]
		hashes[2*i], hashes[2*i+1] = tb.directory.hash(&x.first), tb.directory.hash(&x.answer)
		holders[i] = e.holder(&x.first).of(shareConnections).address
	}
	for _, hash := range hashes[:2*len(some)] {
		if tb.directory.segment(hash)[hash%segmentSlots] != 0 {
			used++
		}
	}
	for i := range some {
		if tb.shares.inUse(holders[i]) {
			used++
		}
	}
	return used
}

// restore puts a connection into the table, and returns the counter of the outcome.
//
// Preconditions: e.mu is held.
// +checklocks:e.mu
func (e *Engine) restore(x *connRecord, r *Restore) *int {
	s, now, result := e.snapshot, r.now, &r.result
	if !s.rules.HasLink(x.first.Link) || x.answer.Link != anyNode && !s.rules.HasLink(x.answer.Link) {
		return &result.UnknownLink
	}
	draft := conn{state: x.state}
	for _, f := range recordFlags {
		if x.facts&f.fact != 0 {
			draft.flags |= f.flag
		}
	}
	lifetime := s.lifetime(&draft, e.pressed())
	if x.idle >= lifetime && r.mirror == nil {
		return &result.Expired
	}
	again := e.displace(x, now)
	became := e.reinsert(x, &draft, lifetime, r)
	switch {
	case !again && became == &result.Connections:
		e.stats.Restored++
	case again && became == &result.NoRoom:
		e.stats.EarlyDropped++
	case again && became == &result.Unbound:
		e.stats.Evicted++
	}
	return became
}

// reinsert puts a connection into the table after displace has removed what was in its way, and
// returns the counter of the outcome.
//
// Preconditions: e.mu is held.
// +checklocks:e.mu
func (e *Engine) reinsert(x *connRecord, draft *conn, lifetime time.Duration, r *Restore) *int {
	tb, s, now, result := &e.table, e.snapshot, r.now, &r.result
	h := e.holder(&x.first)
	settled := draft.has(flagReplied) && rankOf(x.state) != rankUnsettled
	full := tb.used >= s.maxEntries && !(r.mirror != nil && r.mirror.makeRoom(now))
	if full && !e.giveWay(settled, now) || r.mirror == nil && !settled && e.crowds(h) {
		return &result.NoRoom
	}
	c, number := tb.add(&x.first, &x.answer, h, s.generation)
	if c == nil { // so many equal hashes are no accident
		return &result.NoRoom
	}
	to := x.answer.Reply(0)
	c.addresses, c.ports = packet.Deltas(&x.first, &to)
	c.lastSeen, c.mark, c.state, c.packets, c.bytes, c.tcp = now.Add(-x.idle), x.mark, x.state, x.packets,
		x.bytes, x.tcp
	c.flags |= draft.flags & flagService
	if x.facts&recordEnds != 0 {
		c.tcp.flags[reply] |= tcpEnds
	}
	if x.prologue.stage > 0 {
		pr := x.prologue.restored(&x.first, &x.answer)
		if r.mirror == nil && pr.stage == headerTaken {
			pr.stage = headerFar // records may be half a minute old, and a stream gets far in that time
		}
		tb.begin(c, number, pr)
	}
	if draft.has(flagPort) {
		tb.takePort(c, number, h)
	}
	if c.state == stateEstablished {
		// The numbers are as old as the record. The first segment that does not fit them is
		// believed, as in mid-stream.
		for d := range c.tcp.flags {
			c.tcp.flags[d] |= strays * tcpStray
		}
	}
	if draft.has(flagReplied) {
		tb.replied(c, number)
	}
	c.out[original] = x.home
	tr := &e.scratch.tr
	if _, ok := e.stillBound(tr, c, now); !ok {
		tb.remove(c, number)
		return &result.Unbound
	}
	c.out[original] = tr.Out // where answers come from, until their route is found again
	tb.wheel.start(now)
	tb.wheel.arm(tb, number, c.lastSeen.Add(lifetime))
	return &result.Connections
}

// displace removes connections that hold a tuple of x, and reports whether one of them was the same
// connection, from an earlier record or made by its packets since. It counts others as removed, but
// not the same one, which is about to return.
//
// Preconditions: e.mu is held.
// +checklocks:e.mu
func (e *Engine) displace(x *connRecord, now Time) (again bool) {
	tb := &e.table
	for _, t := range [...]*packet.Tuple{&x.first, &x.answer} {
		hash := tb.directory.hash(t)
		for {
			h, _, ok := tb.search(t, hash, hash%segmentSlots)
			if !ok {
				break
			}
			if tb.tuple(h.conn, original) != x.first || tb.tuple(h.conn, reply) != x.answer {
				e.end(h.conn, h.number, endEarlyDropped, now)
				continue
			}
			tb.remove(h.conn, h.number)
			again = true
		}
	}
	return again
}

// crowds reports whether an unsettled connection of h would leave no room for others, which can
// happen if the table is smaller than the recorded one: a link gets half of it, and some of it
// stays free for newcomers.
//
// Preconditions: e.mu is held.
// +checklocks:e.mu
func (e *Engine) crowds(h holder) bool {
	tb, most := &e.table, e.snapshot.maxEntries
	return tb.used >= most-most/16 || 2*tb.shares.held(h.of(shareConnections).link) >= most
}

// giveWay makes room in a full table for a restored connection that is settled, by evicting one
// that is not, or is closing.
//
// Preconditions: e.mu is held.
// +checklocks:e.mu
func (e *Engine) giveWay(settled bool, now Time) bool {
	for r := rankUnsettled; r < ranks && settled; r++ {
		if number := e.table.lists[r].first; number != 0 {
			e.makeRoom(number, now)
			return true
		}
	}
	return false
}

// queued is a connection that may be evicted for another.
type queued struct {
	lastSeen Time
	number   uint32
}

func (a queued) compare(b queued) int { return cmp.Compare(a.lastSeen, b.lastSeen) }

// order sorts evictable connections by the time of their last packets.
func (e *Engine) order() {
	e.mu.Lock()
	defer e.mu.Unlock()
	tb := &e.table
	for r := rankUnsettled; r < ranks; r++ {
		l := &tb.lists[r]
		all := make([]queued, 0, l.length)
		for number := l.first; number != 0; number = tb.cold(number).next {
			all = append(all, queued{tb.at(number).lastSeen, number})
		}
		if slices.IsSortedFunc(all, queued.compare) {
			continue
		}
		slices.SortStableFunc(all, queued.compare)
		l.first, l.last = 0, 0
		for _, x := range all {
			tb.enqueue(l, x.number)
		}
	}
}

// remember restores clients of services, the least recently seen first.
func (r *Restore) remember(some []clientRecord) {
	e := r.e
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range some {
		x := &some[i]
		l := e.clients.list(x.service)
		key := affinityKey{l.id, x.address}
		hash := key.hash(&e.table.shares)
		if e.clients.find(&key, hash) == 0 && x.left > 0 && e.keep(l, &key, hash, x.backend, r.now.Add(x.left), r.now) {
			r.result.Clients++
		}
	}
}
