package nat_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"culvert/nat"
	"culvert/nat/nattest/cost"
	"culvert/nat/packet"
)

// BenchmarkSizes compares the cost of one packet in turns of some milliseconds, so that other
// processes affect all alike: a seal, an established packet among 1,000 connections of either
// family, and one among 1,000,000, by Zipf's law and at random. The cost of making packets is
// subtracted. It prints ratios of medians.
func BenchmarkSizes(b *testing.B) {
	const turns, perTurn = 60, 1 << 15
	r := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(r, 1.1, 1, 1e6-1)
	table := func(n int, v6 bool) *nat.Engine {
		e := engine(b, func(c *nat.Config) { c.MaxConnections = 4e6 })
		load(b, e, n, v6)
		return e
	}
	few, any := func() int { return r.IntN(1000) }, func() int { return r.IntN(1e6) }
	large := table(1e6, false)
	all := []struct {
		name  string
		v6    bool
		e     *nat.Engine // nil: packets are made
		pick  func() int
		order []int32
		costs []float64
	}{
		{name: "making", pick: few},
		{name: "small", e: table(1000, false), pick: few},
		{name: "zipf", e: large, pick: func() int { return int(zipf.Uint64()) }},
		{name: "uniform", e: large, pick: any},
		{name: "IPv6", v6: true, e: table(1000, true), pick: few},
		{name: "making IPv6", v6: true, pick: few},
	}
	for i := range all {
		x := &all[i]
		x.order = make([]int32, 1<<20)
		for j := range x.order {
			x.order[j] = int32(x.pick())
		}
	}
	var seals []float64
	streams := map[bool]*stream{}
	for _, v6 := range []bool{false, true} {
		s := newStream(v6, node1)
		streams[v6] = &s
	}
	var work [nat.MaxLoad][128]byte
	var packets [nat.MaxLoad]packet.Packet
	b.ResetTimer()
	for range b.N {
		for turn := range turns {
			seals = append(seals, cost.SealOnce(b))
			for i := range all {
				x, s := &all[i], streams[all[i].v6]
				begin := cost.ProcessorTime(b)
				for at := 0; at < perTurn; at += len(packets) {
					var made [nat.MaxLoad][]byte
					for j := range made {
						made[j] = s.packet(work[j][:], int(x.order[(turn*perTurn+at+j)%len(x.order)]), node1)
					}
					if x.e == nil {
						continue
					}
					for j := range packets {
						packets[j].Parse(made[j])
					}
					forward(b, x.e, packets[:], node1)
				}
				x.costs = append(x.costs, float64(cost.ProcessorTime(b)-begin)/perTurn)
			}
		}
	}
	last := len(all) - 1
	perPacket := func(i int) float64 {
		if all[i].v6 {
			return middle(all[i].costs) - middle(all[last].costs)
		}
		return middle(all[i].costs) - middle(all[0].costs)
	}
	b.ReportMetric(perPacket(1)/middle(seals), "seals/small")
	for i := 2; i < last; i++ {
		b.ReportMetric(perPacket(i)/middle(seals), "seals/"+all[i].name)
		b.ReportMetric(perPacket(i)/perPacket(1), all[i].name+"/small")
	}
}

func middle(values []float64) float64 { return slices.Sorted(slices.Values(values))[len(values)/2] }
