package integration

import (
	"context"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"culvert/gateway/control"
	"culvert/integration/need"
)

const (
	watchedRounds = 75
	watchedWarm   = 150 * time.Millisecond
	watchedTime   = 500 * time.Millisecond

	watchedShare  = 0.98 // part of its rate that a stream keeps while its gateway is watched
	capturedShare = 0.5  // and while all packets are captured
)

// TestWatchedThroughput: a stream is as fast while somebody requests status and metrics twice a
// second and watches connections, and at least half as fast while all packets are captured. Each
// rate is compared with those right before and after, without a watcher.
func TestWatchedThroughput(t *testing.T) {
	need.Long(t, "a measurement of four minutes, which needs a quiet machine")
	isolated(t, func(t *testing.T) {
		c, client := newSeen(t)
		c.sink()
		defer c.stream(t).Close()
		rate := func(meanwhile func()) float64 { return sinkRate(watchedWarm, watchedTime, meanwhile) }
		var alone, watched, captured []float64
		var packets, lost uint64
		for range watchedRounds {
			before := rate(func() {})
			stop := watch(t, client)
			seen := rate(func() { c.ask(t, client) })
			stop()
			between := rate(func() {})
			stop = captureAll(t, client, &packets, &lost)
			taken := rate(func() {})
			stop()
			alone = append(alone, before, between)
			watched, captured = append(watched, 2*seen/(before+between)), append(captured, taken/between)
		}
		t.Logf("alone %.0f Mbit/s (%s); %d packets captured, %d lost", median(alone), quarters(alone), packets, lost)
		for _, x := range []struct {
			what   string
			shares []float64
			want   float64
		}{{"watched", watched, watchedShare}, {"captured", captured, capturedShare}} {
			t.Logf("%s: %.3f of that (%s)", x.what, median(x.shares), quarters(x.shares))
			if median(x.shares) < x.want {
				t.Errorf("%s, the stream keeps %.3f of its rate, want %.2f", x.what, median(x.shares), x.want)
			}
		}
		if packets == 0 {
			t.Error("nothing was captured")
		}
	}, programs("ping", "ping"))
}

// ask requests the status and the metrics.
func (c *clusters) ask(t *testing.T, client *control.Client) {
	if _, err := client.Status(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := c.romeGateway.get("/metrics"); err != nil {
		t.Error(err)
	}
}

// watch watches connections until stop.
func watch(t *testing.T, client *control.Client) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := control.Each(ctx, client, "/v1/connections/events", nil, func(*control.Event) bool { return true })
		if ctx.Err() == nil {
			t.Errorf("the watch ended: %v", err)
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// captureAll captures everything until stop.
func captureAll(t *testing.T, client *control.Client, packets, lost *uint64) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p, l, err := client.Capture(ctx, &control.CaptureOptions{}, io.Discard)
		if *packets, *lost = *packets+p, *lost+l; ctx.Err() == nil {
			t.Errorf("the capture ended: %v", err)
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// quarters formats the bounds of the middle half of the values.
func quarters(values []float64) string {
	sorted := slices.Sorted(slices.Values(values))
	return fmt.Sprintf("half of the runs %.4g to %.4g", sorted[len(sorted)/4], sorted[3*len(sorted)/4])
}

func median(values []float64) float64 { return slices.Sorted(slices.Values(values))[len(values)/2] }
