package integration

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"culvert/nat"
	"culvert/nat/rules"
)

// config returns a random configuration without tables: every field that generates rules comes and goes.
func (m *maker) config() *nat.Config {
	c := oracleConfig()
	maybe := func() bool { return m.IntN(3) > 0 }
	c.LocalPodCIDRs = append(c.LocalPodCIDRs[:2:2], netip.MustParsePrefix("10.9.32.0/19"))
	for i := range c.Remote {
		if !maybe() {
			c.Remote[i].Remapped = netip.Prefix{}
		} else if !c.Remote[i].Remapped.IsValid() {
			c.Remote[i].Remapped = map[bool]netip.Prefix{
				false: netip.MustParsePrefix("10.10.192.0/18"), true: netip.MustParsePrefix("fd00:a:0:4200::/56"),
			}[c.Remote[i].Real.Addr().Is6()]
		}
	}
	if maybe() { // both clusters use the same pod CIDR
		c.Remote[0] = rules.RemoteCIDR{Real: oraclePods[0], Remapped: oracleSeen[0]}
	}
	if maybe() { // and the same external CIDR
		for i := range c.Remote {
			if c.Remote[i].External && c.Remote[i].Real.Addr().Is4() {
				c.Remote[i] = rules.RemoteCIDR{Real: oracleOwn[0], Remapped: netip.MustParsePrefix("10.6.0.0/16"), External: true}
			}
		}
	}
	if maybe() {
		c.UnknownSource.V4 = oracleOwn[0].Addr()
	}
	c.MSSClamp = pick(m, rules.MSSAuto, rules.MSSAuto, rules.MSSOff, rules.MSSClamp(1200))
	node := func() nat.Link { return pick(m, c.Nodes...).Link }
	for _, p := range []string{
		"10.1.0.0/20", "10.1.0.4/30", "10.1.0.5/32", "10.1.128.0/17", "10.9.32.0/20", "fd00:1::/64", "fd00:1::3/128", "fd00:1:0:1::/64",
	} {
		if maybe() {
			c.Routes = append(c.Routes, rules.Route{Prefix: netip.MustParsePrefix(p), Link: node()})
		}
	}
	for _, n := range c.Nodes {
		c.Routes = append(c.Routes, rules.Route{Prefix: netip.PrefixFrom(n.Address.V4, 32), Link: n.Link})
	}
	if maybe() {
		c.Addresses = append(c.Addresses,
			rules.AddressMapping{External: netip.MustParseAddr("10.7.0.9"), Internal: netip.MustParseAddr("172.20.0.10")},
			rules.AddressMapping{External: netip.MustParseAddr("10.7.1.9"), Internal: netip.MustParseAddr("172.21.0.10"), Via: node()},
			rules.AddressMapping{External: netip.MustParseAddr("10.7.0.10"), Internal: netip.MustParseAddr("10.1.0.5")},
			rules.AddressMapping{External: netip.MustParseAddr("fd00:7::9"), Internal: netip.MustParseAddr("fd00:8::9")})
	}
	for range m.IntN(4) {
		r := rules.FilterRule{Name: string(rune('a' + len(c.Rules))), From: pick(m, rules.FromAnywhere, rules.FromLocal, rules.FromRemote),
			Action: pick(m, rules.FilterAccept, rules.FilterDrop, rules.FilterReject)}
		for range m.IntN(3) {
			r.Destination = append(r.Destination, netip.PrefixFrom(m.in(oraclePods[0]), 30).Masked())
		}
		if r.Protocol = pick(m, uint8(0), protoTCP, protoUDP); r.Protocol != 0 {
			r.Ports = []rules.PortRange{{First: 53, Last: 53}, {First: 8000, Last: 8100}}
		}
		if r.Protocol != 0 || r.Destination != nil {
			c.Rules = append(c.Rules, r)
		}
	}
	return c
}

// planOf returns the addresses that a configuration knows, and some that it does not.
func planOf(c *nat.Config) plan {
	var p plan
	host := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
	for _, n := range c.Nodes {
		p.nodes = append(p.nodes, n.Link)
		p.nodeSources = append(p.nodeSources, host(n.Address.V4))
	}
	for _, r := range c.Routes {
		p.nodeSources = append(p.nodeSources, r.Prefix)
		p.tunnelDestinations = append(p.tunnelDestinations, r.Prefix)
	}
	for _, cidr := range c.LocalPodCIDRs {
		p.nodeSources = append(p.nodeSources, cidr)
		p.tunnelDestinations = append(p.tunnelDestinations, cidr) // also pods on no node
	}
	for _, r := range c.Remote {
		p.nodeDestinations = append(p.nodeDestinations, r.Seen(), r.Seen())
		p.tunnelSources = append(p.tunnelSources, r.Real)
	}
	for _, a := range c.Addresses {
		p.nodeSources = append(p.nodeSources, host(a.Internal))
		p.tunnelDestinations = append(p.tunnelDestinations, host(a.External), host(a.External))
	}
	if c.UnknownSource.IsValid() {
		p.nodeSources = append(p.nodeSources, host(c.UnknownSource.V4))
	}
	p.nodeSources = append(p.nodeSources, oracleOutside[:]...)
	p.nodeDestinations = append(p.nodeDestinations, oracleOutside[0], oraclePods[0], oraclePods[1])
	return p
}

// capturedConfigs returns the configurations of gateways as Liqo's own controllers made them; kube's tests write these files.
func capturedConfigs(t *testing.T) []*nat.Config {
	t.Helper()
	files, err := filepath.Glob("../nat/testdata/liqo-crs/*/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no captured configurations: %v", err)
	}
	var all []*nat.Config
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		c := &nat.Config{}
		if err := json.Unmarshal(text, c); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, c)
	}
	return all
}

// liqoPlan is planOf with the pods and mapped addresses that only the tables know.
func liqoPlan(c *nat.Config) plan {
	p := planOf(c)
	p.onlyIPv4 = true
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
				if a, err := netip.ParseAddr(r.Match[0].IP.Value); err == nil && r.Action == rules.ActionDNAT && !strings.Contains(r.To, "/") {
					p.tunnelDestinations = append(p.tunnelDestinations, netip.PrefixFrom(a, 32))
				}
			}
		}
	}
	return p
}
