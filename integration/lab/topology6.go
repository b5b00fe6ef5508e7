package lab

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// clusters6 is clusters over IPv6: pods with equal addresses in both clusters, from unique local ones (RFC 4193).
var clusters6 = plan{{
	Name: "rome", Role: "client",
	Underlay: netip.MustParsePrefix("fd18:1::1/64"),
	Outside:  netip.MustParsePrefix("2001:db8:1::1/64"), Client: netip.MustParseAddr("2001:db8:1::10"),
	Mapped: netip.MustParseAddr("2001:db8:1::20"), MappedAs: netip.MustParseAddr("fd00:70::9"), VIP: netip.MustParseAddr("fd18:1::100"),
	Gateway: netip.MustParseAddr("fd18:1::9"), Internal: netip.MustParseAddr("fd80::4"),
	Peering: netip.MustParsePrefix("2001:db8:c::1/64"),
	PodCIDR: netip.MustParsePrefix("fd00:10::/48"), External: netip.MustParsePrefix("fd00:70::/48"),
	SeenPods: netip.MustParsePrefix("fd00:62::/48"), SeenExt: netip.MustParsePrefix("fd00:72::/48"),
	Nodes: []ClusterNode{
		{"node1", 1, netip.MustParseAddr("fd18:1::2"), netip.MustParseAddr("fd80::2"),
			netip.MustParsePrefix("fd00:10:0:1::1/64"), "pod1", netip.MustParseAddr("fd00:10:0:1::5")},
		{"node2", 2, netip.MustParseAddr("fd18:1::3"), netip.MustParseAddr("fd80::3"),
			netip.MustParsePrefix("fd00:10:0:2::1/64"), "pod2", netip.MustParseAddr("fd00:10:0:2::6")},
	},
	Behind: netip.MustParsePrefix("2001:db8:b::/64"), BehindFirst: netip.MustParseAddr("2001:db8:b::7"), BehindOther: netip.MustParseAddr("2001:db8:b::8"),
	Balanced: netip.MustParseAddr("fd00:70::20"), Sticky: netip.MustParseAddr("fd00:70::21"), Strict: netip.MustParseAddr("fd00:70::22"),
	Services: netip.MustParsePrefix("fd00:96::/112"), Served: netip.MustParseAddr("fd00:96::10"),
}, {
	Name: "milan", Role: "server",
	Underlay: netip.MustParsePrefix("fd18:2::1/64"),
	Outside:  netip.MustParsePrefix("2001:db8:2::1/64"), Client: netip.MustParseAddr("2001:db8:2::10"),
	Mapped: netip.MustParseAddr("2001:db8:2::20"), MappedAs: netip.MustParseAddr("fd00:70:0:3::9"), VIP: netip.MustParseAddr("fd18:2::100"),
	Gateway: netip.MustParseAddr("fd18:2::9"), Internal: netip.MustParseAddr("fd80::4"),
	Peering: netip.MustParsePrefix("2001:db8:c::7/64"),
	PodCIDR: netip.MustParsePrefix("fd00:10::/48"), External: netip.MustParsePrefix("fd00:70::/48"),
	SeenPods: netip.MustParsePrefix("fd00:61::/48"), SeenExt: netip.MustParsePrefix("fd00:71::/48"),
	Nodes: []ClusterNode{
		{"node1", 101, netip.MustParseAddr("fd18:2::2"), netip.MustParseAddr("fd80::2"),
			netip.MustParsePrefix("fd00:10:0:1::1/64"), "pod1", netip.MustParseAddr("fd00:10:0:1::5")},
		{"node2", 102, netip.MustParseAddr("fd18:2::3"), netip.MustParseAddr("fd80::3"),
			netip.MustParsePrefix("fd00:10:0:8000::1/49"), "pod2", netip.MustParseAddr("fd00:10:0:8002::7")},
	},
	Behind: netip.MustParsePrefix("2001:db8:b::/64"), BehindFirst: netip.MustParseAddr("2001:db8:b::7"), BehindOther: netip.MustParseAddr("2001:db8:b::8"),
	Balanced: netip.MustParseAddr("fd00:70::20"), Sticky: netip.MustParseAddr("fd00:70::21"), Strict: netip.MustParseAddr("fd00:70::22"),
	Services: netip.MustParsePrefix("fd00:96::/112"), Served: netip.MustParseAddr("fd00:96::10"),
}}

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

// of returns the cluster of a host's name.
func (p *plan) of(host string) *Cluster {
	if clusterOf(host).Name == p[0].Name {
		return &p[0]
	}
	return &p[1]
}

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

// addIPv6 gives the hosts of a cluster their IPv6 addresses and routes, beside those of IPv4.
func (l *Lab) addIPv6(c *Cluster) error {
	forward := func() error { return sysctl(map[string]string{"ipv6/conf/all/forwarding": "1"}) }
	address := func(link string, a netip.Addr, bits int) func() error {
		return func() error { return addAddress(link, netip.PrefixFrom(a, bits)) }
	}
	route := func(to netip.Prefix, via netip.Addr) func() error { return func() error { return addRoute(to, via) } }
	type step struct {
		host string
		do   func() error
	}
	steps := []step{
		{"router", forward},
		{"router", address("underlay", c.Underlay.Addr(), c.Underlay.Bits())},
		{"router", address("client", c.Outside.Addr(), c.Outside.Bits())},
		{"gateway", address("eth0", c.Gateway, c.Underlay.Bits())},
		{"client", address("eth0", c.Client, c.Outside.Bits())},
		{"client", route(c.anywhere(), c.Outside.Addr())},
	}
	known := map[string]netip.Addr{"router": c.Underlay.Addr(), "gateway": c.Gateway, "client": c.Client}
	for _, n := range c.Nodes {
		known[n.Name], known[n.PodName] = n.Underlay, n.Pod
		steps = append(steps, step{n.Name, forward},
			step{n.Name, address("eth0", n.Underlay, c.Underlay.Bits())},
			step{n.Name, address(n.PodName, n.PodCIDR.Addr(), n.PodCIDR.Bits())},
			step{n.Name, route(c.anywhere(), c.Underlay.Addr())},
			step{n.PodName, address("eth0", n.Pod, n.PodCIDR.Bits())},
			step{n.PodName, route(c.anywhere(), n.PodCIDR.Addr())})
		for _, other := range c.Nodes {
			if other.Name != n.Name {
				steps = append(steps, step{n.Name, route(other.PodCIDR.Masked(), other.Underlay)})
			}
		}
	}
	for _, s := range steps {
		if err := l.Host(c.Name + "/" + s.host).Do(s.do); err != nil {
			return fmt.Errorf("%s/%s: %w", c.Name, s.host, err)
		}
	}
	for name, a := range known {
		l.six[c.Name+"/"+name] = l.Host(c.Name + "/" + name).at(a)
	}
	return nil
}

// over returns the network for an address, in the notation of package net: tcp4, tcp6.
func over(kind string, a netip.Addr) string {
	if a.Is6() {
		return kind + "6"
	}
	return kind + "4"
}
