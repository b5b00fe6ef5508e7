package nat_test

import (
	"net/netip"
	"strings"
	"testing"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// Missing routes, source checks, and packets that a router never forwards.
func TestChecks(t *testing.T) {
	multicast := nattest.IP{Source: "10.200.1.5", Destination: "224.0.0.251", Body: nattest.UDP{}}
	tests := []struct {
		name                string
		in                  nat.Link
		source, destination string
		want                nat.Reason
		answer              packet.Refusal
	}{
		{"source in a remapped remote CIDR", node1, "10.71.0.9", "10.71.3.9", nat.ReasonBadSource, 0},
		{"source in a remote CIDR that is not remapped", node1, "10.99.64.9", "10.71.3.9", nat.ReasonBadSource, 0},
		{"source is the gateway's address", node1, "10.80.0.4", "10.71.3.9", nat.ReasonBadSource, 0},
		{"source is the tunnel address", node1, "169.254.18.2", "10.71.3.9", nat.ReasonBadSource, 0},
		{"source is the peer's tunnel address", node1, "169.254.18.1", "10.71.3.9", nat.ReasonBadSource, 0},
		{"source 0/8", node1, "0.1.2.3", "10.71.3.9", nat.ReasonBadSource, 0},
		{"source loopback", node1, "127.3.2.1", "10.71.3.9", nat.ReasonBadSource, 0},
		{"source link-local", node1, "169.254.1.1", "10.71.3.9", nat.ReasonBadSource, 0},
		{"source multicast", node1, "224.0.0.1", "10.71.3.9", nat.ReasonBadSource, 0},
		{"source broadcast", node1, "255.255.255.255", "10.71.3.9", nat.ReasonBadSource, 0},
		{"bad source to the gateway itself", node1, "10.71.0.9", "10.80.0.4", nat.ReasonBadSource, 0},
		{"IPv6 link-local", node1, "fe80::1", "fd00:71:0:4000::1", nat.ReasonBadSource, 0},
		{"from the tunnel, in no remote CIDR", nat.Tunnel, "192.0.2.1", "10.200.1.5", nat.ReasonBadSource, 0},
		{"from the tunnel, in a remapped CIDR only", nat.Tunnel, "10.71.0.9", "10.200.1.5", nat.ReasonBadSource, 0},
		{"from the tunnel, our own tunnel address", nat.Tunnel, "169.254.18.2", "10.200.1.5", nat.ReasonBadSource, 0},
		{"from the tunnel, a bad source to the gateway itself", nat.Tunnel, "192.0.2.1", "169.254.18.2",
			nat.ReasonBadSource, 0},
		{"to U", nat.Tunnel, "10.200.3.9", "10.70.0.0", nat.ReasonNoMapping, 0},
		{"to an external address that stands for nothing", nat.Tunnel, "10.200.3.9", "10.70.9.9",
			nat.ReasonNoMapping, 0},
		{"to a pod on no node", nat.Tunnel, "10.200.3.9", "10.200.77.1", nat.ReasonNoRoute, packet.HostUnreachable},
		{"to nowhere, from the tunnel", nat.Tunnel, "10.200.3.9", "192.0.2.1", nat.ReasonNoRoute,
			packet.NetUnreachable},
		{"to the gateway's internal address from the tunnel", nat.Tunnel, "10.200.3.9", "10.80.0.4", nat.ReasonNoRoute,
			packet.NetUnreachable},
		{"to nowhere, from a node", node1, "10.200.1.5", "192.0.2.1", nat.ReasonNoRoute, packet.NetUnreachable},
		{"to the tunnel address from a node", node1, "10.200.1.5", "169.254.18.2", nat.ReasonBadDestination, 0},
		{"to multicast", node1, multicast.Source, multicast.Destination, nat.ReasonBadDestination, 0},
		{"to broadcast", nat.Tunnel, "10.200.3.9", "255.255.255.255", nat.ReasonBadDestination, 0},
		{"IPv6 to a pod on no node", nat.Tunnel, "fd00:200:0:1::9", "fd00:200:0:2::9", nat.ReasonNoRoute,
			packet.HostUnreachable},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e := engine(t)
			v := dropped(t, e, test.in, udp(test.source, test.destination, 1, 2).Bytes(), start, test.want)
			if v.Refusal != test.answer {
				t.Fatalf("answer %d, want %d", v.Refusal, test.answer)
			}
			d := e.Stats().Outbound
			if test.in == nat.Tunnel {
				d = e.Stats().Inbound
			}
			if d.Received != 1 || d.Dropped[test.want] != 1 || d.Forwarded != 0 {
				t.Fatalf("counted %+v", d)
			}
		})
	}
}

func TestDeliver(t *testing.T) {
	tests := []struct {
		name                string
		in                  nat.Link
		source, destination string
	}{
		{"pod to the internal address", node1, "10.200.1.5", "10.80.0.4"},
		{"node to the internal address", node2, "10.80.0.3", "10.80.0.4"},
		{"peer to the tunnel address", nat.Tunnel, "169.254.18.1", "169.254.18.2"},
		{"remote pod to the tunnel address", nat.Tunnel, "10.200.3.9", "169.254.18.2"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e := engine(t)
			// TTL 1 is enough: nothing is forwarded.
			p := udp(test.source, test.destination, 1, 2)
			p.TTL = 1
			if v, _ := process(t, e, test.in, p.Bytes(), start); v.Action != nat.Deliver {
				t.Fatalf("verdict %v %v", v.Action, v.Reason)
			}
		})
	}
}

func TestTTL(t *testing.T) {
	e := engine(t)
	for _, ttl := range []uint8{1, 2} {
		for _, p := range []nattest.IP{udp("10.200.1.5", "10.71.3.9", 1, 2),
			udp("fd00:200:0:1::5", "fd00:71:0:4000::9", 1, 2)} {
			p.TTL = ttl
			if ttl == 1 {
				v := dropped(t, e, node1, p.Bytes(), start, nat.ReasonTTLExceeded)
				if v.Refusal != packet.TimeExceeded {
					t.Fatalf("answer %d", v.Refusal)
				}
				continue
			}
			if _, v, _ := forwarded(t, e, node1, p.Bytes(), start); v.TTL != 1 {
				t.Fatalf("TTL %d, want 1", v.TTL)
			}
		}
	}
}

// Messages that stay on one link: RFC 4861, RFC 3810, RFC 1256, RFC 6633.
func TestICMPTypes(t *testing.T) {
	e := engine(t)
	for kind := range 256 {
		drop4 := map[int]bool{4: true, 5: true, 9: true, 10: true}[kind]
		errors4 := map[int]bool{3: true, 11: true, 12: true}[kind]
		if !errors4 {
			b := nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9",
				Body: nattest.ICMP{Type: uint8(kind)}}.Bytes()
			v, _ := process(t, e, node1, b, start)
			if got := v.Reason == nat.ReasonICMPType; got != drop4 {
				t.Errorf("ICMP type %d: %v %v", kind, v.Action, v.Reason)
			}
		}
		drop6 := kind >= 130 && kind <= 153
		if kind < 1 || kind > 4 {
			b := nattest.IP{Source: "fd00:200:0:1::5", Destination: "fd00:71:0:4000::9",
				Body: nattest.ICMP{Type: uint8(kind)}}.Bytes()
			v, _ := process(t, e, node1, b, start)
			if got := v.Reason == nat.ReasonICMPType; got != drop6 {
				t.Errorf("ICMPv6 type %d: %v %v", kind, v.Action, v.Reason)
			}
		}
	}
}

// Every fault of a configuration is named, whatever else is wrong with it, and what runs goes on.
func TestConfigFaults(t *testing.T) {
	e, mapped := engine(t), netip.MustParsePrefix("::ffff:10.1.0.0/112")
	service := func(change func(*rules.Service)) func(*nat.Config) {
		return func(c *nat.Config) { change(&c.Services[0]) }
	}
	backend := func(change func(*rules.Backend)) func(*nat.Config) {
		return service(func(s *rules.Service) { change(&s.Backends[0]) })
	}
	rule := func(r rules.FilterRule) func(*nat.Config) {
		return func(c *nat.Config) { c.Rules = []rules.FilterRule{r} }
	}
	for fault, change := range map[string]func(*nat.Config){
		"Nodes[1].Link: 1 is also Nodes[0]": func(c *nat.Config) {
			c.Nodes[1].Link = c.Nodes[0].Link
		},
		"Nodes[1].Name: \"rome-1\" is also Nodes[0]": func(c *nat.Config) {
			c.Nodes[1].Name = c.Nodes[0].Name
		},
		"Nodes[1].Address: not an address": func(c *nat.Config) {
			c.Nodes[1].Address = rules.Pair{}
		},
		"Nodes[1].Address: 10.80.0.2 is also Nodes[0]": func(c *nat.Config) {
			c.Nodes[1].Address = c.Nodes[0].Address
		},
		"Nodes[0].Address: 10.80.0.4 is also GatewayAddress": func(c *nat.Config) {
			c.Nodes[0].Address = c.GatewayAddress
		},
		"Nodes[0].Address: 224.0.0.5 is no unicast address": func(c *nat.Config) {
			c.Nodes[0].Address.V4 = address("224.0.0.5")
		},
		"has a family in the other's place": func(c *nat.Config) {
			c.Nodes[0].Address.V4 = address("fd00::5")
		},
		"Remote[0].Remapped: 10.71.0.0/16 overlaps LocalPodCIDRs[1] 10.71.128.0/17": func(c *nat.Config) {
			c.LocalPodCIDRs[1] = prefix("10.71.128.0/17")
		},
		"FromTunnel[0]: ::ffff:10.1.0.0/112 is IPv4 mapped into IPv6": func(c *nat.Config) {
			c.FromTunnel = []netip.Prefix{mapped}
		},
		"NotFromNodes[0]: 10.1.2.3/16 has host bits set": func(c *nat.Config) {
			c.NotFromNodes = []netip.Prefix{netip.MustParsePrefix("10.1.2.3/16")}
		},
		"Remote[0].Remapped: 10.72.48.0/21 has another length or family": func(c *nat.Config) {
			c.Remote[0].Remapped = prefix("10.72.48.0/21")
		},
		"Remote[0].Real: not a prefix": func(c *nat.Config) {
			c.Remote[0].Real = netip.Prefix{}
		},
		"GatewayAddress: 10.71.0.4 lies in Remote[0], seen as 10.71.0.0/16": func(c *nat.Config) {
			c.GatewayAddress = rules.PairOf(address("10.71.0.4"))
		},
		"MTU: 1200 is":                          func(c *nat.Config) { c.MTU = 1200 },
		"MSSClamp: 5 is not MSSAuto, MSSOff or": func(c *nat.Config) { c.MSSClamp = 5 },
		"UnknownSource: 192.0.2.1 lies in no local external CIDR": func(c *nat.Config) {
			c.UnknownSource = rules.PairOf(address("192.0.2.1"))
		},
		"Routes[0].Link: link 99 is no node": func(c *nat.Config) { c.Routes[0].Link = 99 },
		"Routes[1].Prefix: ": func(c *nat.Config) {
			c.Routes[1].Prefix = c.Routes[0].Prefix
		},
		"Addresses[0].External: 10.70.0.0 is U or lies in no local external CIDR": func(c *nat.Config) {
			c.Addresses = []rules.AddressMapping{{External: address("10.70.0.0"), Internal: address("10.80.0.9")}}
		},
		"Addresses[1].External: 10.70.0.9 is also Addresses[0]": func(c *nat.Config) {
			m := rules.AddressMapping{External: address("10.70.0.9"), Internal: address("10.80.0.9")}
			c.Addresses = []rules.AddressMapping{m, m}
		},
		"Addresses[0].Internal: ::1 has another family than 10.70.0.9": func(c *nat.Config) {
			c.Addresses = []rules.AddressMapping{{External: address("10.70.0.9"), Internal: address("::1")}}
		},
		"Addresses[0].Via: link 5 is no node": func(c *nat.Config) {
			c.Addresses = []rules.AddressMapping{{External: address("10.70.0.9"),
				Internal: address("10.80.0.9"), Via: 5}}
		},
		"Services[0].Address: 10.80.0.9 is U or lies in": service(func(s *rules.Service) {
			s.Address = address("10.80.0.9")
		}),
		"is also Addresses[0]": func(c *nat.Config) {
			c.Addresses = []rules.AddressMapping{{External: c.Services[0].Address, Internal: address("10.80.0.9")}}
		},
		"is also Services[0]": func(c *nat.Config) {
			c.Services = append(c.Services, c.Services[0])
		},
		"Services[0].Port: 0 is no port": service(func(s *rules.Service) {
			s.Port = 0
		}),
		"Services[0].Protocol: 1 is not TCP, UDP or SCTP": service(func(s *rules.Service) {
			s.Protocol = 1
		}),
		"Services[0].ProxyProtocol: protocol 17 is not TCP": service(func(s *rules.Service) {
			s.Protocol, s.ProxyProtocol = packet.UDP, true
		}),
		"Services[0]: balance, affinity or onRemoval out of range": service(func(s *rules.Service) {
			s.Balance = rules.BalanceHash + 1
		}),
		"Services[0].Frontend: a gateway's service has none": service(func(s *rules.Service) {
			s.Frontend = &rules.Frontend{}
		}),
		"Services[0].Backends[0].Address: 0.0.0.0 is no unicast address": backend(func(b *rules.Backend) {
			b.Address = address("0.0.0.0")
		}),
		"Services[0].Backends[0].Address: ::1 has another family": backend(func(b *rules.Backend) {
			b.Address = address("::1")
		}),
		"Services[0].Backends[0].Port: 0 is no port": backend(func(b *rules.Backend) {
			b.Port = 0
		}),
		"Services[0].Backends[0].Weight: 1001 is not between 0 and 1000": backend(func(b *rules.Backend) {
			b.Weight = 1001
		}),
		"Services[0].Backends[0].Eligibility: ": backend(func(b *rules.Backend) {
			b.Eligibility = rules.EligibleNone
		}),
		"Services[0].Backends[0].Via: link 5 is no node": backend(func(b *rules.Backend) { b.Via = 5 }),
		"Rules[0].Ports[0]: 2 is larger than 1": rule(rules.FilterRule{Protocol: packet.TCP,
			Ports: []rules.PortRange{{First: 2, Last: 1}}}),
		"Rules[0].Ports: protocol 0 has no ports": rule(rules.FilterRule{
			Ports: []rules.PortRange{{First: 1, Last: 2}}}),
		"Rules[0].Source[0]: not a prefix": rule(rules.FilterRule{
			Source: make([]netip.Prefix, 1)}),
		"Rules[0].Destination[0]: not a prefix": rule(rules.FilterRule{
			Destination: make([]netip.Prefix, 1)}),
		"Rules[0]: from or action out of range": rule(rules.FilterRule{
			Action: rules.FilterReject + 1}),
		"Rules[1].Name: \"\" is also Rules[0]": func(c *nat.Config) {
			c.Rules = make([]rules.FilterRule, 2)
		},
	} {
		c := rome()
		c.Services = []rules.Service{{Name: "web", Address: address("10.70.0.20"), Port: 80, Protocol: packet.TCP,
			Backends: []rules.Backend{{Address: address("10.200.1.5"), Port: 80}}}}
		need.NoError(t, c.Validate())
		change(c)
		if err := e.Apply(c); err == nil || !strings.Contains(err.Error(), fault) {
			t.Errorf("%v, want %q", err, fault)
		}
	}
	bad := rome()
	bad.Routes[0].Link, bad.Remote[0].Real, bad.MSSClamp = 99, netip.Prefix{}, 5
	for _, fault := range []string{"Routes[0].Link", "Remote[0].Real", "MSSClamp"} { // all at once
		if err := e.Apply(bad); err == nil || !strings.Contains(err.Error(), fault) {
			t.Errorf("%v, want %q", err, fault)
		}
	}
	// The running state is kept.
	forwarded(t, e, node1, udp("10.200.1.5", "10.71.3.9", 1, 2).Bytes(), start)
}

func TestApply(t *testing.T) {
	e := engine(t)
	c := rome()
	c.Remote[0].Remapped = prefix("10.75.0.0/16")
	need.NoError(t, e.Apply(c))
	_, v, _ := forwarded(t, e, node1, udp("10.200.1.5", "10.75.3.9", 1, 2).Bytes(), start)
	expect(t, v, "10.200.1.5", "10.200.3.9")
	dropped(t, e, node1, udp("10.200.1.5", "10.71.3.9", 1, 2).Bytes(), start, nat.ReasonNoRoute)
}
