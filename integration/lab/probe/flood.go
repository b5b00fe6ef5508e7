package probe

import (
	"context"
	"fmt"
	"time"

	"culvert/integration/lab/netns"
)

// How fast attackers send: a flood, but not enough to fill the receive buffers of an otherwise idle
// gateway.
const (
	FloodRate  = 25_000 // packets a second
	FloodBurst = 25     // at once
	floodLag   = 5 * time.Millisecond
)

// Flood is the packets that an attacker makes.
type Flood struct {
	From   *netns.Host
	Count  int // 0: until stopped
	Packet func(i int) []byte
}

// Sent is the outcome of a flood.
type Sent struct {
	packets int
	seconds float64
}

// String is what a table shows.
func (s Sent) String() string {
	return fmt.Sprintf("%d at %.0f k/s", s.packets, float64(s.packets)/s.seconds/1000)
}

// Run sends the packets at FloodRate until all are sent or ctx is done. A delayed sender catches
// up by at most floodLag: more would fill buffers.
func (f *Flood) Run(ctx context.Context) (s Sent, err error) {
	raw, err := NewRaw(f.From)
	if err != nil {
		return s, err
	}
	defer raw.Close()
	began := time.Now()
	due := began
	for f.Count == 0 || s.packets < f.Count {
		if s.packets%FloodBurst == 0 {
			if ctx.Err() != nil {
				break
			}
			now := time.Now()
			due = due.Add(FloodBurst * time.Second / FloodRate)
			if late := now.Sub(due); late > floodLag {
				due = now.Add(-floodLag)
			} else if late < 0 {
				time.Sleep(-late) // keeps the rate
			}
		}
		if err := raw.Send(f.Packet(s.packets)); err != nil {
			return s, fmt.Errorf("%s: packet %d of an attack: %w", f.From.Name, s.packets, err)
		}
		s.packets++
	}
	s.seconds = time.Since(began).Seconds()
	return s, nil
}
