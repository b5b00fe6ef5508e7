package rtnl

import (
	"context"
	"sync"
	"syscall"
	"time"
)

const (
	settleTime = 100 * time.Millisecond // to collect further changes after one
	mendPause  = time.Second            // after changes were undone, because somebody may repeat them
)

// A Loop compares the kernel with what is wanted, whenever one of them may have changed.
type Loop struct {
	Groups   []uint                            // of the kernel's reports
	Concerns func(syscall.NetlinkMessage) bool // whether a report matters
	Heard    func(error)                       // of Listen; may be nil
	wake     chan struct{}
}

// NewLoop returns a Loop, which is inactive until Run.
func NewLoop(concerns func(syscall.NetlinkMessage) bool, groups ...uint) *Loop {
	return &Loop{Groups: groups, Concerns: concerns, wake: make(chan struct{}, 1)}
}

// Wake makes Run look soon.
func (l *Loop) Wake() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Run calls look, which reports whether it has undone changes of others, until ctx is done: at
// once, soon after each report and each Wake, and every poll.
func (l *Loop) Run(ctx context.Context, poll time.Duration, look func() (mended bool)) {
	var hearing sync.WaitGroup
	defer hearing.Wait()
	hearing.Go(func() { Listen(ctx, l.Groups, l.Concerns, l.Wake, l.Heard) })
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
