package gateway

import (
	"net/netip"
	"slices"
	"testing"

	"culvert/gateway/config"
)

// TestMovePods: a configuration in which only nodes' pods differ takes effect at once; any other is left to Apply, which says what is wrong.
func TestMovePods(t *testing.T) {
	p := newPair(t, nil)
	ping := func(node int, from string) {
		t.Helper()
		p.rome.nodes[node].Send(udpPacket(from, "10.61.1.7", []byte("pod")))
		expect(t, p.milan.nodes[0], "10.62"+from[len("10.0"):], "10.0.1.7")
	}
	back := func(node int, to string) {
		t.Helper()
		p.milan.nodes[0].Send(udpPacket("10.0.1.7", "10.62"+to[len("10.0"):], []byte("back")))
		expect(t, p.rome.nodes[node], "10.61.1.7", to)
	}
	ping(0, "10.0.1.5")
	back(0, "10.0.1.5")
	with := func(change func(c *config.Config)) *config.Config {
		next := *p.rome.config()
		next.Geneve.Nodes = slices.Clone(next.Geneve.Nodes)
		change(&next)
		return &next
	}
	prefix := netip.MustParsePrefix
	moved := with(func(c *config.Config) {
		c.Geneve.Nodes[1].PodCIDRs = append(slices.Clip(c.Geneve.Nodes[1].PodCIDRs), prefix("10.0.1.5/32"))
	})
	if !p.rome.MovePods(moved) || p.rome.config() != moved {
		t.Fatal("a pod that moves is refused")
	}
	ping(1, "10.0.1.5")
	back(1, "10.0.1.5")
	ping(0, "10.0.1.6")
	for name, change := range map[string]func(c *config.Config){
		"nothing":             func(*config.Config) {},
		"outside":             func(c *config.Config) { c.Geneve.Nodes[0].PodCIDRs = []netip.Prefix{prefix("10.9.0.0/24")} },
		"another's":           func(c *config.Config) { c.Geneve.Nodes[0].PodCIDRs = []netip.Prefix{prefix("10.0.1.5/32")} },
		"a node less":         func(c *config.Config) { c.Geneve.Nodes = c.Geneve.Nodes[:1] },
		"something of a node": func(c *config.Config) { c.Geneve.Nodes[0].PodCIDRs, c.Geneve.Nodes[0].VNI = nil, 99 },
		"something else":      func(c *config.Config) { c.Geneve.Nodes[0].PodCIDRs, c.MSSClamp = nil, 1200 },
	} {
		if p.rome.MovePods(with(change)) || p.rome.config() != moved {
			t.Errorf("%s: not refused", name)
		}
	}
	if err := p.rome.Apply(with(func(c *config.Config) { c.Geneve.Nodes[1].PodCIDRs = c.Geneve.Nodes[1].PodCIDRs[:1] })); err != nil {
		t.Fatal(err)
	}
	ping(0, "10.0.1.5")
	back(0, "10.0.1.5")
}
