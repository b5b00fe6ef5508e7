package lab

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// clusters6 is clusters over IPv6, as AsIPv6 translates it: pods with equal addresses in both
// clusters, from unique local ones (RFC 4193).
var clusters6 = func() (p plan) {
	text, err := json.Marshal(clusters)
	if err == nil {
		err = json.Unmarshal([]byte(AsIPv6(string(text), true, true)), &p)
	}
	if err != nil {
		panic(err) // of constants: every test would see it
	}
	// The attack on affinity has more clients than a translated /17 has networks of a /64.
	second := &p[1].Nodes[1]
	second.PodCIDR, second.Pod = netip.MustParsePrefix("fd00:10:0:8000::1/49"), netip.MustParseAddr("fd00:10:0:8002::7")
	return p
}()

// is6 reports whether p is of IPv6.
func (p *plan) is6() bool { return p[0].Internal.Is6() }

// families are the address families of a lab's kernels, by netlink's numbers.
func (l *Lab) families() []int {
	if l.options.Inside == IPv4 && !l.options.Outside6 {
		return []int{unix.AF_INET}
	}
	return []int{unix.AF_INET, unix.AF_INET6}
}

// forwarding is the kernel's switch for forwarding p's family.
func (p *plan) forwarding() string {
	if p.is6() {
		return "ipv6/conf/all/forwarding"
	}
	return "ipv4/ip_forward"
}

// index returns the position of the cluster of a host's name.
func (p *plan) index(host string) int {
	return slices.IndexFunc(p[:], func(c Cluster) bool { return strings.HasPrefix(host, c.Name+"/") })
}

// of returns the cluster of a host's name.
func (p *plan) of(host string) *Cluster { return &p[p.index(host)] }

// anywhere is the default route of p's family.
func (c *Cluster) anywhere() netip.Prefix {
	if c.Internal.Is6() {
		return everywhere6
	}
	return everywhere
}

// plans are the plans of the lab's families for pods.
func (l *Lab) plans() []*plan {
	return [...][]*plan{{&clusters}, {&clusters, &clusters6}, {&clusters6}}[l.options.Inside]
}

// plan is the plan of the family to test if one is enough: IPv6, if there are two.
func (l *Lab) plan() *plan {
	all := l.plans()
	return all[len(all)-1]
}

// at returns the named host with its address in that plan.
func (l *Lab) at(name string) *Host { return l.host(l.plan(), name) }

// outer is the plan of the tunnels' underlay.
func (l *Lab) outer() *plan {
	if l.options.Outside6 {
		return &clusters6
	}
	return &clusters
}

// host returns the named host with its address in a plan.
func (l *Lab) host(p *plan, name string) *Host {
	if p.is6() {
		return l.six[name]
	}
	return l.Host(name)
}

// over returns the network for an address, in the notation of package net: tcp4, tcp6.
func over(kind string, a netip.Addr) string {
	if a.Is6() {
		return kind + "6"
	}
	return kind + "4"
}
