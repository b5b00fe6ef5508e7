package wg

import (
	"sync/atomic"
	"time"

	"culvert/gateway/latency"
)

// A passage times packets on their way through wireguard-go. It finds a packet again by its
// buffer, which wireguard-go fills and empties at its beginning.
type passage struct {
	latency.Histogram
	buffer  atomic.Uintptr // of the packet that is timed; 0 = none
	entered atomic.Int64   // when it was, since epoch
}

// passages are the stages of a packet's way that lie in wireguard-go, and behind it.
type passages struct {
	encrypt, decrypt passage
	send             latency.Histogram // messages to the peer
}

var epoch = time.Now()

// enter notes that wireguard-go takes a batch of n packets, the ith of which is in buffer(i).
// If the batch is sampled, the last one is timed.
func (p *passage) enter(n int, buffer func(i int) uintptr, sampled bool) {
	if timed := p.buffer.Load(); timed != 0 {
		for i := range n {
			if buffer(i) == timed { // used again: wireguard-go has discarded what was in it
				p.buffer.CompareAndSwap(timed, 0)
			}
		}
	}
	if sampled {
		p.buffer.Store(0)
		p.entered.Store(int64(time.Since(epoch)))
		p.buffer.Store(buffer(n - 1))
	}
}

// leave notes that wireguard-go gives back packets, and reports whether one of them was timed.
func (p *passage) leave(packets [][]byte) bool {
	timed := p.buffer.Load()
	if timed == 0 {
		return false
	}
	for _, b := range packets {
		if bufferOf(b) == timed {
			took := time.Since(epoch) - time.Duration(p.entered.Load())
			if p.buffer.CompareAndSwap(timed, 0) {
				p.Observe(took)
				return true
			}
		}
	}
	return false
}
