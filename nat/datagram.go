package nat

import (
	"time"

	"culvert/nat/packet"
)

const (
	maxDatagrams = 1024
	// fragmentLifetime is how long a datagram's fragments may be apart (RFC 1122, Section 3.3.2,
	// has 60 s to 120 s for hosts that keep them all; Linux's ipfrag_time is 30 s).
	fragmentLifetime = 30 * time.Second
	maxHeld          = 256
	heldSize         = 2048
	// datagramTries is how many of the oldest incomplete datagrams are considered for making room.
	datagramTries = 64
)

// A fragmentTable remembers fragmented datagrams. Its memory grows with their number. Shares limit
// the incomplete ones; complete ones stay, to recognise duplicates, only while nobody needs their
// place.
type fragmentTable struct {
	index             map[datagramKey]*datagram // hashed with a secret of the process
	partial, complete datagramList
	made              int
	spare             *datagram
	ready             []*datagram // the first fragment is known, and others wait to be released

	holds     int
	heldSpare *heldFragment
}

type datagramKey struct {
	words    [4]uint64 // addresses
	id       uint32
	link     Link
	protocol uint8
	v6       bool
}

// A datagram is one that came in fragments.
type datagram struct {
	key            datagramKey
	holder         holder
	previous, next *datagram // in its list; next also links free ones
	held           *heldFragment
	expires        Time
	complete       bool   // it is in the list of complete ones
	known          bool   // the first fragment was seen
	reason         Reason // why it was dropped
	icmpError      bool   // it is an ICMP error; later fragments share the fate of the first
	action         Action
	out            Link
	to             packet.Tuple // the tuple after translation of the first fragment
	ports          uint32
	protocol       uint8       // of the first fragment, like ports
	seen           int         // blocks of 8 bytes seen
	total          int         // blocks of 8 bytes in all; 0 before the last fragment was seen
	blocks         [128]uint64 // bitmap of the blocks seen
}

// A heldFragment waits for the first fragment.
type heldFragment struct {
	next   *heldFragment // of the same datagram, or free
	length int
	bytes  [heldSize]byte
}

// A datagramList holds datagrams, the oldest first.
type datagramList struct {
	first, last *datagram
	length      int
}

func (l *datagramList) push(g *datagram) {
	g.previous, g.next = l.last, nil
	if l.last != nil {
		l.last.next = g
	} else {
		l.first = g
	}
	l.last = g
	l.length++
}

func (l *datagramList) remove(g *datagram) {
	if g.previous != nil {
		g.previous.next = g.next
	} else {
		l.first = g.next
	}
	if g.next != nil {
		g.next.previous = g.previous
	} else {
		l.last = g.previous
	}
	l.length--
}

func newDatagramKey(p *packet.Packet, t *packet.Tuple) datagramKey {
	k := datagramKey{words: t.Words, id: p.FragmentID(), link: t.Link, protocol: t.Protocol, v6: t.IPv6}
	if k.v6 {
		// RFC 8200, Section 4.5: fragments of one datagram may name different next headers; the
		// first one's counts
		k.protocol = 0
	}
	return k
}

// datagram finds the datagram of a fragment, or decides which one to evict for it. It returns false
// if there is no room.
func (e *Engine) datagram(d *decision, p *packet.Packet, now Time) bool {
	f, s := &e.fragments, &e.table.shares
	d.reassembly = reassembly{}
	r := &d.reassembly
	if g := f.index[newDatagramKey(p, &d.from)]; g != nil && g.expires > now {
		r.datagram = g
		return true
	} else if g != nil {
		r.expired = g
	}
	h := e.holder(&d.from)
	if !s.full(h.of(shareDatagrams), f.partial.length, maxDatagrams) {
		return true
	}
	r.victim = f.victim(s, h, shareDatagrams, nil, now)
	return r.victim != nil
}

// victim returns the oldest incomplete datagram that h may evict. For shareHeld, only its waiting
// fragments are evicted.
func (f *fragmentTable) victim(s *shares, h holder, r resource, but *datagram, now Time) *datagram {
	g := f.partial.first
	for i := 0; i < datagramTries && g != nil; i, g = i+1, g.next {
		if g == but || g.known && g.held != nil && g.expires > now || r == shareHeld && g.held == nil {
			continue
		}
		over := g.expires <= now
		if s.yields(g.holder.of(r), h.of(r)) || over && r == shareDatagrams && !s.full(h.of(r), f.partial.length-1,
			maxDatagrams) ||
			over && r == shareHeld && !s.full(h.of(r), f.holds-1, maxHeld) {
			return g
		}
	}
	return nil
}

// add makes a datagram.
func (f *fragmentTable) add(e *Engine, key datagramKey, h holder, now Time) *datagram {
	if f.spare == nil && f.made == maxDatagrams {
		f.forget(e, f.complete.first, ReasonNone)
	}
	g := f.spare
	if g != nil {
		f.spare = g.next
	} else {
		g = new(datagram)
		f.made++
	}
	if f.index == nil {
		f.index = map[datagramKey]*datagram{}
	}
	*g = datagram{key: key, holder: h, expires: now.Add(fragmentLifetime)}
	f.index[key] = g
	f.partial.push(g)
	e.table.shares.take(h.of(shareDatagrams))
	return g
}

// replace forgets a datagram for another.
func (f *fragmentTable) replace(e *Engine, g *datagram, now Time) {
	if g.expires <= now {
		f.forget(e, g, ReasonFragment)
		return
	}
	f.forget(e, g, ReasonFragmentLimit)
	e.stats.DatagramsReplaced++
}

// forget takes a datagram out of the table. Fragments that still wait for it are dropped for
// reason.
func (f *fragmentTable) forget(e *Engine, g *datagram, reason Reason) {
	f.lose(e, g, reason)
	if g.complete {
		f.complete.remove(g)
	} else {
		f.partial.remove(g)
		e.table.shares.give(g.holder.of(shareDatagrams))
	}
	delete(f.index, g.key)
	g.next, f.spare = f.spare, g
}

// lose drops the fragments that still wait for the first fragment of g.
func (f *fragmentTable) lose(e *Engine, g *datagram, reason Reason) {
	for g.held != nil {
		d := e.stats.of(g.key.link)
		d.Held--
		d.Dropped[reason]++
		if h := f.unhold(e, g); e.lost != nil {
			e.lost(h.bytes[:h.length], g.key.link, reason)
		}
	}
}

// abandon drops everything of a datagram that has not been forwarded yet.
func (f *fragmentTable) abandon(e *Engine, g *datagram, now Time) {
	g.known, g.reason = true, ReasonFragmentOverlap
	f.lose(e, g, ReasonFragmentOverlap)
	f.finish(e, g, now)
}

// completeIf moves a datagram to the complete ones once all its fragments have been seen and none
// waits.
func (f *fragmentTable) completeIf(e *Engine, g *datagram, now Time) {
	if !g.complete && g.known && g.total != 0 && g.seen == g.total && g.held == nil {
		f.finish(e, g, now)
	}
}

// finish moves a datagram to the complete ones, whose place anybody may take.
func (f *fragmentTable) finish(e *Engine, g *datagram, now Time) {
	f.partial.remove(g)
	e.table.shares.give(g.holder.of(shareDatagrams))
	g.complete, g.expires = true, now.Add(fragmentLifetime)
	f.complete.push(g)
}

// expire forgets datagrams that are too old.
func (f *fragmentTable) expire(e *Engine, now Time) {
	for _, l := range [...]*datagramList{&f.partial, &f.complete} {
		for l.first != nil && l.first.expires <= now {
			f.forget(e, l.first, ReasonFragment)
		}
	}
}

// blocksOf returns the first and last block of 8 bytes that a fragment covers.
func blocksOf(p *packet.Packet) (first, last int) {
	return p.FragmentOffset() / 8, (p.FragmentOffset() + p.FragmentLen() - 1) / 8
}

// overlaps reports whether some bytes of a fragment were seen before. An overlapping fragment is
// dropped, so that no receiver can be made to see other bytes than a filter did (RFC 1858), and
// with it all of its datagram that has not been forwarded yet. A fragment whose bytes were all seen
// before is only dropped itself: the network may have duplicated it (RFC 8200, Section 4.5, from
// RFC 5722; Linux does so for IPv4 too).
func (g *datagram) overlaps(p *packet.Packet) bool {
	first, last := blocksOf(p)
	for i := first; i <= last; i++ {
		if g.blocks[i/64]&(1<<(i%64)) != 0 {
			return true
		}
	}
	return false
}

// covers reports whether all bytes of a fragment were seen before.
func (g *datagram) covers(p *packet.Packet) bool {
	first, last := blocksOf(p)
	for i := first; i <= last; i++ {
		if g.blocks[i/64]&(1<<(i%64)) == 0 {
			return false
		}
	}
	return true
}

// see records the bytes of a fragment.
func (g *datagram) see(p *packet.Packet) {
	first, last := blocksOf(p)
	for i := first; i <= last; i++ {
		g.blocks[i/64] |= 1 << (i % 64)
	}
	g.seen += last - first + 1
	if !p.MoreFragments() {
		g.total = last + 1
	}
}
