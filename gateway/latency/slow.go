package latency

import (
	"context"
	"runtime/trace"
	"sync/atomic"
	"time"
)

// slow is who waits for a slow batch; nil = nobody. There is one in a process, as there is one flight recorder.
var slow atomic.Pointer[waiter]

type waiter struct {
	bound time.Duration
	told  atomic.Bool
	found chan time.Duration
}

// tell marks the place in the execution trace, and then tells who waits, who ends that: once.
func (w *waiter) tell(d time.Duration) {
	if w.told.CompareAndSwap(false, true) {
		trace.Logf(context.Background(), "culvert", "a batch has taken %v", d)
		w.found <- d
	}
}

// AwaitSlow returns a channel that gets the first duration, longer than bound, that any Histogram of the process observes until stop is called. ok is
// false if somebody else waits.
func AwaitSlow(bound time.Duration) (found <-chan time.Duration, stop func(), ok bool) {
	w := &waiter{bound: bound, found: make(chan time.Duration, 1)}
	if !slow.CompareAndSwap(nil, w) {
		return nil, nil, false
	}
	return w.found, func() { slow.Store(nil) }, true
}
