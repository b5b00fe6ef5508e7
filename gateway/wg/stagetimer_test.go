package wg

import (
	"testing"

	"culvert/gateway/latency"
)

func passed(p *stageTimer) (n uint64) {
	c := p.Counts()
	for _, b := range c.Buckets {
		n += b
	}
	return n
}

// TestPassage: a timed packet is counted once, when it comes out, and not if its buffer is reused
// before.
func TestPassage(t *testing.T) {
	var buffers [6][8]byte
	packets := func(which ...int) (all [][]byte) {
		for _, i := range which {
			all = append(all, buffers[i][:])
		}
		return all
	}
	p := new(stageTimer)
	enter := func(sampled bool, which ...int) {
		in := packets(which...)
		p.enter(len(in), func(i int) uintptr { return bufferOf(in[i]) }, sampled)
	}
	leave := func(want bool, which ...int) {
		t.Helper()
		if got := p.leave(packets(which...)); got != want {
			t.Errorf("leaving %v: %v, want %v", which, got, want)
		}
	}
	enter(true, 0, 1)
	enter(false, 2, 3)
	leave(false, 0)
	leave(true, 1, 2)
	leave(false, 1, 3)

	enter(true, 0, 1)
	enter(false, 4, 1) // 1 was discarded
	leave(false, 4, 1)

	enter(true, 0)
	enter(true, 5)
	leave(false, 0)
	leave(true, 5)
	if n := passed(p); n != 2 {
		t.Errorf("%d packets counted, want 2", n)
	}
}

// TestPassageAllocatesNothing takes the costly branch each time.
func TestPassageAllocatesNothing(t *testing.T) {
	in := [][]byte{make([]byte, 8), make([]byte, 8)}
	var p stageTimer
	var s latency.Sampler
	if n := testing.AllocsPerRun(100, func() {
		p.enter(len(in), func(i int) uintptr { return bufferOf(in[i]) }, s.Picks(1000))
		p.leave(in)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
