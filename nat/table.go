package nat

import "culvert/nat/packet"

const (
	chunkEntries = 1 << 10
	// pressure is the share of the cap above which unreplied connections live shortUnreplied.
	pressureNumerator, pressureDenominator = 3, 4
)

// A table holds the connections: a slab of entries in chunks that never move, found through the directory, expired by the wheel.
// Entry 0 is never used: its number means none.
type table struct {
	chunks    []*[chunkEntries]conn
	free      uint32 // first of the free entries
	high      uint32 // entries that were ever used, entry 0 included
	used      int
	directory directory
	wheel     wheel
	lists     [ranks]connList
	shares    shares
	ports     portUse
}

// A connList is a doubly linked list of one rank, the oldest first.
type connList struct {
	first, last uint32
	length      int
}

func (tb *table) init() {
	tb.directory.init()
	tb.shares.init()
	tb.high = 1
}

func (tb *table) at(number uint32) *conn {
	return &tb.chunks[number/chunkEntries][number%chunkEntries]
}

// A hit is a connection that was found, its number, and the direction of the packet.
type hit struct {
	conn      *conn
	number    uint32
	direction int
}

// search finds the connection that a packet with tuple t, of which hash is the hash, belongs to. It begins at slot i of the
// segment, and returns the one where it ends.
func (tb *table) search(t *packet.Tuple, hash, i uint32) (h hit, slot uint32, ok bool) {
	s := tb.directory.segment(hash)
	for ; s[i] != 0; i = (i + 1) % segmentSlots {
		if uint32(s[i]>>32) != hash {
			continue
		}
		r := reference(s[i])
		c := tb.at(r.number())
		if k := &c.tuples[r.direction()]; k.Words == t.Words && k.Ports == t.Ports && k.Protocol == t.Protocol && k.IPv6 == t.IPv6 &&
			(k.Link == t.Link || k.Link == anyNode && !t.Link.Outside() || t.Link == anyNode && !k.Link.Outside()) {
			return hit{c, r.number(), r.direction()}, i, true
		}
	}
	return hit{}, 0, false
}

// add makes a connection of two tuples and puts it into the slab, the directory and the list of unreplied ones. It returns nil if
// the directory has no room. Preconditions: neither tuple is in the table, and generation is not 0.
func (tb *table) add(first, answer *packet.Tuple, generation uint32) (*conn, uint32) {
	number := tb.free
	if number != 0 {
		tb.free = tb.at(number).wheelNext
	} else {
		number = tb.high
		if number%chunkEntries == 0 || len(tb.chunks) == 0 {
			tb.chunks = append(tb.chunks, new([chunkEntries]conn))
		}
		tb.high++
	}
	c := tb.at(number)
	*c = conn{tuples: [2]packet.Tuple{*first, *answer}, generation: generation}
	h0, h1 := tb.directory.hash(first), tb.directory.hash(answer)
	ok := tb.directory.insert(h0, newReference(number, original))
	if ok && !tb.directory.insert(h1, newReference(number, reply)) {
		tb.directory.remove(h0, newReference(number, original))
		ok = false
	}
	if !ok {
		tb.release(c, number)
		return nil, 0
	}
	tb.used++
	tb.shares.take(tb.shares.holder(first).of(shareConnections))
	tb.rankAs(c, number, rankUnreplied)
	return c, number
}

// remove takes a connection out of everything.
func (tb *table) remove(c *conn, number uint32) {
	for d := range c.tuples {
		tb.directory.remove(tb.directory.hash(&c.tuples[d]), newReference(number, d))
	}
	tb.shares.give(tb.shares.holder(&c.tuples[original]).of(shareConnections))
	tb.givePort(c)
	tb.rankAs(c, number, rankSettled)
	tb.wheel.unlink(tb, c, number)
	tb.used--
	tb.release(c, number)
}

func (tb *table) release(c *conn, number uint32) {
	*c = conn{wheelNext: tb.free}
	tb.free = number
}

// replied notes the first packet of direction reply.
func (tb *table) replied(c *conn, number uint32) {
	c.flags |= flagReplied
	tb.rankAs(c, number, rankOf(c.state))
}

// rankAs moves a connection to the end of the list of another rank.
func (tb *table) rankAs(c *conn, number uint32, to rank) {
	if c.rank() == to {
		return
	}
	if c.rank() != rankSettled {
		l := &tb.lists[c.rank()]
		if c.previous != 0 {
			tb.at(c.previous).next = c.next
		} else {
			l.first = c.next
		}
		if c.next != 0 {
			tb.at(c.next).previous = c.previous
		} else {
			l.last = c.previous
		}
		l.length--
	}
	c.flags = c.flags&^rankMask | connFlags(to)
	c.next, c.previous = 0, 0
	if to == rankSettled {
		return
	}
	l := &tb.lists[to]
	c.previous = l.last
	if l.last != 0 {
		tb.at(l.last).next = number
	} else {
		l.first = number
	}
	l.last = number
	l.length++
}
