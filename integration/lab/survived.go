package lab

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"culvert/integration/lab/step"
)

// survived is the outcome for a flow set.
type survived struct {
	pause time.Duration  // the longest
	lost  map[string]int // flows by kind
	first error          // of one of them
}

// resetLateness resets the recorded lateness of messages.
func (c *flowSet) resetLateness() {
	for _, f := range c.flows {
		f.mu.Lock()
		f.late = 0
		f.mu.Unlock()
	}
}

// judge waits until every flow has had messages since a time, in both directions if it was idle,
// and returns the outcome. It wakes a few idle flows at a time, because all at once would wait for
// each other.
func (c *flowSet) judge(since time.Time) survived {
	s := survived{lost: make(map[string]int)}
	var mu sync.Mutex
	var checks []func() error
	for _, f := range c.flows {
		checks = append(checks, func() error {
			err := c.alive(f, since)
			mu.Lock()
			defer mu.Unlock()
			f.mu.Lock()
			defer f.mu.Unlock()
			if err = errors.Join(err, f.err); err != nil {
				s.lost[f.kind]++
				s.first = fmt.Errorf("%v: %w", f, err)
				return nil
			}
			s.pause = max(s.pause, f.late)
			return nil
		})
	}
	atOnce(flowsJudged, checks)
	return s
}

// alive waits for messages of a flow; it sends on an idle one in both directions.
func (c *flowSet) alive(f *flow, since time.Time) error {
	if f.does == idles {
		return errors.Join(c.deliver(f, f.first), c.deliver(f, 1-f.first))
	}
	to := 1
	if f.does == receives {
		to = 0
	}
	for deadline := time.Now().Add(c.wait); ; time.Sleep(step.Poll) {
		f.mu.Lock()
		came, err := f.came[to], f.err
		f.mu.Unlock()
		switch {
		case err != nil || came.After(since):
			return err
		case time.Now().After(deadline):
			return fmt.Errorf("no message at end %d for %v", to, time.Since(came).Round(time.Millisecond))
		}
	}
}

// tooLong returns an error if a flow paused for longer than an outage of its path explains.
func (c *flowSet) tooLong(outage time.Duration) error {
	for _, f := range c.flows {
		f.mu.Lock()
		late, most := f.late, f.mostPause(outage)
		f.mu.Unlock()
		if late > most {
			return fmt.Errorf("a connection (%v) paused for %v, want at most %v", f, late.Round(time.Millisecond), most)
		}
	}
	return nil
}

func (s *survived) all() int {
	n := 0
	for _, lost := range s.lost {
		n += lost
	}
	return n
}

func (s *survived) String() string {
	return fmt.Sprintf("lost: %s; the last: %v", count(s.lost), s.first)
}
