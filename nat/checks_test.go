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
		{"from the tunnel, a bad source to the gateway itself", nat.Tunnel, "192.0.2.1", "169.254.18.2", nat.ReasonBadSource, 0},
		{"to U", nat.Tunnel, "10.200.3.9", "10.70.0.0", nat.ReasonNoMapping, 0},
		{"to an external address that stands for nothing", nat.Tunnel, "10.200.3.9", "10.70.9.9", nat.ReasonNoMapping, 0},
		{"to a pod on no node", nat.Tunnel, "10.200.3.9", "10.200.77.1", nat.ReasonNoRoute, packet.HostUnreachable},
		{"to nowhere, from the tunnel", nat.Tunnel, "10.200.3.9", "192.0.2.1", nat.ReasonNoRoute, packet.NetUnreachable},
		{"to the gateway's internal address from the tunnel", nat.Tunnel, "10.200.3.9", "10.80.0.4", nat.ReasonNoRoute, packet.NetUnreachable},
		{"to nowhere, from a node", node1, "10.200.1.5", "192.0.2.1", nat.ReasonNoRoute, packet.NetUnreachable},
		{"to the tunnel address from a node", node1, "10.200.1.5", "169.254.18.2", nat.ReasonBadDestination, 0},
		{"to multicast", node1, multicast.Source, multicast.Destination, nat.ReasonBadDestination, 0},
		{"to broadcast", nat.Tunnel, "10.200.3.9", "255.255.255.255", nat.ReasonBadDestination, 0},
		{"IPv6 to a pod on no node", nat.Tunnel, "fd00:200:0:1::9", "fd00:200:0:2::9", nat.ReasonNoRoute, packet.HostUnreachable},
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
		for _, p := range []nattest.IP{udp("10.200.1.5", "10.71.3.9", 1, 2), udp("fd00:200:0:1::5", "fd00:71:0:4000::9", 1, 2)} {
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
			b := nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", Body: nattest.ICMP{Type: uint8(kind)}}.Bytes()
			v, _ := process(t, e, node1, b, start)
			if got := v.Reason == nat.ReasonICMPType; got != drop4 {
				t.Errorf("ICMP type %d: %v %v", kind, v.Action, v.Reason)
			}
		}
		drop6 := kind >= 130 && kind <= 153
		if kind < 1 || kind > 4 {
			b := nattest.IP{Source: "fd00:200:0:1::5", Destination: "fd00:71:0:4000::9", Body: nattest.ICMP{Type: uint8(kind)}}.Bytes()
			v, _ := process(t, e, node1, b, start)
			if got := v.Reason == nat.ReasonICMPType; got != drop6 {
				t.Errorf("ICMPv6 type %d: %v %v", kind, v.Action, v.Reason)
			}
		}
	}
}

func TestConfigFaults(t *testing.T) {
	bad := rome()
	bad.Nodes[1].Link = bad.Nodes[0].Link
	bad.LocalPodCIDRs[1] = netip.MustParsePrefix("10.71.128.0/17")
	bad.Remote[1].Remapped = prefix("10.72.48.0/21")
	bad.Remote[2].Real = netip.Prefix{}
	bad.GatewayAddress = rules.Pair{}
	bad.MTU = 1200
	bad.UnknownSource = rules.PairOf(address("192.0.2.1"))
	bad.Routes[0].Link = 99
	bad.Addresses = []rules.AddressMapping{{External: address("10.70.0.0"), Internal: address("::1"), Via: 5}}
	bad.Rules = []rules.FilterRule{{Name: "a", Ports: []rules.PortRange{{First: 2, Last: 1}}}}
	e := engine(t)
	err := e.Apply(bad)
	if err == nil {
		t.Fatal("accepted")
	}
	if n := 1 + strings.Count(err.Error(), "\n"); n < 12 {
		t.Errorf("%d faults: %v", n, err)
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
