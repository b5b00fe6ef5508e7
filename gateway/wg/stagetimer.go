package wg

import (
	"sync/atomic"
	"time"

	"culvert/gateway/latency"
)

// A stageTimer times packets on their way through wireguard-go. It recognises a packet by its
// buffer, which wireguard-go fills and empties in place.
type stageTimer struct {
	latency.Histogram
	buffer  atomic.Uintptr // of the timed packet; 0 = none
	entered atomic.Int64   // time of entry, since epoch
}

// stageTimers are the stages of a packet's path in and after wireguard-go.
type stageTimers struct {
	encrypt, decrypt stageTimer
	send             latency.Histogram // messages to the peer
}

var epoch = time.Now()

// enter records that wireguard-go takes a batch of n packets, the ith of which is in buffer(i). If
// the batch is sampled, the last one is timed.
func (p *stageTimer) enter(n int, buffer func(i int) uintptr, sampled bool) {
	if timed := p.buffer.Load(); timed != 0 {
		for i := range n {
			if buffer(i) == timed { // reused: wireguard-go has dropped its content
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

// leave records that wireguard-go returns packets, and reports whether one of them was timed.
func (p *stageTimer) leave(packets [][]byte) bool {
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
