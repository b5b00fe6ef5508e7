package nat

import (
	"math/rand/v2"
	"testing"
)

// A directory agrees with a map over random insertions and removals, even if a few leading bits are
// much more frequent than others, so that segments of many depths are neighbours.
func TestDirectoryModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var dir directory
	dir.init()
	want := map[reference]uint32{}
	var known []reference
	next := reference(2)
	for step := range 200_000 {
		if grow := step%50_000 < 35_000; grow || len(known) == 0 {
			hash := r.Uint32()
			if r.IntN(2) == 0 {
				hash >>= r.IntN(8)
			}
			if !dir.insert(hash, next) {
				t.Fatalf("step %d: no room for hash %#x among %d", step, hash, len(known))
			}
			want[next] = hash
			known = append(known, next)
			next++
			continue
		}
		i := r.IntN(len(known))
		dir.remove(want[known[i]], known[i])
		delete(want, known[i])
		known[i] = known[len(known)-1]
		known = known[:len(known)-1]
	}
	for ref, hash := range want {
		if !dir.has(hash, ref) {
			t.Fatalf("reference %d with hash %#x is not found", ref, hash)
		}
	}
	found := 0
	for i := 0; i < len(dir.buckets); {
		hash := uint32(i) << (32 - dir.depth)
		run := dir.run(hash)
		used := 0
		for _, slot := range run[0].slots {
			if slot != 0 {
				used++
				if dir.segment(uint32(slot>>32)) != run[0].slots {
					t.Fatalf("slot %#x lies in a segment that its hash does not lead to", slot)
				}
			}
		}
		for _, b := range run {
			if b != run[0] || int(b.used) != used || used > segmentFull {
				t.Fatalf("bucket %d: %+v, want %d used as in %+v, at most %d", i, b, used, run[0], segmentFull)
			}
		}
		found += used
		i += len(run)
	}
	if found != len(want) {
		t.Fatalf("%d references, want %d", found, len(want))
	}
}

// has reports whether a search for hash finds r.
func (dir *directory) has(hash uint32, r reference) bool {
	s := dir.segment(hash)
	for i := hash % segmentSlots; s[i] != 0; i = (i + 1) % segmentSlots {
		if s[i] == uint64(hash)<<32|uint64(r) {
			return true
		}
	}
	return false
}

// Equal hashes end in a refusal, not in an endless split.
func TestDirectoryRefusesEqualHashes(t *testing.T) {
	var dir directory
	dir.init()
	for i := range segmentFull {
		if !dir.insert(7, reference(i+2)) {
			t.Fatalf("reference %d refused", i)
		}
	}
	if dir.insert(7, 1) {
		t.Fatal("a segment took more than it may hold")
	}
	if !dir.insert(1<<31, 1) {
		t.Fatal("the refusal spoiled another segment")
	}
}
