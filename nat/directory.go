package nat

import (
	"hash/maphash"
	"math/bits"
)

const (
	segmentSlots = 1 << 10
	segmentFull  = segmentSlots * 15 / 16
	// maxDepth caps the directory. With 32 bits of hash, 10 choose the slot.
	maxDepth = 16
)

// A directory finds connections by either tuple: extendible hashing (Fagin et al., 1979) with a small open-addressing table per
// bucket. A full segment is split in two, which costs a packet some microseconds; nothing larger is ever copied but the list of
// segments, 8 bytes for each thousand tuples.
type directory struct {
	secrets  [7]uint64
	depth    uint // segments are chosen by this many leading bits of the hash
	segments []*segment
	scratch  [segmentSlots]uint64
}

// A segment holds slots: 32 bits of hash, 32 bits of reference; 0 is empty. It has no pointers for the garbage collector to follow.
type segment struct {
	depth uint // leading bits that all hashes in it share
	used  int
	slots [segmentSlots]uint64
}

// A reference is a connection's number and, in the lowest bit, which of its tuples is meant. 0 is none.
type reference uint32

func newReference(number uint32, d int) reference { return reference(number<<1 | uint32(d)) }

func (r reference) number() uint32 { return uint32(r >> 1) }
func (r reference) direction() int { return int(r & 1) }

func (dir *directory) init() {
	seed := maphash.MakeSeed()
	for i := range dir.secrets {
		dir.secrets[i] = maphash.Comparable(seed, i)
	}
	dir.segments = []*segment{new(segment)}
}

// hash is keyed by the process. It tells the two sides of the gateway apart but not nodes, so that one search finds both a tuple of a
// certain node and one of any node. It is a chain of folded multiplications (as in wyhash), each of words that a sender chooses with
// secrets that it cannot see.
func (dir *directory) hash(t *tuple) uint32 {
	k := &dir.secrets
	last := uint64(t.ports)<<32 | uint64(t.protocol)<<8
	if t.zone != Tunnel {
		last |= 1
	}
	h := k[0]
	if t.v6 {
		h = fold(h^t.words[0], k[1]^t.words[1])
		h = fold(h^k[2]^t.words[2], k[3]^t.words[3])
	} else {
		h ^= t.words[0]
	}
	return uint32(fold(fold(h, k[4]^last)^k[5], k[6]) >> 32)
}

// fold multiplies and folds the product.
func fold(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	return high ^ low
}

func (dir *directory) segment(hash uint32) *segment { return dir.segments[hash>>(32-dir.depth)] }

// insert adds a reference. It returns false if the hash's segment is full and cannot be split, which takes more equal hashes than
// chance makes.
func (dir *directory) insert(hash uint32, r reference) bool {
	s := dir.segment(hash)
	for s.used >= segmentFull {
		if !dir.split(hash) {
			return false
		}
		s = dir.segment(hash)
	}
	s.put(uint64(hash)<<32 | uint64(r))
	return true
}

func (s *segment) put(slot uint64) {
	i := uint32(slot>>32) % segmentSlots
	for s.slots[i] != 0 {
		i = (i + 1) % segmentSlots
	}
	s.slots[i] = slot
	s.used++
}

// split divides the segment of hash by one more bit.
func (dir *directory) split(hash uint32) bool {
	s := dir.segment(hash)
	if s.depth == maxDepth {
		return false
	}
	if s.depth == dir.depth {
		twice := make([]*segment, 2*len(dir.segments))
		for i := range twice {
			twice[i] = dir.segments[i/2]
		}
		dir.segments, dir.depth = twice, dir.depth+1
	}
	dir.scratch = s.slots
	s.slots, s.used = [segmentSlots]uint64{}, 0
	s.depth++
	other := &segment{depth: s.depth}
	// Of the run of directory entries that lead to s, the second half leads to other.
	run := 1 << (dir.depth - s.depth)
	first := int(hash>>(32-dir.depth)) &^ (2*run - 1)
	for i := range run {
		dir.segments[first+run+i] = other
	}
	for _, slot := range dir.scratch {
		switch {
		case slot == 0:
		case slot>>(64-s.depth)&1 == 0:
			s.put(slot)
		default:
			other.put(slot)
		}
	}
	return true
}

// remove takes a reference out and closes the gap, so that no search ends early.
func (dir *directory) remove(hash uint32, r reference) {
	s := dir.segment(hash)
	i := hash % segmentSlots
	for s.slots[i] != uint64(hash)<<32|uint64(r) {
		if s.slots[i] == 0 {
			return
		}
		i = (i + 1) % segmentSlots
	}
	s.used--
	for j := (i + 1) % segmentSlots; s.slots[j] != 0; j = (j + 1) % segmentSlots {
		home := uint32(s.slots[j]>>32) % segmentSlots
		if (j-home)%segmentSlots >= (j-i)%segmentSlots {
			s.slots[i] = s.slots[j]
			i = j
		}
	}
	s.slots[i] = 0
}
