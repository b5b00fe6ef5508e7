package rtnl

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// TestLoop: a Loop looks at once and every poll, collects changes, and gives way to somebody who
// repeats them.
func TestLoop(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		defer func(before func(int, ...uint) (subscription, error)) { subscribe = before }(subscribe)
		subscribe = func(int, ...uint) (subscription, error) { return nil, unix.ENOMEM }
		const poll = 5 * time.Second
		began := time.Now()
		looks := make(chan time.Duration, 10)
		var mended atomic.Bool
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l := NewLoop(nil)
		go l.Run(ctx, poll, func() bool {
			looks <- time.Since(began)
			return mended.Load()
		})
		last := <-looks
		for _, step := range []struct {
			mends bool
			wakes []time.Duration // since the last look
			next  time.Duration   // likewise
		}{
			{false, nil, poll},
			{false, []time.Duration{time.Second, time.Second + settleTime/2}, time.Second + settleTime},
			{true, []time.Duration{0}, settleTime},
			{false, []time.Duration{0, mendPause / 2}, mendPause},
			{true, nil, poll},
			{false, []time.Duration{2 * mendPause}, 2*mendPause + settleTime},
		} {
			mended.Store(step.mends)
			for _, at := range step.wakes {
				time.Sleep(time.Until(began.Add(last + at)))
				l.Wake()
			}
			time.Sleep(time.Until(began.Add(last + step.next)))
			synctest.Wait()
			if got, want := <-looks, last+step.next; got != want || len(looks) > 0 {
				t.Fatalf("%+v: looks at %v and %d times after that, want %v", step, got, len(looks), want)
			}
			last += step.next
		}
	})
}
