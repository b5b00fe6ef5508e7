package wg

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"culvert/gateway/procs"
	"culvert/integration/need"
)

// TestWindow: a full window opens at once for what comes back, and after
// windowPatience for what does not.
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
		// It has been patient once: as long as nothing comes back, it need not be again.
		start = time.Now()
		w.give(int(windowPackets()))
		if w.wait() || time.Since(start) != windowTick {
			t.Errorf("gave up again after %v, want %v", time.Since(start), windowTick)
		}
		if w.wait() {
			t.Error("nothing has come back yet, and wait does not say so")
		}
		// What was given up comes back all the same: the window is not wider for it.
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

// TestWindowLate: what comes back late, as where there is little CPU, has not been discarded. Of what comes back later still the same
// number that is gone for good is known already.
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

// TestWindowDiscard: what is seen to be discarded makes room at once and is counted
// once, whether or not it has counted as gone before.
func TestWindowDiscard(t *testing.T) {
	w := newWindow()
	w.give(int(windowPackets()))
	w.discard(int(windowPackets() - 1))
	if n := w.gone.Load(); w.full() || n != windowPackets()-1 {
		t.Errorf("full %v, %d gone, want %d", w.full(), n, windowPackets()-1)
	}
	w.countLost()
	w.countLost() // nothing has moved: the last one is gone
	w.discard(1)
	if n := w.gone.Load(); n != windowPackets() {
		t.Errorf("%d gone, want %d", n, windowPackets())
	}
	w.give(int(windowPackets() - 1))
	if w.full() {
		t.Error("narrower for what was discarded late")
	}
}

// TestFullWindowHoldsUpNobody: who waits for room keeps nobody from counting what is lost, which is done for the whole gateway once a
// second.
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

// TestWindowFollowsPs: each P has a batch in the cipher, and one more is read or sent; the number is bounded, because each pins memory.
func TestWindowFollowsPs(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() { procs.Use(before) })
	w := newWindow()
	w.give(2 * BatchSize)
	for _, test := range []struct{ procs, batches int }{{1, 2}, {2, 3}, {4, 5}, {64, 9}} {
		procs.Use(test.procs)
		if n := windowPackets(); n != int64(test.batches*BatchSize) || w.full() != (test.batches == 2) {
			t.Errorf("on %d Ps %d packets fit, full with two batches: %v; want %d batches", test.procs, n, w.full(), test.batches)
		}
	}
}
