package gateway

import (
	"sync"
	"sync/atomic"
	"time"
)

// window bounds how many packets of one direction are inside wireguard-go. Its
// queues hold 1024 batches, and each packet in them pins a buffer of 64 KiB
// (device.MaxMessageSize): without a bound, a sender that outruns the cipher costs
// gigabytes. When the window is full the gateway stops reading that socket and the
// kernel drops, which TCP understands.
type window struct {
	handed atomic.Int64 // packets given to wireguard-go
	done   atomic.Int64 // packets that it gave back

	progress chan struct{} // some came back

	mu    sync.Mutex
	timer *time.Timer // +checklocks:mu
}

const (
	// windowPackets is four full trains: two in the cipher, one read, one sent.
	windowPackets = 192
	// windowPatience is how long nothing may come back before what is missing counts
	// as gone: wireguard-go does not say what it discards (forged packets, replays,
	// packets without a session). Whatever it still has to do takes less.
	windowPatience = time.Millisecond
)

func newWindow() *window {
	t := time.NewTimer(windowPatience)
	t.Stop()
	return &window{progress: make(chan struct{}, 1), timer: t}
}

// give notes n packets given to wireguard-go.
func (w *window) give(n int) {
	// What had counted as gone and came back all the same must not widen the window.
	if done := w.done.Load(); done > w.handed.Load() {
		w.handed.Store(done)
	}
	w.handed.Add(int64(n))
}

// take notes n packets that came back.
func (w *window) take(n int) {
	w.done.Add(int64(n))
	select {
	case w.progress <- struct{}{}:
	default:
	}
}

func (w *window) full() bool { return w.handed.Load()-w.done.Load() >= windowPackets }

// wait blocks while the window is full. It returns false if it opened only because
// what was inside counts as gone.
func (w *window) wait() bool {
	if !w.full() {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.full() {
		before := w.done.Load()
		w.timer.Reset(windowPatience)
		select {
		case <-w.progress:
			w.timer.Stop()
			continue
		case <-w.timer.C:
		}
		if w.done.Load() == before {
			w.handed.Store(before)
			return false
		}
	}
	return true
}
