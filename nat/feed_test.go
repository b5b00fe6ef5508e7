package nat_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/nattest/cost"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// replicated is keeping with room for few, and with a service whose backend gets a PROXY protocol
// header.
func replicated(c *nat.Config) {
	keeping(c)
	c.MaxConnections = 48
	c.Timeouts.UDP, c.Timeouts.TCPSynSent = 20*time.Second, 20*time.Second
	told := service(rules.Backend{Address: address("10.200.1.6"), Port: 8080})
	told.Name, told.Address, told.ProxyProtocol = "told", address("10.70.0.21"), true
	c.Services = append(c.Services, told)
}

// A flow is a connection of feedTraffic. There, "back" is what the other end sends.
type flow struct {
	in, far   nat.Link
	first     nattest.IP
	seq, seen uint32 // the opener's next number, and the other end's
	view      nattest.View
}

// feedTraffic sends packets of few connections that are likely to meet each other.
type feedTraffic struct {
	t      *testing.T
	random *rand.Rand
	e      *nat.Engine
	now    nat.Time
	flows  []*flow
}

func (x *feedTraffic) open() {
	r := x.random
	port := uint16(2000 + r.IntN(6))
	f := &flow{in: node1, far: nat.Tunnel}
	switch r.IntN(6) {
	case 0: // of a stranger: behind U
		f.first = tcp(fmt.Sprint("203.0.113.", 9+r.IntN(3)), "10.71.3.9", port, 80, nattest.SYN, "")
	case 1:
		f.first = udp(fmt.Sprint("203.0.113.", 9+r.IntN(3)), "10.71.3.9", port, 53)
	case 2: // to a service
		f.in, f.far = nat.Tunnel, node1
		f.first = tcp(fmt.Sprint("10.200.3.", 9+r.IntN(5)), "10.70.0.20", port, 80, nattest.SYN, "")
	case 3: // to one that gets a header
		f.in, f.far = nat.Tunnel, node1
		f.first = tcp("10.200.3.9", "10.70.0.21", port, 80, nattest.SYN, "")
	case 4: // to a mapped host
		f.in, f.far = nat.Tunnel, node2
		f.first = udp("10.200.3.9", "10.70.0.9", port, 80)
	default: // between pods, which needs no record
		f.first = udp("10.200.1.5", "10.71.3.9", port, 53)
	}
	f.seq, f.seen = 1000, 5000
	if v, out := process(x.t, x.e, f.in, f.first.Bytes(), x.now); v.Action == nat.Forward && len(out) == 1 {
		view, err := nattest.Check(out[0])
		if err != nil {
			x.t.Fatal(err)
		}
		f.view, f.seq = view, f.seq+1
		if x.flows = append(x.flows, f); len(x.flows) > 60 {
			x.flows = x.flows[1:]
		}
	}
}

// packets returns what a flow may send next: the opener, or else the other end.
func (f *flow) packet(flags uint8, payload string, back bool) (nat.Link, nattest.IP) {
	p := f.first
	in := f.in
	if back {
		in = f.far
		p.Source, p.Destination = f.view.Destination.String(), f.view.Source.String()
	}
	switch body := p.Body.(type) {
	case nattest.UDP:
		if back {
			body.SourcePort, body.DestinationPort = f.view.DestinationPort, f.view.SourcePort
		}
		p.Body = body
	case nattest.TCP:
		body.Flags, body.Payload, body.Seq, body.Ack = flags, []byte(payload), f.seq, f.seen
		if back {
			body.SourcePort, body.DestinationPort = f.view.DestinationPort, f.view.SourcePort
			body.Seq, body.Ack = f.seen, f.seq
		}
		p.Body = body
	}
	return in, p
}

// goOn sends the next packet of a flow.
func (x *feedTraffic) goOn() {
	if len(x.flows) == 0 {
		return
	}
	r, f := x.random, x.flows[x.random.IntN(len(x.flows))]
	back := r.IntN(2) == 0
	flags, payload := uint8(nattest.ACK), ""
	switch r.IntN(8) {
	case 0, 1:
		payload = "some data"
	case 2:
		flags |= nattest.FIN
	case 3:
		flags |= nattest.RST
	case 4, 5:
		if back {
			flags |= nattest.SYN
		}
	}
	in, p := f.packet(flags, payload, back)
	process(x.t, x.e, in, p.Bytes(), x.now)
	n := uint32(len(payload))
	if flags&(nattest.SYN|nattest.FIN) != 0 {
		n++
	}
	if back {
		f.seen += n
	} else {
		f.seq += n
	}
}

// step has something happen.
func (x *feedTraffic) step(config *nat.Config) {
	switch r := x.random; {
	case r.IntN(3) == 0:
		x.open()
	case r.IntN(80) == 0:
		x.now = x.now.Add(time.Duration(r.IntN(30)) * time.Second)
	case r.IntN(60) == 0:
		for at, more := nat.Cursor(0), true; more; {
			_, at, more = x.e.DeleteConnections(at, &nat.ConnFilter{Ports: []uint16{uint16(2000 + r.IntN(6))}}, x.now)
		}
	case r.IntN(100) == 0: // a mapping comes and goes
		if config.Addresses = nil; r.IntN(2) == 0 {
			config.Addresses = []rules.AddressMapping{{External: address("10.70.0.9"),
				Internal: address("192.0.2.10"), Via: node2}}
		}
		if err := x.e.Apply(config); err != nil {
			x.t.Fatal(err)
		}
	default:
		x.goOn()
	}
	x.now = x.now.Add(time.Millisecond)
}

// tell has a Mirror read what a Feed tells, at most some blocks, and reports whether that was all.
func tell(f *nat.Feed, m *nat.Mirror, now nat.Time, some int) bool {
	for range some {
		b, more := f.Next(nil, now, func() {})
		if m.Write(b, now); !more {
			return true
		}
	}
	return false
}

// BenchmarkFeed measures connections of strangers: their first packets, with a Feed that is read
// beside them and without; what a million of them take to copy; and packets of established ones. It
// prints medians of the ratios.
func BenchmarkFeed(b *testing.B) {
	const n = 1 << 18
	change := func(c *nat.Config) { c.MaxConnections = 12 * n }
	s := newStream(false, node1)
	work, packets := make([][128]byte, firstTurn), make([]packet.Packet, firstTurn)
	some := func(e *nat.Engine, i int, now nat.Time) float64 {
		for j := range packets {
			packets[j].Parse(s.from(work[j][:], i+j, strangers, 1))
		}
		begin := cost.ProcessorTime(b)
		for j := 0; j < firstTurn; j += nat.MaxLoad {
			batch := packets[j : j+nat.MaxLoad]
			e.Load(batch, node1)
			for k := range batch {
				if v := e.Process(&batch[k], node1, now); v.Untracked || v.Action != nat.Forward {
					b.Fatal(v.Reason)
				}
			}
		}
		return float64(cost.ProcessorTime(b)-begin) / firstTurn
	}
	pause := func() {}
	var first, firstFed, again, againFed, read, copied []float64
	block := make([]byte, 0, nat.RecordBlock)
	for range b.N {
		alone, fed := engine(b, change), engine(b, change)
		feed := fed.Feed(recordName)
		for i := 0; i < n; i += firstTurn {
			first = append(first, some(alone, i, start))
			firstFed = append(firstFed, some(fed, i, start))
			begin := cost.ProcessorTime(b)
			for more := true; more; {
				_, more = feed.Next(block, start, pause)
			}
			read = append(read, float64(cost.ProcessorTime(b)-begin)/firstTurn)
		}
		for i := 0; i < n; i += firstTurn {
			again = append(again, some(alone, i, start))
			againFed = append(againFed, some(fed, i, start))
		}
		feed.Copy()
		begin := cost.ProcessorTime(b)
		for more := true; more; {
			_, more = feed.Next(block, start, pause)
		}
		copied = append(copied, float64(cost.ProcessorTime(b)-begin)/n)
	}
	b.ReportMetric(middle(first), "ns/first")
	b.ReportMetric(middle(firstFed)/middle(first), "first-fed/alone")
	b.ReportMetric(middle(read), "ns/read")
	b.ReportMetric(middle(again), "ns/established")
	b.ReportMetric(middle(againFed)/middle(again), "established-fed/alone")
	b.ReportMetric(middle(copied), "ns/copied")
}

// A Mirror has the table of the Feed's Engine at the end of each pass, whatever has happened and
// however long nobody read: each connection that needs a record, with its translation, state and
// mark, and no other; and so have the Mirror of that one, and a process that restarts on either.
func TestFeedModel(t *testing.T) {
	rounds := 150
	if testing.Short() {
		rounds = 20
	}
	for seed := range uint64(rounds) {
		r := rand.New(rand.NewPCG(seed, 27))
		config := rome()
		replicated(config)
		x := &feedTraffic{t: t, random: r, e: engine(t, replicated), now: start}
		other, third := engine(t, replicated), engine(t, replicated)
		other.Freeze()
		third.Freeze()
		for range r.IntN(100) {
			x.step(config)
		}
		feed := x.e.Feed(recordName)
		if r.IntN(2) == 0 {
			feed.Room(2 + r.IntN(20))
		}
		mirror := other.Mirror(recordLink)
		next, last := other.Feed(recordName), third.Mirror(recordLink)
		for range 1 + r.IntN(8) {
			for range r.IntN(400) {
				if x.step(config); r.IntN(10) == 0 {
					tell(feed, mirror, x.now, 1)
				}
			}
			if r.IntN(4) == 0 { // another stream, to a table that has something
				feed.Close()
				mirror.Close()
				feed, mirror = x.e.Feed(recordName), other.Mirror(recordLink)
				tell(feed, mirror, x.now, r.IntN(2))
			}
			for !x.e.Sweep(x.now) {
			}
			for _, e := range []*nat.Engine{other, third} {
				need.NoError(t, e.Apply(config))
				for !e.Sweep(x.now) {
				}
			}
			// What another configuration did not admit comes again.
			if mirror.State().Unbound > 0 {
				feed.Copy()
			}
			if last.State().Unbound > 0 {
				next.Copy()
			}
			for !tell(feed, mirror, x.now, 1) || feed.State().Lost || feed.State().Copying {
			}
			for !tell(next, last, x.now, 1) || next.State().Lost {
			}
			want, most := nat.Needed(x.e, x.now, false), nat.Needed(x.e, x.now, true)
			for i, e := range []*nat.Engine{other, third} {
				got := nat.Needed(e, x.now, false)
				missing := slices.DeleteFunc(slices.Clone(want), func(s string) bool { return slices.Contains(got, s) })
				more := slices.DeleteFunc(got, func(s string) bool {
					tuples, _, _ := strings.Cut(s, "|")
					return slices.Contains(want, s) || !slices.ContainsFunc(want,
						func(o string) bool { return strings.HasPrefix(o, tuples) }) && slices.Contains(most, tuples)
				})
				if len(missing)+len(more) > 0 {
					t.Fatalf("seed %d, mirror %d lacks\n%s\nhas\n%s\n%+v", seed, i, strings.Join(missing, "\n"),
						strings.Join(more, "\n"), mirror.State())
				}
				ledger(t, e)
			}
			if s := mirror.State(); !s.Whole || s.Copying || s.Damaged+s.Foreign+s.NoRoom+s.UnknownLink > 0 {
				t.Fatalf("seed %d: %+v", seed, s)
			}
		}
		x.switchTo(other)
	}
}

// switchTo sends the same packets to the engine of the model and to its mirror: both do the same
// with them.
func (x *feedTraffic) switchTo(other *nat.Engine) {
	x.now = x.now.Add(10 * time.Minute)
	other.Thaw(x.now)
	at := x.now.Add(-10 * time.Minute)
	for _, f := range x.flows {
		if f.first.Source == "10.200.1.5" {
			continue // the mirror has it when a packet makes it again, in the place of another
		}
		for _, back := range []bool{false, true} {
			in, p := f.packet(nattest.ACK, "", back)
			var t packet.Tuple
			var parsed packet.Packet
			parsed.Parse(p.Bytes())
			parsed.Tuple(&t, in)
			if _, ok := x.e.FindConnection(&t, at); !ok {
				continue // nobody needs a new connection to be the same
			}
			v, out := process(x.t, x.e, in, p.Bytes(), at)
			w, got := process(x.t, other, in, p.Bytes(), x.now)
			if v.Action != w.Action || v.Out != w.Out || v.Reason != w.Reason || fmt.Sprint(got) != fmt.Sprint(out) {
				x.t.Fatalf("%v at link %d: %v %v %v, want %v %v %v", t, in, w.Action, w.Reason, w.Out, v.Action,
					v.Reason, v.Out)
			}
		}
	}
}

// The end of a copy that never began takes nothing away.
func TestMirrorWithoutCopy(t *testing.T) {
	e := engine(t, replicated)
	forwarded(t, e, node1, udp("203.0.113.9", "10.71.3.9", 999, 53).Bytes(), start)
	m := e.Mirror(recordLink)
	m.Write(blocks([]byte{5, 0, 0}), start)
	if st, got := e.Stats(), m.State(); st.Connections != 1 || got.Copies != 0 || got.Removed != 0 {
		t.Fatalf("%d connections, %+v", st.Connections, got)
	}
}
