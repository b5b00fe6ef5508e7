// Package latency samples how long batches of packets take, and counts them in histograms. A batch
// that is not sampled costs an addition and a comparison.
package latency

import (
	"sync/atomic"
	"time"
)

// Bounds are the upper bounds of a Histogram's buckets. The last bucket has none.
var Bounds = [...]time.Duration{
	2 * time.Microsecond, 5 * time.Microsecond, 10 * time.Microsecond, 20 * time.Microsecond, 50 * time.Microsecond,
	100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond,
}

// A Histogram may be used by several goroutines.
type Histogram struct {
	buckets [len(Bounds) + 1]atomic.Uint64
	sum     atomic.Int64
}

// Counts is what a Histogram has counted.
type Counts struct {
	Buckets [len(Bounds) + 1]uint64 // not cumulative
	Sum     time.Duration
}

// Observe counts something that took d.
func (h *Histogram) Observe(d time.Duration) {
	i := 0
	for i < len(Bounds) && d > Bounds[i] {
		i++
	}
	h.buckets[i].Add(1)
	h.sum.Add(int64(d))
}

// Counts returns what has been counted so far.
func (h *Histogram) Counts() (c Counts) {
	for i := range h.buckets {
		c.Buckets[i] = h.buckets[i].Load()
	}
	c.Sum = time.Duration(h.sum.Load())
	return c
}

// sampleShift makes a Sampler pick one batch in 256 packets, or one of more.
const sampleShift = 8

// A Sampler picks batches to be timed. It belongs to one goroutine.
type Sampler struct{ packets uint64 }

// Picks reports whether a batch of n packets, at least one, is sampled. The first one is.
func (s *Sampler) Picks(n int) bool {
	before := s.packets
	s.packets += uint64(n)
	return before == 0 || before>>sampleShift != s.packets>>sampleShift
}
