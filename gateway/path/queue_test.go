package path

import (
	"fmt"
	"net/netip"
	"testing"
)

// host returns an address of 10.0.0.0/8.
func host(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

// TestQueue: first in, first out, also when a drain takes only part; full at its cap; one wake-up
// each time it stops being empty.
func TestQueue(t *testing.T) {
	woken := 0
	q := newQueue(func() { woken++ })
	for i := range queueLength {
		if !q.push(host(0), []byte{byte(i), byte(i >> 8)}) {
			t.Fatalf("full after %d of %d", i, queueLength)
		}
	}
	if q.push(host(0), []byte{1}) {
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
	q.push(host(0), []byte{1})
	if woken != 2 {
		t.Errorf("woken %d times, want 2", woken)
	}
}

// TestQueueShares: one sender alone gets the whole queue. Many who have filled it make room for
// another sender, and for the gateway itself, and each loss is reported.
func TestQueueShares(t *testing.T) {
	for _, test := range []struct {
		floods int
		from   func(i int) netip.Addr
		who    netip.Addr // the last sender
		want   int        // of its packets that stay
	}{
		{0, host, host(999), queueLength},
		{1, host, host(999), queueLength / 2},
		{9, host, host(999), queueLength / 10},
		{255, host, host(999), 1},
		{9, host, netip.Addr{}, queueLength / 10},
		{200, func(i int) netip.Addr { // of one /64
			return netip.AddrFrom16([16]byte{0x20, 1, 15: byte(i)})
		}, host(999), queueLength / 2},
	} {
		t.Run(fmt.Sprint(test.floods), func(t *testing.T) {
			q, pushed, lost := newQueue(func() {}), 0, 0
			push := func(of netip.Addr, mark byte) {
				pushed++
				if !q.push(of, []byte{mark}) {
					lost++
				}
			}
			flood := func() {
				for i := range test.floods {
					for range queueLength {
						push(test.from(i), 0)
					}
				}
			}
			flood()
			for range queueLength {
				push(test.who, 1)
			}
			flood()
			bufs, sizes, got := make([][]byte, queueLength), make([]int, queueLength), 0
			for i := range bufs {
				bufs[i] = make([]byte, 1)
			}
			n := q.drain(bufs, sizes, 0)
			for _, b := range bufs[:n] {
				got += int(b[0])
			}
			if got != test.want {
				t.Errorf("%d packets stay, want %d", got, test.want)
			}
			if n != queueLength || pushed != n+lost {
				t.Errorf("%d pushed, %d drained, %d reported as lost", pushed, n, lost)
			}
			if used := q.shares.Used(); used != 0 {
				t.Errorf("the empty queue holds %d", used)
			}
		})
	}
}

func TestQueueAllocations(t *testing.T) {
	q := newQueue(func() {})
	packet := make([]byte, 100)
	bufs, sizes := [][]byte{make([]byte, 200), make([]byte, 200)}, make([]int, 2)
	cycle := func() {
		q.push(host(1), packet)
		q.push(host(2), packet)
		q.drain(bufs, sizes, 16)
	}
	cycle()
	if n := testing.AllocsPerRun(100, cycle); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
