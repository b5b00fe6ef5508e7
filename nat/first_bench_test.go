package nat_test

import (
	"fmt"
	"testing"

	"culvert/nat"
	"culvert/nat/nattest/cost"
	"culvert/nat/packet"
)

// firstTurn is how many connections, at least, BenchmarkFirst makes between two seals.
const firstTurn = 1 << 11

// BenchmarkFirst measures a new connection per packet: in tables of 1,000 to 1,000,000 connections,
// in batches, with directories as full as they get (it prints how full); and in a full table, where
// each replaces another. Like BenchmarkSizes it takes turns with seals, and prints ratios of
// medians.
func BenchmarkFirst(b *testing.B) {
	for _, v6 := range []bool{false, true} {
		family := map[bool]string{false: "IPv4", true: "IPv6"}[v6]
		e, held := engine(b, func(c *nat.Config) { c.MaxConnections = 4e6 }), 0
		for n := nat.FullSegment; n < 1e6; n *= 2 {
			if n < 1000 {
				continue
			}
			b.Run(fmt.Sprintf("%s/%d", family, n), func(b *testing.B) {
				loadMore(b, e, held, n, v6)
				held = n
				benchmarkFirst(b, e, v6, n, min(n/32/nat.MaxLoad*nat.MaxLoad, firstTurn))
				b.ReportMetric(e.DirectoryFill(), "full")
			})
		}
		b.Run(family+"/making room", func(b *testing.B) {
			const most = 1 << 17
			e := engine(b, func(c *nat.Config) { c.MaxConnections = 3 * most }) // a source may have a third
			open := openers(b, e, v6)
			for i := 0; i < most; i += nat.MaxLoad {
				open(i)
			}
			benchmarkFirst(b, e, v6, most, firstTurn)
		})
	}
}

// benchmarkFirst makes connections in a table that holds n of them. From time to time it removes
// the additional ones, which is not measured.
func benchmarkFirst(b *testing.B, e *nat.Engine, v6 bool, n, some int) {
	open := openers(b, e, v6)
	var seals, costs []float64
	next := n
	b.ResetTimer()
	for range b.N {
		for range 40 {
			seals = append(seals, cost.SealOnce(b))
			var own float64
			made := 0
			for ; made < firstTurn; made += some {
				begin := cost.ProcessorTime(b)
				for end := next + some; next < end; next += nat.MaxLoad {
					open(next)
				}
				own += float64(cost.ProcessorTime(b) - begin)
				if next >= 1<<24 { // there are no more distinct packets
					next = n
				}
				for at, more := nat.Cursor(n), true; more; { // the n have the first places
					_, at, more = e.DeleteConnections(at, &nat.ConnFilter{}, start)
				}
			}
			costs = append(costs, own/float64(made))
		}
	}
	b.ReportMetric(middle(costs), "ns/first")
	b.ReportMetric(middle(costs)/middle(seals), "seals/first")
}

// openers returns packets that open connections, for a batch beginning with packet i of a stream.
func openers(b *testing.B, e *nat.Engine, v6 bool) (open func(i int)) {
	s := newStream(v6, node1)
	var work [nat.MaxLoad][128]byte
	packets := make([]packet.Packet, nat.MaxLoad)
	return func(i int) {
		for j := range packets {
			packets[j].Parse(s.packet(work[j][:], i+j, node1))
		}
		forward(b, e, packets, node1)
	}
}
