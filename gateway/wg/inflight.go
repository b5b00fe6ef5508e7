package wg

import (
	"sync"
	"sync/atomic"
	"time"

	"culvert/gateway/procs"
)

// window limits how many packets of one direction are inside wireguard-go, and counts those that it
// silently drops: packets without a session, forged ones, replays. wireguard-go's queues hold 1024
// batches, and each packet in them pins a buffer of 64 KiB (device.MaxMessageSize): without a
// limit, a sender that outruns the cipher costs gigabytes. When the window is full, the gateway
// stops reading that socket and the kernel drops packets, to which TCP adapts.
//
// A packet is inside until wireguard-go returns it (take) or is seen to drop it (discard). If none
// comes back for a while, those inside are given up (wait): they make room, and are missing. One
// that comes back after all was not missing (forgive). One that is missing for a second is lost
// (countLost); if it comes back even then, it makes up for the next loss (late).
type window struct {
	handed atomic.Int64 // packets given to wireguard-go, without those given up
	done   atomic.Int64 // packets that it returned
	gone   atomic.Int64 // packets that are lost or were discarded

	progress chan struct{} // signals that some were returned
	stalled  atomic.Bool   // the content was written off, and nothing has been returned since

	waiting sync.Mutex  // for goroutines that wait; others do not need it
	timer   *time.Timer // +checklocks:waiting

	mu sync.Mutex
	// packets given up since the last countLost, and in the second before
	missing, overdue int64 // +checklocks:mu
	// packets counted as lost that were returned later
	late int64 // +checklocks:mu
	// handed at the last countLost
	handedBefore int64 // +checklocks:mu
}

const (
	// maxCiphers bounds the batches that are in the cipher at one time, each of which pins 4 MiB.
	maxCiphers = 8
	// windowPatience is how many ticks without a returned packet make the window give up its
	// content, which makes room. wireguard-go needs less than a tick for its remaining work, but
	// with little CPU this process may be delayed. So only packets missing for a second count as
	// lost.
	windowPatience = 8
	windowTick     = time.Millisecond
)

func newWindow() *window {
	t := time.NewTimer(windowTick)
	t.Stop()
	return &window{progress: make(chan struct{}, 1), timer: t}
}

// give counts n packets given to wireguard-go.
func (w *window) give(n int) { w.handed.Add(int64(n)) }

// take counts n packets returned.
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

func (w *window) full() bool { return w.handed.Load()-w.done.Load() >= windowPackets() }

// windowPackets is a full batch for each P, in the cipher, and one more that is read or sent. More
// only wait longer inside.
func windowPackets() int64 { return int64(min(procs.Chosen(), maxCiphers)+1) * BatchSize }

// discard counts n packets that wireguard-go was seen to drop.
func (w *window) discard(n int) {
	if n == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	fresh := min(int64(n), max(0, w.handed.Load()-w.done.Load())) // the rest was given up before
	w.handed.Add(-fresh)
	w.gone.Add(fresh)
}

// wait blocks while the window is full. It returns false if the window is open only because its
// content was given up.
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
			w.missing += inside
			w.mu.Unlock()
			w.stalled.Store(true)
		}
	}
	return !w.stalled.Load()
}

// forgive keeps packets that were given up but returned later from widening the window.
func (w *window) forgive() {
	if w.done.Load() <= w.handed.Load() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := max(0, w.done.Load()-w.handed.Load())
	w.handed.Add(n)
	old := min(n, w.overdue)
	young := min(n-old, w.missing)
	w.overdue -= old
	w.missing -= young
	w.late += n - old - young
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

func (w *window) turnover() Turnover {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Turnover{Given: uint64(w.handed.Load() + w.gone.Load() - w.late), Returned: uint64(w.done.Load())}
}

// countLost is called once a second. Packets missing for a second count as lost, and so do those
// inside if nothing has moved for a second, because they may wait for a session that never comes.
func (w *window) countLost() {
	w.forgive()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lose(w.overdue)
	w.missing, w.overdue = 0, w.missing
	handed := w.handed.Load()
	if inside := handed - w.done.Load(); handed == w.handedBefore && inside > 0 {
		handed = w.handed.Add(-inside)
		w.lose(inside)
	}
	w.handedBefore = handed
}
