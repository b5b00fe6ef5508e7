package rules

import "maps"

// cowShards is how many shards a cowMap has. A change of one key copies the list of shards and one
// of them.
const cowShards = 256

// A cowMap is an immutable hash map that shares with its predecessor every shard in which nothing
// has changed. The zero value is empty.
type cowMap[K hashable, V any] struct {
	shards []map[K]V // nil, or cowShards
}

// A hashable key spreads over the shards by its low bits. Only the operator chooses keys, so the
// hash need not be secure.
type hashable interface {
	comparable
	hash() uint64
}

func shardOf[K hashable](k K) uint64 { return k.hash() * 0x9e3779b97f4a7c15 >> 56 } // Fibonacci hashing

// get returns the value of k.
func (m cowMap[K, V]) get(k K) (V, bool) {
	if m.shards == nil {
		var none V
		return none, false
	}
	v, ok := m.shards[shardOf(k)][k]
	return v, ok
}

// with returns m after changes: for each key its new value, or nil to remove it.
func (m cowMap[K, V]) with(changes map[K]*V) cowMap[K, V] {
	if len(changes) == 0 {
		return m
	}
	next := cowMap[K, V]{make([]map[K]V, cowShards)}
	copy(next.shards, m.shards)
	var own [cowShards]bool
	for k, v := range changes {
		i := shardOf(k)
		if !own[i] {
			own[i] = true
			if next.shards[i] = maps.Clone(next.shards[i]); next.shards[i] == nil {
				next.shards[i] = map[K]V{}
			}
		}
		if v == nil {
			delete(next.shards[i], k)
		} else {
			next.shards[i][k] = *v
		}
	}
	return next
}
