package nat_test

import (
	"sync"
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/packet"
)

// BenchmarkBothDirections measures the cost of the lock that both directions share: established
// packets by one goroutine that handles both directions in turn, and by two at once. "speedup" is
// the packets per second of the second over the first; 2 would be perfect.
func BenchmarkBothDirections(b *testing.B) {
	const connections = 1000
	e := engine(b)
	load(b, e, connections, false)
	one := func(in nat.Link, n int) {
		var p packet.Packet
		work := make([]byte, 2048)
		s := newStream(false, in)
		for i := range n {
			p.Parse(s.packet(work, i%connections, in))
			if e.Process(&p, in, start).Action != nat.Forward {
				b.Error("not forwarded")
				return
			}
		}
	}
	n := max(b.N, 100_000)
	b.ReportAllocs()
	b.ResetTimer()
	begin := time.Now()
	one(node1, n/2)
	one(nat.Tunnel, n/2)
	alone := time.Since(begin)

	begin = time.Now()
	var both sync.WaitGroup
	both.Go(func() { one(node1, n/2) })
	both.Go(func() { one(nat.Tunnel, n/2) })
	both.Wait()
	together := time.Since(begin)
	b.ReportMetric(float64(alone.Nanoseconds())/float64(n), "ns/packet-alone")
	b.ReportMetric(float64(together.Nanoseconds())/float64(n), "ns/packet-together")
	b.ReportMetric(float64(alone)/float64(together), "speedup")
}
