package nat_test

import (
	"runtime"
	"syscall"
	"testing"
	"time"

	"culvert/nat"
)

// BenchmarkListing lists a million connections, and counts them. Packets wait at most for one call, of which it prints the longest of the
// best round, by the clock and in processor time.
func BenchmarkListing(b *testing.B) {
	const n = 1_000_000
	e := engine(b, func(c *nat.Config) { c.MaxConnections = 4 * n })
	load(b, e, n, false)
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_THREAD, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	for _, x := range []struct {
		name   string
		filter nat.ConnFilter
		want   int
	}{
		{"all", nat.ConnFilter{}, n},
		{"none", nat.ConnFilter{State: "closed"}, 0},
	} {
		b.Run(x.name, func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			best, bestBusy := time.Hour, time.Hour
			var counting time.Duration
			var list []nat.ConnInfo
			for range b.N {
				listed, longest, busiest := 0, time.Duration(0), time.Duration(0)
				for at, more := nat.Cursor(0), true; more; {
					begin, before := time.Now(), used()
					list, at, more = e.Connections(at, &x.filter, start, list[:0])
					busiest, longest = max(busiest, used()-before), max(longest, time.Since(begin))
					listed += len(list)
				}
				if listed != x.want {
					b.Fatalf("%d connections listed, want %d", listed, x.want)
				}
				best, bestBusy = min(best, longest), min(bestBusy, busiest)
				begin := time.Now()
				if st := e.Stats(); st.Connections != n {
					b.Fatalf("%d connections counted", st.Connections)
				}
				counting = max(counting, time.Since(begin))
			}
			b.ReportMetric(float64(best.Microseconds()), "µs-longest-call")
			b.ReportMetric(float64(bestBusy.Microseconds()), "µs-longest-call-cpu")
			b.ReportMetric(float64(counting.Nanoseconds())/1e3, "µs-Stats")
		})
	}
}
