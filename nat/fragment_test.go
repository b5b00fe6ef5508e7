package nat_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"
)

// pieces cuts the packet p into fragments of size bytes.
func pieces(p nattest.IP, size int, id uint32) [][]byte {
	whole := p.Bytes()
	head := 20
	if whole[0]>>4 == 6 {
		head = 40
	}
	body := whole[head:]
	protocol := map[bool]byte{true: whole[6], false: whole[9]}[head == 40]
	var out [][]byte
	for at := 0; at < len(body); at += size {
		q := p
		q.ID, q.Offset, q.MF = uint16(id), at, at+size < len(body)
		if head == 40 {
			field := at
			if q.MF {
				field |= 1
			}
			q.First, q.Extensions = 44, [][]byte{{0, 0, byte(field >> 8), byte(field), byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)}}
			q.MF, q.Offset = false, 0
		}
		q.Body = nattest.Raw{Protocol: protocol, Payload: body[at:min(at+size, len(body))]}
		out = append(out, q.Bytes())
	}
	return out
}

// deliver processes packets in their order, releases what was held, and returns what went out.
func deliver(t *testing.T, e *nat.Engine, in nat.Port, packets [][]byte, now nat.Time) [][]byte {
	t.Helper()
	var all [][]byte
	for _, b := range packets {
		v, out := process(t, e, in, b, now)
		all = append(all, out...)
		for range v.Held {
			var p nat.Packet
			v, ok := e.Release(&p, make([]byte, 2048), in, now)
			if !ok {
				t.Fatal("nothing to release")
			}
			if v.Action == nat.Forward {
				all = append(all, cut(t, &p, v)...)
			}
		}
	}
	var p nat.Packet
	if _, ok := e.Release(&p, make([]byte, 2048), in, now); ok {
		t.Fatal("more held than announced")
	}
	return all
}

// Fragments of connections with translated ports, in every order: RFC 4787, Section 11, REQ-14.
func TestFragmentOrders(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	payload := nattest.Payload(3100, 5)
	for name, body := range map[string]nattest.Body{
		"udp":  nattest.UDP{SourcePort: 9, DestinationPort: 10, Payload: payload},
		"echo": nattest.ICMP{Type: 8, Rest: 9<<16 | 1, Payload: payload},
		"tcp":  nattest.TCP{SourcePort: 9, DestinationPort: 10, Flags: nattest.SYN, Payload: payload},
	} {
		for range 20 {
			t.Run(name, func(t *testing.T) {
				e := engine(t)
				whole := nattest.IP{Source: "203.0.113.9", Destination: "10.71.3.9", Body: body}
				// Another node has the ports already, so that this one's are translated.
				forwarded(t, e, node1, udp("10.70.0.0", "10.71.3.9", 9, 10).Bytes(), start)
				forwarded(t, e, node1, nattest.IP{Source: "10.70.0.0", Destination: "10.71.3.9", Body: nattest.ICMP{Type: 8, Rest: 9 << 16}}.Bytes(), start)
				forwarded(t, e, node1, tcp("10.70.0.0", "10.71.3.9", 9, 10, nattest.SYN, "").Bytes(), start)
				there := pieces(whole, 800, 77)
				r.Shuffle(len(there), func(i, j int) { there[i], there[j] = there[j], there[i] })
				datagram := nattest.Reassemble(deliver(t, e, node2, there, start))
				if datagram == nil {
					t.Fatal("the fragments do not fit")
				}
				v, err := nattest.Check(datagram)
				if err != nil {
					t.Fatal(err)
				}
				expect(t, v, "10.70.0.0", "10.200.3.9")
				if v.SourcePort == 9 || !bytes.Equal(v.Payload, payload) && name != "tcp" {
					t.Fatalf("port %d", v.SourcePort)
				}
				// The answer, in fragments too, finds node 2.
				answer := nattest.IP{Source: "10.200.3.9", Destination: "10.70.0.0"}
				switch name {
				case "udp":
					answer.Body = nattest.UDP{SourcePort: 10, DestinationPort: v.SourcePort, Payload: payload}
				case "tcp":
					answer.Body = nattest.TCP{SourcePort: 10, DestinationPort: v.SourcePort, Flags: nattest.ACK, Payload: payload}
				case "echo":
					answer.Body = nattest.ICMP{Rest: uint32(v.SourcePort)<<16 | 1, Payload: payload}
				}
				back := pieces(answer, 1200, 78)
				r.Shuffle(len(back), func(i, j int) { back[i], back[j] = back[j], back[i] })
				datagram = nattest.Reassemble(deliver(t, e, nat.Tunnel, back, start))
				if v, err = nattest.Check(datagram); err != nil {
					t.Fatal(err)
				}
				expect(t, v, "10.71.3.9", "203.0.113.9")
				if v.DestinationPort != 9 {
					t.Fatalf("to port %d", v.DestinationPort)
				}
				ledger(t, e)
			})
		}
	}
}

// IPv6 fragments are remapped; those of a pod need no first fragment.
func TestFragmentsIPv6(t *testing.T) {
	e := engine(t)
	p := nattest.IP{Source: "fd00:200:0:1::5", Destination: "fd00:71:0:4000::9", Body: nattest.UDP{SourcePort: 1, DestinationPort: 2, Payload: nattest.Payload(3000, 1)}}
	parts := pieces(p, 1200, 0xabcdef01)
	for _, i := range []int{2, 0, 1} {
		_, v, _ := forwarded(t, e, node1, parts[i], start)
		expect(t, v, "fd00:200:0:1::5", "fd00:200::9")
	}
	dropped(t, e, node1, parts[1], start, nat.ReasonFragmentOverlap)
}

// What overlaps is dropped: RFC 1858, RFC 5722.
func TestFragmentOverlap(t *testing.T) {
	e := engine(t)
	part := func(at, n int, more bool) []byte {
		return nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", ID: 5, Offset: at, MF: more,
			Body: nattest.Raw{Protocol: 17, Payload: nattest.Payload(n, 1)}}.Bytes()
	}
	forwarded(t, e, node1, part(800, 800, true), start)
	for _, b := range [][]byte{part(800, 800, true), part(792, 16, true), part(1592, 16, true), part(0, 2000, true), part(1000, 8, false)} {
		dropped(t, e, node1, b, start, nat.ReasonFragmentOverlap)
	}
	forwarded(t, e, node1, part(1600, 100, false), start)
	// Another datagram with the same ID, after this one has expired.
	forwarded(t, e, node1, part(800, 800, true), start.Add(31*time.Second))
}

// A dropped first fragment takes the later ones with it.
func TestFragmentFiltered(t *testing.T) {
	e := engine(t, func(c *nat.Config) {
		c.Rules = []nat.FilterRule{{Name: "dns", Protocol: 17, Ports: []nat.PortRange{{First: 53, Last: 53}}, Action: nat.FilterDrop}}
	})
	p := nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", Body: nattest.UDP{SourcePort: 1, DestinationPort: 53, Payload: make([]byte, 3000)}}
	for _, b := range pieces(p, 1200, 3) {
		dropped(t, e, node1, b, start, nat.ReasonFiltered)
	}
}

// Held fragments whose first one never comes are dropped when their time is over, and counted.
func TestFragmentsHeld(t *testing.T) {
	e := engine(t)
	held, limited := 0, 0
	for i := range 300 {
		p := nattest.IP{Source: fmt.Sprintf("203.0.113.%d", 1+i%250), Destination: "10.71.3.9",
			Body: nattest.UDP{SourcePort: 1, DestinationPort: 2, Payload: make([]byte, 2000)}}
		v, _ := process(t, e, node1, pieces(p, 1000, uint32(i))[1], start)
		switch {
		case v.Action == nat.Hold:
			held++
		case v.Reason == nat.ReasonFragmentLimit:
			limited++
		default:
			t.Fatal(v.Action, v.Reason)
		}
	}
	if held == 0 || held > 128 || held+limited != 300 {
		t.Fatalf("%d held, %d refused", held, limited)
	}
	if d := e.Stats().Outbound; d.Held != uint64(held) {
		t.Fatalf("counted %d held of %d", d.Held, held)
	}
	ledger(t, e)
	e.Sweep(start.Add(31 * time.Second))
	if d := e.Stats().Outbound; d.Held != 0 || d.Dropped[nat.ReasonFragment] != uint64(held) {
		t.Fatalf("%d held, %d dropped of %d", d.Held, d.Dropped[nat.ReasonFragment], held)
	}
	ledger(t, e)
	// A large one is not held.
	big := nattest.IP{Source: "203.0.113.9", Destination: "10.71.3.9", ID: 999, Offset: 8000, Body: nattest.Raw{Protocol: 17, Payload: make([]byte, 3000)}}
	dropped(t, e, node1, big.Bytes(), start.Add(time.Minute), nat.ReasonFragmentLimit)
}

// ledger asserts architecture.md, Section 8: what came in is accounted for.
func ledger(t testing.TB, e *nat.Engine) {
	t.Helper()
	s := e.Stats()
	for name, d := range map[string]nat.Direction{"outbound": s.Outbound, "inbound": s.Inbound} {
		sum := d.Forwarded + d.Delivered + d.Held
		for _, n := range d.Dropped {
			sum += n
		}
		if sum != d.Received {
			t.Fatalf("%s: %d received, %d accounted for: %+v", name, d.Received, sum, d)
		}
	}
	if left := s.Created - s.Expired - s.Evicted - s.EarlyDropped; uint64(s.Connections) != left {
		t.Fatalf("%d connections, the counters say %d", s.Connections, left)
	}
}

// TestFragmentsComplete: datagrams that are through make room for others at once,
// however many follow; those that are not keep theirs.
func TestFragmentsComplete(t *testing.T) {
	e := engine(t)
	send := func(id uint32, drop int) (sent, out int) {
		p := nattest.IP{Source: "203.0.113.9", Destination: "10.71.3.9", Body: nattest.UDP{SourcePort: 7, DestinationPort: 53, Payload: nattest.Payload(3000, id)}}
		all := pieces(p, 1000, id)
		if drop >= 0 {
			all = append(all[:drop], all[drop+1:]...)
		}
		return len(all), len(deliver(t, e, node1, all, start.Add(time.Duration(id)*time.Millisecond)))
	}
	for id := range uint32(3000) {
		if sent, out := send(id, -1); out != sent {
			t.Fatalf("datagram %d: %d of %d fragments", id, out, sent)
		}
	}
	// Without their last fragments, they fill the table; then there is a limit, and it is counted.
	for id := range uint32(2000) {
		send(10000+id, 3)
	}
	if n := e.Stats().Outbound.Dropped[nat.ReasonFragmentLimit]; n == 0 {
		t.Error("no limit to datagrams that never end")
	}
	ledger(t, e)
}
