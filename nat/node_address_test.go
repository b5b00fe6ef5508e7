package nat_test

import (
	"testing"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

const nodeV4, nodeV6 = "10.80.0.2", "fd80::2"

// dualNodes gives the first node an address of each family, which 10.70.0.30 and fd00:70::30, and
// port 80 of .31, stand for.
func dualNodes(c *nat.Config) {
	dual(c)
	c.Nodes[0].Address.V6 = address(nodeV6)
	c.Routes = append(c.Routes, rules.Route{Prefix: prefix(nodeV6 + "/128"), Link: node1})
	for external, internal := range map[string]string{"10.70.0.30": nodeV4, "fd00:70::30": nodeV6} {
		c.Addresses = append(c.Addresses, rules.AddressMapping{External: address(external),
			Internal: address(internal)})
	}
	for external, internal := range map[string]string{"10.70.0.31": nodeV4, "fd00:70::31": nodeV6} {
		c.Services = append(c.Services, rules.Service{Name: external, Address: address(external), Port: 80,
			Protocol: packet.TCP,
			Backends: []rules.Backend{{Address: address(internal), Port: 10250}}})
	}
}

// TestNodesAreClosed: no packet of the peer to a node's own address reaches the node, whole or in
// fragments, whether or not the tables have room.
func TestNodesAreClosed(t *testing.T) {
	large := nattest.Payload(3000, 1)
	for _, family := range []struct{ name, remote, node string }{{"IPv4", "10.200.3.9", nodeV4},
		{"IPv6", remoteReal6, nodeV6}} {
		to := func(body nattest.Body) nattest.IP {
			return nattest.IP{Source: family.remote, Destination: family.node, Body: body}
		}
		echo := nattest.ICMP{Type: 8, Rest: 7 << 16}
		if family.name == "IPv6" {
			echo.Type = 128
		}
		whole := map[string]nattest.Body{
			"SYN": nattest.TCP{SourcePort: 4321, DestinationPort: 10250, Flags: nattest.SYN},
			"mid-stream": nattest.TCP{SourcePort: 4321, DestinationPort: 10250, Flags: nattest.ACK,
				Payload: []byte("x")},
			"datagram":         nattest.UDP{SourcePort: 4321, DestinationPort: 10250},
			"echo request":     echo,
			"another protocol": nattest.Raw{Protocol: 47, Payload: make([]byte, 8)},
		}
		for name, body := range whole {
			t.Run(family.name+"/"+name, func(t *testing.T) {
				for what, change := range map[string]func(*nat.Config){
					"room": func(*nat.Config) {}, "no room": func(c *nat.Config) { c.MaxConnections = 1 },
					"sourceCheck: cluster": speakForAll,
				} {
					e := engine(t, dualNodes, change)
					for port := range uint16(3) { // there is room for one
						forwarded(t, e, nat.Tunnel, udp("10.200.3.9", "10.200.1.5", port+1, 9).Bytes(), start)
					}
					made := e.Stats().Created
					v := dropped(t, e, nat.Tunnel, to(body).Bytes(), start, nat.ReasonToNode)
					if v.Refusal != packet.NoRefusal || e.Stats().Created != made {
						t.Errorf("%s: refusal %d, %d connections made", what, v.Refusal, e.Stats().Created-made)
					}
					ledger(t, e)
				}
			})
		}
		t.Run(family.name+"/fragments", func(t *testing.T) {
			pieces := nattest.Pieces(to(nattest.UDP{SourcePort: 4321, DestinationPort: 10250, Payload: large}), 1000, 5)
			for _, order := range [][]int{{0, 1, 2, 3}, {1, 0, 2, 3}, {3, 2, 1, 0}, {2, 3}} {
				e := engine(t, dualNodes)
				for _, i := range order {
					dropped(t, e, nat.Tunnel, pieces[i], start, nat.ReasonToNode)
				}
				ledger(t, e)
			}
		})
		t.Run(family.name+"/an error about nothing", func(t *testing.T) {
			e := engine(t, dualNodes)
			quoted := nattest.IP{Source: family.node, Destination: family.remote, Body: nattest.UDP{SourcePort: 9,
				DestinationPort: 10}}
			m := nattest.ICMP{Type: 3, Code: 1, Payload: quoted.Bytes()}
			if family.name == "IPv6" {
				m.Type = 1
			}
			dropped(t, e, nat.Tunnel, to(m).Bytes(), start, nat.ReasonICMPUnrelated)
		})
	}
}

// TestNodesTakeNoBroadcast: nobody opens a connection to an address of a pod network that Linux
// takes for the node's own; the pod beside it, and networks too small to have such an address, get
// theirs.
func TestNodesTakeNoBroadcast(t *testing.T) {
	small := func(c *nat.Config) {
		dual(c)
		for i, p := range []string{"10.200.8.0/30", "10.200.8.4/31", "10.200.8.6/32", "fd00:200:0:2::/126",
			"fd00:200:0:2::4/127",
			"fd00:200:0:2::6/128", "10.200.1.254/31"} {
			c.Routes = append(c.Routes, rules.Route{Prefix: prefix(p), Link: []nat.Link{node1, node2}[i%2]})
		}
		c.Addresses = []rules.AddressMapping{{External: address("10.70.0.30"), Internal: address("10.200.3.255")}}
	}
	for _, check := range []nat.SourceCheck{nat.SourceCheckNode, nat.SourceCheckCluster} {
		e := engine(t, small, func(c *nat.Config) { c.SourceCheck = check })
		for to, taken := range map[string]bool{
			"10.200.1.0": true, "10.200.1.1": false, "10.200.1.255": false, "10.200.2.0": true, "10.200.2.255": false,
			"10.200.3.0":   false,
			"10.200.3.255": true, "10.64.47.255": true, "10.70.0.30": true, "10.200.8.0": true, "10.200.8.1": false,
			"10.200.8.2": false,
			"10.200.8.3": true, "10.200.8.4": false, "10.200.8.5": false, "10.200.8.6": false,
			"fd00:200:0:1::": true, "fd00:200:0:1::1": false, "fd00:200:0:1:ffff:ffff:ffff:ffff": false,
			"fd00:200:0:2::":  true,
			"fd00:200:0:2::3": false, "fd00:200:0:2::4": false, "fd00:200:0:2::5": false, "fd00:200:0:2::6": false,
		} {
			sources := map[nat.Link]string{nat.Tunnel: "10.200.3.9", node1: "10.200.1.5"}
			if address(to).Is6() {
				sources = map[nat.Link]string{nat.Tunnel: remoteReal6, node1: pod6}
			}
			for in, source := range sources {
				if in != nat.Tunnel && to == "10.70.0.30" {
					continue // for the peer alone
				}
				whole := udp(source, to, 7, 9)
				whole.Body = nattest.UDP{SourcePort: 7, DestinationPort: 9, Payload: nattest.Payload(2000, 1)}
				pieces := nattest.Pieces(whole, 1000, 5)
				pieces[0], pieces[1] = pieces[1], pieces[0] // the later one waits
				want := len(pieces)
				if taken {
					want = 0
					dropped(t, e, in, udp(source, to, 1, 9).Bytes(), start, nat.ReasonBadDestination)
				} else {
					forwarded(t, e, in, udp(source, to, 1, 9).Bytes(), start)
				}
				if out := deliver(t, e, in, pieces, start); len(out) != want {
					t.Errorf("%s from link %d: %d of %d fragments arrive", to, in, len(out), want)
				}
			}
		}
		ledger(t, e)
	}
	// Whatever is asked under such an address is answered, and given rules decide alone.
	e := engine(t, dual)
	asked := udp("10.200.1.255", "10.71.3.9", 7, 53)
	_, got, _ := forwarded(t, e, node1, asked.Bytes(), start)
	returned(t, e, asked, node1, got, nat.Tunnel, start)
	e = engine(t, func(c *nat.Config) { c.Firewall, c.Routing = c.Tables(), c.PolicyTables() })
	forwarded(t, e, nat.Tunnel, udp("10.200.3.9", "10.200.1.255", 1, 9).Bytes(), start)
}

// TestAddressBecomesBroadcast: connections of the peer to a pod end when its address becomes a
// network's last one.
func TestAddressBecomesBroadcast(t *testing.T) {
	host := rules.Route{Prefix: prefix("10.200.1.255/32"), Link: node1}
	e := engine(t, func(c *nat.Config) { c.Routes = append(c.Routes, host) })
	p := tcp("10.200.3.9", "10.200.1.255", 4321, 22, nattest.SYN, "")
	forwarded(t, e, nat.Tunnel, p.Bytes(), start)
	need.NoError(t, e.Apply(rome()))
	dropped(t, e, nat.Tunnel, p.Bytes(), start, nat.ReasonBadDestination)
	ledger(t, e)
}

// TestNodesAreAnswered: nodes get answers, errors and fragments too; mapped addresses of a node
// lead there; and nodes reach each other and their pods.
func TestNodesAreAnswered(t *testing.T) {
	for _, family := range []struct{ name, remote, seen, node, u, mapped, service, pod string }{
		{"IPv4", "10.200.3.9", "10.71.3.9", nodeV4, "10.70.0.0", "10.70.0.30", "10.70.0.31", "10.200.1.5"},
		{"IPv6", remoteReal6, remote6, nodeV6, "fd00:70::", "fd00:70::30", "fd00:70::31", pod6},
	} {
		t.Run(family.name, func(t *testing.T) {
			// Nothing stands for this node, so its source becomes U.
			e := engine(t, dualNodes, func(c *nat.Config) { c.Addresses = nil })
			asked := udp(family.node, family.seen, 7, 53)
			_, got, sent := forwarded(t, e, node1, asked.Bytes(), start)
			expect(t, got, family.u, family.remote)
			answer := nattest.IP{Source: family.remote, Destination: family.u, Body: nattest.UDP{SourcePort: 53,
				DestinationPort: got.SourcePort, Payload: nattest.Payload(2000, 2)}}
			pieces := nattest.Pieces(answer, 1000, 9)
			if out := deliver(t, e, nat.Tunnel, [][]byte{pieces[1], pieces[0], pieces[2]}, start); len(out) != 3 {
				t.Errorf("%d of 3 fragments of an answer arrive", len(out))
			}
			m := nattest.ICMP{Type: 3, Code: 3, Payload: sent}
			if family.name == "IPv6" {
				m.Type, m.Code = 1, 4
			}
			v, got, _ := forwarded(t, e, nat.Tunnel, nattest.IP{Source: family.remote, Destination: family.u,
				Body: m}.Bytes(), start)
			if expect(t, got, family.seen, family.node); v.Out != node1 {
				t.Errorf("the error goes to link %d", v.Out)
			}

			e = engine(t, dualNodes)
			for _, to := range []string{family.mapped, family.service} {
				p := tcp(family.remote, to, 4321, 80, nattest.SYN, "")
				v, got, _ := forwarded(t, e, nat.Tunnel, p.Bytes(), start)
				if expect(t, got, family.seen, family.node); v.Out != node1 {
					t.Errorf("%s leads to link %d", to, v.Out)
				}
				returned(t, e, p, nat.Tunnel, got, node1, start)
			}
			forwarded(t, e, node1, udp(family.pod, family.node, 1, 2).Bytes(), start)
			if family.name == "IPv4" {
				forwarded(t, e, node2, udp("10.80.0.3", family.node, 1, 2).Bytes(), start)
			}
		})
	}
}

// TestGivenRulesOpenNodes: if rules are given, as under Liqo, only they decide.
func TestGivenRulesOpenNodes(t *testing.T) {
	e := engine(t, func(c *nat.Config) { c.Firewall, c.Routing = c.Tables(), c.PolicyTables() })
	v, _, _ := forwarded(t, e, nat.Tunnel, tcp("10.200.3.9", nodeV4, 4321, 10250, nattest.SYN, "").Bytes(), start)
	if v.Out != node1 {
		t.Errorf("to link %d", v.Out)
	}
}

// TestAddressBecomesANodes: connections of the peer to a pod end when its address becomes that of a
// node.
func TestAddressBecomesANodes(t *testing.T) {
	const was = "10.90.0.5" // of no cluster's CIDR, as nodes' addresses are
	routed := func(c *nat.Config) {
		c.Routes = append(c.Routes, rules.Route{Prefix: prefix(was + "/32"), Link: node1})
	}
	e := engine(t, routed)
	p := tcp("10.200.3.9", was, 4321, 22, nattest.SYN, "")
	forwarded(t, e, nat.Tunnel, p.Bytes(), start)
	c := rome()
	routed(c)
	c.Nodes[0].Address = rules.PairOf(address(was))
	need.NoError(t, e.Apply(c))
	dropped(t, e, nat.Tunnel, p.Bytes(), start, nat.ReasonToNode)
	ledger(t, e)
	for !e.Sweep(start) {
	}
	if n := e.Stats().Connections; n != 0 {
		t.Errorf("%d connections left", n)
	}
}
