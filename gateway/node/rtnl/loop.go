package rtnl

import (
	"context"
	"time"
)

const (
	settleTime = 100 * time.Millisecond // to collect further changes after one
	mendPause  = time.Second            // after changes were undone, because somebody may repeat them
)

// A Loop compares the kernel with what is wanted, whenever one of them may have changed.
type Loop struct{ wake chan struct{} }

// NewLoop returns a Loop, which is inactive until Run.
func NewLoop() Loop { return Loop{make(chan struct{}, 1)} }

// Wake makes Run look soon.
func (l Loop) Wake() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Run calls look, which reports whether it has undone changes of others, until ctx is done: at
// once, soon after each Wake, and every poll.
func (l Loop) Run(ctx context.Context, poll time.Duration, look func() (mended bool)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	settling := false
	var mended time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
			if !settling {
				timer.Reset(max(settleTime, time.Until(mended.Add(mendPause))))
			}
			settling = true
			continue
		case <-timer.C:
		}
		settling = false
		if look() {
			mended = time.Now()
		}
		timer.Reset(poll)
	}
}
