package nat

import (
	"testing"
	"unsafe"
)

// FullSegment is the connections per segment when a table is about to split its segments. Hashes
// spread evenly, so that all come to it in step: the table has as many times a power of two.
const FullSegment = segmentFull * 11 / 12 / 2

// DirectoryFill returns what share of the directory's slots is in use.
func (e *Engine) DirectoryFill() float64 {
	segments := map[*segment]bool{}
	for _, b := range e.table.directory.buckets {
		segments[b.slots] = true
	}
	return float64(2*e.table.used) / float64(len(segments)*segmentSlots)
}

// Entries lie in whole cache lines, and chunks in whole pages of Go's allocator, which rounds up to
// them.
func TestEntryLayout(t *testing.T) {
	const line, page = 64, 8 << 10
	if n := unsafe.Sizeof(conn{}); n != 2*line {
		t.Errorf("what packets need of a connection takes %d bytes, want two cache lines", n)
	}
	if at := unsafe.Offsetof(conn{}.packets); at != line {
		t.Errorf("counters begin at byte %d, want the second cache line", at)
	}
	if n := unsafe.Sizeof([2][4]uint64{}); n != line {
		t.Errorf("the addresses of an IPv6 connection take %d bytes, want a cache line", n)
	}
	for name, n := range map[string]uintptr{"entries": unsafe.Sizeof(chunk{}),
		"IPv6 addresses": unsafe.Sizeof(wideChunk{}), "slots": unsafe.Sizeof(segment{})} {
		if n%page != 0 {
			t.Errorf("a chunk of %s takes %d bytes, want whole pages of %d", name, n, page)
		}
	}
	// The table is bounded by the number of connections: 256 bytes each, of either family, with
	// slots that are half full.
	if n := (unsafe.Sizeof(chunk{})+unsafe.Sizeof(wideChunk{}))/chunkEntries + 2*2*8; n > 256 {
		t.Errorf("an IPv6 connection takes %d bytes", n)
	}
}

// Connections of both families come and go in one slab, and only those of IPv6 have long addresses.
func TestWideSlab(t *testing.T) {
	var s wideSlab
	of := func(i uint64) *[2][4]uint64 { return &[2][4]uint64{{i, i + 1, i + 2, i + 3}, {^i}} }
	kept := map[uint64]uint64{} // by number
	next, most := uint64(0), 0
	for round := range 4 {
		for range 3 * chunkEntries {
			next++
			number := s.take(of(next))
			if other, taken := kept[number]; taken || number == 0 {
				t.Fatalf("round %d: addresses %d are kept where %d are, at %d", round, next, other, number)
			}
			kept[number] = next
		}
		most = max(most, len(kept))
		for number, i := range kept {
			if *s.at(number) != *of(i) {
				t.Fatalf("round %d: at %d are %v, want %v", round, number, *s.at(number), *of(i))
			}
			if i%3 != 0 {
				s.give(number)
				delete(kept, number)
			}
		}
	}
	if want := (most + chunkEntries) / chunkEntries; len(s.chunks) > want {
		t.Errorf("%d chunks for %d connections, want %d", len(s.chunks), most, want)
	}
}

// recountRanks compares the list of each rank with the connections of that rank.
func recountRanks(t testing.TB, tb *table) {
	t.Helper()
	var of [ranks]int
	for number := uint32(0); len(tb.chunks) > 0 && number < tb.high; number++ {
		if c := tb.at(number); c.live() {
			of[c.rank()]++
		} else if c.rank() != rankSettled {
			t.Fatalf("entry %d is free and has rank %d", number, c.rank())
		}
	}
	for r := rankUnsettled; r < ranks; r++ {
		l, length, last := &tb.lists[r], 0, uint32(0)
		for number := l.first; number != 0; number = tb.cold(number).next {
			if at := tb.cold(number); tb.at(number).rank() != r || at.previous != last {
				t.Fatalf("entry %d, of rank %d, follows %d in the list of rank %d, not %d", number,
					tb.at(number).rank(), last, r, at.previous)
			}
			last = number
			length++
		}
		if length != l.length || length != of[r] || last != l.last {
			t.Fatalf("%d connections of rank %d, %d in its list, which says %d and ends with %d, not %d", of[r], r,
				length, l.length, l.last, last)
		}
	}
}

// recountClosed compares the lists of closed connections with the connections that belong there.
func recountClosed(t testing.TB, tb *table) {
	t.Helper()
	left := map[uint32]uint64{}
	for number := uint32(1); number < tb.high; number++ {
		if c := tb.at(number); c.live() && c.has(flagPortShare) && c.state.closed() {
			answer := tb.tuple(c, reply)
			space, _ := tb.portSpace(&answer)
			left[number] = tb.holder(c).within(space).address
		}
	}
	for of, l := range tb.closed {
		last := uint32(0)
		for number := l.first; number != 0; number = tb.cold(number).newer {
			if is, ok := left[number]; !ok || is != of || tb.cold(number).older != last {
				t.Fatalf("entry %d, of list %x, is in list %x behind %d", number, is, of, last)
			}
			delete(left, number)
			last = number
		}
		if last == 0 || last != l.last {
			t.Fatalf("list %x ends with %d and says %d", of, last, l.last)
		}
	}
	if len(left) > 0 {
		t.Fatalf("in no list: %v", left)
	}
}
