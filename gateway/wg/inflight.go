package wg

import (
	"sync"
	"sync/atomic"
	"time"
)

// window bounds how many packets of one direction are inside wireguard-go, and
// counts those that it discards without a word: packets without a session, forged
// ones, replays. wireguard-go's queues hold 1024 batches, and each packet in them
// pins a buffer of 64 KiB (device.MaxMessageSize): without a bound, a sender that
// outruns the cipher costs gigabytes. When the window is full the gateway stops
// reading that socket and the kernel drops, which TCP understands.
type window struct {
	handed atomic.Int64 // packets given to wireguard-go
	done   atomic.Int64 // packets that it gave back
	gone   atomic.Int64 // packets that it did not give back

	progress chan struct{} // some came back
	stalled  atomic.Bool   // what was inside has been given up, and nothing has come back since

	waiting sync.Mutex  // of who waits; the others need not
	timer   *time.Timer // +checklocks:waiting

	mu sync.Mutex
	// given up, and neither back nor counted as gone: since the last look of settleIdle, and before
	missing [2]int64 // +checklocks:mu
	// counted as gone, and came back
	late int64 // +checklocks:mu
	// handed at the last look of settleIdle
	idleHanded int64 // +checklocks:mu
}

const (
	// windowPackets is two full batches: one in the cipher, one read or sent. More
	// only wait longer inside.
	windowPackets = 2 * BatchSize
	// windowPatience is for how many ticks nothing may come back before what is inside is
	// given up, which makes room. Whatever wireguard-go still has to do takes less than one,
	// but this process does not get each tick's time where there is little CPU. So only what
	// has not come back in a second counts as gone.
	windowPatience = 8
	windowTick     = time.Millisecond
)

func newWindow() *window {
	t := time.NewTimer(windowTick)
	t.Stop()
	return &window{progress: make(chan struct{}, 1), timer: t}
}

// give notes n packets given to wireguard-go.
func (w *window) give(n int) { w.handed.Add(int64(n)) }

// take notes n packets that came back.
func (w *window) take(n int) {
	w.done.Add(int64(n))
	if w.stalled.Load() {
		w.stalled.Store(false)
	}
	select {
	case w.progress <- struct{}{}:
	default:
	}
}

func (w *window) full() bool { return w.handed.Load()-w.done.Load() >= windowPackets }

// discard notes n packets that wireguard-go has been seen to discard.
func (w *window) discard(n int) {
	if n == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	fresh := min(int64(n), max(0, w.handed.Load()-w.done.Load())) // the rest has been given up
	w.handed.Add(-fresh)
	w.gone.Add(fresh)
}

// wait blocks while the window is full. It returns false while the window is open only
// because what was inside has been given up.
func (w *window) wait() bool {
	w.forgive()
	if !w.full() {
		return !w.stalled.Load()
	}
	w.waiting.Lock()
	defer w.waiting.Unlock()
	for quiet := 0; w.full(); {
		before := w.done.Load()
		w.timer.Reset(windowTick)
		select {
		case <-w.progress:
			w.timer.Stop()
			quiet = 0
			continue
		case <-w.timer.C:
		}
		if w.done.Load() != before {
			quiet = 0
			continue
		}
		if quiet++; quiet == windowPatience || w.stalled.Load() {
			w.mu.Lock()
			inside := max(0, w.handed.Load()-w.done.Load())
			w.handed.Add(-inside)
			w.missing[0] += inside
			w.mu.Unlock()
			w.stalled.Store(true)
		}
	}
	return !w.stalled.Load()
}

// forgive keeps what was given up and came back all the same from widening the window.
func (w *window) forgive() {
	if w.done.Load() <= w.handed.Load() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := max(0, w.done.Load()-w.handed.Load())
	w.handed.Add(n)
	for _, i := range [...]int{1, 0} {
		found := min(n, w.missing[i])
		w.missing[i] -= found
		n -= found
	}
	w.late += n
}

// lose counts n packets as gone.
//
// Preconditions: w.mu is held.
// +checklocks:w.mu
func (w *window) lose(n int64) {
	known := min(n, w.late) // counted before
	w.late -= known
	w.gone.Add(n - known)
}

// settleIdle is called once a second: what was missing a second ago is gone, and so is what
// was inside then, when nothing has moved since, or it waits for a session that may never
// come.
func (w *window) settleIdle() {
	w.forgive()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lose(w.missing[1])
	w.missing = [2]int64{0, w.missing[0]}
	handed := w.handed.Load()
	if inside := handed - w.done.Load(); handed == w.idleHanded && inside > 0 {
		handed = w.handed.Add(-inside)
		w.lose(inside)
	}
	w.idleHanded = handed
}
