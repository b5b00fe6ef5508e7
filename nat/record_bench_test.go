package nat_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"runtime"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/nattest/cost"
	"culvert/nat/packet"
)

// BenchmarkRecords writes a million connections, all or none of which need a record, and restores
// them. It prints the longest wait of packets, and the cost of a second round after a thousand
// packets.
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
				saved, took, burst := timedRecords(b, e, 0, later)
				b.ReportMetric(took.Seconds()*1000, "ms-saved")
				b.ReportMetric(burst.Seconds()*1000, "ms-longest-burst")
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
				saved, took, burst = timedRecords(b, e, later, later)
				b.ReportMetric(took.Seconds()*1000, "ms-saved-changes")
				b.ReportMetric(burst.Seconds()*1000, "ms-longest-burst-changes")
				begin = time.Now()
				restore(other, later, saved)
				b.ReportMetric(time.Since(begin).Seconds()*1000, "ms-restored-changes")
			}
		})
	}
}

// strangers is the first of the addresses that no CIDR contains.
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

// BenchmarkRecordsFirst measures first packets of unknown senders after as much of the records as
// is written between two pauses, of all connections or only of changed ones, each time beside as
// many without; and those of restored connections. It prints medians of the ratios.
func BenchmarkRecordsFirst(b *testing.B) {
	const n = 1 << 18
	change := func(c *nat.Config) { c.MaxConnections = 12 * n }
	s := newStream(false, node1)
	work, packets := make([][128]byte, firstTurn), make([]packet.Packet, firstTurn)
	first := func(e *nat.Engine, i int, now nat.Time) float64 {
		for j := range packets {
			packets[j].Parse(s.from(work[j][:], i+j, strangers, 1))
		}
		begin := cost.ThreadTime(b)
		for j := 0; j < firstTurn; j += nat.MaxLoad {
			batch := packets[j : j+nat.MaxLoad]
			e.Load(batch, node1)
			for k := range batch {
				if v := e.Process(&batch[k], node1, now); v.Untracked || v.Action != nat.Forward {
					b.Fatal(v.Reason)
				}
			}
		}
		return float64(cost.ThreadTime(b)-begin) / firstTurn
	}
	runtime.LockOSThread() // its CPU time is measured
	defer runtime.UnlockOSThread()
	e := engine(b, change)
	for i := 0; i < n; i += firstTurn {
		first(e, i, start)
	}
	later := start.Add(time.Second)
	saved := records(e, 0, later)
	e = engine(b, change)
	for i := 0; i < n; i += firstTurn {
		first(e, i, start)
	}
	next := n
	anew := func() float64 {
		if next += firstTurn; next >= 1<<23 { // there are no more distinct packets
			next = n
		}
		cost := first(e, next, later)
		for at, more := nat.Cursor(n), true; more; { // the n have the first places
			_, at, more = e.DeleteConnections(at, &nat.ConnFilter{}, later)
		}
		return cost
	}
	anew()
	var alone, all, changes, restored []float64
	beside := func(ratios *[]float64, since nat.Time) {
		err := e.Records(since, recordName).Write(io.Discard, later, func() {
			after, without := anew(), anew()
			*ratios, alone = append(*ratios, after/without), append(alone, without)
		})
		need.NoError(b, err)
	}
	for range b.N {
		beside(&all, 0)
		for range 8 {
			beside(&changes, later)
		}
		other := engine(b, change)
		if got := restore(other, later, saved); got.Connections != n || !got.Whole {
			b.Fatalf("%+v", got)
		}
		for i := 0; i < n; i += firstTurn {
			restored = append(restored, first(other, i, later)/anew())
		}
	}
	b.ReportMetric(middle(alone), "ns/first")
	b.ReportMetric(middle(all), "beside-all/alone")
	b.ReportMetric(middle(changes), "beside-changes/alone")
	b.ReportMetric(middle(restored), "restored/alone")
}

// timedRecords is records. It also returns the time, and the most processor time between two
// pauses: that is how long a packet waits that comes meanwhile, on one P. The longest wait in real
// time would include other processes.
func timedRecords(b *testing.B, e *nat.Engine, since, now nat.Time) (saved []byte, took, burst time.Duration) {
	runtime.LockOSThread() // whose time it is: a collection of garbage beside it is not
	defer runtime.UnlockOSThread()
	var to bytes.Buffer
	to.Grow(80 << 20)
	clear(to.AvailableBuffer()[:80<<20]) // the kernel gives memory where it is first written
	runtime.GC()
	begin, last := time.Now(), cost.ThreadTime(b)
	note := func() {
		at := cost.ThreadTime(b)
		burst, last = max(burst, at-last), at
	}
	need.NoError(b, e.Records(since, recordName).Write(&to, now, note))
	note()
	return to.Bytes(), time.Since(begin), burst
}
