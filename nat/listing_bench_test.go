package nat_test

import (
	"testing"
	"time"

	"culvert/nat"
)

// BenchmarkListing lists a million connections, and counts them. A packet waits for one call at
// most; it prints the longest call of the best round.
func BenchmarkListing(b *testing.B) {
	const n = 1_000_000
	e := engine(b, func(c *nat.Config) { c.MaxConnections = 4 * n })
	load(b, e, n, false)
	for _, x := range []struct {
		name   string
		filter nat.ConnFilter
		want   int
	}{
		{"all", nat.ConnFilter{}, n},
		{"none", nat.ConnFilter{State: "closed"}, 0},
	} {
		b.Run(x.name, func(b *testing.B) {
			best := time.Hour
			var counting time.Duration
			var list []nat.ConnInfo
			for range b.N {
				listed, longest := 0, time.Duration(0)
				for at, more := nat.Cursor(0), true; more; {
					begin := time.Now()
					list, at, more = e.Connections(at, &x.filter, start, list[:0])
					longest = max(longest, time.Since(begin))
					listed += len(list)
				}
				if listed != x.want {
					b.Fatalf("%d connections listed, want %d", listed, x.want)
				}
				best = min(best, longest)
				begin := time.Now()
				if st := e.Stats(); st.Connections != n {
					b.Fatalf("%d connections counted", st.Connections)
				}
				counting = max(counting, time.Since(begin))
			}
			b.ReportMetric(float64(best.Microseconds()), "µs-longest-call")
			b.ReportMetric(float64(counting.Nanoseconds())/1e3, "µs-Stats")
		})
	}
}
