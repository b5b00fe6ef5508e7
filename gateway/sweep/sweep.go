// Package sweep sweeps a table while packets are processed: in slices, with a sleep between them.
package sweep

import (
	"context"
	"time"
)

const (
	// Interval is how often timed duties are done.
	Interval = time.Second
	// Pause is the time between two slices, each of which takes up to 0.1 ms. The sweeper must
	// sleep, because Go's scheduler polls the network for packets only when a P has nothing else to
	// run: a goroutine that merely yields would delay packets by 10 ms.
	Pause = time.Millisecond
)

// Beside calls duties every Interval, and then calls slice until slice returns true. It returns
// when ctx is done. Duties are on time, however much there is to sweep.
func Beside(ctx context.Context, slice func() bool, duties func()) {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			duties()
		case <-pause.C:
		}
		if !slice() {
			pause.Reset(Pause)
		}
	}
}
