package nat_test

import (
	"fmt"
	"testing"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/rules"
)

// returned sends the answer to a packet that came out of e, and expects it at the port and address
// from which the first packet came.
func returned(t *testing.T, e *nat.Engine, sent nattest.IP, in nat.Link, out nattest.View, outLink nat.Link,
	now nat.Time) nattest.View {
	t.Helper()
	answer := nattest.IP{Source: out.Destination.String(), Destination: out.Source.String()}
	switch body := sent.Body.(type) {
	case nattest.TCP:
		answer.Body = nattest.TCP{SourcePort: out.DestinationPort, DestinationPort: out.SourcePort,
			Flags: nattest.SYN | nattest.ACK,
			Seq:   5000, Ack: body.Seq + 1, Window: 1000, Options: []byte{2, 4, 5, 0}}
	case nattest.UDP:
		answer.Body = nattest.UDP{SourcePort: out.DestinationPort, DestinationPort: out.SourcePort,
			Payload: []byte("answer")}
	case nattest.SCTP:
		answer.Body = nattest.SCTP{SourcePort: out.DestinationPort, DestinationPort: out.SourcePort,
			Chunks: []byte{2, 0, 0, 4}}
	case nattest.ICMP:
		answer.Body = nattest.ICMP{Rest: uint32(out.SourcePort)<<16 | 1}
		if out.Source.Is6() {
			answer.Body = nattest.ICMP{Type: 129, Rest: uint32(out.SourcePort)<<16 | 1}
		}
	case nattest.Raw:
		answer.Body = body
	}
	v, back, _ := forwarded(t, e, outLink, answer.Bytes(), now)
	if v.Out != in {
		t.Fatalf("the answer goes to link %d, want %d", v.Out, in)
	}
	expect(t, back, sent.Destination, sent.Source)
	original, _ := nattest.Check(sent.Bytes())
	if back.DestinationPort != original.SourcePort || back.SourcePort != original.DestinationPort {
		t.Fatalf("the answer has ports %d > %d, want %d > %d", back.SourcePort, back.DestinationPort,
			original.DestinationPort, original.SourcePort)
	}
	return back
}

// Sources that get U, for every protocol; answers go back through the node from which the packet
// came.
func TestUnknownSource(t *testing.T) {
	tests := []struct {
		name, source string
		in           nat.Link
		want         string
	}{
		{"a node's internal address", "10.80.0.3", node2, "10.70.0.0"},
		{"a client outside", "203.0.113.9", node1, "10.70.0.0"},
		{"behind a pod", "11.11.11.1", node2, "10.70.0.0"},
		{"already U", "10.70.0.0", node2, "10.70.0.0"},
		{"another external address", "10.70.3.3", node1, "10.70.3.3"},
		{"a pod", "10.200.1.5", node1, "10.200.1.5"},
		{"first address of a pod CIDR", "10.200.0.0", node2, "10.200.0.0"},
	}
	for _, test := range tests {
		for name, body := range nattest.Bodies(false) {
			if name == "empty" {
				continue
			}
			t.Run(test.name+"/"+name, func(t *testing.T) {
				e := engine(t)
				p := nattest.IP{Source: test.source, Destination: "10.71.3.9", Body: body}
				v, out, _ := forwarded(t, e, test.in, p.Bytes(), start)
				if v.Out != nat.Tunnel || v.Untracked {
					t.Fatalf("verdict %+v", v)
				}
				expect(t, out, test.want, "10.200.3.9")
				returned(t, e, p, test.in, out, nat.Tunnel, start)
			})
		}
	}
	t.Run("off", func(t *testing.T) {
		e := engine(t, func(c *nat.Config) { c.UnknownSource = rules.Pair{} })
		dropped(t, e, node1, udp("203.0.113.9", "10.71.3.9", 1, 2).Bytes(), start, nat.ReasonUnknownSource)
		forwarded(t, e, node1, udp("10.70.0.0", "10.71.3.9", 1, 2).Bytes(), start)
	})
	t.Run("unknown answers", func(t *testing.T) {
		dropped(t, engine(t), nat.Tunnel, udp("10.200.3.9", "10.70.0.0", 2, 1).Bytes(), start, nat.ReasonNoMapping)
	})
}

// No. 3 and 4: the same 5-tuple from two nodes makes two connections, and both are served.
func TestCollision(t *testing.T) {
	for name, body := range nattest.Bodies(false) {
		if name == "empty" || name == "gre" {
			continue
		}
		for _, source := range []string{"10.70.0.0", "203.0.113.9"} {
			t.Run(name+"/"+source, func(t *testing.T) {
				e := engine(t)
				p := nattest.IP{Source: source, Destination: "10.71.3.9", Body: body}
				_, first, _ := forwarded(t, e, node1, p.Bytes(), start)
				_, second, _ := forwarded(t, e, node2, p.Bytes(), start)
				original, _ := nattest.Check(p.Bytes())
				if original.SourcePort == 0 {
					original.SourcePort = first.SourcePort
				}
				if first.SourcePort != original.SourcePort || second.SourcePort == first.SourcePort {
					t.Fatalf("ports %d and %d, want %d and another", first.SourcePort, second.SourcePort,
						original.SourcePort)
				}
				for range 2 {
					returned(t, e, p, node2, second, nat.Tunnel, start)
					returned(t, e, p, node1, first, nat.Tunnel, start)
				}
				if got := e.Stats().Connections; got != 2 {
					t.Fatalf("%d connections", got)
				}
				// A restart in mid-stream: the same key makes the same choice again.
				e = engine(t)
				forwarded(t, e, node1, p.Bytes(), start)
				if _, again, _ := forwarded(t, e, node2, p.Bytes(), start); again.SourcePort != second.SourcePort {
					t.Fatalf("port %d after a restart, %d before", again.SourcePort, second.SourcePort)
				}
			})
		}
	}
	t.Run("no ports to choose", func(t *testing.T) {
		e := engine(t, speakForAll)
		p := nattest.IP{Source: "203.0.113.9", Destination: "10.71.3.9", Body: nattest.Raw{Protocol: 47,
			Payload: make([]byte, 8)}}
		forwarded(t, e, node1, p.Bytes(), start)
		dropped(t, e, node2, p.Bytes(), start, nat.ReasonPortExhausted)
		// A pod needs no choice: its answers follow the routes.
		p.Source = "10.200.1.5"
		forwarded(t, e, node1, p.Bytes(), start)
		if v, _, _ := forwarded(t, e, node2, p.Bytes(), start); !v.Untracked {
			t.Fatalf("verdict %+v", v)
		}
	})
}

// RFC 4787, Section 4.2, REQ-3 a: privileged ports stay privileged; when two nodes have their
// shares of them, packets are dropped.
func TestPortRange(t *testing.T) {
	e := engine(t, func(c *nat.Config) { c.MaxConnections = 1 << 20 })
	seen := map[uint16]bool{}
	ok := 0
	for i := range 3000 {
		p := udp(fmt.Sprintf("203.0.%d.%d", 113+i/250, 1+i%250), "10.71.3.9", 500, 500)
		v, out := process(t, e, []nat.Link{node1, node2}[i%2], p.Bytes(), start)
		if v.Action != nat.Forward {
			if v.Reason != nat.ReasonPortShare {
				t.Fatal(v.Reason)
			}
			continue
		}
		ok++
		view, _ := nattest.Check(out[0])
		if seen[view.SourcePort] || view.SourcePort >= 1024 || view.SourcePort < 500 {
			t.Fatalf("port %d", view.SourcePort)
		}
		seen[view.SourcePort] = true
	}
	// 480 of 512 are given out. The first 7 count for nobody; then each node gets what is free.
	if ok != 323 {
		t.Fatalf("%d connections", ok)
	}
}

// No. 10: segments are no larger than the MSS of the SYN that travelled towards the sender.
func TestSegmentsFollowMSS(t *testing.T) {
	for _, mss := range []uint16{536, 1300, 1460, 0} {
		t.Run(fmt.Sprint(mss), func(t *testing.T) {
			e := engine(t)
			syn := tcp("10.200.1.5", "10.71.3.9", 40000, 80, nattest.SYN, "")
			_, out, _ := forwarded(t, e, node1, syn.Bytes(), start)
			answer := nattest.IP{Source: "10.200.3.9", Destination: out.Source.String(),
				Body: nattest.TCP{SourcePort: 80, DestinationPort: 40000,
					Seq: 7, Ack: 1001, Flags: nattest.SYN | nattest.ACK, Window: 9999}}
			if mss != 0 {
				b := answer.Body.(nattest.TCP)
				b.Options = []byte{2, 4, byte(mss >> 8), byte(mss)}
				answer.Body = b
			}
			forwarded(t, e, nat.Tunnel, answer.Bytes(), start)
			options := []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}
			super := nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", DF: true,
				Body: nattest.TCP{SourcePort: 40000, DestinationPort: 80,
					Seq: 1001, Ack: 8, Flags: nattest.ACK, Options: options, Payload: nattest.Payload(9000, 1),
					Partial: true}}
			v, _ := process(t, e, node1, super.Bytes(), start)
			want := 1300 - 12
			if mss == 536 {
				want = 536 - 12
			}
			if v.SegmentSize != want {
				t.Fatalf("segments of %d bytes, want %d", v.SegmentSize, want)
			}
		})
	}
}
