package integration

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/rules"
)

// generated returns a random configuration without tables, and makes its plan. Every field from
// which rules are generated comes and goes.
func (m *maker) generated() *nat.Config {
	c := oracleConfig(m.families)
	maybe := func() bool { return m.IntN(3) > 0 }
	has := func(a netip.Addr) bool { return slices.Contains(m.families, a.Is6()) }
	c.LocalPodCIDRs = append(c.LocalPodCIDRs, m.of(prefixes("10.9.32.0/19", "fd00:9:0:2000::/51"))...)
	for i := range c.Remote {
		if !maybe() {
			c.Remote[i].Remapped = netip.Prefix{}
		} else if !c.Remote[i].Remapped.IsValid() {
			c.Remote[i].Remapped = map[bool]netip.Prefix{
				false: netip.MustParsePrefix("10.10.192.0/18"), true: netip.MustParsePrefix("fd00:a:0:4200::/56"),
			}[c.Remote[i].Real.Addr().Is6()]
		}
	}
	for i, v6 := range m.families {
		if maybe() { // both clusters use the same pod CIDR
			c.Remote[3*i] = rules.RemoteCIDR{Real: oraclePods[family(v6)], Remapped: oracleSeen[family(v6)]}
		}
		if maybe() { // and the same external CIDR
			c.Remote[3*i+2] = rules.RemoteCIDR{Real: oracleOwn[family(v6)], Remapped: prefixes("10.6.0.0/16",
				"fd00:6::/48")[family(v6)], External: true}
		}
		if maybe() {
			c.UnknownSource.Set(oracleOwn[family(v6)].Addr())
		}
	}
	c.MSSClamp = pick(m, rules.MSSAuto, rules.MSSAuto, rules.MSSOff, rules.MSSClamp(1200))
	node := func() nat.Link { return pick(m, c.Nodes...).Link }
	for _, p := range []string{
		"10.1.0.0/20", "10.1.0.4/31", "10.1.0.5/32", "10.1.128.0/17", "10.9.32.0/20",
		"fd00:1::/64", "fd00:1::4/127", "fd00:1::5/128", "fd00:1:0:8000::/49", "fd00:9:0:2000::/52",
	} {
		if p := netip.MustParsePrefix(p); has(p.Addr()) && maybe() {
			c.Routes = append(c.Routes, rules.Route{Prefix: p, Link: node()})
		}
	}
	for _, n := range c.Nodes {
		for a := range n.Address.All() {
			c.Routes = append(c.Routes, rules.Route{Prefix: netip.PrefixFrom(a, a.BitLen()), Link: n.Link})
		}
	}
	for _, x := range []struct {
		external, internal string
		via                nat.Link
	}{
		{"10.7.0.9", "172.20.0.10", 0}, {"10.7.1.9", "172.21.0.10", node()}, {"10.7.0.10", "10.1.0.5", 0},
		{"fd00:7::9", "fd00:8::9", 0}, {"fd00:7:0:1::9", "fd00:8:1::9", node()}, {"fd00:7::10", "fd00:1::5", 0},
	} {
		a := rules.AddressMapping{External: netip.MustParseAddr(x.external), Internal: netip.MustParseAddr(x.internal),
			Via: x.via}
		if has(a.External) && maybe() {
			c.Addresses = append(c.Addresses, a)
		}
	}
	for range m.IntN(4) {
		r := rules.FilterRule{Name: string(rune('a' + len(c.Rules))), From: pick(m, rules.FromAnywhere, rules.FromLocal,
			rules.FromRemote),
			Action: pick(m, rules.FilterAccept, rules.FilterDrop, rules.FilterReject)}
		for range m.IntN(3) {
			a := m.in(oraclePods[family(m.v6())])
			r.Destination = append(r.Destination, netip.PrefixFrom(a, a.BitLen()-2).Masked())
		}
		if r.Protocol = pick(m, uint8(0), protoTCP, protoUDP); r.Protocol != 0 {
			r.Ports = []rules.PortRange{{First: 53, Last: 53}, {First: 8000, Last: 8100}}
		}
		if r.Protocol != 0 || r.Destination != nil {
			c.Rules = append(c.Rules, r)
		}
	}
	m.plan = m.planOf(c)
	return c
}

// planOf returns addresses that a configuration knows, and some that it does not.
func (m *maker) planOf(c *nat.Config) plan {
	var p plan
	host := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
	for _, n := range c.Nodes {
		p.nodes = append(p.nodes, n.Link)
		for a := range n.Address.All() {
			p.nodeSources = append(p.nodeSources, host(a))
		}
	}
	for _, r := range c.Routes {
		p.nodeSources = append(p.nodeSources, r.Prefix)
		// A generated route to a node's own address is meant for replies: the engine drops first
		// packets from the tunnel to it, a kernel forwards them.
		if c.Routing != nil || !slices.ContainsFunc(c.Nodes,
			func(n rules.Node) bool { return n.Address.Has(r.Prefix.Addr()) }) {
			p.tunnelDestinations = append(p.tunnelDestinations, r.Prefix)
		}
	}
	for _, cidr := range c.LocalPodCIDRs {
		p.nodeSources = append(p.nodeSources, cidr)
		p.tunnelDestinations = append(p.tunnelDestinations, cidr) // also pods without a node
	}
	for _, r := range c.Remote {
		p.nodeDestinations = append(p.nodeDestinations, r.Seen(), r.Seen())
		p.tunnelSources = append(p.tunnelSources, r.Real)
	}
	for _, a := range c.Addresses {
		p.nodeSources = append(p.nodeSources, host(a.Internal))
		p.tunnelDestinations = append(p.tunnelDestinations, host(a.External), host(a.External))
	}
	for a := range c.UnknownSource.All() {
		p.nodeSources = append(p.nodeSources, host(a))
	}
	p.nodeSources = append(p.nodeSources, m.of(oracleOutside)...)
	p.nodeDestinations = append(p.nodeDestinations, m.of(oracleOutside, oraclePods)...)
	return p
}

// capturedConfigs returns the configurations of gateways that Liqo's own controllers made; kube's
// tests write these files.
func capturedConfigs(t *testing.T) []*nat.Config {
	t.Helper()
	files, err := filepath.Glob("../nat/testdata/liqo-crs/*/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no captured configurations: %v", err)
	}
	var all []*nat.Config
	for _, name := range files {
		text, err := os.ReadFile(name)
		need.NoError(t, err)
		c := &nat.Config{}
		if err := json.Unmarshal(text, c); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, c)
	}
	return all
}

// liqo makes the plan for a captured configuration, with the pods and mapped addresses that only
// the tables contain. Liqo uses IPv4 only.
func (m *maker) liqo(c *nat.Config) *nat.Config {
	m.families = onlyIPv4
	p := m.planOf(c)
	for _, t := range c.Routing {
		for _, r := range t.Rules {
			for _, route := range r.Routes {
				if route.Destination.IsSingleIP() {
					p.tunnelDestinations = append(p.tunnelDestinations, route.Destination)
				}
			}
		}
	}
	for _, t := range c.Firewall {
		for _, chain := range t.Chains {
			for _, r := range chain.Rules {
				if a, err := netip.ParseAddr(r.Match[0].IP.Value); err == nil && r.Action == rules.ActionDNAT &&
					!strings.Contains(r.To, "/") {
					p.tunnelDestinations = append(p.tunnelDestinations, netip.PrefixFrom(a, 32))
				}
			}
		}
	}
	m.plan = p
	return c
}
