package nat_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"culvert/nat"
	"culvert/nat/packet"
)

// familyTurn is how many packets of one family BenchmarkFamilies measures before it is the other's turn. The buffers of both stay in
// a processor's own cache.
const familyTurn = 1 << 10

// BenchmarkFamilies compares what an established packet of IPv6 costs with one of IPv4, parsed, loaded in batches and processed as the gateway
// does. The families take turns, packets are made outside of the measurement, and what it prints are medians.
func BenchmarkFamilies(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(r, 1.1, 1, 1e6-1)
	for _, x := range []struct {
		name string
		n    int
		pick func() int
	}{
		{"1000", 1000, func() int { return r.IntN(1000) }},
		{"1000000/uniform", 1e6, func() int { return r.IntN(1e6) }},
		{"1000000/zipf", 1e6, func() int { return int(zipf.Uint64()) }},
	} {
		var engines [2]*nat.Engine
		for i := range engines {
			engines[i] = engine(b, func(c *nat.Config) { c.MaxConnections = 4 * x.n })
			load(b, engines[i], x.n, i == 1)
		}
		for _, in := range []nat.Link{node1, nat.Tunnel} {
			b.Run(fmt.Sprintf("%s/%s", x.name, map[nat.Link]string{node1: "outbound", nat.Tunnel: "inbound"}[in]), func(b *testing.B) {
				benchmarkFamilies(b, engines, in, x.pick)
			})
		}
	}
}

func benchmarkFamilies(b *testing.B, engines [2]*nat.Engine, in nat.Link, pick func() int) {
	streams := [2]stream{newStream(false, in), newStream(true, in)}
	var work [familyTurn][64]byte
	var made [familyTurn][]byte
	packets := make([]packet.Packet, nat.MaxLoad)
	var costs [2][]float64
	b.ResetTimer()
	for range b.N {
		for range 2 * 200 {
			family := (len(costs[0]) + len(costs[1])) % 2
			e, s := engines[family], &streams[family]
			for i := range made {
				made[i] = s.packet(work[i][:], pick(), in)
			}
			begin := processorTime(b)
			for some := 0; some < familyTurn; some += len(packets) {
				for i := range packets {
					packets[i].Parse(made[some+i])
				}
				e.Load(packets, in)
				for i := range packets {
					if e.Process(&packets[i], in, start).Action != nat.Forward {
						b.Fatal("not forwarded")
					}
				}
			}
			costs[family] = append(costs[family], float64(processorTime(b)-begin)/familyTurn)
		}
	}
	b.ReportMetric(middle(costs[0]), "ns/IPv4")
	b.ReportMetric(middle(costs[1]), "ns/IPv6")
	b.ReportMetric(middle(costs[1])/middle(costs[0]), "IPv6/IPv4")
}
