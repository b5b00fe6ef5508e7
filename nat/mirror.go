package nat

import (
	"math"

	"culvert/nat/packet"
	"culvert/nat/siphash"
)

// A Mirror keeps the table of an Engine equal to that of another process, from the blocks of that
// process's Feed. The Engine should be frozen, and gets no packets until it replaces the other one.
//
// Connections are restored as by Restore. Entries that a copy does not contain end when the copy is
// whole; until then the table may hold entries of an earlier copy. One goroutine at a time may call
// Write.
type Mirror struct {
	r     *Restore
	stale uint32 // entries below it are fresh, or free

	state MirrorState // guarded by the Engine's lock
}

// A MirrorState says how complete the table is.
type MirrorState struct {
	Restored        // since the start of the last copy
	Copies   uint64 // copies that were whole
	Copying  bool   // a copy has started and is not yet whole
	Ended    uint64 // connections that the other process has ended
	Removed  uint64 // connections that a whole copy did not contain
}

// Mirror returns a Mirror of another process's table in e. link finds a Link by its name in the
// Feed.
func (e *Engine) Mirror(link func(name string) (Link, bool)) *Mirror {
	m := &Mirror{r: e.Restore(link, 0)}
	m.r.mirror = m
	return m
}

// Write takes blocks, in pieces of any size. It never fails; State counts what it did not
// understand.
func (m *Mirror) Write(b []byte, now Time) {
	m.r.now = now
	m.r.Write(b)
	e := m.r.e
	e.mu.Lock()
	defer e.mu.Unlock()
	whole := m.state.Whole
	m.state.Restored = m.r.result
	m.state.Whole = whole
}

// State returns how complete the table is. Whole says that a copy was complete.
func (m *Mirror) State() MirrorState {
	m.r.e.mu.Lock()
	defer m.r.e.mu.Unlock()
	return m.state
}

// Close ends m. It discards an incomplete last block, and keeps the table.
func (m *Mirror) Close() {
	e := m.r.e
	e.mu.Lock()
	defer e.mu.Unlock()
	e.table.fresh, e.clients.fresh = nil, nil
}

// begins begins a copy.
func (m *Mirror) begins() {
	e := m.r.e
	m.r.since = [2]int{}
	e.mu.Lock()
	defer e.mu.Unlock()
	m.r.result = Restored{}
	e.table.fresh, e.clients.fresh, m.stale = &freshEntries{}, &freshEntries{}, 1
	m.state.Copying, m.state.Whole = true, false
}

// ends ends a copy. If the copy was whole, entries that it did not contain end.
func (m *Mirror) ends(whole bool) {
	e := m.r.e
	if whole = whole && m.State().Copying; whole {
		m.removeStale()
		e.order()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.table.fresh, e.clients.fresh = nil, nil
	if m.state.Copying = false; whole {
		m.state.Copies++
		m.state.Whole = true
	}
}

func (m *Mirror) removeStale() {
	e, now := m.r.e, m.r.now
	for at, more := Cursor(0), true; more; {
		at, more = e.some(at, func(c *conn, number uint32) {
			if !e.table.fresh.has(number) {
				e.end(c, number, endDeleted, now)
				m.state.Removed++
			}
		})
	}
	for at := uint32(1); m.removeClients(at); at += listBudget {
	}
}

// removeClients forgets some clients that the copy did not contain.
func (m *Mirror) removeClients(at uint32) (more bool) {
	e := m.r.e
	e.mu.Lock()
	defer e.mu.Unlock()
	t := &e.clients
	for n := at; n < min(at+listBudget, t.high); n++ {
		if s, ok := t.services[t.at(n).key.list]; ok && !t.fresh.has(n) {
			e.forget(t.lists[s], n)
		}
	}
	return at+listBudget < t.high
}

// makeRoom ends a connection that is left from an earlier copy, and reports whether there was one.
//
// Preconditions: m.r.e.mu is held.
// +checklocksignore: its caller holds the lock by another name
func (m *Mirror) makeRoom(now Time) bool {
	e := m.r.e
	for tb := &e.table; tb.fresh != nil && m.stale < tb.high; m.stale++ {
		if c := tb.at(m.stale); c.live() && !tb.fresh.has(m.stale) {
			e.end(c, m.stale, endDeleted, now)
			m.state.Removed++
			return true
		}
	}
	return false
}

// gone reads an ended connection and ends it here.
func (m *Mirror) gone(in *fields) {
	r := m.r
	t := packet.Tuple{IPv6: in.byte()&recordIPv6 != 0, Protocol: in.byte()}
	from := in.uvarint(uint64(len(r.links)))
	for i := range t.Words[:words(t.IPv6)] {
		t.Words[i] = in.uint64()
	}
	t.Ports = in.uint32()
	if in.short = in.short || from == 0; in.short || !r.links[from-1].ok {
		return
	}
	t.Link = r.links[from-1].link
	e := r.e
	e.mu.Lock()
	defer e.mu.Unlock()
	tb := &e.table
	hash := tb.directory.hash(&t)
	h, slot, ok := tb.search(&t, hash, hash%segmentSlots)
	for ok && (h.direction != original || tb.tuple(h.conn, original) != t) {
		h, slot, ok = tb.search(&t, hash, (slot+1)%segmentSlots)
	}
	if ok {
		e.end(h.conn, h.number, endDeleted, r.now)
		m.state.Ended++
	}
}

// goneClient reads a forgotten client and forgets it here.
func (m *Mirror) goneClient(in *fields) {
	number := in.uvarint(uint64(len(m.r.services)))
	address := [2]uint64{in.uint64(), in.uint64()}
	if in.short = in.short || number == 0; in.short {
		return
	}
	e := m.r.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.clients.lists[m.r.services[number-1]]; l != nil {
		key := affinityKey{l.id, address}
		if n := e.clients.find(&key, key.hash(&e.table.shares)); n != 0 {
			e.forget(l, n)
		}
	}
}

// putClients restores clients, replacing what is known about them.
func (m *Mirror) putClients() {
	r := m.r
	for i := range r.clients {
		x := &r.clients[i]
		r.e.mu.Lock()
		if l := r.e.clients.lists[x.service]; l != nil {
			key := affinityKey{l.id, x.address}
			if n := r.e.clients.find(&key, key.hash(&r.e.table.shares)); n != 0 {
				r.e.forget(l, n)
			}
		}
		r.e.mu.Unlock()
	}
	r.remember(r.clients)
	r.clients = r.clients[:0]
}

// freshEntries are the table entries that were made since a copy began. Nil is used while there is
// no copy.
type freshEntries struct{ bits []uint64 }

func (f *freshEntries) add(number uint32) {
	if f == nil {
		return
	}
	for int(number/64) >= len(f.bits) {
		f.bits = append(f.bits, 0)
	}
	f.bits[number/64] |= 1 << (number % 64)
}

func (f *freshEntries) remove(number uint32) {
	if f != nil && int(number/64) < len(f.bits) {
		f.bits[number/64] &^= 1 << (number % 64)
	}
}

func (f *freshEntries) has(number uint32) bool {
	return int(number/64) < len(f.bits) && f.bits[number/64]&(1<<(number%64)) != 0
}

// Freeze stops the ages of connections: none expires until Thaw.
func (e *Engine) Freeze() { e.age(math.MaxInt64) }

// Thaw makes connections age from now on. Earlier idle time does not count.
func (e *Engine) Thaw(now Time) { e.age(now) }

func (e *Engine) age(floor Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.floor = floor
}

// SetKey replaces the key given to New by that of the Engine that this one replaces. It must be
// called before the first packet.
func (e *Engine) SetKey(key [16]byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hashKey = siphash.NewKey(key)
}

// Generation counts commits.
func (e *Engine) Generation() uint32 { return e.current().generation }
