package nat

import (
	"cmp"
	"encoding/binary"
	"hash/crc32"
	"slices"

	"culvert/nat/packet"
)

// idMargin is how often an entry of the table may have been used since records of it were written: ids go on behind that.
const idMargin = 1 << 16

// A Restore gives an Engine the connections and clients of records. It reads what Records wrote, in whatever pieces it is given.
//
// A connection is taken if its time is not over and if its first packet would be admitted by the configuration of the Engine and get the same
// addresses; it keeps its port. Its next packets meet the rules, as after a commit that concerns it. What is there already with its
// addresses and ports makes place for it, so that records of changes are restored after those of all, by a Restore of their own.
type Restore struct {
	e        *Engine
	link     func(name string) (Link, bool)
	now      Time
	order    bool   // the table was empty: what comes later is not what was met later
	most     int    // clients
	rest     []byte // of a block
	links    []restoredLink
	services []serviceIdentity
	prologue prologueRecord // of the next connection
	ready    []connRecord   // read, not yet restored
	clients  []clientRecord
	since    [2]int // connections and clients since the last end
	result   Restored
}

// A restoredLink is a link that a block names.
type restoredLink struct {
	link Link
	ok   bool // it exists
}

// Restored is what has become of records.
type Restored struct {
	Connections, Clients int  // that were taken
	Whole                bool // nothing of what was written is missing
	Damaged, Foreign     int  // blocks that were damaged, or of an unknown version

	// Connections that were not taken.
	Expired     int // their time was over
	UnknownLink int // that they came from, or that their answers come from
	Unbound     int // the configuration does not admit them, or gives them other addresses
	NoRoom      int // in the table
}

// Restore begins to restore records at now. link finds a Link by the name that Records was given. Packets should wait until it is done: one
// of a connection that is still to be restored makes another.
func (e *Engine) Restore(link func(name string) (Link, bool), now Time) *Restore {
	e.mu.Lock()
	defer e.mu.Unlock()
	return &Restore{e: e, link: link, now: now, order: e.table.used == 0, most: e.snapshot.maxEntries / affinityRatio}
}

// Write restores what b holds of records. It never fails.
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

// End finishes what was begun, and says what has become of the records.
func (r *Restore) End() Restored {
	if len(r.rest) > 0 {
		r.damaged()
	}
	if r.order {
		r.e.order()
	}
	slices.SortStableFunc(r.clients, func(a, b clientRecord) int { return cmp.Compare(a.left, b.left) })
	for some := range slices.Chunk(r.clients, listBudget) {
		r.remember(some)
	}
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
	r.links, r.services, r.prologue = r.links[:0], r.services[:0], prologueRecord{}
	in := fields{b: b[recordHeader:][:used]}
	for len(in.b) > 0 && !in.short {
		r.item(&in)
	}
	if in.short {
		r.damaged()
	}
	r.put()
}

// idsAfter gives connections ids that none has had of a table whose entries were used that often.
func (e *Engine) idsAfter(rounds uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if tb := &e.table; rounds < 1<<38 {
		tb.firstID = max(tb.firstID, (rounds+idMargin)*idStep)
		tb.lastID = max(tb.lastID, tb.firstID)
	}
}

// put restores what is ready, listBudget connections at a time.
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
		*e.restore(&some[i], r.now, &r.result)++
	}
}

// loadPlaces reads where restore will look first for connections, at most listBudget, and returns how many of these places are in use, so
// that no compiler leaves out the reading. In a large table each is a wait for memory, three for a connection; here the waits overlap, as
// in Load.
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

// restore puts a connection into the table, and returns the counter of what has become of it.
//
// Preconditions: e.mu is held.
// +checklocks:e.mu
func (e *Engine) restore(x *connRecord, now Time, result *Restored) *int {
	tb, s := &e.table, e.snapshot
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
	if x.idle >= lifetime {
		return &result.Expired
	}
	e.displace(x, now)
	h := e.holder(&x.first)
	if replied := draft.has(flagReplied); tb.used >= s.maxEntries && !e.giveWay(replied, now) || !replied && e.crowds(h) {
		return &result.NoRoom
	}
	c, number := tb.add(&x.first, &x.answer, h, s.generation)
	if c == nil { // more equal hashes than chance makes
		return &result.NoRoom
	}
	to := x.answer.Reply(0)
	c.addresses, c.ports = packet.Deltas(&x.first, &to)
	c.lastSeen, c.mark, c.state, c.packets, c.bytes, c.tcp = now.Add(-x.idle), x.mark, x.state, x.packets, x.bytes, x.tcp
	c.flags |= draft.flags & flagService
	if x.prologue.stage > 0 {
		tb.begin(c, number, x.prologue.restored(&x.first, &x.answer))
	}
	if draft.has(flagPort) {
		tb.takePort(c, h)
	}
	if c.state == stateEstablished {
		// The numbers are as old as the record. The first segment that they do not fit is believed, as in mid-stream.
		for d := range c.tcp.flags {
			c.tcp.flags[d] |= strays * tcpStray
		}
	}
	if draft.has(flagReplied) {
		tb.replied(c, number)
	}
	tr := &e.scratch.tr
	if _, ok := e.stillBound(tr, c, now); !ok {
		tb.remove(c, number)
		return &result.Unbound
	}
	c.out[original] = tr.Out // where answers come from, until that is found anew
	tb.wheel.start(now)
	tb.wheel.arm(tb, number, c.lastSeen.Add(lifetime))
	e.stats.Restored++
	return &result.Connections
}

// displace removes what has a tuple of x: the same connection, as it was when an earlier record was written, or one that has gone since.
//
// Preconditions: e.mu is held.
// +checklocks:e.mu
func (e *Engine) displace(x *connRecord, now Time) {
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
			e.stats.Restored-- // until it is restored once more
		}
	}
}

// crowds reports whether an unreplied connection of h would leave others no place, as it could where the table is smaller than that of the
// records: a link gets half of it, and something is left for those who come.
//
// Preconditions: e.mu is held.
// +checklocks:e.mu
func (e *Engine) crowds(h holder) bool {
	tb, most := &e.table, e.snapshot.maxEntries
	return tb.used >= most-most/16 || 2*tb.shares.held(h.of(shareConnections).link) >= most
}

// giveWay makes room in a full table for a connection that was restored, if that is replied and others are not, or are closing.
//
// Preconditions: e.mu is held.
// +checklocks:e.mu
func (e *Engine) giveWay(replied bool, now Time) bool {
	for r := rankUnreplied; r < ranks && replied; r++ {
		if number := e.table.lists[r].first; number != 0 {
			e.makeRoom(number, now)
			return true
		}
	}
	return false
}

// queued is a connection that may have to make room for another.
type queued struct {
	lastSeen Time
	number   uint32
}

func (a queued) compare(b queued) int { return cmp.Compare(a.lastSeen, b.lastSeen) }

// order queues connections that are to make room for others by their last packets.
func (e *Engine) order() {
	e.mu.Lock()
	defer e.mu.Unlock()
	tb := &e.table
	for r := rankUnreplied; r < ranks; r++ {
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

// remember restores clients of services, of which those that come later go later.
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
