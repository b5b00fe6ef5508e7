package gateway

import (
	"testing"
)

// TestQueue: first in, first out, across drains that take less than all; full at
// its cap; one wake-up for each time it stops being empty.
func TestQueue(t *testing.T) {
	woken := 0
	q := queue{wake: func() { woken++ }}
	for i := range queueLength {
		if !q.push([]byte{byte(i), byte(i >> 8)}) {
			t.Fatalf("full after %d of %d", i, queueLength)
		}
	}
	if q.push([]byte{1}) {
		t.Error("took one more than its cap")
	}
	if woken != 1 {
		t.Errorf("woken %d times, want 1", woken)
	}
	bufs, sizes := make([][]byte, 100), make([]int, 100)
	for i := range bufs {
		bufs[i] = make([]byte, 18)
	}
	next := 0
	for _, want := range []int{100, 100, queueLength - 200, 0} {
		n := q.drain(bufs, sizes, 16)
		if n != want {
			t.Fatalf("drained %d, want %d", n, want)
		}
		for i := range n {
			if got := int(bufs[i][16]) | int(bufs[i][17])<<8; got != next || sizes[i] != 2 {
				t.Fatalf("got packet %d of %d bytes, want %d", got, sizes[i], next)
			}
			next++
		}
	}
	q.push([]byte{1})
	if woken != 2 {
		t.Errorf("woken %d times, want 2", woken)
	}
}

func TestQueueAllocations(t *testing.T) {
	q := queue{wake: func() {}}
	packet := make([]byte, 100)
	bufs, sizes := [][]byte{make([]byte, 200), make([]byte, 200)}, make([]int, 2)
	cycle := func() {
		q.push(packet)
		q.push(packet)
		q.drain(bufs, sizes, 16)
	}
	cycle()
	if n := testing.AllocsPerRun(100, cycle); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
