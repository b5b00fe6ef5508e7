package nat_test

import (
	"encoding/binary"
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// BenchmarkRecords writes down a million connections that all need it, or none, and restores them. It prints the longest wait of who wants
// the Engine meanwhile, as a packet does, and what a second round costs after a thousand packets.
func BenchmarkRecords(b *testing.B) {
	const n = 1_000_000
	for _, kind := range []struct {
		name   string
		source uint32 // of connection 0
		step   uint32
	}{{"strangers", strangers, 1}, {"pods", 10<<24 | 200<<16 | 1<<8 | 5, 0}} {
		b.Run(kind.name, func(b *testing.B) {
			change := func(c *nat.Config) { c.MaxConnections = 3*n + 3 }
			e := engine(b, change)
			var p packet.Packet
			work, s := make([]byte, 2048), newStream(false, node1)
			send := func(i int, now nat.Time) {
				p.Parse(s.from(work, i, kind.source, kind.step))
				if v := e.Process(&p, node1, now); v.Untracked || v.Action != nat.Forward {
					b.Fatal(v.Reason)
				}
			}
			for i := range n {
				send(i, start)
			}
			later := start.Add(time.Second)
			for range b.N {
				saved, took, wait := timedRecords(e, 0, later)
				b.ReportMetric(took.Seconds()*1000, "ms-saved")
				b.ReportMetric(wait.Seconds()*1000, "ms-longest-wait")
				b.ReportMetric(float64(len(saved))/n, "B/connection")
				other := engine(b, change)
				begin := time.Now()
				got := restore(other, later, saved)
				b.ReportMetric(time.Since(begin).Seconds()*1000, "ms-restored")
				if want := n * int(kind.step); got != (nat.Restored{Connections: want, Whole: true}) {
					b.Fatalf("%+v", got)
				}
				for i := range 1000 {
					send(i, later)
				}
				saved, took, _ = timedRecords(e, later, later)
				b.ReportMetric(took.Seconds()*1000, "ms-saved-changes")
				begin = time.Now()
				restore(other, later, saved)
				b.ReportMetric(time.Since(begin).Seconds()*1000, "ms-restored-changes")
			}
		})
	}
}

// strangers is the first of the addresses that no CIDR knows.
const strangers = 11 << 24

// from returns packet i, from an address that is step further than that of the packet before.
func (s *stream) from(work []byte, i int, source, step uint32) []byte {
	packet := s.packet(work, i, node1)
	binary.BigEndian.PutUint32(packet[12:], source+step*uint32(i))
	if step > 0 {
		binary.BigEndian.PutUint16(packet[22:], uint16(i>>4))
	}
	return nattest.Fix(packet)
}

// BenchmarkRecordsFirst measures in turns first packets of strangers: alone, after as many records as the keeper writes between two of its
// pauses, and of connections that were restored. It prints ratios of medians.
func BenchmarkRecordsFirst(b *testing.B) {
	const n = 1 << 18
	change := func(c *nat.Config) { c.MaxConnections = 12 * n }
	s := newStream(false, node1)
	work, packets := make([][128]byte, firstTurn), make([]packet.Packet, firstTurn)
	first := func(e *nat.Engine, i int, now nat.Time) float64 {
		for j := range packets {
			packets[j].Parse(s.from(work[j][:], i+j, strangers, 1))
		}
		begin := processorTime(b)
		for j := 0; j < firstTurn; j += nat.MaxLoad {
			batch := packets[j : j+nat.MaxLoad]
			e.Load(batch, node1)
			for k := range batch {
				if v := e.Process(&batch[k], node1, now); v.Untracked || v.Action != nat.Forward {
					b.Fatal(v.Reason)
				}
			}
		}
		return float64(processorTime(b)-begin) / firstTurn
	}
	e := engine(b, change)
	for i := 0; i < n; i += firstTurn {
		first(e, i, start)
	}
	later := start.Add(time.Second)
	saved := records(e, 0, later)
	e = engine(b, change)
	anew := func(i int) float64 {
		cost := first(e, i, later)
		for at, more := nat.Cursor(n), true; more; { // the n have the first places
			_, at, more = e.DeleteConnections(at, &nat.ConnFilter{}, later)
		}
		return cost
	}
	var alone, beside, restored []float64
	block := make([]byte, 0, nat.RecordBlock)
	next, at, r, more := n, n, (*nat.Records)(nil), false
	for range b.N {
		for range 40 {
			if at == n {
				at = 0
				if got := restore(e, later, saved); got.Connections != n || !got.Whole {
					b.Fatalf("%+v", got)
				}
			}
			alone = append(alone, anew(next))
			for range 32 {
				if !more {
					r = e.Records(0, later, recordName)
				}
				_, more = r.Next(block)
			}
			beside = append(beside, anew(next+firstTurn))
			restored = append(restored, first(e, at, later))
			if next, at = next+2*firstTurn, at+firstTurn; next >= 1<<23 { // there are no more different packets
				next = n
			}
		}
	}
	b.ReportMetric(middle(alone), "ns/first")
	b.ReportMetric(middle(beside)/middle(alone), "beside/alone")
	b.ReportMetric(middle(restored)/middle(alone), "restored/alone")
}

// timedRecords is records, with what it took and how long somebody else waited for the Engine at most.
func timedRecords(e *nat.Engine, since, now nat.Time) (saved []byte, took, wait time.Duration) {
	done, waited := make(chan struct{}), make(chan time.Duration)
	go func() {
		var most time.Duration
		for {
			select {
			case <-done:
				waited <- most
				return
			default:
			}
			begin := time.Now()
			e.FindConnection(new(packet.Tuple), now)
			most = max(most, time.Since(begin))
		}
	}()
	begin := time.Now()
	saved = records(e, since, now)
	took = time.Since(begin)
	close(done)
	return saved, took, <-waited
}
