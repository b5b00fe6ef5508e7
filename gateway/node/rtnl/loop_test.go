package rtnl

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"culvert/integration/need"
)

// TestLoop: a Loop looks at once and every poll, collects changes, and gives way to somebody who
// repeats them.
func TestLoop(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		const poll = 5 * time.Second
		began := time.Now()
		var looks []time.Duration
		mended := false
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l := NewLoop()
		go l.Run(ctx, poll, func() bool {
			looks = append(looks, time.Since(began))
			return mended
		})
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
			synctest.Wait()
			n, last := len(looks), looks[len(looks)-1]
			mended = step.mends
			for _, at := range step.wakes {
				time.Sleep(time.Until(began.Add(last + at)))
				l.Wake()
			}
			time.Sleep(time.Until(began.Add(last + step.next)))
			synctest.Wait()
			if want := append(slices.Clone(looks[:n]), last+step.next); !slices.Equal(looks, want) {
				t.Fatalf("%+v: looks at %v, want %v", step, looks, want)
			}
		}
	})
}
