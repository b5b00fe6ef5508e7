package wg

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"culvert/gateway/procs"
	"culvert/integration/need"
)

// TestWindow: a full window opens at once for packets that come back, and after windowPatience for
// those that do not.
func TestWindow(t *testing.T) {
	const patience = windowPatience * windowTick
	need.Bubble(t, func(t *testing.T) {
		w := newWindow()
		start := time.Now()
		w.give(int(windowPackets() - 1))
		if !w.wait() || time.Since(start) != 0 {
			t.Error("waited with room for one")
		}
		w.give(1)
		time.AfterFunc(patience/2, func() { w.take(1) })
		if !w.wait() || time.Since(start) != patience/2 {
			t.Errorf("opened after %v, want %v", time.Since(start), patience/2)
		}
		w.give(1)
		start = time.Now()
		if w.wait() {
			t.Error("nothing came back, and wait does not say so")
		}
		if d := time.Since(start); d < patience || d > patience+windowTick {
			t.Errorf("gave up after %v", d)
		}
		// It has waited once; while nothing comes back, it does not wait again.
		start = time.Now()
		w.give(int(windowPackets()))
		if w.wait() || time.Since(start) != windowTick {
			t.Errorf("gave up again after %v, want %v", time.Since(start), windowTick)
		}
		if w.wait() {
			t.Error("nothing has come back yet, and wait does not say so")
		}
		// Packets that were given up come back after all: that does not widen the window.
		w.take(int(windowPackets()))
		if !w.wait() {
			t.Error("stalled although something has come back")
		}
		w.give(int(windowPackets()))
		if !w.full() {
			t.Error("wider for what came back late")
		}
		w.countLost()
		w.countLost()
		if n := w.gone.Load(); w.full() || n != 2*windowPackets() {
			t.Errorf("full %v, %d gone, want %d", w.full(), n, 2*windowPackets())
		}
	})
}

// TestWindowLate: packets that come back late, as with little CPU time, were not discarded. Of
// those that come back even later, the number that is really lost is known already.
func TestWindowLate(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		w := newWindow()
		gone := func(want int64) {
			t.Helper()
			if n := w.gone.Load(); n != want {
				t.Errorf("%d gone, want %d", n, want)
			}
		}
		for range 3 {
			w.give(int(windowPackets()))
			w.wait()
			w.countLost()
			w.take(int(windowPackets()))
			w.countLost()
			gone(0)
		}
		w.give(int(windowPackets()))
		w.wait()
		w.countLost()
		gone(0)
		w.countLost()
		gone(windowPackets())
		w.take(int(windowPackets())) // after more than a second
		w.give(int(windowPackets()))
		w.countLost()
		w.countLost()
		gone(windowPackets())
		w.give(1)
		w.countLost()
		w.countLost()
		gone(windowPackets() + 1)
	})
}

// TestWindowDiscard: a packet that is seen to be discarded makes room at once and is counted once,
// whether or not it was counted as lost before.
func TestWindowDiscard(t *testing.T) {
	w := newWindow()
	w.give(int(windowPackets()))
	w.discard(int(windowPackets() - 1))
	if n := w.gone.Load(); w.full() || n != windowPackets()-1 {
		t.Errorf("full %v, %d gone, want %d", w.full(), n, windowPackets()-1)
	}
	w.countLost()
	w.countLost() // nothing has moved, so the last one is lost
	w.discard(1)
	if n := w.gone.Load(); n != windowPackets() {
		t.Errorf("%d gone, want %d", n, windowPackets())
	}
	w.give(int(windowPackets() - 1))
	if w.full() {
		t.Error("narrower for what was discarded late")
	}
}

// TestFullWindowHoldsUpNobody: a reader that waits for room does not delay the count of lost
// packets, which the gateway makes once a second.
func TestFullWindowHoldsUpNobody(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		w := newWindow()
		w.give(int(windowPackets()))
		go w.wait()
		synctest.Wait()
		if !w.mu.TryLock() {
			t.Error("countLost would wait with it")
		} else {
			w.mu.Unlock()
		}
		w.take(1)
	})
}

// TestWindowFollowsPs: each P has a batch in the cipher, and one more is being read or sent. The
// number is limited, because each pins memory.
func TestWindowFollowsPs(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() { procs.Use(before) })
	w := newWindow()
	w.give(2 * BatchSize)
	for _, test := range []struct{ procs, batches int }{{1, 2}, {2, 3}, {4, 5}, {64, 9}} {
		procs.Use(test.procs)
		if n := windowPackets(); n != int64(test.batches*BatchSize) || w.full() != (test.batches == 2) {
			t.Errorf("on %d Ps %d packets fit, full with two batches: %v; want %d batches", test.procs, n, w.full(),
				test.batches)
		}
	}
}
