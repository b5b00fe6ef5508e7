package nat

import (
	"encoding/binary"
	"time"
)

// Virtual reassembly: fragments are forwarded one by one, but share the ports of their first one. Later fragments that come before it
// wait, unless their translation does not depend on a connection (RFC 4787, Section 11, REQ-14).
const (
	fragmentSets, fragmentWays = 64, 4
	// fragmentLifetime is how long the parts of a datagram may be apart (RFC 1122, Section 3.3.2: 60 s to 120 s is for hosts that
	// hold all of them; Linux's ipfrag_time is 30 s).
	fragmentLifetime = 30 * time.Second
	heldFragments    = 128
	heldSize         = 2048
)

// A fragmentTable remembers datagrams in fragments. It is allocated with the first fragment.
type fragmentTable struct {
	memory *fragmentMemory
	holds  int
}

type fragmentMemory struct {
	datagrams [fragmentSets][fragmentWays]datagram
	held      [heldFragments]heldFragment
}

// A datagram is one in fragments.
type datagram struct {
	words    [4]uint64 // addresses
	id       uint32
	zone     Port
	protocol uint8
	v6       bool
	known    bool   // the first fragment was seen
	reason   Reason // why it was dropped
	ports    uint32
	expires  Time
	blocks   [128]uint64 // of 8 bytes each, that were seen
	seen     int         // how many these are
	total    int         // how many there will be; 0 before the last fragment was seen
}

// complete reports whether all of the datagram has come.
func (g *datagram) complete() bool { return g.known && g.total > 0 && g.seen == g.total }

// A heldFragment waits for the first one.
type heldFragment struct {
	datagram *datagram // nil: free
	in       Port
	length   int
	bytes    [heldSize]byte
}

func (p *Packet) fragmentID() uint32 {
	if p.v6 {
		return binary.BigEndian.Uint32(p.data[p.fragmentAt+4:])
	}
	return uint32(binary.BigEndian.Uint16(p.data[4:]))
}

// datagram returns the datagram of a fragment, making it if there is room.
func (e *Engine) datagram(p *Packet, t *tuple, now Time) *datagram {
	f := &e.fragments
	if f.memory == nil {
		f.memory = new(fragmentMemory)
	}
	id := p.fragmentID()
	k := &e.table.directory.secrets
	h := fold(t.words[0]^k[0], t.words[1]^k[1])
	h = fold(h^t.words[2]^k[2], t.words[3]^k[3])
	h = fold(h^k[4], uint64(id)<<32^uint64(t.zone)<<8^uint64(t.protocol)^k[5])
	set := &f.memory.datagrams[h%fragmentSets]
	var free *datagram
	for i := range set {
		g := &set[i]
		if g.expires <= now {
			free = g
			continue
		}
		if g.words == t.words && g.id == id && g.zone == t.zone && g.protocol == t.protocol && g.v6 == t.v6 {
			return g
		}
	}
	if free == nil {
		// A datagram that is through keeps its place, for what comes twice, only as long as nobody else needs it.
		for i := range set {
			if g := &set[i]; g.complete() && f.waiting(g) == 0 && (free == nil || g.expires < free.expires) {
				free = g
			}
		}
	}
	if free == nil {
		return nil
	}
	f.expire(e, now) // what still waits for the one before
	*free = datagram{words: t.words, id: id, zone: t.zone, protocol: t.protocol, v6: t.v6, expires: now.Add(fragmentLifetime)}
	return free
}

// overlaps marks the bytes of a fragment as seen and reports whether some were seen before. What overlaps is dropped, so that no receiver
// can be made to see other bytes than a filter did (RFC 1858; RFC 5722, Section 4).
func (g *datagram) overlaps(p *Packet) bool {
	first := p.fragmentOffset / 8
	last := (p.fragmentOffset + len(p.data) - p.transport - 1) / 8
	for i := first; i <= last; i++ {
		if g.blocks[i/64]&(1<<(i%64)) != 0 {
			return true
		}
	}
	for i := first; i <= last; i++ {
		g.blocks[i/64] |= 1 << (i % 64)
	}
	g.seen += last - first + 1
	if !p.more {
		g.total = last + 1
	}
	return false
}

// fragment handles a fragment, the first one or a later one.
func (e *Engine) fragment(p *Packet, t *tuple, in Port, now Time) Verdict {
	g := e.datagram(p, t, now)
	if g == nil {
		if p.fragmentOffset == 0 {
			var v Verdict
			e.dispatch(p, t, in, now, &v)
			return v
		}
		if v, ok := e.stateless(p, t, in, now); ok {
			return v
		}
		return drop(ReasonFragmentLimit)
	}
	if g.overlaps(p) {
		return drop(ReasonFragmentOverlap)
	}
	if p.fragmentOffset == 0 {
		var v Verdict
		e.dispatch(p, t, in, now, &v)
		g.known, g.ports = true, t.ports
		if v.Action == Drop {
			g.reason = v.Reason
		}
		v.Held = e.fragments.waiting(g)
		return v
	}
	return e.later(g, p, t, in, now)
}

// later handles a later fragment of g.
func (e *Engine) later(g *datagram, p *Packet, t *tuple, in Port, now Time) Verdict {
	switch {
	case g.known && g.reason != ReasonNone:
		return drop(g.reason)
	case g.known:
		t.ports = g.ports
		var v Verdict
		e.dispatch(p, t, in, now, &v)
		return v
	}
	if v, ok := e.stateless(p, t, in, now); ok {
		return v
	}
	return e.hold(g, p, in, now)
}

// stateless forwards a later fragment whose first one is unknown, if no connection has a say in it.
func (e *Engine) stateless(p *Packet, t *tuple, in Port, now Time) (Verdict, bool) {
	s := e.snapshot
	if !s.admits(t.source(), in) || s.owns(t.destination(), in) || unusable(t.destination()) {
		return e.first(p, t, in, now), true
	}
	if in == Tunnel && s.external.Contains(t.destination()) {
		return Verdict{}, false
	}
	tr := &e.scratch
	*tr = traversal{from: *t, in: in, first: true}
	if !tr.run(e, s, now) {
		return e.dropped(p, tr), true
	}
	if tr.stateful || !e.returns(tr) {
		return Verdict{}, false
	}
	return e.open(p, tr, now), true
}

func (e *Engine) hold(g *datagram, p *Packet, in Port, now Time) Verdict {
	if len(p.data) > heldSize {
		return drop(ReasonFragmentLimit)
	}
	for i := range e.fragments.memory.held {
		h := &e.fragments.memory.held[i]
		if h.datagram == nil {
			h.datagram, h.in = g, in
			h.length = copy(h.bytes[:], p.data)
			e.fragments.holds++
			return Verdict{Action: Hold, Packets: 1}
		}
	}
	return drop(ReasonFragmentLimit)
}

// waiting returns how many fragments wait for g.
func (f *fragmentTable) waiting(g *datagram) int {
	n := 0
	if f.holds > 0 {
		for i := range f.memory.held {
			if f.memory.held[i].datagram == g {
				n++
			}
		}
	}
	return n
}

// Release processes a fragment that waited for its first one, which the caller has just processed: while Verdict.Held of that one was
// positive, it calls Release once for each. The fragment is copied to b, which needs room for 2048 bytes, and p made its view. It
// returns false if none is left.
func (e *Engine) Release(p *Packet, b []byte, in Port, now Time) (Verdict, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.fragments.holds == 0 {
		return Verdict{}, false
	}
	for i := range e.fragments.memory.held {
		h := &e.fragments.memory.held[i]
		if h.datagram == nil || h.in != in || !h.datagram.known {
			continue
		}
		p.Parse(b[:copy(b, h.bytes[:h.length])])
		var t tuple
		p.tuple(&t, in)
		v := e.later(h.datagram, p, &t, in, now)
		h.datagram = nil
		e.fragments.holds--
		d := e.stats.of(in)
		d.Held--
		d.Received-- // counted when it was held
		d.count(&v)
		return v, true
	}
	return Verdict{}, false
}

// expire drops fragments whose first one never came.
func (f *fragmentTable) expire(e *Engine, now Time) {
	if f.holds == 0 {
		return
	}
	for i := range f.memory.held {
		h := &f.memory.held[i]
		if h.datagram == nil || h.datagram.expires > now {
			continue
		}
		h.datagram = nil
		f.holds--
		d := e.stats.of(h.in)
		d.Held--
		d.Dropped[ReasonFragment]++
	}
}
