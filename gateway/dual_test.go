package gateway

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"culvert/gateway/config"
	"culvert/gateway/path"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/rules"
)

// dual gives both clusters IPv6 beside IPv4, with the same unique local CIDRs in both.
func dual(rome, milan *config.Config) {
	prefix, address := netip.MustParsePrefix, netip.MustParseAddr
	for _, side := range []struct {
		c              *config.Config
		pods, external string // as this cluster sees those of the other
	}{{rome, "fd00:61::/48", "fd00:71::/48"}, {milan, "fd00:62::/48", "fd00:72::/48"}} {
		c := side.c
		c.Geneve.GatewayAddress.V6 = address("fd80::4")
		nodes := slices.Clone(c.Geneve.Nodes)
		for i := range nodes {
			nodes[i].Address.V6 = address([]string{"fd80::2", "fd80::3"}[i])
			nodes[i].PodCIDRs = append(slices.Clone(nodes[i].PodCIDRs),
				prefix([]string{"fd00:10:0:1::/64", "fd00:10:0:2::/63"}[i]))
		}
		c.Geneve.Nodes = nodes
		c.Local.PodCIDRs = append(c.Local.PodCIDRs, prefix("fd00:10::/48"))
		c.Local.ExternalCIDRs = append(c.Local.ExternalCIDRs, prefix("fd00:70::/48"))
		c.Remote = append(c.Remote,
			rules.RemoteCIDR{Real: prefix("fd00:10::/48"), Remapped: prefix(side.pods)},
			rules.RemoteCIDR{Real: prefix("fd00:70::/48"), Remapped: prefix(side.external), External: true})
		c.UnknownSource.V6 = address("fd00:70::")
	}
}

// TestDualStack: pods reach each other over both families through the same gateways, whose own
// addresses answer and send ICMP errors.
func TestDualStack(t *testing.T) {
	p := newPair(t, dual)
	rome, milan := p.rome.nodes[0], p.milan.nodes[1]
	for _, tt := range []struct{ name, from, to, seenFrom, real string }{
		{"IPv4", "10.0.1.5", "10.61.3.9", "10.62.1.5", "10.0.3.9"},
		{"IPv6", "fd00:10:0:1::5", "fd00:61:0:3::9", "fd00:62:0:1::5", "fd00:10:0:3::9"},
		{"IPv6, of a client of no pod", "2001:db8::9", "fd00:61:0:3::9", "fd00:72::", "fd00:10:0:3::9"},
		{"IPv6, of the node itself", "fd80::2", "fd00:61:0:3::9", "fd00:72::", "fd00:10:0:3::9"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rome.Send(udpPacket(tt.from, tt.to, nattest.Payload(99, 1)))
			v := expect(t, milan, tt.seenFrom, tt.real)
			if v.TTL != 62 {
				t.Errorf("hop limit %d", v.TTL)
			}
			milan.Send(nattest.IP{Source: tt.real, Destination: tt.seenFrom,
				Body: nattest.UDP{SourcePort: 53, DestinationPort: v.SourcePort, Payload: nattest.Payload(9,
					2)}}.Bytes())
			if v := expect(t, rome, tt.to, tt.from); v.DestinationPort != 4000 {
				t.Errorf("to port %d", v.DestinationPort)
			}
		})
	}
	ping := func(to string, hops uint8, payload int) []byte {
		return nattest.IP{Source: "fd00:10:0:1::5", Destination: to, TTL: hops,
			Body: nattest.ICMP{Type: 128, Rest: 0x1234_0001, Payload: nattest.Payload(payload, 4)}}.Bytes()
	}
	t.Run("ping of the gateway", func(t *testing.T) {
		rome.Send(ping("fd80::4", 64, 300))
		if v := expect(t, rome, "fd80::4", "fd00:10:0:1::5"); v.Body[0] != 129 || len(v.Body) != 308 {
			t.Errorf("ICMPv6 %d of %d bytes", v.Body[0], len(v.Body))
		}
	})
	for _, tt := range []struct {
		name, from string
		packet     []byte
		kind, code byte
		mtu        uint32
	}{
		{"hop limit here", "fd80::4", ping("fd00:61:0:3::9", 1, 9), 3, 0, 0},
		{"hop limit there", "fd00:71::", ping("fd00:61:0:3::9", 2, 9), 3, 0, 0},
		{"too big", "fd80::4", ping("fd00:61:0:3::9", 64, 1400), 2, 0, 1340},
		{"no route", "fd80::4", ping("fd00:99::1", 64, 9), 1, 0, 0},
		{"a pod without node", "fd80::4", ping("fd00:10:0:9::1", 64, 9), 1, 3, 0},
		{"a port of the gateway", "fd80::4", udpPacket("fd00:10:0:1::5", "fd80::4", nil), 1, 4, 0},
		{"a ping of the gateway whose answer would not fit", "fd80::4", ping("fd80::4", 64, 1400), 1, 4, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rome.Send(tt.packet)
			v := expect(t, rome, tt.from, "fd00:10:0:1::5")
			if v.Protocol != 58 || v.Body[0] != tt.kind || v.Body[1] != tt.code ||
				binary.BigEndian.Uint32(v.Body[4:]) != tt.mtu {
				t.Errorf("protocol %d, ICMPv6 %d/%d, %d", v.Protocol, v.Body[0], v.Body[1],
					binary.BigEndian.Uint32(v.Body[4:]))
			}
		})
	}
}

// TestPeerWithoutIPv6: a dual-stack cluster with an IPv4-only peer tells its pods that there is no
// IPv6 route, and the peer accepts nothing else.
func TestPeerWithoutIPv6(t *testing.T) {
	p := newPair(t, func(rome, milan *config.Config) {
		bare := *milan
		dual(rome, &bare)
		rome.Remote = rome.Remote[:2]
	})
	node := p.rome.nodes[0]
	node.Send(udpPacket("fd00:10:0:1::5", "fd00:61:0:3::9", nil))
	if v := expect(t, node, "fd80::4", "fd00:10:0:1::5"); v.Protocol != 58 || v.Body[0] != 1 || v.Body[1] != 0 {
		t.Errorf("protocol %d, ICMPv6 %d/%d", v.Protocol, v.Body[0], v.Body[1])
	}
	if n := p.rome.engine.Stats().Outbound.Dropped[nat.ReasonNoRoute]; n != 1 {
		t.Errorf("%d packets dropped as no-route", n)
	}
}

// TestTunnelAddressIPv6: the ends of the tunnel reach each other by their link-local addresses,
// which nobody else can use.
func TestTunnelAddressIPv6(t *testing.T) {
	p := newPair(t, dual)
	own, peer := p.rome.config().WireGuard.Role.TunnelAddresses()
	if own.V6 != netip.MustParseAddr("fe80::a9fe:1202") || peer.V6 != netip.MustParseAddr("fe80::a9fe:1201") {
		t.Fatalf("the client has %v, the server %v", own, peer)
	}
	node := p.rome.nodes[0]
	node.Send(nattest.IP{Source: own.V6.String(), Destination: "fd00:61:0:3::9", Body: nattest.UDP{SourcePort: 1,
		DestinationPort: 2}}.Bytes())
	node.Send(nattest.IP{Source: "fd00:10:0:1::5", Destination: peer.V6.String(), Body: nattest.UDP{SourcePort: 1,
		DestinationPort: 2}}.Bytes())
	node.Send(udpPacket("fd00:10:0:1::5", "fd00:61:0:3::9", nil))
	expect(t, p.milan.nodes[1], "fd00:62:0:1::5", "fd00:10:0:3::9")
	d := p.rome.engine.Stats().Outbound.Dropped
	if d[nat.ReasonBadSource] != 1 || d[nat.ReasonBadDestination] != 1 {
		t.Errorf("bad-source %d, bad-destination %d", d[nat.ReasonBadSource], d[nat.ReasonBadDestination])
	}
	p.rome.path.Send(nattest.IP{Source: own.V6.String(), Destination: peer.V6.String(), Body: nattest.ICMP{Type: 128,
		Rest: 1}}.Bytes())
	p.rome.nodes[0].Send(udpPacket("fd00:10:0:1::5", "fd00:61:0:3::9", nil))
	expect(t, p.milan.nodes[1], "fd00:62:0:1::5", "fd00:10:0:3::9")
	if n := p.milan.engine.Stats().Inbound.Delivered; n == 0 {
		t.Error("the peer's gateway did not get the ping")
	}
}

// TestLargePingIPv6: an IPv4-only gateway survives a ping of its IPv6 tunnel address that is larger
// than the tunnel's MTU, and does not answer it.
func TestLargePingIPv6(t *testing.T) {
	p := newPair(t, nil)
	own, peer := p.rome.config().WireGuard.Role.TunnelAddresses()
	p.rome.path.Send(nattest.IP{Source: own.V6.String(), Destination: peer.V6.String(),
		Body: nattest.ICMP{Type: 128, Rest: 1, Payload: nattest.Payload(3000, 1)}}.Bytes())
	p.marked(t, p.rome.nodes[0], "10.0.1.5", "10.62.1.5", 1)
	if n := p.milan.path.Inbound().Dropped(path.DropNoService); n != 1 {
		t.Errorf("%d packets dropped as no-service, want the ping", n)
	}
}
