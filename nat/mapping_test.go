package nat_test

import (
	"fmt"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/rules"
)

// nat.addresses: an address of the local external CIDR stands for a host outside, in both
// directions.
func TestAddressMapping(t *testing.T) {
	change := func(c *nat.Config) {
		c.Addresses = []rules.AddressMapping{
			{External: address("10.70.0.9"), Internal: address("192.0.2.10"), Via: node2},
			{External: address("10.70.0.8"), Internal: address("192.0.2.11")},
			{External: address("10.70.0.7"), Internal: address("10.200.2.44")},
		}
	}
	tests := []struct {
		external, internal string
		via                nat.Link
	}{{"10.70.0.9", "192.0.2.10", node2}, {"10.70.0.8", "192.0.2.11", node1}, {"10.70.0.7", "10.200.2.44", node2}}
	for _, test := range tests {
		t.Run("from the tunnel to "+test.internal, func(t *testing.T) {
			e := engine(t, change)
			p := tcp("10.200.3.9", test.external, 40000, 80, nattest.SYN, "")
			v, out, _ := forwarded(t, e, nat.Tunnel, p.Bytes(), start)
			if v.Out != test.via {
				t.Fatalf("leaves by link %d", v.Out)
			}
			expect(t, out, "10.71.3.9", test.internal)
			returned(t, e, p, nat.Tunnel, out, test.via, start)
			// The answer comes through another node: it is forwarded and counted if the host may be
			// anywhere.
			answer := tcp(test.internal, "10.71.3.9", 80, 40000, nattest.ACK, "")
			if test.internal == "10.200.2.44" {
				dropped(t, e, node1, answer.Bytes(), start, nat.ReasonBadSource)
				return
			}
			v, back, _ := forwarded(t, e, node1+node2-test.via, answer.Bytes(), start)
			expect(t, back, test.external, "10.200.3.9")
			if !v.Asymmetric || e.Stats().Outbound.Asymmetric != 1 {
				t.Fatal("not counted as asymmetric")
			}
			// That does not move the connection.
			if v, _, _ := forwarded(t, e, nat.Tunnel, p.Bytes(), start); v.Out != test.via {
				t.Fatalf("moved to link %d", v.Out)
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
		// The mapping's SNAT is not for packets from the tunnel.
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
			t.Fatalf("leaves by link %d", v.Out)
		}
		expect(t, out, "10.80.0.4", "192.0.2.10")
		returned(t, e, p, node1, out, node2, start)
	})
}

func service(backends ...rules.Backend) rules.Service {
	return rules.Service{Name: "web", Address: address("10.70.0.20"), Port: 80, Protocol: 6, Backends: backends}
}

func TestService(t *testing.T) {
	backends := []rules.Backend{{Address: address("10.200.1.5"), Port: 8080, Weight: 3},
		{Address: address("192.0.2.50"), Port: 8081, Via: node2}}
	e := engine(t, func(c *nat.Config) { c.Services = []rules.Service{service(backends...)} })
	count := map[string]int{}
	for i := range 400 {
		p := tcp("10.200.3.9", "10.70.0.20", uint16(20000+i), 80, nattest.SYN, "")
		v, out, _ := forwarded(t, e, nat.Tunnel, p.Bytes(), start)
		key := fmt.Sprintf("%s:%d@%d", out.Destination, out.DestinationPort, v.Out)
		count[key]++
		returned(t, e, p, nat.Tunnel, out, v.Out, start)
		// The backend stays.
		again, _, _ := forwarded(t, e, nat.Tunnel, tcp("10.200.3.9", "10.70.0.20", uint16(20000+i), 80, nattest.ACK,
			"x").Bytes(), start)
		if again.Out != v.Out {
			t.Fatal("the backend changed")
		}
	}
	if a, b := count["10.200.1.5:8080@1"], count["192.0.2.50:8081@7"]; a+b != 400 || a < 260 || a > 340 {
		t.Fatalf("chosen %v", count)
	}
	dropped(t, e, nat.Tunnel, tcp("10.200.3.9", "10.70.0.20", 5, 81, nattest.SYN, "").Bytes(), start,
		nat.ReasonNoMapping)
	empty := engine(t, func(c *nat.Config) { c.Services = []rules.Service{service()} })
	dropped(t, empty, nat.Tunnel, tcp("10.200.3.9", "10.70.0.20", 5, 80, nattest.SYN, "").Bytes(), start,
		nat.ReasonNoBackend)
}

// UDP leaves a backend that was removed with its next datagram, though datagrams never pause.
func TestBackendLeavesUDP(t *testing.T) {
	s := service(rules.Backend{Address: address("10.200.1.5"), Port: 8080})
	s.Protocol = 17
	e := engine(t, func(c *nat.Config) { c.Services = []rules.Service{s} })
	next := rome()
	s.Backends = []rules.Backend{{Address: address("10.200.1.6"), Port: 8080}}
	next.Services = []rules.Service{s}
	for i, want := range []string{"10.200.1.5", "10.200.1.5", "10.200.1.6", "10.200.1.6"} {
		if i == 2 {
			need.NoError(t, e.Apply(next))
		}
		_, out, _ := forwarded(t, e, nat.Tunnel, udp("10.200.3.9", "10.70.0.20", 40000, 80).Bytes(),
			start.Add(time.Duration(i)*time.Second))
		expect(t, out, "10.71.3.9", want)
	}
	ledger(t, e)
}

// onRemoval: TCP connections of a removed backend continue, or are reset.
func TestBackendLeaves(t *testing.T) {
	leaving, staying := rules.Backend{Address: address("10.200.1.5"), Port: 8080},
		rules.Backend{Address: address("10.200.1.6"), Port: 8080}
	for _, on := range []rules.OnRemoval{rules.RemovalKeep, rules.RemovalReset} {
		for _, rest := range [][]rules.Backend{{staying}, nil} {
			t.Run(fmt.Sprintf("%d/%d", on, len(rest)), func(t *testing.T) {
				s := service(leaving)
				s.OnRemoval = on
				e := engine(t, func(c *nat.Config) { c.Services = []rules.Service{s} })
				p := tcp("10.200.3.9", "10.70.0.20", 40000, 80, nattest.SYN, "")
				_, out, _ := forwarded(t, e, nat.Tunnel, p.Bytes(), start)
				returned(t, e, p, nat.Tunnel, out, node1, start)
				c := rome()
				s.Backends = rest
				c.Services = []rules.Service{s}
				need.NoError(t, e.Apply(c))
				data := tcp("10.200.3.9", "10.70.0.20", 40000, 80, nattest.ACK, "data").Bytes()
				if on == rules.RemovalKeep {
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

// TestServiceLeaves: when a service is removed as a whole, its connections go on as if its backends
// alone had been removed: those of TCP and SCTP stay with theirs, also in the next process, and
// those of UDP end. With onRemoval: reset, all end.
func TestServiceLeaves(t *testing.T) {
	pod, host := rules.Backend{Address: address("10.200.1.5"), Port: 8080},
		rules.Backend{Address: address("192.0.2.50"), Port: 8080, Via: node2}
	gone := func(*nat.Config) {}
	taken := func(internal string) func(*nat.Config) {
		return func(c *nat.Config) {
			c.Addresses = []rules.AddressMapping{{External: address("10.70.0.20"), Internal: address(internal)}}
		}
	}
	for name, test := range map[string]struct {
		backend rules.Backend
		reset   bool
		after   func(*nat.Config)
		stays   bool
	}{
		"a pod":            {pod, false, gone, true},
		"a host by a node": {host, false, gone, true},
		"reset":            {pod, true, gone, false},
		"its node is gone": {pod, false, func(c *nat.Config) {
			c.Nodes, c.Routes = c.Nodes[1:],
				nil
		}, false},
		"a host, its node is gone": {host, false, func(c *nat.Config) {
			c.Nodes, c.Routes = c.Nodes[:1],
				nil
		}, false},
		"another has its address now": {pod, false, taken("192.0.2.10"), false},
		"its pod has its address now": {pod, false, taken("10.200.1.5"), true},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", name, restart), func(t *testing.T) {
				s := service(test.backend)
				if test.reset {
					s.OnRemoval = rules.RemovalReset
				}
				e := engine(t, func(c *nat.Config) { c.Services = []rules.Service{s} })
				p := tcp("10.200.3.9", "10.70.0.20", 40000, 80, nattest.SYN, "")
				v, out, _ := forwarded(t, e, nat.Tunnel, p.Bytes(), start)
				by := v.Out
				returned(t, e, p, nat.Tunnel, out, by, start)
				if restart { // the first process has the connection from another one
					next := engine(t, func(c *nat.Config) { c.Services = []rules.Service{s} })
					restore(next, start, records(e, 0, start))
					before := next
					e = engine(t, test.after)
					restore(e, start, records(before, 0, start))
				} else {
					c := rome()
					test.after(c)
					need.NoError(t, e.Apply(c))
				}
				data := tcp("10.200.3.9", "10.70.0.20", 40000, 80, nattest.ACK, "data").Bytes()
				if !test.stays {
					for !e.Sweep(start) {
					}
					if st := e.Stats(); st.Connections != 0 {
						t.Errorf("%d connections are left", st.Connections)
					}
					return
				}
				for range 2 {
					v, out, _ = forwarded(t, e, nat.Tunnel, data, start)
					expect(t, out, "10.71.3.9", test.backend.Address.String())
					if v.Out != by || out.DestinationPort != 8080 {
						t.Errorf("it goes on to port %d by link %d, want %d", out.DestinationPort, v.Out, by)
					}
					returned(t, e, p, nat.Tunnel, out, by, start)
				}
				for !e.Sweep(start) {
				}
				again := tcp("10.200.3.9", "10.70.0.20", 40001, 80, nattest.SYN, "").Bytes()
				if v, _ := process(t, e, nat.Tunnel, again, start); v.Action == nat.Forward && test.backend == pod &&
					name == "a pod" {
					t.Errorf("a new connection is forwarded")
				}
				ledger(t, e)
			})
		}
	}
	for protocol, stays := range map[uint8]bool{17: false, 132: true} {
		s := service(pod)
		s.Protocol = protocol
		e := engine(t, func(c *nat.Config) { c.Services = []rules.Service{s} })
		packet := nattest.IP{Source: "10.200.3.9", Destination: "10.70.0.20", TTL: 9,
			Body: nattest.UDP{SourcePort: 40000, DestinationPort: 80}}
		if protocol == 132 {
			packet.Body = nattest.SCTP{SourcePort: 40000, DestinationPort: 80, Chunks: []byte{1, 0, 0, 4}}
		}
		forwarded(t, e, nat.Tunnel, packet.Bytes(), start)
		need.NoError(t, e.Apply(rome()))
		for !e.Sweep(start) {
		}
		if st := e.Stats(); (st.Connections == 1) != stays {
			t.Errorf("protocol %d: %d connections", protocol, st.Connections)
		}
	}
}
