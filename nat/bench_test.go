package nat_test

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/nattest/cost"
	"culvert/nat/packet"
)

// A meter compares the processor time of a benchmark's loop with that of a seal, measured right
// before and after.
type meter struct {
	seal  float64
	begin time.Duration
}

func startMeter(b *testing.B) meter {
	b.Helper()
	m := meter{seal: cost.Seal(b)}
	b.ReportAllocs()
	m.begin = cost.ProcessorTime(b)
	b.ResetTimer()
	return m
}

func (m meter) report(b *testing.B) {
	b.Helper()
	own := cost.ProcessorTime(b) - m.begin
	b.StopTimer()
	perOp := float64(own) / float64(b.N)
	yard := min(m.seal, cost.Seal(b))
	b.ReportMetric(perOp/yard, "seals/op")
	b.ReportMetric(yard, "ns/seal")
}

// A stream makes packets of distinct connections in one buffer, as in a receiver's: a table of
// packets would cause cache misses of its own.
type stream struct {
	b  []byte
	v6 bool
}

func newStream(v6 bool, in nat.Link) stream {
	p := tcp("10.200.1.0", "10.71.0.1", 1, 443, nattest.ACK, "")
	if v6 {
		p.Source, p.Destination = "fd00:200:0:1::1", "fd00:71:0:4000::1"
	}
	if in == nat.Tunnel {
		p.Source, p.Destination = "10.200.0.1", "10.200.1.0"
		p.Body = nattest.TCP{SourcePort: 443, DestinationPort: 1, Seq: 2000, Ack: 1000, Flags: nattest.ACK,
			Window: 65535}
		if v6 {
			p.Source, p.Destination = "fd00:200::1", "fd00:200:0:1::1"
		}
	}
	return stream{p.Bytes(), v6}
}

// packet writes packet i to work: the low 16 bits of i select the pod's port, the others the remote
// pod.
func (s *stream) packet(work []byte, i int, in nat.Link) []byte {
	b := work[:copy(work, s.b)]
	host, port := 18, 20 // of the remote pod, of the local port
	if in == nat.Tunnel {
		host, port = 14, 22
	}
	if s.v6 {
		host, port = 38, 40
		if in == nat.Tunnel {
			host, port = 22, 42
		}
	}
	b[host] = byte(i >> 16)
	binary.BigEndian.PutUint16(b[port:], uint16(i)|1)
	b[host+1] = byte(i)&1 | byte(i>>23)&2 | 4
	if !s.v6 {
		b[10], b[11] = 0, 0
		var c uint32
		for j := 0; j < 20; j += 2 {
			c += uint32(binary.BigEndian.Uint16(b[j:]))
		}
		c = c>>16 + c&0xffff
		binary.BigEndian.PutUint16(b[10:], ^uint16(c>>16+c))
	}
	return b
}

// load fills e with n connections that have seen packets in both directions.
func load(b testing.TB, e *nat.Engine, n int, v6 bool) {
	b.Helper()
	loadMore(b, e, 0, n, v6)
}

// loadMore adds connections to the first ones of load, up to n.
func loadMore(b testing.TB, e *nat.Engine, first, n int, v6 bool) {
	b.Helper()
	var p packet.Packet
	work := make([]byte, 2048)
	there, back := newStream(v6, node1), newStream(v6, nat.Tunnel)
	for i := first; i < n; i++ {
		p.Parse(there.packet(work, i, node1))
		if v := e.Process(&p, node1, start); v.Action != nat.Forward || v.Untracked {
			b.Fatalf("connection %d: %v %v", i, v.Action, v.Reason)
		}
		p.Parse(back.packet(work, i, nat.Tunnel))
		if v := e.Process(&p, nat.Tunnel, start); v.Action != nat.Forward {
			b.Fatalf("answer %d: %v %v", i, v.Action, v.Reason)
		}
	}
	if st := e.Stats(); st.Connections != n || st.Unreplied != 0 {
		b.Fatalf("%d connections, %d unreplied, want %d", st.Connections, st.Unreplied, n)
	}
}

// benchmarkEstablished measures packets of n connections in batches, each of which is loaded first,
// as in the gateway.
func benchmarkEstablished(b *testing.B, n int, v6 bool, in nat.Link, batch int, pick func() int) {
	e := engine(b, func(c *nat.Config) { c.MaxConnections = 4 * n })
	load(b, e, n, v6)
	s := newStream(v6, in)
	var work [nat.MaxLoad][128]byte
	packets := make([]packet.Packet, batch)
	order := make([]int32, 1<<20)
	for i := range order {
		order[i] = int32(pick())
	}
	m := startMeter(b)
	for i := 0; i < b.N; i += batch {
		for j := range packets {
			packets[j].Parse(s.packet(work[j][:], int(order[(i+j)%len(order)]), in))
		}
		forward(b, e, packets, in)
	}
	m.report(b)
}

// forward loads and processes a batch, as the gateway does. All of it must be forwarded.
func forward(b *testing.B, e *nat.Engine, packets []packet.Packet, in nat.Link) {
	e.Load(packets, in)
	for i := range packets {
		if v := e.Process(&packets[i], in, start); v.Action != nat.Forward || v.Untracked {
			b.Fatalf("packet %d: %v %v", i, v.Action, v.Reason)
		}
	}
}

// BenchmarkBuild measures what the other benchmarks spend on making their packets.
func BenchmarkBuild(b *testing.B) {
	s := newStream(false, node1)
	work := make([]byte, 2048)
	m := startMeter(b)
	for i := range b.N {
		s.packet(work, i, node1)
	}
	m.report(b)
}

func BenchmarkEstablished(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, v6 := range []bool{false, true} {
		for _, in := range []nat.Link{node1, nat.Tunnel} {
			name := map[bool]string{false: "IPv4", true: "IPv6"}[v6] + map[nat.Link]string{node1: "/outbound",
				nat.Tunnel: "/inbound"}[in]
			zipf := rand.NewZipf(r, 1.1, 1, 1e6-1)
			for _, x := range []struct {
				name     string
				n, batch int
				pick     func() int
			}{
				{"1000", 1000, nat.MaxLoad, func() int { return r.IntN(1000) }},
				{"1000/one by one", 1000, 1, func() int { return r.IntN(1000) }},
				{"1000000/uniform", 1e6, nat.MaxLoad, func() int { return r.IntN(1e6) }},
				{"1000000/zipf", 1e6, nat.MaxLoad, func() int { return int(zipf.Uint64()) }},
				{"1000000/zipf/one by one", 1e6, 1, func() int { return int(zipf.Uint64()) }},
			} {
				b.Run(name+"/"+x.name, func(b *testing.B) { benchmarkEstablished(b, x.n, v6, in, x.batch, x.pick) })
			}
		}
	}
}

// BenchmarkMemory prints bytes per connection with a million of them, and what they add to a
// garbage collection: connections of one pod, and, most costly, of unknown senders each with an
// address and a destination of its own.
func BenchmarkMemory(b *testing.B) {
	b.Run("pod", func(b *testing.B) { benchmarkMemory(b, func([]byte, int) {}) })
	b.Run("strangers", func(b *testing.B) {
		benchmarkMemory(b, func(packet []byte, i int) {
			binary.BigEndian.PutUint32(packet[12:], 11<<24|uint32(i))
			binary.BigEndian.PutUint16(packet[22:], uint16(i>>4))
			nattest.Fix(packet)
		})
	})
}

func benchmarkMemory(b *testing.B, change func(packet []byte, i int)) {
	const n = 1_000_000
	for range b.N {
		var before, after runtime.MemStats
		e := engine(b, func(c *nat.Config) { c.MaxConnections = 3*n + 3 })
		runtime.GC()
		runtime.ReadMemStats(&before)
		begin := time.Now()
		runtime.GC()
		empty := time.Since(begin)
		var p packet.Packet
		work := make([]byte, 2048)
		s := newStream(false, node1)
		for i := range n {
			packet := s.packet(work, i, node1)
			change(packet, i)
			p.Parse(packet)
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

// BenchmarkFlood prints how much slower 1,000 established connections are served while half-open
// ones arrive, packet by packet: only their own processor time, compared with the same without the
// flood.
func BenchmarkFlood(b *testing.B) {
	const established, batch = 1000, 2000
	measure := func(flood bool) float64 {
		e := engine(b, func(c *nat.Config) { c.MaxConnections = 3 << 17 })
		load(b, e, established, false)
		s := newStream(false, node1)
		syn := newStream(false, node2)
		copy(syn.b[12:], []byte{203, 0, 113, 9})
		syn.b[33] = nattest.SYN
		work := make([]byte, 2048)
		var p packet.Packet
		var own time.Duration
		rounds := max(1, b.N/batch)
		for r := range rounds {
			if flood {
				for i := range batch {
					p.Parse(syn.packet(work, r*batch+i, node2))
					e.Process(&p, node2, start)
				}
			}
			begin := cost.ProcessorTime(b)
			for i := range batch {
				p.Parse(s.packet(work, i%established, node1))
				if e.Process(&p, node1, start).Action != nat.Forward {
					b.Fatal("not forwarded")
				}
			}
			own += cost.ProcessorTime(b) - begin
		}
		if st := e.Stats(); st.Connections < established {
			b.Fatalf("%d connections left", st.Connections)
		}
		return float64(own) / float64(rounds*batch)
	}
	quiet := measure(false)
	b.ResetTimer()
	flooded := measure(true)
	b.ReportMetric(quiet/flooded, "of-the-quiet-rate")
}
