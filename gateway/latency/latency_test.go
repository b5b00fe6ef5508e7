package latency

import (
	"testing"
	"time"
)

// TestHistogram: a bound belongs to the bucket below it, and every duration is counted.
func TestHistogram(t *testing.T) {
	var h Histogram
	for _, d := range []time.Duration{-1, 0, Bounds[0], Bounds[0] + 1, Bounds[len(Bounds)-1],
		Bounds[len(Bounds)-1] + 1, time.Hour} {
		h.Observe(d)
	}
	c := h.Counts()
	for i, want := range map[int]uint64{0: 3, 1: 1, len(Bounds) - 1: 1, len(Bounds): 2} {
		if c.Buckets[i] != want {
			t.Errorf("bucket %d has %d, want %d", i, c.Buckets[i], want)
		}
	}
	if want := 2*Bounds[0] + 2*Bounds[len(Bounds)-1] + 1 + time.Hour; c.Sum != want {
		t.Errorf("sum %v, want %v", c.Sum, want)
	}
	for i := range Bounds[1:] {
		if Bounds[i] >= Bounds[i+1] {
			t.Errorf("bound %d is not below the next", i)
		}
	}
}

// TestSampler: for batches of any size, the first packet and one in 256 are sampled.
func TestSampler(t *testing.T) {
	for _, tt := range []struct{ batch, batches, want int }{{1, 2560, 11}, {64, 40, 11}, {100, 64, 26}, {300, 10, 10}} {
		var s Sampler
		picked := 0
		for i := range tt.batches {
			if s.Picks(tt.batch) {
				picked++
			} else if i == 0 {
				t.Errorf("batches of %d: not the first", tt.batch)
			}
		}
		if picked != tt.want {
			t.Errorf("%d batches of %d: %d picked, want %d", tt.batches, tt.batch, picked, tt.want)
		}
	}
}
