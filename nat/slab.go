package nat

import "unsafe"

const (
	// slabBlock is the size of the blocks of a slab, in bytes.
	slabBlock = 4 << 20
	// largePage is the size of a large page, or a multiple of it, on the processors that gateways run on.
	largePage = 2 << 20
)

// A slab makes values that stay where they are as long as it lives. The first slabBlock bytes of them are allocated one by one, so that
// a small table takes little memory. Later ones are cut out of blocks in large pages: in a large table, whose entries a processor finds
// in none of its caches, half of the wait for one is the wait for its page's address.
type slab[T any] struct {
	made int
	rest []T // of the last block
}

func (s *slab[T]) next() *T {
	each := unsafe.Sizeof(*new(T))
	most := int(slabBlock / each)
	if s.made++; s.made <= most {
		return new(T)
	}
	if len(s.rest) == 0 {
		s.rest = make([]T, most)
		preferLargePages(unsafe.Pointer(&s.rest[0]), uintptr(most)*each)
	}
	v := &s.rest[0]
	s.rest = s.rest[1:]
	return v
}
