package nat

import (
	"hash/maphash"
	"math/bits"

	"culvert/nat/packet"
)

const (
	segmentSlots = 1 << 10
	// segmentFull is when a segment is split. All segments fill in step, so the whole table is as
	// full as one of them: a search that finds nothing visits 8 slots when 3/4 are in use, at 128
	// when 15/16 are (Knuth, vol. 3, Section 6.4).
	segmentFull = segmentSlots * 3 / 4
	// maxDepth caps the directory. With 32 bits of hash, 10 choose the slot.
	maxDepth = 16
)

// A directory finds connections by either tuple: extendible hashing (Fagin et al., 1979) with a
// small open-addressing table per bucket. A full segment is split in two, which costs a packet some
// microseconds; nothing larger is ever copied but the list of buckets, 16 bytes for about 500
// tuples.
type directory struct {
	secrets [7]uint64
	depth   uint // buckets are chosen by this many leading bits of the hash
	buckets []bucketEntry
	scratch segment
}

// A bucketEntry leads to a segment. Where the hashes of a segment share fewer bits than depth,
// several entries that lie side by side lead to it and are equal.
type bucketEntry struct {
	slots *segment
	depth uint16 // leading bits that all hashes in the segment share
	used  uint16 // slots
}

// A segment holds slots: 32 bits of hash, 32 bits of reference; 0 is empty. A segment has no
// pointers for the garbage collector to follow, and is two pages large.
type segment [segmentSlots]uint64

// A reference is a connection's number and, in the lowest bit, which of its tuples is meant. 0 is
// none.
type reference uint32

func newReference(number uint32, d int) reference { return reference(number<<1 | uint32(d)) }

func (r reference) number() uint32 { return uint32(r >> 1) }
func (r reference) direction() int { return int(r & 1) }

func (dir *directory) init() {
	seed := maphash.MakeSeed()
	for i := range dir.secrets {
		dir.secrets[i] = maphash.Comparable(seed, i)
	}
	dir.buckets = []bucketEntry{{slots: new(segment)}}
}

// hash is keyed by the process. It includes the side of the gateway but not the node, so one search
// finds both a tuple of a certain node and one of any node. It is a chain of folded multiplications
// (as in wyhash), each of sender-chosen words with secrets that the sender cannot see.
func (dir *directory) hash(t *packet.Tuple) uint32 {
	k := &dir.secrets
	last := uint64(t.Ports)<<32 | uint64(t.Protocol)<<8
	if !t.Link.Outside() {
		last |= 1
	}
	h := k[0]
	if t.IPv6 {
		h = fold(h^t.Words[0], k[1]^t.Words[1])
		h = fold(h^k[2]^t.Words[2], k[3]^t.Words[3])
	} else {
		h ^= t.Words[0]
	}
	return uint32(fold(fold(h, k[4]^last)^k[5], k[6]) >> 32)
}

// fold multiplies and folds the product.
func fold(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	return high ^ low
}

func (dir *directory) segment(hash uint32) *segment { return dir.buckets[hash>>(32-dir.depth)].slots }

// run returns the entries that lead to the segment of hash.
func (dir *directory) run(hash uint32) []bucketEntry {
	at := int(hash >> (32 - dir.depth))
	n := 1 << (dir.depth - uint(dir.buckets[at].depth))
	return dir.buckets[at&^(n-1):][:n]
}

// count adds n to the number of used slots of a segment.
func count(run []bucketEntry, n int) {
	for i := range run {
		run[i].used = uint16(int(run[i].used) + n)
	}
}

// insert adds a reference. It returns false if the hash's segment is full and cannot be split,
// which takes more equal hashes than chance produces.
func (dir *directory) insert(hash uint32, r reference) bool {
	run := dir.run(hash)
	for run[0].used >= segmentFull {
		if !dir.split(hash) {
			return false
		}
		run = dir.run(hash)
	}
	run[0].slots.put(uint64(hash)<<32 | uint64(r))
	count(run, 1)
	return true
}

func (s *segment) put(slot uint64) {
	i := uint32(slot>>32) % segmentSlots
	for s[i] != 0 {
		i = (i + 1) % segmentSlots
	}
	s[i] = slot
}

// split divides the segment of hash by one more bit.
func (dir *directory) split(hash uint32) bool {
	run := dir.run(hash)
	if run[0].depth == maxDepth {
		return false
	}
	if len(run) == 1 {
		twice := make([]bucketEntry, 2*len(dir.buckets))
		for i := range twice {
			twice[i] = dir.buckets[i/2]
		}
		dir.buckets, dir.depth = twice, dir.depth+1
		run = dir.run(hash)
	}
	depth := run[0].depth + 1
	low := bucketEntry{slots: run[0].slots, depth: depth}
	high := bucketEntry{slots: new(segment), depth: depth}
	dir.scratch, *low.slots = *low.slots, segment{}
	for _, slot := range dir.scratch {
		side := &low
		switch {
		case slot == 0:
			continue
		case slot>>(64-depth)&1 == 1:
			side = &high
		}
		side.slots.put(slot)
		side.used++
	}
	for i := range run {
		if i < len(run)/2 {
			run[i] = low
		} else {
			run[i] = high
		}
	}
	return true
}

// remove deletes a reference and closes the gap, so that no search ends early.
func (dir *directory) remove(hash uint32, r reference) {
	run := dir.run(hash)
	s := run[0].slots
	i := hash % segmentSlots
	for s[i] != uint64(hash)<<32|uint64(r) {
		if s[i] == 0 {
			return
		}
		i = (i + 1) % segmentSlots
	}
	count(run, -1)
	for j := (i + 1) % segmentSlots; s[j] != 0; j = (j + 1) % segmentSlots {
		home := uint32(s[j]>>32) % segmentSlots
		if (j-home)%segmentSlots >= (j-i)%segmentSlots {
			s[i] = s[j]
			i = j
		}
	}
	s[i] = 0
}
