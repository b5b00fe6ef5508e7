package nat_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"
)

// returned sends the answer to what came out of e, and expects it at the port and address that the first packet came from.
func returned(t *testing.T, e *nat.Engine, sent nattest.IP, in nat.Port, out nattest.View, outPort nat.Port, now nat.Time) nattest.View {
	t.Helper()
	answer := nattest.IP{Source: out.Destination.String(), Destination: out.Source.String()}
	switch body := sent.Body.(type) {
	case nattest.TCP:
		answer.Body = nattest.TCP{SourcePort: out.DestinationPort, DestinationPort: out.SourcePort, Flags: nattest.SYN | nattest.ACK,
			Seq: 5000, Ack: body.Seq + 1, Window: 1000, Options: []byte{2, 4, 5, 0}}
	case nattest.UDP:
		answer.Body = nattest.UDP{SourcePort: out.DestinationPort, DestinationPort: out.SourcePort, Payload: []byte("answer")}
	case nattest.SCTP:
		answer.Body = nattest.SCTP{SourcePort: out.DestinationPort, DestinationPort: out.SourcePort, Chunks: []byte{2, 0, 0, 4}}
	case nattest.ICMP:
		answer.Body = nattest.ICMP{Rest: uint32(out.SourcePort)<<16 | 1}
		if out.Source.Is6() {
			answer.Body = nattest.ICMP{Type: 129, Rest: uint32(out.SourcePort)<<16 | 1}
		}
	case nattest.Raw:
		answer.Body = body
	}
	v, back, _ := forwarded(t, e, outPort, answer.Bytes(), now)
	if v.Out != in {
		t.Fatalf("the answer goes to port %d, want %d", v.Out, in)
	}
	expect(t, back, sent.Destination, sent.Source)
	original, _ := nattest.Check(sent.Bytes())
	if back.DestinationPort != original.SourcePort || back.SourcePort != original.DestinationPort {
		t.Fatalf("the answer has ports %d > %d, want %d > %d", back.SourcePort, back.DestinationPort, original.DestinationPort, original.SourcePort)
	}
	return back
}

// architecture.md, Section 2.1 no. 2: who gets U, for every protocol, and back through the node that it came from.
func TestUnknownSource(t *testing.T) {
	tests := []struct {
		name, source string
		in           nat.Port
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
		for name, body := range bodies(false) {
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
		e := engine(t, func(c *nat.Config) { c.UnknownSource = netip.Addr{} })
		dropped(t, e, node1, udp("203.0.113.9", "10.71.3.9", 1, 2).Bytes(), start, nat.ReasonUnknownSource)
		forwarded(t, e, node1, udp("10.70.0.0", "10.71.3.9", 1, 2).Bytes(), start)
	})
	t.Run("unknown answers", func(t *testing.T) {
		dropped(t, engine(t), nat.Tunnel, udp("10.200.3.9", "10.70.0.0", 2, 1).Bytes(), start, nat.ReasonNoMapping)
	})
}

// No. 3 and 4: the same 5-tuple from two nodes makes two connections, and both are served.
func TestCollision(t *testing.T) {
	for name, body := range bodies(false) {
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
					t.Fatalf("ports %d and %d, want %d and another", first.SourcePort, second.SourcePort, original.SourcePort)
				}
				for range 2 {
					returned(t, e, p, node2, second, nat.Tunnel, start)
					returned(t, e, p, node1, first, nat.Tunnel, start)
				}
				if got := e.Stats().Connections; got != 2 {
					t.Fatalf("%d connections", got)
				}
				// A restart in mid-stream: the key makes the same choice again.
				e = engine(t)
				forwarded(t, e, node1, p.Bytes(), start)
				if _, again, _ := forwarded(t, e, node2, p.Bytes(), start); again.SourcePort != second.SourcePort {
					t.Fatalf("port %d after a restart, %d before", again.SourcePort, second.SourcePort)
				}
			})
		}
	}
	t.Run("no ports to choose", func(t *testing.T) {
		e := engine(t)
		p := nattest.IP{Source: "203.0.113.9", Destination: "10.71.3.9", Body: nattest.Raw{Protocol: 47, Payload: make([]byte, 8)}}
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

// RFC 4787, Section 4.2, REQ-3 a: privileged ports stay privileged; when all tries fail the packet is dropped.
func TestPortRange(t *testing.T) {
	e := engine(t, func(c *nat.Config) { c.MaxHalfOpen = 1 << 20 })
	seen := map[uint16]bool{}
	ok := 0
	for i := range 3000 {
		p := udp(fmt.Sprintf("203.0.%d.%d", 113+i/250, 1+i%250), "10.71.3.9", 500, 500)
		v, out := process(t, e, node1, p.Bytes(), start)
		if v.Action != nat.Forward {
			if v.Reason != nat.ReasonPortExhausted {
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
	if ok < 500 || ok > 513 {
		t.Fatalf("%d connections share 513 ports", ok)
	}
}

// nat.addresses: an address of the local external CIDR stands for a host outside, both ways.
func TestAddressMapping(t *testing.T) {
	change := func(c *nat.Config) {
		c.Addresses = []nat.AddressMapping{
			{External: address("10.70.0.9"), Internal: address("192.0.2.10"), Via: node2},
			{External: address("10.70.0.8"), Internal: address("192.0.2.11")},
			{External: address("10.70.0.7"), Internal: address("10.200.2.44")},
		}
	}
	tests := []struct {
		external, internal string
		via                nat.Port
	}{{"10.70.0.9", "192.0.2.10", node2}, {"10.70.0.8", "192.0.2.11", node1}, {"10.70.0.7", "10.200.2.44", node2}}
	for _, test := range tests {
		t.Run("from the tunnel to "+test.internal, func(t *testing.T) {
			e := engine(t, change)
			p := tcp("10.200.3.9", test.external, 40000, 80, nattest.SYN, "")
			v, out, _ := forwarded(t, e, nat.Tunnel, p.Bytes(), start)
			if v.Out != test.via {
				t.Fatalf("leaves by port %d", v.Out)
			}
			expect(t, out, "10.71.3.9", test.internal)
			returned(t, e, p, nat.Tunnel, out, test.via, start)
			// Another node brings the answer: forwarded, and counted.
			answer := tcp(test.internal, "10.71.3.9", 80, 40000, nattest.ACK, "")
			v, back, _ := forwarded(t, e, node1+node2-test.via, answer.Bytes(), start)
			expect(t, back, test.external, "10.200.3.9")
			if !v.Asymmetric || e.Stats().Outbound.Asymmetric != 1 {
				t.Fatal("not counted as asymmetric")
			}
		})
	}
	t.Run("from the host", func(t *testing.T) {
		e := engine(t, change)
		p := udp("192.0.2.10", "10.71.3.9", 7, 8)
		_, out, _ := forwarded(t, e, node2, p.Bytes(), start)
		expect(t, out, "10.70.0.9", "10.200.3.9")
		returned(t, e, p, node2, out, nat.Tunnel, start)
	})
	t.Run("a mapped pod keeps its own address", func(t *testing.T) {
		e := engine(t, change)
		_, out, _ := forwarded(t, e, node2, udp("10.200.2.44", "10.71.3.9", 7, 8).Bytes(), start)
		expect(t, out, "10.200.2.44", "10.200.3.9")
	})
	t.Run("a remote source equal to a local external address", func(t *testing.T) {
		// liqo.md, Section 3.7: the mapping's SNAT is not for packets from the tunnel.
		e := engine(t, change)
		_, out, _ := forwarded(t, e, nat.Tunnel, udp("10.70.0.9", "10.200.1.5", 7, 8).Bytes(), start)
		expect(t, out, "10.74.0.9", "10.200.1.5")
	})
	t.Run("hairpin", func(t *testing.T) {
		// RFC 4787, Section 6, REQ-9.
		e := engine(t, change)
		p := tcp("10.200.1.5", "10.70.0.9", 40000, 80, nattest.SYN, "")
		v, out, _ := forwarded(t, e, node1, p.Bytes(), start)
		if v.Out != node2 {
			t.Fatalf("leaves by port %d", v.Out)
		}
		expect(t, out, "10.80.0.4", "192.0.2.10")
		returned(t, e, p, node1, out, node2, start)
	})
}

func service(backends ...nat.Backend) nat.Service {
	return nat.Service{Name: "web", Address: address("10.70.0.20"), Port: 80, Protocol: 6, Backends: backends}
}

func TestService(t *testing.T) {
	backends := []nat.Backend{{Address: address("10.200.1.5"), Port: 8080, Weight: 3}, {Address: address("192.0.2.50"), Port: 8081, Via: node2}}
	e := engine(t, func(c *nat.Config) { c.Services = []nat.Service{service(backends...)} })
	count := map[string]int{}
	for i := range 400 {
		p := tcp("10.200.3.9", "10.70.0.20", uint16(20000+i), 80, nattest.SYN, "")
		v, out, _ := forwarded(t, e, nat.Tunnel, p.Bytes(), start)
		key := fmt.Sprintf("%s:%d@%d", out.Destination, out.DestinationPort, v.Out)
		count[key]++
		returned(t, e, p, nat.Tunnel, out, v.Out, start)
		// The backend stays.
		again, _, _ := forwarded(t, e, nat.Tunnel, tcp("10.200.3.9", "10.70.0.20", uint16(20000+i), 80, nattest.ACK, "x").Bytes(), start)
		if again.Out != v.Out {
			t.Fatal("the backend changed")
		}
	}
	if a, b := count["10.200.1.5:8080@1"], count["192.0.2.50:8081@7"]; a+b != 400 || a < 260 || a > 340 {
		t.Fatalf("chosen %v", count)
	}
	dropped(t, e, nat.Tunnel, tcp("10.200.3.9", "10.70.0.20", 5, 81, nattest.SYN, "").Bytes(), start, nat.ReasonNoMapping)
	empty := engine(t, func(c *nat.Config) { c.Services = []nat.Service{service()} })
	dropped(t, empty, nat.Tunnel, tcp("10.200.3.9", "10.70.0.20", 5, 80, nattest.SYN, "").Bytes(), start, nat.ReasonNoBackend)
}

// onRemoval: the connections of a backend that leaves go on, or are reset.
func TestBackendLeaves(t *testing.T) {
	leaving, staying := nat.Backend{Address: address("10.200.1.5"), Port: 8080}, nat.Backend{Address: address("10.200.1.6"), Port: 8080}
	for _, on := range []nat.OnRemoval{nat.RemovalKeep, nat.RemovalReset} {
		for _, rest := range [][]nat.Backend{{staying}, nil} {
			t.Run(fmt.Sprintf("%d/%d", on, len(rest)), func(t *testing.T) {
				s := service(leaving)
				s.OnRemoval = on
				e := engine(t, func(c *nat.Config) { c.Services = []nat.Service{s} })
				p := tcp("10.200.3.9", "10.70.0.20", 40000, 80, nattest.SYN, "")
				_, out, _ := forwarded(t, e, nat.Tunnel, p.Bytes(), start)
				returned(t, e, p, nat.Tunnel, out, node1, start)
				c := rome()
				s.Backends = rest
				c.Services = []nat.Service{s}
				if err := e.Apply(c); err != nil {
					t.Fatal(err)
				}
				data := tcp("10.200.3.9", "10.70.0.20", 40000, 80, nattest.ACK, "data").Bytes()
				if on == nat.RemovalKeep {
					_, out, _ = forwarded(t, e, nat.Tunnel, data, start)
					expect(t, out, "10.71.3.9", "10.200.1.5")
					returned(t, e, p, nat.Tunnel, out, node1, start)
					return
				}
				v := dropped(t, e, nat.Tunnel, data, start, nat.ReasonNoBackend)
				reset, err := nattest.Check(answer(t, e, nat.Tunnel, data, v, start))
				if err != nil || reset.Flags != nattest.RST || reset.Seq != 2000 {
					t.Fatalf("answered %+v %v", reset, err)
				}
				expect(t, reset, "10.70.0.20", "10.200.3.9")
				if st := e.Stats(); st.Connections != 0 || st.Evicted != 1 {
					t.Fatalf("%d connections, %d evicted", st.Connections, st.Evicted)
				}
			})
		}
	}
}

// No. 4: what no podCIDRs route can find is pinned to its node; pods follow the current routes.
func TestReturnPath(t *testing.T) {
	e := engine(t)
	pod, client := udp("10.200.1.5", "10.71.3.9", 7, 8), udp("203.0.113.9", "10.71.3.9", 7, 8)
	_, podOut, _ := forwarded(t, e, node1, pod.Bytes(), start)
	_, clientOut, _ := forwarded(t, e, node1, client.Bytes(), start)
	returned(t, e, pod, node1, podOut, nat.Tunnel, start)
	c := rome()
	c.Routes[0].Port, c.Routes[1].Port = node2, node1 // the pod CIDR moves
	if err := e.Apply(c); err != nil {
		t.Fatal(err)
	}
	returned(t, e, pod, node2, podOut, nat.Tunnel, start)
	returned(t, e, client, node1, clientOut, nat.Tunnel, start)
}

// Connections survive a change of the configuration, unless what they need has gone.
func TestEviction(t *testing.T) {
	mapping := nat.AddressMapping{External: address("10.70.0.9"), Internal: address("192.0.2.10"), Via: node2}
	base := func(c *nat.Config) { c.Addresses = []nat.AddressMapping{mapping} }
	podCIDR, client := udp("10.200.1.5", "10.71.3.9", 7, 8), udp("203.0.113.9", "10.71.3.9", 7, 8)
	host, inbound := udp("10.200.3.9", "10.70.0.9", 7, 8), udp("10.200.3.9", "10.200.2.5", 7, 8)
	tests := []struct {
		name   string
		change func(*nat.Config)
		left   int // of 4 connections
	}{
		{"nothing", func(*nat.Config) {}, 4},
		{"a filter", func(c *nat.Config) { c.Rules = []nat.FilterRule{{Name: "none", Action: nat.FilterDrop}} }, 4},
		{"the mapping", func(c *nat.Config) { c.Addresses = nil }, 3},
		{"the mapped host", func(c *nat.Config) { c.Addresses[0].Internal = address("192.0.2.99") }, 3},
		{"the node of the client", func(c *nat.Config) {
			c.Nodes[0].Port = 9
			c.Routes[0].Port, c.Routes[2].Port, c.Routes[3].Port, c.Routes[6].Port = node2, node2, node2, node2
		}, 2},
		{"the pod's route", func(c *nat.Config) { c.Routes[1].Prefix = prefix("10.200.8.0/23") }, 3},
		{"U", func(c *nat.Config) { c.UnknownSource = address("10.70.0.1") }, 3},
		{"U off", func(c *nat.Config) { c.UnknownSource = netip.Addr{} }, 3},
		{"the remap", func(c *nat.Config) { c.Remote[0].Remapped = prefix("10.75.0.0/16") }, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e := engine(t, base)
			for p, in := range map[*nattest.IP]nat.Port{&podCIDR: node1, &client: node1, &host: nat.Tunnel, &inbound: nat.Tunnel} {
				forwarded(t, e, in, p.Bytes(), start)
			}
			c := rome()
			base(c)
			test.change(c)
			if err := e.Apply(c); err != nil {
				t.Fatal(err)
			}
			if !e.Sweep(start) {
				t.Fatal("the sweep did not end")
			}
			if st := e.Stats(); st.Connections != test.left || int(st.Evicted) != 4-test.left {
				t.Fatalf("%d connections left, %d evicted; want %d left", st.Connections, st.Evicted, test.left)
			}
		})
	}
}

// The YAML's rules apply to packets of connections that exist, both ways, from the next packet on.
func TestFilterChange(t *testing.T) {
	e := engine(t)
	p := tcp("10.200.1.5", "10.71.3.9", 40000, 22, nattest.SYN, "")
	_, out, _ := forwarded(t, e, node1, p.Bytes(), start)
	returned(t, e, p, node1, out, nat.Tunnel, start)
	for _, action := range []nat.FilterAction{nat.FilterDrop, nat.FilterReject} {
		c := rome()
		c.Rules = []nat.FilterRule{{Name: "no-ssh", From: nat.FromLocal, Protocol: 6, Ports: []nat.PortRange{{First: 22, Last: 22}}, Action: action}}
		if err := e.Apply(c); err != nil {
			t.Fatal(err)
		}
		want := map[nat.FilterAction]nat.Reason{nat.FilterDrop: nat.ReasonFiltered, nat.FilterReject: nat.ReasonRejected}[action]
		for range 2 {
			v := dropped(t, e, node1, p.Bytes(), start, want)
			if got := v.Answer == nat.AnswerNetUnreachable; got != (action == nat.FilterReject) {
				t.Fatalf("answer %d", v.Answer)
			}
		}
		returned(t, e, p, node1, out, nat.Tunnel, start) // the other direction passes
	}
	if err := e.Apply(rome()); err != nil {
		t.Fatal(err)
	}
	forwarded(t, e, node1, p.Bytes(), start)
	if st := e.Stats(); st.Connections != 1 || st.Created != 1 {
		t.Fatalf("%+v", st)
	}
}

// ICMP errors about translated packets reach the sender with what it had sent (no. 6), through the connection.
func TestTrackedICMPErrors(t *testing.T) {
	for name, body := range bodies(false) {
		if name == "empty" || name == "gre" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			e := engine(t)
			p := nattest.IP{Source: "203.0.113.9", Destination: "10.72.49.9", Body: body}
			forwarded(t, e, node1, p.Bytes(), start)
			_, sent, b := forwarded(t, e, node2, p.Bytes(), start) // has another port
			_ = sent
			b[8] = 1
			b = nattest.Fix(b)
			for _, router := range []struct{ source, want string }{{"192.0.2.66", "10.72.49.9"}, {"10.200.7.7", "10.71.7.7"}} {
				m := nattest.IP{Source: router.source, Destination: "10.70.0.0", Body: nattest.ICMP{Type: 11, Payload: b}}.Bytes()
				v, got, out := forwarded(t, e, nat.Tunnel, m, start)
				if v.Out != node2 {
					t.Fatalf("goes to port %d", v.Out)
				}
				expect(t, got, router.want, "203.0.113.9")
				quoted, err := nattest.Quoted(out)
				if err != nil {
					t.Fatal(err)
				}
				expect(t, quoted, p.Source, p.Destination)
				want, _ := nattest.Check(p.Bytes())
				if quoted.SourcePort != want.SourcePort || quoted.DestinationPort != want.DestinationPort {
					t.Fatalf("quotes ports %d > %d", quoted.SourcePort, quoted.DestinationPort)
				}
				if name != "sctp" { // the error's own sums are right; SCTP's CRC cannot be mended in a quotation
					if _, err := nattest.CheckQuoted(out); err != nil {
						t.Fatal(err)
					}
				}
			}
			// And about the answer, from node 2 towards the tunnel: U is the source that the remote cluster knows.
			answer := nattest.IP{Source: "10.200.3.9", Destination: "10.200.1.5", Body: nattest.UDP{SourcePort: 9, DestinationPort: 10}}
			_, _, arrived := forwarded(t, e, nat.Tunnel, answer.Bytes(), start)
			m := nattest.IP{Source: "10.80.0.2", Destination: "10.71.3.9", Body: nattest.ICMP{Type: 3, Code: 3, Payload: arrived}}.Bytes()
			v, got, out := forwarded(t, e, node2, m, start)
			expect(t, got, "10.70.0.0", "10.200.3.9")
			quoted, err := nattest.CheckQuoted(out)
			if err != nil || v.Out != nat.Tunnel {
				t.Fatal(v.Out, err)
			}
			expect(t, quoted, "10.200.3.9", "10.200.1.5")
			if st := e.Stats(); st.Connections != 3 {
				t.Fatalf("an ICMP error made a connection: %d", st.Connections)
			}
		})
	}
}

// No. 10: segments are no larger than the MSS of the SYN that travelled towards the sender.
func TestSegmentsFollowMSS(t *testing.T) {
	for _, mss := range []uint16{536, 1300, 1460, 0} {
		t.Run(fmt.Sprint(mss), func(t *testing.T) {
			e := engine(t)
			syn := tcp("10.200.1.5", "10.71.3.9", 40000, 80, nattest.SYN, "")
			_, out, _ := forwarded(t, e, node1, syn.Bytes(), start)
			answer := nattest.IP{Source: "10.200.3.9", Destination: out.Source.String(), Body: nattest.TCP{SourcePort: 80, DestinationPort: 40000,
				Seq: 7, Ack: 1001, Flags: nattest.SYN | nattest.ACK, Window: 9999}}
			if mss != 0 {
				b := answer.Body.(nattest.TCP)
				b.Options = []byte{2, 4, byte(mss >> 8), byte(mss)}
				answer.Body = b
			}
			forwarded(t, e, nat.Tunnel, answer.Bytes(), start)
			options := []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}
			super := nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", DF: true, Body: nattest.TCP{SourcePort: 40000, DestinationPort: 80,
				Seq: 1001, Ack: 8, Flags: nattest.ACK, Options: options, Payload: nattest.Payload(9000, 1), Partial: true}}
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

// Timers: nf_conntrack's, refreshed by packets, in virtual time.
func TestTimeouts(t *testing.T) {
	steps := func(kinds ...string) []string { return kinds }
	tests := []struct {
		name  string
		steps []string
		want  time.Duration
	}{
		{"udp", steps("udp"), 120 * time.Second},
		{"udp both ways", steps("udp", "udp back"), 120 * time.Second},
		{"icmp", steps("echo"), 60 * time.Second},
		{"gre", steps("gre"), 600 * time.Second},
		{"syn", steps("S"), 120 * time.Second},
		{"syn, syn-ack", steps("S", "<SA"), 60 * time.Second},
		{"established", steps("S", "<SA", "A"), 120 * time.Hour},
		{"mid-stream, one side", steps("A"), 120 * time.Second},
		{"mid-stream", steps("A", "<A"), 120 * time.Hour},
		{"fin", steps("S", "<SA", "A", "FA"), 120 * time.Second},
		{"fin acknowledged", steps("S", "<SA", "A", "FA", "<A"), 60 * time.Second},
		{"both fins", steps("S", "<SA", "A", "FA", "<FA"), 30 * time.Second},
		{"closed", steps("S", "<SA", "A", "FA", "<FA", "A"), 120 * time.Second},
		{"reset", steps("S", "<SA", "A", "R"), 10 * time.Second},
		{"refused", steps("S", "<RA"), 10 * time.Second},
		{"sctp", steps("sctp init"), 30 * time.Second},
		{"sctp both ways", steps("sctp init", "<sctp init ack", "sctp cookie echo"), 120 * time.Hour},
		{"sctp aborted", steps("sctp init", "<sctp init ack", "sctp cookie echo", "<sctp abort"), 10 * time.Second},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e := engine(t)
			d := dialogue{e: e}
			now := start
			for _, step := range test.steps {
				now = now.Add(time.Second)
				d.send(t, step, now)
			}
			for e.Sweep(now.Add(test.want-time.Second)) == false {
			}
			if n := e.Stats().Connections; n != 1 {
				t.Fatalf("gone a second before %v", test.want)
			}
			// The wheel turns in seconds.
			for e.Sweep(now.Add(test.want+2*time.Second)) == false {
			}
			if n := e.Stats().Connections; n != 0 {
				t.Fatalf("there two seconds after %v", test.want)
			}
		})
	}
}

// A dialogue sends TCP segments with right numbers between 10.200.1.5 and 10.71.3.9, and other things by name.
type dialogue struct {
	e   *nat.Engine
	seq [2]uint32
}

func (d *dialogue) send(t *testing.T, step string, now nat.Time) {
	t.Helper()
	back := step[0] == '<'
	if back {
		step = step[1:]
	}
	p := nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9"}
	in, me := node1, 0
	if back {
		p.Source, p.Destination, in, me = "10.200.3.9", "10.200.1.5", nat.Tunnel, 1
	}
	ports := func(a, b uint16) (uint16, uint16) {
		if back {
			return b, a
		}
		return a, b
	}
	switch step {
	case "udp":
		p.Body = nattest.UDP{SourcePort: 1, DestinationPort: 2}
	case "udp back":
		p.Source, p.Destination, in = "10.200.3.9", "10.200.1.5", nat.Tunnel
		p.Body = nattest.UDP{SourcePort: 2, DestinationPort: 1}
	case "echo":
		p.Body = nattest.ICMP{Type: 8, Rest: 1 << 16}
	case "gre":
		p.Body = nattest.Raw{Protocol: 47, Payload: make([]byte, 8)}
	case "sctp init", "sctp init ack", "sctp cookie echo", "sctp abort":
		s := nattest.SCTP{Tag: uint32(100 + me)}
		s.SourcePort, s.DestinationPort = ports(5, 6)
		kind := map[string]byte{"sctp init": 1, "sctp init ack": 2, "sctp cookie echo": 10, "sctp abort": 6}[step]
		s.Chunks = []byte{kind, 0, 0, 8, 0, 0, 0, byte(101 - me)} // the initiate tag is what the other side will send
		if kind == 1 {
			s.Tag = 0
		}
		p.Body = s
	default:
		s := nattest.TCP{Seq: 1000*uint32(me+1) + d.seq[me], Ack: 1000*uint32(2-me) + d.seq[1-me], Window: 1000}
		s.SourcePort, s.DestinationPort = ports(40000, 80)
		for _, f := range step {
			switch f {
			case 'S':
				s.Flags |= nattest.SYN
				d.seq[me]++
			case 'A':
				s.Flags |= nattest.ACK
			case 'F':
				s.Flags |= nattest.FIN
				d.seq[me]++
			case 'R':
				s.Flags |= nattest.RST
			}
		}
		if s.Flags&nattest.ACK == 0 {
			s.Ack = 0
		}
		p.Body = s
	}
	forwarded(t, d.e, in, p.Bytes(), now)
}
