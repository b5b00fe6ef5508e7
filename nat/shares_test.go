package nat_test

import (
	"fmt"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// flood sends n packets, from each of the ports from 1024 on in turn. It returns how many were
// forwarded, and why the last one was not.
func flood(t testing.TB, e *nat.Engine, in nat.Link, p nattest.IP, n int, now nat.Time) (passed int, last nat.Reason) {
	t.Helper()
	b := p.Bytes()
	work := make([]byte, len(b))
	for i := range n {
		port := uint16(1024 + i%(65536-1024))
		b[20], b[21], b[26], b[27] = byte(port>>8), byte(port), 0, 0
		var q packet.Packet
		q.Parse(work[:copy(work, b)])
		if v := e.Process(&q, in, now); v.Action == nat.Forward {
			passed++
		} else {
			last = v.Reason
		}
	}
	return passed, last
}

// One source that asks for all ports of U towards a destination gets a third of them. The next one,
// behind another node or the same, lacks nothing.
func TestPortFlood(t *testing.T) {
	e := engine(t)
	taken, reason := flood(t, e, node1, udp("203.0.113.9", "10.71.3.9", 1, 9000), 65536-1024, start)
	// The first 64th counts for nobody.
	if want := (65536 - 1024) * 15 / 16 * (1 + 2.0/64) / 3; taken != int(want) || reason != nat.ReasonPortShare {
		t.Fatalf("%d ports, want %v; %v", taken, want, reason)
	}
	for i := range 200 {
		now := start.Add(time.Duration(i) * 500 * time.Millisecond)
		forwarded(t, e, node2, udp("198.51.100.7", "10.71.3.9", uint16(2000+i), 9000).Bytes(), now)
		forwarded(t, e, node1, udp("198.51.100.7", "10.71.3.9", uint16(3000+i), 9000).Bytes(), now)
		// The source at its share reaches every other port.
		forwarded(t, e, node1, udp("203.0.113.9", "10.71.3.9", uint16(2000+i), 9001).Bytes(), now)
	}
	// When they expire, it gets all of it back.
	later := start.Add(10 * time.Minute)
	for !e.Sweep(later) {
	}
	if again, _ := flood(t, e, node2, udp("203.0.113.10", "10.71.3.9", 1, 9000), 65536-1024, later); again != taken {
		t.Fatalf("%d ports, %d before", again, taken)
	}
	ledger(t, e)
}

// When many nodes have used up their shares, the next one still finds a port among the few that are
// free.
func TestPortsNearExhaustion(t *testing.T) {
	e := engine(t, func(c *nat.Config) {
		for i := range 20 {
			c.Nodes = append(c.Nodes, rules.Node{Link: nat.Link(100 + i), Name: fmt.Sprint("n", i),
				Address: rules.PairOf(address(fmt.Sprintf("10.80.1.%d", i)))})
		}
		c.MaxConnections = 1 << 20
	})
	total := 0
	for i := range 20 {
		for j := range 12 {
			n, _ := flood(t, e, nat.Link(100+i), udp(fmt.Sprintf("203.0.%d.%d", i, j), "10.71.3.9", 1, 9000),
				40000>>min(i, 8), start)
			total += n
		}
	}
	if total < 59000 {
		t.Fatalf("only %d ports are in use", total)
	}
	if st := e.Stats(); st.Outbound.Dropped[nat.ReasonPortExhausted] > uint64(total)/2000 {
		t.Fatalf("%d tries failed", st.Outbound.Dropped[nat.ReasonPortExhausted])
	}
}

// One source gets a third of the table, however its far end answers, one network two fifths and one
// node a half. Each then replaces its own connections, or continues untracked, while others get in
// and stay.
func TestConnectionShares(t *testing.T) {
	const most = 3000
	colluding := func(t *testing.T, e *nat.Engine, source string, n int) nat.Reason {
		t.Helper()
		for i := range n {
			p := udp(source, "10.71.3.9", uint16(2000+i), 53)
			v, out := process(t, e, node1, p.Bytes(), start)
			if v.Action != nat.Forward {
				return v.Reason
			}
			view, _ := nattest.Check(out[0])
			answerTo(t, e, p, view, start)
			forwarded(t, e, node1, p.Bytes(), start) // a stream
			answerTo(t, e, p, view, start)
		}
		return nat.ReasonNone
	}
	tests := []struct {
		name   string
		attack func(t *testing.T, e *nat.Engine)
		want   int // connections
	}{
		{"unanswered, one source", func(t *testing.T, e *nat.Engine) {
			if n, _ := flood(t, e, node1, udp("203.0.113.9", "10.71.3.9", 1, 53), 20000, start); n != 20000 {
				t.Fatalf("%d packets", n)
			}
		}, most / 3},
		{"unanswered, many sources", func(t *testing.T, e *nat.Engine) {
			for i := range 250 {
				flood(t, e, node1, udp(fmt.Sprintf("203.0.%d.9", i), "10.71.3.9", 1, 53), 100, start)
			}
		}, most / 2},
		{"unanswered, many sources of a network", func(t *testing.T, e *nat.Engine) {
			for i := range 250 {
				flood(t, e, node1, udp(fmt.Sprintf("203.0.113.%d", i), "10.71.3.9", 1, 53), 100, start)
			}
		}, most * 2 / 5},
		{"answered, one source", func(t *testing.T, e *nat.Engine) {
			if r := colluding(t, e, "203.0.113.9", 20000); r != nat.ReasonConnectionShare {
				t.Fatal(r)
			}
		}, most / 3},
		{"answered, many sources", func(t *testing.T, e *nat.Engine) {
			for i := range 250 {
				colluding(t, e, fmt.Sprintf("203.0.%d.9", i), 100)
			}
		}, most / 2},
		{"answered, many sources of a network", func(t *testing.T, e *nat.Engine) {
			for i := range 250 {
				colluding(t, e, fmt.Sprintf("203.0.113.%d", i), 100)
			}
		}, most * 2 / 5},
		{"answered, a pod, which needs no state", func(t *testing.T, e *nat.Engine) {
			before := e.Stats().Outbound.Untracked
			for i := range 5000 {
				p := udp("10.200.1.5", "10.71.3.9", uint16(2000+i), 53)
				v, view, _ := forwarded(t, e, node1, p.Bytes(), start)
				if !v.Untracked {
					answerTo(t, e, p, view, start)
					forwarded(t, e, node1, p.Bytes(), start)
					answerTo(t, e, p, view, start)
				} else if i < most/3 {
					t.Fatalf("connection %d is untracked", i)
				}
			}
			if n := e.Stats().Outbound.Untracked - before; n != 5000-most/3 && n != 5001-most/3 {
				t.Fatalf("%+v", e.Stats())
			}
		}, most / 3},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e := engine(t, func(c *nat.Config) { c.MaxConnections = most })
			settled := handshake(t, e, node2, "203.0.113.200", 999, start)
			test.attack(t, e)
			if got := e.Stats().Connections; got < test.want-3 || got > test.want+3 {
				t.Fatalf("%d connections, want %d", got, test.want)
			}
			// Others are served as if there were no flood: 100 of another node, each answered, and
			// the earlier ones.
			for i := range 100 {
				handshake(t, e, node2, "198.51.100.7", uint16(3000+i), start.Add(time.Second))
			}
			test.attack(t, e)
			for i := range 100 {
				p := tcp("198.51.100.7", "10.71.3.9", uint16(3000+i), 80, nattest.ACK, "x")
				if _, view, _ := forwarded(t, e, node2, p.Bytes(), start.Add(time.Second)); view.SourcePort !=
					uint16(3000+i) {
					t.Fatal(view)
				}
			}
			back := nattest.IP{Source: "10.200.3.9", Destination: "10.70.0.0", Body: nattest.TCP{SourcePort: 80,
				DestinationPort: settled.SourcePort,
				Seq:             5001, Ack: 1001, Flags: nattest.ACK, Payload: []byte("x")}}
			forwarded(t, e, nat.Tunnel, back.Bytes(), start.Add(time.Second))
			ledger(t, e)
		})
	}
}

// A pod at its share takes nothing from a neighbour, even on the same node and so, with IPv6, in
// the same /64. IPv6 hosts elsewhere have a /64 each.
func TestSharesOfPods(t *testing.T) {
	const most = 3000
	for _, test := range []struct {
		name            string
		in              nat.Link
		greedy, another string // sources
		to              string
		told            bool // apart from each other
	}{
		{"pods of a node", node1, "10.200.1.5", "10.200.1.6", "10.71.3.9", true},
		{"pods of a node over IPv6", node1, pod6, "fd00:200:0:1::6", remote6, true},
		{"pods beyond the tunnel", nat.Tunnel, "10.200.3.9", "10.200.3.10", "10.200.1.5", true},
		{"pods beyond the tunnel over IPv6", nat.Tunnel, remoteReal6, "fd00:200::a", pod6, true},
		{"clients of one /64", node1, "2001:db8::5", "2001:db8::6", remote6, false},
		{"clients of two", node1, "2001:db8::5", "2001:db8:0:1::5", remote6, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := engine(t, dual, func(c *nat.Config) { c.MaxConnections = most })
			// open reports whether a connection was created, with an answer that protects it from
			// eviction.
			open := func(source string, port uint16) bool {
				v, out := process(t, e, test.in, udp(source, test.to, port, 53).Bytes(), start)
				if v.Action != nat.Forward || v.Untracked {
					return false
				}
				view, err := nattest.Check(out[0])
				need.NoError(t, err)
				answer := udp(view.Destination.String(), view.Source.String(), view.DestinationPort, view.SourcePort)
				for range 2 { // a stream
					forwarded(t, e, v.Out, answer.Bytes(), start)
					forwarded(t, e, test.in, udp(source, test.to, port, 53).Bytes(), start)
				}
				return true
			}
			made := 0
			for made < most && open(test.greedy, uint16(2000+made)) {
				made++
			}
			if made != most/3 {
				t.Errorf("one has %d connections of %d", made, most)
			}
			made = 0
			for made < 100 && open(test.another, uint16(2000+made)) {
				made++
			}
			if told := made == 100; told != test.told {
				t.Errorf("another has %d connections of 100", made)
			}
			// The same for fragments that wait for their first fragment.
			pieces := func(source string, id uint32) [][]byte {
				p := nattest.IP{Source: source, Destination: test.to, Body: nattest.UDP{SourcePort: 9,
					DestinationPort: 53, Payload: make([]byte, 1000)}}
				return nattest.Pieces(p, 800, id)
			}
			const some = 20
			for id := range uint32(some) {
				process(t, e, test.in, pieces(test.another, id)[1], start)
			}
			for id := range uint32(1000) {
				process(t, e, test.in, pieces(test.greedy, some+id)[1], start)
			}
			waited := 0
			for id := range uint32(some) {
				v, _ := process(t, e, test.in, pieces(test.another, id)[0], start)
				waited += v.Held
			}
			if told := waited == some; told != test.told {
				t.Errorf("%d of another's %d fragments still waited", waited, some)
			}
			ledger(t, e)
		})
	}
}

// Sources are distinguished however many there are: beside one at its share, none of ten thousand
// others suffers.
func TestSharesAreExact(t *testing.T) {
	const most = 120_000
	e := engine(t, func(c *nat.Config) { c.MaxConnections = most })
	flood(t, e, node1, udp("203.0.113.9", "10.71.3.9", 1, 53), 65536-1024, start)
	for i := range 10_000 {
		forwarded(t, e, node2, udp(fmt.Sprintf("198.%d.%d.9", i>>8, i&255), "10.71.3.9", 2000, uint16(1+i%50)).Bytes(),
			start)
	}
	if d := e.Stats().Outbound; d.Dropped[nat.ReasonConnectionShare] != 0 {
		t.Fatalf("%+v", d)
	}
}

// fragmented reports whether a datagram in three fragments, the first one last, passes as a whole.
func fragmented(t *testing.T, e *nat.Engine, in nat.Link, p nattest.IP, id uint32, now nat.Time) bool {
	t.Helper()
	parts := nattest.Pieces(p, 800, id)
	return nattest.Reassemble(deliver(t, e, in, [][]byte{parts[2], parts[1], parts[0]}, now)) != nil
}

// loneFragment is a fragment whose datagram never becomes complete.
func loneFragment(source, destination string, id int) []byte {
	return nattest.IP{Source: source, Destination: destination, ID: uint16(id), Offset: 800, MF: true,
		Body: nattest.Raw{Protocol: 17, Payload: make([]byte, 64)}}.Bytes()
}

// Incomplete fragments, of one source or many, at once or nine a second, do not stop others'
// fragmented traffic: of other nodes, of U, mappings and services, and of the tunnel.
func TestFragmentFlood(t *testing.T) {
	big := func(source, destination string, sport, dport uint16) nattest.IP {
		return nattest.IP{Source: source, Destination: destination, Body: nattest.UDP{SourcePort: sport,
			DestinationPort: dport, Payload: make([]byte, 2000)}}
	}
	innocents := []struct {
		name string
		in   nat.Link
		p    nattest.IP
	}{
		{"U of another node", node2, big("198.51.100.7", "10.71.3.9", 1, 2)},
		{"a pod of another node", node2, big("10.200.2.9", "10.71.3.9", 1, 2)},
		{"an address mapping", nat.Tunnel, big("10.200.3.9", "10.70.0.9", 1, 2)},
		{"a service", nat.Tunnel, big("10.200.3.9", "10.70.0.20", 1, 53)},
		{"U of the same node", node1, big("198.51.100.8", "10.71.3.9", 1, 2)},
	}
	attacks := []struct {
		name   string
		pause  time.Duration // between two fragments
		n      int
		source func(i int) string
	}{
		{"4,000 lone fragments of one pod", time.Millisecond / 20, 4000, func(int) string { return "10.200.1.5" }},
		{"4,000 lone fragments of one unknown source", time.Millisecond / 20, 4000, func(int) string {
			return "203.0.113.9"
		}},
		{"4,000 lone fragments of as many sources", time.Millisecond / 20, 4000, func(i int) string {
			return fmt.Sprintf("203.0.%d.%d", i>>8, i&255)
		}},
		{"nine a second", time.Second / 9, 9 * 120, func(int) string { return "203.0.113.9" }},
	}
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			e := engine(t, func(c *nat.Config) {
				c.Addresses = []rules.AddressMapping{{External: address("10.70.0.9"), Internal: address("192.0.2.10")}}
				c.Services = []rules.Service{{Name: "dns", Address: address("10.70.0.20"), Port: 53, Protocol: 17,
					Backends: []rules.Backend{{Address: address("10.200.1.5"), Port: 53}}}}
			})
			now, id := start, uint32(0)
			for i := range a.n {
				now = now.Add(a.pause)
				process(t, e, node1, loneFragment(a.source(i), "10.71.3.9", i), now)
				if i%100 != 99 {
					continue
				}
				for _, x := range innocents {
					if id++; !fragmented(t, e, x.in, x.p, id, now) {
						t.Fatalf("%s, after %d fragments: %+v", x.name, i, e.Stats())
					}
				}
			}
			ledger(t, e)
		})
	}
}

// No choice of addresses and identifiers makes datagrams compete for places before there are too
// many: those of one source, a third of all, with any distance between identifiers, each keep
// theirs.
func TestFragmentPlaces(t *testing.T) {
	for _, distance := range []int{1, 2, 16, 64, 128} {
		e := engine(t)
		for i := range 1024 / 3 {
			first := nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", ID: uint16(i * distance), MF: true,
				Body: nattest.UDP{Payload: make([]byte, 8)}}
			forwarded(t, e, node1, first.Bytes(), start)
		}
		if st := e.Stats(); st.Datagrams != 1024/3 || st.DatagramsReplaced != 0 {
			t.Fatalf("distance %d: %+v", distance, st)
		}
	}
}

// A source that loses one fragment in a hundred of its heavy traffic loses no more than that.
func TestFragmentLoss(t *testing.T) {
	e := engine(t)
	sent, lost := 0, 0
	for id := range uint32(30_000) { // a thousand a second
		now := start.Add(time.Duration(id) * time.Millisecond)
		p := nattest.IP{Source: "203.0.113.9", Destination: "10.71.3.9", Body: nattest.UDP{SourcePort: 1,
			DestinationPort: 2, Payload: make([]byte, 1592)}}
		for i, b := range nattest.Pieces(p, 800, id) {
			if (int(id)*2+i)%100 == 99 {
				lost++
				continue
			}
			sent++
			forwarded(t, e, node1, b, now)
		}
	}
	if st := e.Stats(); sent != 59_400 || lost != 600 || st.Outbound.Forwarded != uint64(sent) ||
		st.DatagramsReplaced == 0 {
		t.Fatalf("%d sent, %d lost: %+v", sent, lost, st)
	}
}
