package latency

import (
	"context"
	"runtime/trace"
	"sync/atomic"
	"time"
)

// slow waits for a slow batch; nil = nobody does. There is one per process, like the flight recorder.
var slow atomic.Pointer[waiter]

type waiter struct {
	bound time.Duration
	told  atomic.Bool
	found chan time.Duration
}

// report marks the place in the execution trace and then notifies the waiter, once; the waiter ends the trace.
func (w *waiter) report(d time.Duration) {
	if w.told.CompareAndSwap(false, true) {
		trace.Logf(context.Background(), "culvert", "a batch has taken %v", d)
		w.found <- d
	}
}

// AwaitSlow returns a channel for the first duration longer than bound that any Histogram of the process observes until stop is called. ok is false
// if there is another waiter.
func AwaitSlow(bound time.Duration) (found <-chan time.Duration, stop func(), ok bool) {
	w := &waiter{bound: bound, found: make(chan time.Duration, 1)}
	if !slow.CompareAndSwap(nil, w) {
		return nil, nil, false
	}
	return w.found, func() { slow.Store(nil) }, true
}
