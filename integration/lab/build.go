package lab

import (
	"fmt"
	"net/netip"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
)

// UnderlayMTU is the MTU of every link except the pods'.
const UnderlayMTU = 1500

// BuildRome makes the hosts of rome alone, without gateway and node, for tests.
func BuildRome(dir string, o Options) (*Lab, error) {
	l := &Lab{Dir: dir, Options: o}
	if err := l.buildCluster(&plan.V4[0], &l.Options.Rome); err != nil {
		return l, err
	}
	return l, l.addAddresses(&plan.V4, 0)
}

// buildCluster makes the hosts of a cluster and the links between them, without addresses.
func (l *Lab) buildCluster(c *plan.Cluster, o *ClusterOptions) error {
	router, err := l.addHost(c, "router", c.Underlay.Addr())
	if err != nil {
		return err
	}
	if err := router.Do(func() error { return netns.AddBridge("underlay") }); err != nil {
		return fmt.Errorf("%s: %w", router.Name, err)
	}
	// attach makes a host whose eth0 leads to another host, where the end of the link has the new
	// host's name.
	attach := func(name string, address netip.Addr, to *netns.Host, bridge string, mtu int, offloads bool) (*netns.Host,
		error) {
		h, err := l.addHost(c, name, address)
		if err != nil {
			return nil, err
		}
		return h, netns.Connect(netns.LinkEnd{Host: h, Name: "eth0"}, netns.LinkEnd{Host: to, Name: name,
			Bridge: bridge}, mtu, offloads)
	}
	if _, err := attach("gateway", c.Gateway, router, "underlay", UnderlayMTU, l.Options.Offloads); err != nil {
		return err
	}
	if _, err := attach("client", c.Client, router, "", l.outsideMTU(), true); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		host, err := attach(n.Name, n.Underlay, router, "underlay", UnderlayMTU, l.Options.Offloads)
		if err != nil {
			return err
		}
		if _, err := attach(n.PodName, n.Pod, host, "", o.PodMTU, true); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) addHost(c *plan.Cluster, name string, address netip.Addr) (*netns.Host, error) {
	h, err := netns.New(c.Name+"/"+name, address)
	if err != nil {
		return nil, err
	}
	l.Hosts = append(l.Hosts, h)
	return h, h.Do(func() error {
		// Strict reverse path filtering, as many distributions set it.
		return netns.Sysctl(map[string]string{
			"ipv4/conf/all/rp_filter": "1", "ipv4/conf/default/rp_filter": "1", "ipv4/ping_group_range": "0 0",
		})
	})
}

// peer links the two gateways.
func (l *Lab) peer() error {
	end := func(c *plan.Cluster) netns.LinkEnd {
		return netns.LinkEnd{Host: l.Host(c.Name + "/gateway"), Name: "peer"}
	}
	p := l.Outer()
	if err := netns.Connect(end(&p[0]), end(&p[1]), UnderlayMTU, l.Options.Offloads); err != nil {
		return err
	}
	for i := range p {
		if err := end(&p[i]).Host.Do(func() error { return netns.AddAddress("peer", p[i].Peering) }); err != nil {
			return err
		}
	}
	return nil
}

// addAddresses gives the hosts of clusters[i] their addresses and routes of p's family. Pods of
// other nodes are reached over the underlay.
func (l *Lab) addAddresses(p *plan.Plan, i int) (err error) {
	c := &p[i]
	do := func(host string, change func() error) {
		if err != nil {
			return
		}
		if err = l.Host(c.Name + "/" + host).Do(change); err != nil {
			err = fmt.Errorf("%s/%s: %w", c.Name, host, err)
		}
	}
	address := func(host, link string, a netip.Prefix) {
		do(host, func() error { return netns.AddAddress(link, a) })
	}
	route := func(host string, to netip.Prefix, via netip.Addr) {
		do(host, func() error { return netns.AddRoute(to, via) })
	}
	// join gives a host its address in the network of its eth0, whose router leads anywhere.
	join := func(host string, a netip.Addr, network netip.Prefix) {
		address(host, "eth0", netip.PrefixFrom(a, network.Bits()))
		if host != "gateway" || !p.Is6() { // over IPv6, gateways know only their neighbours
			route(host, c.Anywhere(), network.Addr())
		}
		l.know(c.Name+"/"+host, a)
	}
	forward := func() error { return netns.Sysctl(map[string]string{p.Forwarding(): "1"}) }
	do("router", forward)
	address("router", "underlay", c.Underlay)
	address("router", "client", c.Outside)
	l.know(c.Name+"/router", c.Underlay.Addr())
	join("gateway", c.Gateway, c.Underlay)
	join("client", c.Client, c.Outside)
	for _, n := range c.Nodes {
		do(n.Name, forward)
		join(n.Name, n.Underlay, c.Underlay)
		address(n.Name, n.PodName, n.PodCIDR)
		join(n.PodName, n.Pod, n.PodCIDR)
		for _, other := range c.Nodes {
			if other.Name != n.Name {
				route(n.Name, other.PodCIDR.Masked(), other.Underlay)
			}
		}
	}
	return err
}

// know remembers a host's IPv6 address.
func (l *Lab) know(host string, a netip.Addr) {
	if a.Is6() {
		l.six[host] = l.Host(host).At(a)
	}
}

// Unbuilt is a lab of which there are only names and addresses.
func Unbuilt(o Options) *Lab {
	l := &Lab{Options: o, six: make(map[string]*netns.Host)}
	for i := range plan.V4 {
		c, c6 := &plan.V4[i], &plan.V6[i]
		add := func(name string, four, six *netns.Host) {
			four.Name, six.Name = c.Name+"/"+name, c.Name+"/"+name
			l.Hosts, l.six[four.Name] = append(l.Hosts, four), six
		}
		add("router", &netns.Host{Address: c.Underlay.Addr()}, &netns.Host{Address: c6.Underlay.Addr()})
		add("gateway", &netns.Host{Address: c.Gateway}, &netns.Host{Address: c6.Gateway})
		add("client", &netns.Host{Address: c.Client}, &netns.Host{Address: c6.Client})
		for j, n := range c.Nodes {
			add(n.Name, &netns.Host{Address: n.Underlay}, &netns.Host{Address: c6.Nodes[j].Underlay})
			add(n.PodName, &netns.Host{Address: n.Pod}, &netns.Host{Address: c6.Nodes[j].Pod})
		}
	}
	return l
}
