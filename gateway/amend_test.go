package gateway

import (
	"net/netip"
	"slices"
	"testing"

	"culvert/gateway/config"
	"culvert/integration/need"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// TestAmend: a configuration in which only nodes' pods and the pods behind services differ takes
// effect at once; any other is left to Apply, which says what is wrong.
func TestAmend(t *testing.T) {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	p := newPair(t, func(rome, _ *config.Config) {
		rome.Services = []config.Service{{Name: "dns", Address: rules.PairOf(addr("10.70.0.20")), Port: 53,
			Protocol: packet.UDP,
			Backends: []config.Backend{{Address: addr("10.0.1.7"), Port: 5353}}}}
	})
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
	served := func(node int, by string) {
		t.Helper()
		p.milan.nodes[0].Send(udpPacket("10.0.1.8", "10.72.0.20", []byte("name")))
		expect(t, p.rome.nodes[node], "10.61.1.8", by)
	}
	ping(0, "10.0.1.5")
	back(0, "10.0.1.5")
	served(0, "10.0.1.7")
	with := func(change func(c *config.Config)) *config.Config {
		next := *p.rome.config()
		next.Geneve.Nodes, next.Services = slices.Clone(next.Geneve.Nodes), slices.Clone(next.Services)
		change(&next)
		return &next
	}
	moved := with(func(c *config.Config) {
		c.Geneve.Nodes[1].PodCIDRs = append(slices.Clip(c.Geneve.Nodes[1].PodCIDRs), prefix("10.0.1.5/32"))
	})
	if !p.rome.Amend(moved) || p.rome.config() != moved {
		t.Fatal("a pod that moves is refused")
	}
	ping(1, "10.0.1.5")
	back(1, "10.0.1.5")
	ping(0, "10.0.1.6")
	backend := func(at, via string) []config.Backend {
		return []config.Backend{{Address: addr(at), Port: 5353, Via: via}}
	}
	moved = with(func(c *config.Config) { c.Services[0].Backends = backend("10.0.1.5", "") })
	if !p.rome.Amend(moved) || p.rome.config() != moved {
		t.Fatal("another endpoint is refused")
	}
	served(1, "10.0.1.5")
	both := with(func(c *config.Config) {
		c.Geneve.Nodes[1].PodCIDRs = append(slices.Clip(c.Geneve.Nodes[1].PodCIDRs), prefix("10.0.1.9/32"))
		c.Services[0].Backends = backend("10.0.1.9", "")
	})
	if moved = both; !p.rome.Amend(both) || p.rome.config() != both {
		t.Fatal("a pod that comes and serves is refused")
	}
	served(1, "10.0.1.9")
	for name, change := range map[string]func(c *config.Config){
		"nothing": func(*config.Config) {},
		"outside": func(c *config.Config) {
			c.Geneve.Nodes[0].PodCIDRs = []netip.Prefix{prefix("10.9.0.0/24")}
		},
		"another's": func(c *config.Config) {
			c.Geneve.Nodes[0].PodCIDRs = []netip.Prefix{prefix("10.0.1.5/32")}
		},
		"a node less":         func(c *config.Config) { c.Geneve.Nodes = c.Geneve.Nodes[:1] },
		"something of a node": func(c *config.Config) { c.Geneve.Nodes[0].PodCIDRs, c.Geneve.Nodes[0].VNI = nil, 99 },
		"something else":      func(c *config.Config) { c.Geneve.Nodes[0].PodCIDRs, c.MSSClamp = nil, 1200 },
		"no pod":              func(c *config.Config) { c.Services[0].Backends = backend("192.0.2.9", "") },
		"by a node":           func(c *config.Config) { c.Services[0].Backends = backend("10.0.1.5", "rome-2") },
		"of IPv6":             func(c *config.Config) { c.Services[0].Backends = backend("fd00::5", "") },
		"a service less":      func(c *config.Config) { c.Services = nil },
		"another port": func(c *config.Config) {
			c.Services[0].Backends, c.Services[0].Port = backend("10.0.1.5", ""), 54
		},
	} {
		if p.rome.Amend(with(change)) || p.rome.config() != moved {
			t.Errorf("%s: not refused", name)
		}
	}
	served(1, "10.0.1.9")
	need.NoError(t, p.rome.Apply(with(func(c *config.Config) {
		c.Geneve.Nodes[1].PodCIDRs = c.Geneve.Nodes[1].PodCIDRs[:1]
	})))
	ping(0, "10.0.1.5")
	back(0, "10.0.1.5")
	served(0, "10.0.1.9")
}
