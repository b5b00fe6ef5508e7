package replica

import (
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"culvert/gateway/wgkey"
	"culvert/integration/need"
	"culvert/nat"
)

// BenchmarkLag begins 5,000 connections a second, which need translation, and measures when each is
// at the standby.
func BenchmarkLag(b *testing.B) {
	const rate, most = 5000, 1 << 20
	key := wgkey.NewPrivate()
	active, standby := newPod(b, "a", key, most), newPod(b, "b", key, most)
	active.Lead()
	standby.e.Freeze()
	standby.Follow(active.at)
	need.NoError(b, standby.Whole(within(b)))
	var lags []time.Duration
	for b.Loop() {
		const n = 2 * rate
		first := active.e.Stats().Connections
		born := make([]time.Time, 0, n)
		began := time.Now()
		for there := 0; there < n; time.Sleep(time.Millisecond) { // the pace, and how exactly it measures
			due := min(int(time.Since(began)*rate/time.Second), n)
			for ; len(born) < due; born = append(born, time.Now()) {
				talk(b, active.e, first+len(born), 1)
			}
			have, seen := standby.e.Stats().Connections-first, time.Now()
			for ; there < have; there++ {
				lags = append(lags, seen.Sub(born[there]))
			}
		}
	}
	slices.Sort(lags)
	b.ReportMetric(lags[len(lags)/2].Seconds()*1000, "p50-ms")
	b.ReportMetric(lags[len(lags)*99/100].Seconds()*1000, "p99-ms")
	b.ReportMetric(lags[len(lags)-1].Seconds()*1000, "max-ms")
}

// BenchmarkStopped measures the memory that a standby which has stopped reading costs the active
// replica. All of its million connections change, and more end than a feed holds.
func BenchmarkStopped(b *testing.B) {
	const million = 1_000_000
	key := wgkey.NewPrivate()
	stop := make(chan struct{})
	defer close(stop)
	active := newPod(b, "a", key, 1<<21)
	active.Lead()
	talk(b, active.e, 0, million)
	standby := newPod(b, "b", key, 1000, func(o *Options) { o.Took = func([]byte) { <-stop } })
	heap := func() uint64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before := heap()
	standby.Follow(active.at)
	eventually(b, func() error {
		if len(active.Status().Followers) == 0 {
			return errors.New("nobody follows")
		}
		return nil
	})
	for b.Loop() {
		most := uint64(0)
		for i := range 4 { // in less than the time after which the stream is closed
			talk(b, active.e, million+10_000*i, 10_000)
			for at, n := nat.Cursor(0), 0; n < 10_000; n += 1 << 10 {
				_, at, _ = active.e.DeleteConnections(at, &nat.ConnFilter{}, now())
			}
			most = max(most, heap())
			time.Sleep(100 * time.Millisecond) // the stream fills meanwhile, which nobody reports
		}
		b.ReportMetric(float64(most-before)/(1<<20), "MiB")
		if len(active.Status().Followers) == 0 {
			b.Fatal("it has lost its connection")
		}
	}
}
