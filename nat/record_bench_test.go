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
	}{{"strangers", 11 << 24, 1}, {"pods", 10<<24 | 200<<16 | 1<<8 | 5, 0}} {
		b.Run(kind.name, func(b *testing.B) {
			change := func(c *nat.Config) { c.MaxConnections = 3*n + 3 }
			e := engine(b, change)
			var p packet.Packet
			work, s := make([]byte, 2048), newStream(false, node1)
			send := func(i int, now nat.Time) {
				packet := s.packet(work, i, node1)
				binary.BigEndian.PutUint32(packet[12:], kind.source+kind.step*uint32(i))
				if kind.step > 0 {
					binary.BigEndian.PutUint16(packet[22:], uint16(i>>4))
				}
				nattest.Fix(packet)
				p.Parse(packet)
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
