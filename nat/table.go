package nat

import (
	"math/bits"

	"culvert/nat/packet"
	"culvert/nat/rules"
)

const (
	chunkEntries = 1 << 10
	// idStep is the distance between ids of successive connections in one entry. The lower bits of
	// an id are the entry's number, at most maxEntries; the upper bits wrap after 2^39 connections
	// in one entry.
	idStep = 2 * maxEntries
	// pressure is the share of the cap above which unsettled connections live shortUnsettled.
	pressureNumerator, pressureDenominator = 3, 4
)

// A table holds the connections: a slab of entries in chunks that never move, indexed by the
// directory and expired by the wheel. Entry 0 is never used: its number means none.
type table struct {
	chunks    []*chunk
	free      uint32 // first of the free entries
	high      uint32 // entries that were ever used, entry 0 included
	used      int
	unreplied int    // of them
	firstID   uint64 // lower bound of ids, a multiple of idStep
	lastID    uint64 // the highest given to an entry
	wide      wideSlab
	directory directory
	wheel     wheel
	lists     [ranks]connList
	shares    shares
	ports     portUse
	closed    map[uint64]closedList   // by holder within a port space: connections with flagPortShare
	given     rules.PortRange         // the source ports of a Host; if empty, portRange applies
	proxies   map[uint32]*proxyStream // by number, for connections with tcpShifted
	feeds     []*Feed                 // nil = nobody
	fresh     *freshEntries           // of a Mirror's copy; nil = there is none
}

// A chunk is 20 pages of 8 KiB, the allocator's unit: nothing is wasted, and entries are aligned to
// cache lines.
type chunk struct {
	conns [chunkEntries]conn
	cold  [chunkEntries]coldPart
}

// A connList is a doubly linked list of one rank, the oldest first.
type connList struct {
	first, last uint32
	length      int
}

func (tb *table) init() {
	tb.directory.init()
	tb.shares.init()
	tb.closed = map[uint64]closedList{}
	tb.high = 1
}

func (tb *table) at(number uint32) *conn {
	return &tb.chunks[number/chunkEntries].conns[number%chunkEntries]
}

func (tb *table) cold(number uint32) *coldPart {
	return &tb.chunks[number/chunkEntries].cold[number%chunkEntries]
}

// wideOf returns the addresses of an IPv6 connection, by direction.
func (tb *table) wideOf(c *conn) *[2][4]uint64 { return tb.wide.at(c.keys[original].addresses) }

// tuple returns the tuple of packets of direction d.
func (tb *table) tuple(c *conn, d int) packet.Tuple {
	k := &c.keys[d]
	t := packet.Tuple{Ports: k.ports, Link: k.link, Protocol: k.protocol, IPv6: k.ipv6}
	if k.ipv6 {
		t.Words = tb.wideOf(c)[d]
	} else {
		t.Words[0] = k.addresses
	}
	return t
}

// reverse gives t the addresses and ports of the tuple of direction d, with source and destination
// exchanged.
func (tb *table) reverse(t *packet.Tuple, c *conn, d int) {
	k := &c.keys[d]
	t.Ports = bits.RotateLeft32(k.ports, 16)
	if k.ipv6 {
		w := &tb.wideOf(c)[d]
		t.Words = [4]uint64{w[2], w[3], w[0], w[1]}
		return
	}
	t.Words = [4]uint64{bits.RotateLeft64(k.addresses, 32)}
}

// to returns the tuple that packets of direction d leave with.
func (tb *table) to(c *conn, d int) packet.Tuple {
	t := tb.tuple(c, 1-d)
	return t.Reply(0)
}

// A hit is a connection that was found, its number, and the direction of the packet.
type hit struct {
	conn      *conn
	number    uint32
	direction int
}

// search finds the connection of a packet with tuple t and this hash. It begins at slot i of the
// segment, and returns the slot where it ended.
func (tb *table) search(t *packet.Tuple, hash, i uint32) (h hit, slot uint32, ok bool) {
	s := tb.directory.segment(hash)
	for ; s[i] != 0; i = (i + 1) % segmentSlots {
		if uint32(s[i]>>32) != hash {
			continue
		}
		if r := reference(s[i]); tb.matches(r, t) {
			return hit{tb.at(r.number()), r.number(), r.direction()}, i, true
		}
	}
	return hit{}, 0, false
}

// matches reports whether t is the tuple that r refers to.
func (tb *table) matches(r reference, t *packet.Tuple) bool {
	c := tb.at(r.number())
	k := &c.keys[r.direction()]
	return k.ports == t.Ports && k.protocol == t.Protocol && k.ipv6 == t.IPv6 &&
		(k.link == t.Link || k.link == anyNode && !t.Link.Outside() || t.Link == anyNode && !k.link.Outside()) &&
		(!t.IPv6 && k.addresses == t.Words[0] || t.IPv6 && tb.wideOf(c)[r.direction()] == t.Words)
}

// add makes a connection of two tuples and adds it to the slab, the directory and the list of
// unsettled ones; h holds it. It returns nil if the directory has no room. Preconditions: neither
// tuple is in the table, and generation is not 0.
func (tb *table) add(first, answer *packet.Tuple, h holder, generation uint32) (*conn, uint32) {
	number := tb.free
	if number != 0 {
		tb.free = tb.cold(number).wheelNext
	} else {
		number = tb.high
		if number%chunkEntries == 0 || len(tb.chunks) == 0 {
			tb.chunks = append(tb.chunks, new(chunk))
			for _, f := range tb.feeds {
				f.connections.grow()
			}
		}
		tb.high++
		tb.name(number, tb.firstID+uint64(number))
	}
	c := tb.at(number)
	*c = conn{keys: [2]tupleKey{newTupleKey(first), newTupleKey(answer)}, generation: generation}
	if first.IPv6 {
		c.keys[original].addresses = tb.wide.take(&[2][4]uint64{first.Words, answer.Words})
		c.keys[reply].addresses = h.address
	}
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
	tb.cold(number).wheelNext = 0
	tb.shares.take(h.of(shareConnections))
	tb.unreplied++
	tb.rankAs(c, number, rankUnsettled)
	tb.changed(number)
	tb.fresh.add(number)
	return c, number
}

// remove removes a connection from all structures.
func (tb *table) remove(c *conn, number uint32) {
	tb.ended(c, number)
	tb.fresh.remove(number)
	for d := range c.keys {
		t := tb.tuple(c, d)
		tb.directory.remove(tb.directory.hash(&t), newReference(number, d))
	}
	tb.shares.give(tb.holder(c).of(shareConnections))
	tb.givePort(c, number)
	if !c.has(flagReplied) {
		tb.unreplied--
	}
	if c.tcp.flags[original]&tcpShifted != 0 {
		delete(tb.proxies, number)
	}
	tb.rankAs(c, number, rankSettled)
	tb.wheel.unlink(tb, number)
	tb.used--
	tb.release(c, number)
}

func (tb *table) release(c *conn, number uint32) {
	if k := &c.keys[original]; k.ipv6 {
		tb.wide.give(k.addresses)
	}
	cold := tb.cold(number)
	*c, *cold = conn{}, coldPart{id: cold.id, wheelNext: tb.free}
	tb.name(number, cold.id+idStep)
	tb.free = number
}

// name sets the id of the next connection of an entry.
func (tb *table) name(number uint32, id uint64) {
	tb.cold(number).id = id
	tb.lastID = max(tb.lastID, id)
}

// holder returns the holder of a connection, as computed from its first packet.
func (tb *table) holder(c *conn) holder {
	t, address := tb.tuple(c, original), c.keys[reply].addresses
	if !t.IPv6 {
		address = tb.shares.identify(t.Words[0]>>32, 0, uint64(t.Link))
	}
	return tb.shares.at(address, &t)
}

// replied records the first packet of direction reply.
func (tb *table) replied(c *conn, number uint32) {
	tb.unreplied--
	c.flags |= flagReplied
	tb.rankAs(c, number, rankOf(c.state))
}

// rankAs moves a connection to the end of another rank's list.
func (tb *table) rankAs(c *conn, number uint32, to rank) {
	if c.rank() == to {
		return
	}
	at := tb.cold(number)
	if c.rank() != rankSettled {
		l := &tb.lists[c.rank()]
		if at.previous != 0 {
			tb.cold(at.previous).next = at.next
		} else {
			l.first = at.next
		}
		if at.next != 0 {
			tb.cold(at.next).previous = at.previous
		} else {
			l.last = at.previous
		}
		l.length--
	}
	c.flags = c.flags&^rankMask | connFlags(to)
	if at.next, at.previous = 0, 0; to == rankSettled {
		return
	}
	l := &tb.lists[to]
	tb.enqueue(l, number)
	l.length++
}

// enqueue appends an entry that is in no list to l, and does not count it.
func (tb *table) enqueue(l *connList, number uint32) {
	at := tb.cold(number)
	at.next, at.previous = 0, l.last
	if l.last != 0 {
		tb.cold(l.last).next = number
	} else {
		l.first = number
	}
	l.last = number
}
