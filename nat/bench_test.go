package nat_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"

	"golang.org/x/crypto/chacha20poly1305"
)

// seal measures a ChaCha20-Poly1305 seal of 1400 bytes, the yardstick of architecture.md, Section 7, in nanoseconds.
func seal(b *testing.B) float64 {
	b.Helper()
	key := make([]byte, chacha20poly1305.KeySize)
	aead, err := chacha20poly1305.New(key)
	if err != nil {
		b.Fatal(err)
	}
	plain, nonce := make([]byte, 1400), make([]byte, aead.NonceSize())
	out := make([]byte, 0, 1500)
	best := time.Hour
	for range 5 {
		const n = 20000
		begin := time.Now()
		for range n {
			out = aead.Seal(out[:0], nonce, plain, nil)
		}
		best = min(best, time.Since(begin)/n)
	}
	return float64(best)
}

// report prints the ratio to a seal measured right before and after.
func report(b *testing.B, before float64) {
	b.Helper()
	perOp := float64(b.Elapsed()) / float64(b.N)
	yard := min(before, seal(b))
	b.ReportMetric(perOp/yard, "seals/op")
	b.ReportMetric(yard, "ns/seal")
}

// flow returns packet number i of distinct connections, built once.
func flow(i int, v6 bool) nattest.IP {
	p := tcp(fmt.Sprintf("10.200.1.%d", 1+i%250), fmt.Sprintf("10.71.%d.%d", i/250%250, 1+i/62500%250), uint16(1024+i%60000), 443, nattest.ACK, "")
	if v6 {
		p.Source, p.Destination = fmt.Sprintf("fd00:200:0:1::%x", 1+i%250), fmt.Sprintf("fd00:71:0:4000::%x:%x", i/250%250, 1+i/62500)
	}
	return p
}

// load fills e with n connections that have seen packets both ways, and returns their outbound packets.
func load(b *testing.B, e *nat.Engine, n int, v6 bool) [][]byte {
	b.Helper()
	packets := make([][]byte, n)
	var p nat.Packet
	work := make([]byte, 2048)
	for i := range packets {
		f := flow(i, v6)
		packets[i] = f.Bytes()
		p.Parse(work[:copy(work, packets[i])])
		if v := e.Process(&p, node1, start); v.Action != nat.Forward || v.Untracked {
			b.Fatalf("connection %d: %v %v", i, v.Action, v.Reason)
		}
		view, _ := nattest.Check(p.Bytes())
		answer := tcp(view.Destination.String(), view.Source.String(), view.DestinationPort, view.SourcePort, nattest.ACK, "")
		p.Parse(answer.Bytes())
		if v := e.Process(&p, nat.Tunnel, start); v.Action != nat.Forward {
			b.Fatalf("answer %d: %v %v", i, v.Action, v.Reason)
		}
	}
	if got := e.Stats().Connections; got != n {
		b.Fatalf("%d connections, want %d", got, n)
	}
	return packets
}

func benchmarkEstablished(b *testing.B, n int, v6 bool, pick func() int) {
	e := engine(b, func(c *nat.Config) { c.MaxConnections, c.MaxHalfOpen = 2*n, 2*n })
	packets := load(b, e, n, v6)
	work := make([]byte, 2048)
	var p nat.Packet
	yard := seal(b)
	order := make([]int32, 1<<16)
	for i := range order {
		order[i] = int32(pick())
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		p.Parse(work[:copy(work, packets[order[i%len(order)]])])
		if e.Process(&p, node1, start).Action != nat.Forward {
			b.Fatal("not forwarded")
		}
	}
	b.StopTimer()
	report(b, yard)
}

func BenchmarkEstablished(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, v6 := range []bool{false, true} {
		family := map[bool]string{false: "IPv4", true: "IPv6"}[v6]
		b.Run(family+"/1000", func(b *testing.B) {
			benchmarkEstablished(b, 1000, v6, func() int { return r.IntN(1000) })
		})
		b.Run(family+"/1000000/uniform", func(b *testing.B) {
			benchmarkEstablished(b, 1e6, v6, func() int { return r.IntN(1e6) })
		})
		b.Run(family+"/1000000/zipf", func(b *testing.B) {
			z := rand.NewZipf(r, 1.1, 1, 1e6-1)
			benchmarkEstablished(b, 1e6, v6, func() int { return int(z.Uint64()) })
		})
	}
}

// BenchmarkFirst is a new connection per packet, in a table that grows to its cap and then makes room.
func BenchmarkFirst(b *testing.B) {
	for _, v6 := range []bool{false, true} {
		b.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(b *testing.B) {
			e := engine(b, func(c *nat.Config) { c.MaxConnections, c.MaxHalfOpen = 1e6, 1e6 })
			packets := make([][]byte, 1<<17)
			for i := range packets {
				f := flow(i, v6)
				packets[i] = f.Bytes()
			}
			work := make([]byte, 2048)
			var p nat.Packet
			yard := seal(b)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				packet := work[:copy(work, packets[i%len(packets)])]
				packet[len(packet)-20], packet[len(packet)-19] = byte(i>>17), byte(i>>25) // source port
				p.Parse(packet)
				if e.Process(&p, node1, start).Action != nat.Forward {
					b.Fatal("not forwarded")
				}
			}
			b.StopTimer()
			report(b, yard)
		})
	}
}

// BenchmarkMemory prints bytes per connection with a million of them, and what they add to a garbage collection.
func BenchmarkMemory(b *testing.B) {
	const n = 1_000_000
	for range b.N {
		var before, after runtime.MemStats
		e := engine(b, func(c *nat.Config) { c.MaxConnections, c.MaxHalfOpen = n, n })
		runtime.GC()
		runtime.ReadMemStats(&before)
		begin := time.Now()
		runtime.GC()
		empty := time.Since(begin)
		var p nat.Packet
		work := make([]byte, 2048)
		template := flow(0, false)
		packet := template.Bytes()
		for i := range n {
			b := work[:copy(work, packet)]
			b[20], b[21], b[22], b[23] = byte(i>>8), byte(i), byte(i>>16), 1
			p.Parse(b)
			if v := e.Process(&p, node1, start); v.Untracked || v.Action != nat.Forward {
				panic(v.Reason)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		full := time.Duration(1 << 62)
		for range 3 {
			begin = time.Now()
			runtime.GC()
			full = min(full, time.Since(begin))
		}
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/connection")
		b.ReportMetric(float64(full-empty)/1e6, "ms-GC-added")
		runtime.KeepAlive(e)
	}
}
