package wg

import (
	"testing"
	"testing/synctest"
	"time"

	"culvert/integration/need"
)

// TestWindow: a full window opens at once for what comes back, and after
// windowPatience for what does not.
func TestWindow(t *testing.T) {
	const patience = windowPatience * windowTick
	need.Bubble(t, func(t *testing.T) {
		w := newWindow()
		start := time.Now()
		w.give(windowPackets - 1)
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
		w.give(windowPackets)
		if w.wait() || time.Since(start) != windowTick {
			t.Errorf("gave up again after %v, want %v", time.Since(start), windowTick)
		}
		if w.wait() {
			t.Error("nothing has come back yet, and wait does not say so")
		}
		// What was given up comes back all the same: the window is not wider for it.
		w.take(windowPackets)
		if !w.wait() {
			t.Error("stalled although something has come back")
		}
		w.give(windowPackets)
		if !w.full() {
			t.Error("wider for what came back late")
		}
		w.settleIdle()
		w.settleIdle()
		if n := w.gone.Load(); w.full() || n != 2*windowPackets {
			t.Errorf("full %v, %d gone, want %d", w.full(), n, 2*windowPackets)
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
			w.give(windowPackets)
			w.wait()
			w.settleIdle()
			w.take(windowPackets)
			w.settleIdle()
			gone(0)
		}
		w.give(windowPackets)
		w.wait()
		w.settleIdle()
		gone(0)
		w.settleIdle()
		gone(windowPackets)
		w.take(windowPackets) // after more than a second
		w.give(windowPackets)
		w.settleIdle()
		w.settleIdle()
		gone(windowPackets)
		w.give(1)
		w.settleIdle()
		w.settleIdle()
		gone(windowPackets + 1)
	})
}

// TestWindowDiscard: what is seen to be discarded makes room at once and is counted
// once, whether or not it has counted as gone before.
func TestWindowDiscard(t *testing.T) {
	w := newWindow()
	w.give(windowPackets)
	w.discard(windowPackets - 1)
	if n := w.gone.Load(); w.full() || n != windowPackets-1 {
		t.Errorf("full %v, %d gone, want %d", w.full(), n, windowPackets-1)
	}
	w.settleIdle()
	w.settleIdle() // nothing has moved: the last one is gone
	w.discard(1)
	if n := w.gone.Load(); n != windowPackets {
		t.Errorf("%d gone, want %d", n, windowPackets)
	}
	w.give(windowPackets - 1)
	if w.full() {
		t.Error("narrower for what was discarded late")
	}
}

// TestFullWindowHoldsUpNobody: who waits for room keeps nobody from counting what is lost, which is done for the whole gateway once a
// second.
func TestFullWindowHoldsUpNobody(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		w := newWindow()
		w.give(windowPackets)
		go w.wait()
		synctest.Wait()
		if !w.mu.TryLock() {
			t.Error("settleIdle would wait with it")
		} else {
			w.mu.Unlock()
		}
		w.take(1)
	})
}
