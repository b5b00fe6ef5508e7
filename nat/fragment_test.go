package nat_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// deliver processes packets in their order, releases those that were held, and returns the output.
func deliver(t *testing.T, e *nat.Engine, in nat.Link, packets [][]byte, now nat.Time) [][]byte {
	t.Helper()
	var all [][]byte
	for _, b := range packets {
		v, out := process(t, e, in, b, now)
		all = append(all, out...)
		for range v.Held {
			var p packet.Packet
			v, ok := e.Release(&p, make([]byte, 2048), in, now)
			if !ok {
				t.Fatal("nothing to release")
			}
			if v.Action == nat.Forward {
				all = append(all, cut(t, &p, v)...)
			}
		}
	}
	var p packet.Packet
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
				// Another node already uses the ports, so this one's are translated.
				forwarded(t, e, node1, udp("10.70.0.0", "10.71.3.9", 9, 10).Bytes(), start)
				forwarded(t, e, node1, nattest.IP{Source: "10.70.0.0", Destination: "10.71.3.9",
					Body: nattest.ICMP{Type: 8, Rest: 9 << 16}}.Bytes(), start)
				forwarded(t, e, node1, tcp("10.70.0.0", "10.71.3.9", 9, 10, nattest.SYN, "").Bytes(), start)
				there := nattest.Pieces(whole, 800, 77)
				r.Shuffle(len(there), func(i, j int) { there[i], there[j] = there[j], there[i] })
				datagram := nattest.Reassemble(deliver(t, e, node2, there, start))
				if datagram == nil {
					t.Fatal("the fragments do not fit")
				}
				v, err := nattest.Check(datagram)
				need.NoError(t, err)
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
					answer.Body = nattest.TCP{SourcePort: 10, DestinationPort: v.SourcePort, Flags: nattest.ACK,
						Payload: payload}
				case "echo":
					answer.Body = nattest.ICMP{Rest: uint32(v.SourcePort)<<16 | 1, Payload: payload}
				}
				back := nattest.Pieces(answer, 1200, 78)
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

// IPv6 fragments are remapped, in any order.
func TestFragmentsIPv6(t *testing.T) {
	e := engine(t)
	p := nattest.IP{Source: "fd00:200:0:1::5", Destination: "fd00:71:0:4000::9", Body: nattest.UDP{SourcePort: 1,
		DestinationPort: 2, Payload: nattest.Payload(3000, 1)}}
	parts := nattest.Pieces(p, 1200, 0xabcdef01)
	out := deliver(t, e, node1, [][]byte{parts[2], parts[0], parts[1]}, start)
	if len(out) != 3 {
		t.Fatalf("%d fragments", len(out))
	}
	for _, b := range out {
		v, _ := nattest.Check(b)
		expect(t, v, "fd00:200:0:1::5", "fd00:200::9")
	}
	dropped(t, e, node1, parts[1], start, nat.ReasonFragmentOverlap)
}

// A later fragment that comes first gets the same treatment as its first fragment, which alone
// shows its connection and rules.
func TestEarlyFragments(t *testing.T) {
	const client, client6 = "10.200.3.9", remoteReal6
	mapped := func(c *nat.Config) {
		c.Addresses = []rules.AddressMapping{
			{External: address("10.70.0.9"), Internal: address("10.200.1.5")}, {External: address("fd00:70::9"),
				Internal: address(pod6)},
		}
	}
	served := func(c *nat.Config) {
		for _, x := range [][2]string{{"10.70.0.20", "10.200.1.5"}, {"fd00:70::20", pod6}} {
			c.Services = append(c.Services, rules.Service{Name: "dns", Address: address(x[0]), Port: 53,
				Protocol: packet.UDP,
				Backends: []rules.Backend{{Address: address(x[1]), Port: 53}}})
		}
	}
	onlyDNS := func(c *nat.Config) {
		c.Rules = []rules.FilterRule{
			{Name: "accept", Protocol: packet.UDP, Ports: []rules.PortRange{{First: 53, Last: 53}}},
			{Name: "drop", From: rules.FromLocal, Action: rules.FilterDrop},
		}
	}
	for _, test := range []struct {
		name     string
		change   func(*nat.Config)
		asks, by string // who has asked the sender, by which address, "" = nobody
		from, to string // of the fragments, which are node1's
		source   string // that they get
	}{
		{"a mapped pod answers", mapped, client, "10.70.0.9", "10.200.1.5", "10.71.3.9", "10.70.0.9"},
		{"a mapped pod answers over IPv6", mapped, client6, "fd00:70::9", pod6, remote6, "fd00:70::9"},
		{"a backend answers", served, client, "10.70.0.20", "10.200.1.5", "10.71.3.9", "10.70.0.20"},
		{"a backend answers over IPv6", served, client6, "fd00:70::20", pod6, remote6, "fd00:70::20"},
		{"a rule about ports lets it pass", onlyDNS, "", "", "10.200.1.5", "10.71.3.9", "10.200.1.5"},
		{"a rule about ports lets it pass over IPv6", onlyDNS, "", "", pod6, remote6, pod6},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := engine(t, dual, test.change)
			ports := nattest.UDP{SourcePort: 4000, DestinationPort: 53, Payload: nattest.Payload(2000, 1)}
			if test.asks != "" {
				forwarded(t, e, nat.Tunnel, udp(test.asks, test.by, 4000, 53).Bytes(), start)
				ports.SourcePort, ports.DestinationPort = 53, 4000
			}
			p := nattest.IP{Source: test.from, Destination: test.to, Body: ports}
			if address(test.from).Is6() { // behind the fragment header, so that later ones do not name the protocol
				p.First, p.Extensions = 60, [][]byte{{0, 0, 1, 4, 0, 0, 0, 0}}
			}
			parts := nattest.Pieces(p, 800, 7)
			out := deliver(t, e, node1, [][]byte{parts[2], parts[1], parts[0]}, start)
			if len(out) != len(parts) {
				t.Fatalf("%d of %d fragments: %+v", len(out), len(parts), e.Stats().Outbound)
			}
			for _, b := range out {
				if v, _ := nattest.Check(b); v.Source != address(test.source) {
					t.Errorf("at %d: from %s, want %s", v.Offset, v.Source, test.source)
				}
			}
			ledger(t, e)
		})
	}
}

// An overlap ends its datagram; of repeated bytes only the second ones are dropped: RFC 1858, RFC
// 8200, Section 4.5.
func TestFragmentOverlap(t *testing.T) {
	parts := map[string]func(at, n int, more bool) []byte{
		"IPv4": func(at, n int, more bool) []byte {
			return nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", ID: 5, Offset: at, MF: more,
				Body: nattest.Raw{Protocol: 17, Payload: nattest.Payload(n, 1)}}.Bytes()
		},
		"IPv6": func(at, n int, more bool) []byte {
			header := []byte{17, 0, byte(at >> 8), byte(at), 0, 0, 0, 5}
			if more {
				header[3] |= 1
			}
			return nattest.IP{Source: pod6, Destination: remote6, First: 44, Extensions: [][]byte{header},
				Body: nattest.Raw{Protocol: 17, Payload: nattest.Payload(n, 1)}}.Bytes()
		},
	}
	for family, part := range parts {
		hold := func(t *testing.T, e *nat.Engine, b []byte, now nat.Time) {
			t.Helper()
			if v, _ := process(t, e, node1, b, now); v.Action != nat.Hold {
				t.Fatalf("%+v", v)
			}
		}
		for name, b := range map[string][]byte{
			"its begin": part(792, 16, true), "its end": part(1592, 16, true), "all and more": part(0, 2000, true),
			"its end, last": part(1592, 16, false),
		} {
			t.Run(family+"/"+name, func(t *testing.T) {
				e := engine(t)
				var lost []nat.Reason
				e.TapFragments(func(_ []byte, _ nat.Link, why nat.Reason) { lost = append(lost, why) })
				hold(t, e, part(800, 800, true), start)
				for _, b := range [][]byte{b, part(1608, 80, false), part(0, 800, true), part(800, 800, true)} {
					v := dropped(t, e, node1, b, start, nat.ReasonFragmentOverlap)
					if answer(t, e, node1, b, v, start) != nil {
						t.Error("the sender was told")
					}
				}
				if len(lost) != 1 || lost[0] != nat.ReasonFragmentOverlap {
					t.Errorf("fragments lost while they waited: %v", lost)
				}
				// It takes nobody's place, and after it has expired another datagram may use its
				// identification.
				if n := e.Stats().Datagrams; n != 0 {
					t.Errorf("%d datagrams in parts", n)
				}
				hold(t, e, part(800, 800, true), start.Add(31*time.Second))
				ledger(t, e)
			})
		}
		t.Run(family+"/the same twice", func(t *testing.T) {
			e := engine(t)
			hold(t, e, part(800, 800, true), start)
			for _, b := range [][]byte{part(800, 800, true), part(1000, 8, true)} {
				dropped(t, e, node1, b, start, nat.ReasonFragmentOverlap)
			}
			hold(t, e, part(1600, 100, false), start)
			if out := deliver(t, e, node1, [][]byte{part(0, 800, true)}, start); len(out) != 3 {
				t.Errorf("%d of 3 fragments", len(out))
			}
			ledger(t, e)
		})
	}
}

// A dropped first fragment takes the later ones with it.
func TestFragmentFiltered(t *testing.T) {
	e := engine(t, func(c *nat.Config) {
		c.Rules = []rules.FilterRule{{Name: "dns", Protocol: 17, Ports: []rules.PortRange{{First: 53, Last: 53}},
			Action: rules.FilterDrop}}
	})
	p := nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", Body: nattest.UDP{SourcePort: 1,
		DestinationPort: 53, Payload: make([]byte, 3000)}}
	for _, b := range nattest.Pieces(p, 1200, 3) {
		dropped(t, e, node1, b, start, nat.ReasonFiltered)
	}
}

// Held fragments whose first fragment never comes are dropped after their time, and counted.
func TestFragmentsHeld(t *testing.T) {
	e := engine(t)
	told := map[nat.Reason]uint64{}
	e.TapFragments(func(b []byte, in nat.Link, why nat.Reason) {
		if v, err := nattest.Check(b); err != nil || v.Offset != 1000 || in != node1 {
			t.Errorf("told of link %d, offset %d: %v", in, v.Offset, err)
		}
		told[why]++
	})
	for i := range 300 {
		p := nattest.IP{Source: fmt.Sprintf("203.0.113.%d", 1+i%250), Destination: "10.71.3.9",
			Body: nattest.UDP{SourcePort: 1, DestinationPort: 2, Payload: make([]byte, 2000)}}
		if v, _ := process(t, e, node1, nattest.Pieces(p, 1000, uint32(i))[1], start); v.Action != nat.Hold {
			t.Fatal(v.Action, v.Reason)
		}
	}
	// One node gets half of 256 places; among its fragments, the newest replace the oldest.
	d := e.Stats().Outbound
	held := d.Held
	if held < 100 || held > 128 || d.Dropped[nat.ReasonFragmentLimit] != 300-held {
		t.Fatalf("%d held, %d dropped", held, d.Dropped[nat.ReasonFragmentLimit])
	}
	ledger(t, e)
	e.Sweep(start.Add(31 * time.Second))
	if d := e.Stats().Outbound; d.Held != 0 || d.Dropped[nat.ReasonFragment] != held {
		t.Fatalf("%d held, %d dropped of %d", d.Held, d.Dropped[nat.ReasonFragment], held)
	}
	if told[nat.ReasonFragment] != held {
		t.Fatalf("told of %v, want %d", told, held)
	}
	ledger(t, e)
	// A large one is not held.
	big := nattest.IP{Source: "203.0.113.9", Destination: "10.71.3.9", ID: 999, Offset: 8000,
		Body: nattest.Raw{Protocol: 17, Payload: make([]byte, 3000)}}
	dropped(t, e, node1, big.Bytes(), start.Add(time.Minute), nat.ReasonFragmentLimit)
}

// ledger fails unless every packet that came in is accounted for.
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
	if left := s.Created + s.Restored - s.Expired - s.Evicted - s.EarlyDropped - s.Deleted; uint64(
		s.Connections) != left {
		t.Fatalf("%d connections, the counters say %d", s.Connections, left)
	}
}

// TestFragmentsComplete: complete datagrams make room for others at once, however many follow;
// incomplete ones keep theirs.
func TestFragmentsComplete(t *testing.T) {
	e := engine(t)
	send := func(id uint32, drop int) (sent, out int) {
		p := nattest.IP{Source: "203.0.113.9", Destination: "10.71.3.9", Body: nattest.UDP{SourcePort: 7,
			DestinationPort: 53, Payload: nattest.Payload(3000, id)}}
		all := nattest.Pieces(p, 1000, id)
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
	// Without their last fragments, the newest replace the oldest. Complete ones between them, of
	// the same source, pass.
	for id := range uint32(2000) {
		send(10000+2*id, 3)
		if sent, out := send(10001+2*id, -1); out != sent {
			t.Fatalf("datagram %d: %d of %d fragments", id, out, sent)
		}
	}
	if st := e.Stats(); st.Datagrams != 1024/3 || st.DatagramsReplaced != 2000-1024/3 {
		t.Errorf("%d of 2000 datagrams, %d replaced", st.Datagrams, st.DatagramsReplaced)
	}
	ledger(t, e)
}

// A fragmented ICMP error is translated like a whole one, wherever its router is and in whatever
// order the fragments come, and creates no connection: RFC 5508, Section 4.2 and 4.3.
func TestFragmentedICMPErrors(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	tests := []struct {
		name                                 string
		in, out                              nat.Link
		router, quotedSource, quotedDest     string
		wantSource, wantDest, wantQ, wantQTo string
	}{
		{"about a pod's packet, from a router in a remote CIDR", nat.Tunnel, node1, "10.70.0.1", "10.200.1.5",
			"10.200.3.9",
			"10.74.0.1", "10.200.1.5", "10.200.1.5", "10.71.3.9"},
		{"about a pod's packet, from a router elsewhere", nat.Tunnel, node1, "192.0.2.77", "10.200.1.5", "10.200.3.9",
			"10.71.3.9", "10.200.1.5", "10.200.1.5", "10.71.3.9"},
		{"about a packet of U, from a router elsewhere", nat.Tunnel, node2, "192.0.2.77", "10.70.0.0", "10.200.3.9",
			"10.71.3.9", "203.0.113.9", "203.0.113.9", "10.71.3.9"},
		{"from a node", node1, nat.Tunnel, "10.80.0.2", "10.71.3.9", "10.200.1.5", "10.70.0.0", "10.200.3.9",
			"10.200.3.9", "10.200.1.5"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for range 10 {
				e := engine(t)
				forwarded(t, e, node2, udp("203.0.113.9", "10.71.3.9", 7, 53).Bytes(), start)
				quoted := nattest.IP{Source: test.quotedSource, Destination: test.quotedDest, TTL: 1,
					Body: nattest.UDP{SourcePort: 7, DestinationPort: 53, Payload: nattest.Payload(2000, 1)}}
				m := nattest.ICMP{Type: 3, Code: 1, Payload: quoted.Bytes()}
				all := nattest.Pieces(nattest.IP{Source: test.router, Destination: test.quotedSource, Body: m}, 800, 9)
				r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				whole := nattest.Reassemble(deliver(t, e, test.in, all, start))
				if whole == nil {
					t.Fatalf("the fragments do not fit: %+v", e.Stats())
				}
				got, err := nattest.Check(whole)
				need.NoError(t, err)
				expect(t, got, test.wantSource, test.wantDest)
				q, err := nattest.CheckQuoted(whole)
				need.NoError(t, err)
				expect(t, q, test.wantQ, test.wantQTo)
				if n := e.Stats().Connections; n != 1 {
					t.Fatalf("%d connections", n)
				}
				ledger(t, e)
			}
		})
	}
	t.Run("unrelated", func(t *testing.T) {
		e := engine(t)
		m := nattest.ICMP{Type: 3, Code: 1, Payload: udp("10.200.1.6", "10.200.3.9", 1, 2).Bytes()}
		m.Payload = append(m.Payload, make([]byte, 2000)...)
		for _, b := range nattest.Pieces(nattest.IP{Source: "10.200.3.1", Destination: "10.200.1.5", Body: m}, 800, 9) {
			dropped(t, e, nat.Tunnel, b, start, nat.ReasonICMPUnrelated)
		}
	})
	t.Run("strangers' fragments that belong to no error", func(t *testing.T) {
		e := engine(t)
		echo := nattest.Pieces(nattest.IP{Source: "192.0.2.77", Destination: "10.200.1.5", Body: nattest.ICMP{Type: 8,
			Payload: make([]byte, 2000)}}, 800, 9)
		deliver(t, e, nat.Tunnel, [][]byte{echo[1], echo[0], echo[2]}, start)
		if d := e.Stats().Inbound; d.Dropped[nat.ReasonBadSource] != 3 || d.Forwarded != 0 {
			t.Fatalf("%+v", d)
		}
	})
}

// withRaw puts a rule before connection tracking.
func withRaw(action rules.Action, m rules.Match) func(*nat.Config) {
	return func(c *nat.Config) {
		c.Firewall = append(c.Tables(), rules.Table{Name: "raw", Family: rules.FamilyIPv4,
			Chains: []rules.Chain{{Name: "raw", Type: rules.ChainFilter,
				Hook: rules.HookPrerouting, Priority: rules.PriorityRaw,
				Rules: []rules.Rule{{Name: "raw", Match: []rules.Match{m}, Action: action}}}}})
	}
}

// Rules before connection tracking apply to fragments in whatever order they come: before the first
// one is known, on release, and when there is no room for their datagram.
func TestFragmentsMeetRawRules(t *testing.T) {
	from := func(source string) rules.Match {
		return rules.Match{IP: rules.Operand{Value: source, Position: rules.PositionSource}}
	}
	toPort := func(source string) rules.Match {
		m := from(source)
		m.Proto, m.Port = "udp", rules.Operand{Value: "2", Position: rules.PositionDestination}
		return m
	}
	tests := []struct {
		name   string
		source string
		action rules.Action
		match  func(string) rules.Match
	}{
		{"a pod is dropped", "10.200.1.5", rules.ActionDrop, from},
		{"an unknown source is dropped", "203.0.113.9", rules.ActionDrop, from},
		{"an unknown source is dropped by port", "203.0.113.9", rules.ActionDrop, toPort},
		{"a pod is not tracked", "10.200.1.5", rules.ActionNoTrack, from},
		{"an unknown source is not tracked", "203.0.113.9", rules.ActionNoTrack, from},
		{"an unknown source is not tracked by port", "203.0.113.9", rules.ActionNoTrack, toPort},
	}
	for _, test := range tests {
		for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}} {
			t.Run(fmt.Sprint(test.name, order), func(t *testing.T) {
				e := engine(t, withRaw(test.action, test.match(test.source)))
				parts := nattest.Pieces(nattest.IP{Source: test.source, Destination: "10.99.64.9",
					Body: nattest.UDP{SourcePort: 1, DestinationPort: 2, Payload: make([]byte, 2000)}}, 800, 3)
				out := deliver(t, e, node1, [][]byte{parts[order[0]], parts[order[1]], parts[order[2]]}, start)
				if st := e.Stats(); st.Connections != 0 || test.action == rules.ActionDrop &&
					st.Outbound.Dropped[nat.ReasonFiltered] != 3 {
					t.Fatalf("%+v", st)
				}
				if test.action == rules.ActionNoTrack {
					got, err := nattest.Check(nattest.Reassemble(out))
					need.NoError(t, err)
					expect(t, got, test.source, "10.99.64.9") // the nat chains see no packet without a connection
				}
				ledger(t, e)
			})
		}
	}
	t.Run("what is not tracked is not translated", func(t *testing.T) {
		e := engine(t, withRaw(rules.ActionNoTrack, from("10.200.1.5")))
		parts := nattest.Pieces(nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9",
			Body: nattest.UDP{Payload: make([]byte, 2000)}}, 800, 3)
		out := deliver(t, e, node1, [][]byte{parts[2], parts[0], parts[1]}, start)
		// the real address has no route
		if n := e.Stats().Outbound.Dropped[nat.ReasonNoRoute]; len(out) != 0 || n != 3 {
			t.Fatalf("%d forwarded, %d without a route", len(out), n)
		}
	})
	t.Run("no place", func(t *testing.T) {
		e := engine(t, withRaw(rules.ActionDrop, from("10.200.1.5")))
		for i := range 64 { // no source's share is smaller
			process(t, e, node1, loneFragment(fmt.Sprintf("203.0.113.%d", i), "10.71.3.9", 1), start)
		}
		first := nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", MF: true,
			Body: nattest.UDP{Payload: make([]byte, 8)}}
		for first.ID = range uint16(1024 / 3) {
			dropped(t, e, node1, first.Bytes(), start, nat.ReasonFiltered)
		}
		dropped(t, e, node1, loneFragment("10.200.1.5", "10.71.3.9", 9999), start, nat.ReasonFiltered)
		if st := e.Stats(); st.DatagramsReplaced != 0 {
			t.Fatalf("%+v", st)
		}
	})
}
