package path

import (
	"net/netip"
	"slices"
	"sync"

	"culvert/geneve/share"
)

// queueLength limits how many of the gateway's own packets may wait for the tunnel: errors are rate
// limited, and there are never more echo replies than requests.
const queueLength = 256

// A queue holds packets that the gateway itself sends to the peer (ICMP errors, echo replies and
// probes) until the outbound goroutine, which alone calls drain, passes them to wireguard-go. Any
// goroutine may call push. The sources that cause such packets share the queue in equal parts.
type queue struct {
	wake func() // wakes a blocked Fill

	mu      sync.Mutex
	packets []queued                  // +checklocks:mu
	free    [][]byte                  // +checklocks:mu
	shares  *share.Pool[netip.Prefix] // packets by source; +checklocks:mu
}

type queued struct {
	source netip.Prefix
	data   []byte
}

func newQueue(wake func()) *queue {
	return &queue{wake: wake, shares: share.New[netip.Prefix](queueLength)}
}

// push copies packet into the queue. It returns false if a packet is lost for it: this one, or one
// of another source. The zero Addr stands for the gateway itself.
func (q *queue) push(from netip.Addr, packet []byte) bool {
	source := share.Source(from)
	q.mu.Lock()
	defer q.mu.Unlock()
	victim, free, ok := q.shares.EqualPart(source, 1)
	if !ok {
		return false
	}
	if !free {
		q.discardNewest(victim)
	}
	var b []byte
	if n := len(q.free); n > 0 {
		b, q.free = q.free[n-1], q.free[:n-1]
	}
	q.packets = append(q.packets, queued{source, append(b[:0], packet...)})
	q.shares.Take(1, source)
	if len(q.packets) == 1 {
		q.wake()
	}
	return free
}

// discardNewest discards the newest packet of a source that has at least one.
//
// Preconditions: q.mu is held.
// +checklocks:q.mu
func (q *queue) discardNewest(source netip.Prefix) {
	i := len(q.packets) - 1
	for q.packets[i].source != source {
		i--
	}
	q.release(q.packets[i])
	q.packets = slices.Delete(q.packets, i, i+1)
}

// release records that a packet leaves the queue, and keeps its memory.
//
// Preconditions: q.mu is held.
// +checklocks:q.mu
func (q *queue) release(p queued) {
	q.shares.Give(1, p.source)
	q.free = append(q.free, p.data)
}

// drain moves queued packets into bufs, oldest first.
func (q *queue) drain(bufs [][]byte, sizes []int, offset int) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.packets), len(bufs))
	for i, p := range q.packets[:n] {
		sizes[i] = copy(bufs[i][offset:], p.data)
		q.release(p)
	}
	q.packets = append(q.packets[:0], q.packets[n:]...)
	return n
}
