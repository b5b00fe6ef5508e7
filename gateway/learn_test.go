package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/config/configtest"
	"culvert/gateway/monitor"
	"culvert/gateway/wgkey"
	"culvert/geneve"
	"culvert/geneve/genevetest"
	"culvert/integration/need"
	"culvert/nat/nattest"
)

// TestLearn: a gateway starts with only its own key, learns the rest piece by piece in any order,
// and forgets it likewise. It carries packets whenever it knows everything, and reopens no socket.
func TestLearn(t *testing.T) {
	full := configtest.Cluster("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16")
	mc := configtest.Cluster("milan", "rome", config.Server, "10.62.0.0/16", "10.72.0.0/16")
	full.WireGuard.PeerPublicKey = mc.WireGuard.PrivateKey.Public()
	mc.WireGuard.PeerPublicKey = full.WireGuard.PrivateKey.Public()
	milan := start(t, mc, 40)
	full.WireGuard.Endpoint = fmt.Sprintf("127.0.0.1:%d", milan.wg.Port())

	pieces := []struct {
		name string
		put  func(c, from *config.Config)
	}{
		{"key", func(c, from *config.Config) { c.WireGuard.PeerPublicKey = from.WireGuard.PeerPublicKey }},
		{"internal address", func(c, from *config.Config) { c.Geneve.GatewayAddress = from.Geneve.GatewayAddress }},
		{"nodes", func(c, from *config.Config) { c.Geneve.Nodes = from.Geneve.Nodes }},
		{"CIDRs", func(c, from *config.Config) {
			c.Local, c.Remote, c.UnknownSource = from.Local, from.Remote, from.UnknownSource
		}},
	}
	nothing := *full
	for _, p := range pieces {
		p.put(&nothing, &config.Config{})
	}
	nothing.Cluster = ""
	full.Cluster = ""
	rome := start(t, &nothing, 30)
	listens, wireGuard := rome.endpoint.LocalAddr(), rome.wg.Port()
	for i := range full.Geneve.Nodes {
		n := &full.Geneve.Nodes[i]
		n.Underlay = netip.AddrFrom4([4]byte{127, 0, 30, byte(2 + i)})
		rome.nodes = append(rome.nodes, genevetest.NewNode(t, genevetest.NodeConfig{
			Listen: netip.AddrPortFrom(n.Underlay, listens.Port()), Gateway: listens, VNI: uint32(n.VNI),
			VXLAN:   n.Encap == geneve.VXLAN,
			Address: n.Address.V4, GatewayAddress: full.Geneve.GatewayAddress.V4,
		}))
	}
	now := nothing
	apply := func(what string) {
		t.Helper()
		c := now
		if c.Local.PodCIDRs == nil {
			c.Geneve.Nodes = slices.Clone(c.Geneve.Nodes)
			for i := range c.Geneve.Nodes {
				c.Geneve.Nodes[i].PodCIDRs = nil // node CIDRs must lie inside those
			}
		}
		if err := rome.Apply(&c); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if rome.endpoint.LocalAddr() != listens || rome.wg.Port() != wireGuard {
			t.Fatalf("%s: other sockets", what)
		}
	}
	for range len(pieces) {
		for _, p := range pieces {
			if now.Geneve.GatewayAddress.IsValid() && now.Geneve.Nodes != nil {
				// A packet that comes too early is dropped, and stops nothing.
				rome.nodes[0].Send(udpPacket("10.0.1.5", "10.61.1.7", []byte("too early")))
			}
			p.put(&now, full)
			apply("with " + p.name)
		}
		rome.nodes[0].Send(udpPacket("10.0.1.5", "10.61.1.7", []byte("out")))
		arrives(t, milan.nodes[0], "out", "10.62.1.5")
		milan.nodes[0].Send(udpPacket("10.0.1.7", "10.62.1.5", []byte("in")))
		arrives(t, rome.nodes[0], "in", "10.61.1.7")
		if s := rome.Connection(); s.State != monitor.CheckOff {
			t.Errorf("%+v", s)
		}
		// WireGuard accepts only one handshake of a peer within 50 ms, and a new peer begins with
		// one.
		for {
			s, err := milan.wg.PeerStats()
			need.NoError(t, err)
			if time.Since(s.LastHandshake) > 60*time.Millisecond {
				break
			}
			<-time.After(10 * time.Millisecond)
		}
		for _, p := range pieces {
			p.put(&now, &config.Config{})
			apply("without " + p.name)
			if s, err := rome.wg.PeerStats(); err != nil ||
				(s.Endpoint == "") != (now.WireGuard.PeerPublicKey == wgkey.Key{}) {
				t.Errorf("without %s: %+v, %v", p.name, s, err)
			}
		}
		pieces = append(slices.Clone(pieces[1:]), pieces[0])
	}
}

// arrives waits for a datagram with a payload, ignoring other packets before it, and checks its
// source.
func arrives(t *testing.T, n *genevetest.Node, payload, source string) {
	t.Helper()
	for {
		v, err := nattest.Check(n.Receive())
		need.NoError(t, err)
		if string(v.Payload) != payload {
			continue
		}
		if v.Source.String() != source {
			t.Errorf("%q came from %v, want %s", payload, v.Source, source)
		}
		return
	}
}

// TestNodeReturns: the connections of a node's pods survive while the node is absent, with their
// source ports.
func TestNodeReturns(t *testing.T) {
	p := newPair(t, nil)
	full := *p.rome.config()
	without := full
	without.Geneve.Nodes = full.Geneve.Nodes[1:]
	for _, c := range []*config.Config{nil, &without, &full} {
		if c != nil {
			need.NoError(t, p.rome.Apply(c))
		}
		if c == &without {
			continue
		}
		p.rome.nodes[0].Send(udpPacket("10.0.1.5", "10.61.1.7", nil))
		if v := expect(t, p.milan.nodes[0], "10.62.1.5", "10.0.1.7"); v.SourcePort != 4000 {
			t.Errorf("from port %d, want 4000", v.SourcePort)
		}
	}
}

// TestLearnAddress: the gateway's internal address may change; the nodes then find it at the new
// one.
func TestLearnAddress(t *testing.T) {
	moved := netip.MustParseAddr("10.80.0.99")
	// the nodes ask for this one
	p := newPair(t, func(rome, _ *config.Config) { rome.Geneve.GatewayAddress.V4 = moved })
	for _, a := range []netip.Addr{netip.MustParseAddr("10.80.0.4"), moved} {
		next := *p.rome.config()
		next.Geneve.GatewayAddress.V4 = a
		need.NoError(t, p.rome.Apply(&next))
	}
	p.rome.nodes[0].Send(echo("10.0.1.5", "10.80.0.99", 64, 8))
	expect(t, p.rome.nodes[0], "10.80.0.99", "10.0.1.5")
}
