package gateway

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestWindow: a full window opens at once for what comes back, and after
// windowPatience for what does not.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow()
		start := time.Now()
		w.give(windowPackets - 1)
		if !w.wait() || time.Since(start) != 0 {
			t.Error("waited with room for one")
		}
		w.give(1)
		time.AfterFunc(windowPatience/4, func() { w.take(1) })
		if !w.wait() || time.Since(start) != windowPatience/4 {
			t.Errorf("opened after %v, want %v", time.Since(start), windowPatience/4)
		}
		w.give(1)
		start = time.Now()
		if w.wait() {
			t.Error("nothing came back, and wait does not say so")
		}
		if d := time.Since(start); d < windowPatience || d > 2*windowPatience {
			t.Errorf("gave up after %v", d)
		}
		// What counted as gone comes back all the same: the window is not wider for it.
		if n := w.gone.Load(); n != windowPackets {
			t.Errorf("%d gone, want %d", n, windowPackets)
		}
		w.take(windowPackets)
		w.forgive()
		w.give(windowPackets)
		if !w.full() {
			t.Error("wider for what came back late")
		}
		// The same number gone for good is known already.
		w.settleIdle()
		w.settleIdle()
		if n := w.gone.Load(); w.full() || n != windowPackets {
			t.Errorf("full %v, %d gone, want %d", w.full(), n, windowPackets)
		}
	})
}
