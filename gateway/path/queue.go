package path

import (
	"net/netip"
	"sync"

	"culvert/gateway/wg"
)

// queueLength bounds what the gateway itself has to say to the tunnel at one
// time: errors are rate limited and echo replies are never more than requests.
const queueLength = 256

// queue holds packets made by the gateway itself until read takes them. Each sharer
// that causes some has an equal part of it: above that, it gets what is free; below, what
// others hold above theirs.
type queue struct {
	wake func() // wakes a blocked Fill

	mu      sync.Mutex
	packets []queued // +checklocks:mu
	free    [][]byte // +checklocks:mu
	// packets of each, by sharer
	holds map[netip.Addr]int // +checklocks:mu
}

type queued struct {
	of   netip.Addr
	data []byte
}

func newQueue(wake func()) *queue { return &queue{wake: wake, holds: make(map[netip.Addr]int)} }

// push copies packet into the queue. It returns false if a packet is lost for it, this
// one or one of somebody else. The zero Addr stands for the gateway itself.
func (q *queue) push(of netip.Addr, packet []byte) bool {
	if of.IsValid() {
		of = wg.Sharer(of)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	full := len(q.packets) == queueLength
	if full && !q.makeRoom(of) {
		return false
	}
	var b []byte
	if n := len(q.free); n > 0 {
		b, q.free = q.free[n-1], q.free[:n-1]
	}
	q.packets = append(q.packets, queued{of, append(b[:0], packet...)})
	q.holds[of]++
	if len(q.packets) == 1 {
		q.wake()
	}
	return !full
}

// makeRoom takes the newest packet away from who holds most, unless of has its share.
//
// Preconditions: q.mu is held.
// +checklocks:q.mu
func (q *queue) makeRoom(of netip.Addr) bool {
	sharers := len(q.holds)
	if q.holds[of] == 0 {
		sharers++
	}
	if q.holds[of]+1 > queueLength/sharers {
		return false
	}
	var most netip.Addr
	for s, n := range q.holds {
		if n > q.holds[most] {
			most = s
		}
	}
	for i := len(q.packets) - 1; i >= 0; i-- {
		if q.packets[i].of == most {
			q.release(q.packets[i])
			q.packets = append(q.packets[:i], q.packets[i+1:]...)
			break
		}
	}
	return true
}

// release notes that a packet leaves the queue, and keeps its memory.
//
// Preconditions: q.mu is held.
// +checklocks:q.mu
func (q *queue) release(p queued) {
	if q.holds[p.of]--; q.holds[p.of] == 0 {
		delete(q.holds, p.of)
	}
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
