package lab

import (
	"fmt"
	"net/netip"
)

// underlayMTU is the MTU of every link except the pods'.
const underlayMTU = 1500

var (
	everywhere  = netip.MustParsePrefix("0.0.0.0/0")
	everywhere6 = netip.MustParsePrefix("::/0")
)

// buildCluster makes the hosts of a cluster and the links between them.
func (l *Lab) buildCluster(c *Cluster, o *ClusterOptions) error {
	add := func(name string, address netip.Addr) (*Host, error) {
		h, err := newHost(c.Name+"/"+name, address)
		if err != nil {
			return nil, err
		}
		l.hosts = append(l.hosts, h)
		return h, h.Do(func() error {
			// Strict reverse path filtering, as many distributions set it.
			return sysctl(map[string]string{
				"ipv4/conf/all/rp_filter": "1", "ipv4/conf/default/rp_filter": "1", "ipv4/ping_group_range": "0 0",
			})
		})
	}
	router, err := add("router", c.Underlay.Addr())
	if err != nil {
		return err
	}
	err = router.Do(func() error {
		if err := sysctl(map[string]string{"ipv4/ip_forward": "1"}); err != nil {
			return err
		}
		return addBridge("underlay", c.Underlay)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", router.Name, err)
	}
	// join attaches a host to the underlay, as eth0.
	join := func(h *Host, port string) error {
		return connect(linkEnd{host: h, name: "eth0", address: netip.PrefixFrom(h.Address, c.Underlay.Bits())},
			linkEnd{host: router, name: port, bridge: "underlay"}, underlayMTU, l.options.Offloads)
	}
	gateway, err := add("gateway", c.Gateway)
	if err != nil {
		return err
	}
	if err := join(gateway, "gateway"); err != nil {
		return err
	}
	client, err := add("client", c.Client)
	if err != nil {
		return err
	}
	err = connect(linkEnd{host: client, name: "eth0", address: netip.PrefixFrom(c.Client, c.Outside.Bits())},
		linkEnd{host: router, name: "client", address: c.Outside}, l.outsideMTU(), true)
	if err != nil {
		return err
	}
	if err := client.Do(func() error { return addRoute(everywhere, c.Outside.Addr()) }); err != nil {
		return err
	}
	if err := gateway.Do(func() error { return addRoute(everywhere, c.Underlay.Addr()) }); err != nil {
		return err
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		host, err := add(n.Name, n.Underlay)
		if err != nil {
			return err
		}
		if err := join(host, n.Name); err != nil {
			return err
		}
		pod, err := add(n.PodName, n.Pod)
		if err != nil {
			return err
		}
		err = connect(linkEnd{host: pod, name: "eth0", address: netip.PrefixFrom(n.Pod, n.PodCIDR.Bits())},
			linkEnd{host: host, name: n.PodName, address: n.PodCIDR}, o.PodMTU, true)
		if err != nil {
			return err
		}
		if err := pod.Do(func() error { return addRoute(everywhere, n.PodCIDR.Addr()) }); err != nil {
			return fmt.Errorf("%s: %w", pod.Name, err)
		}
		if err := host.Do(func() error { return routeNode(c, n) }); err != nil {
			return fmt.Errorf("%s: %w", host.Name, err)
		}
	}
	return nil
}

// routeNode configures a cluster's own network: pods of other nodes are reached over the underlay.
func routeNode(c *Cluster, n *ClusterNode) error {
	if err := sysctl(map[string]string{"ipv4/ip_forward": "1"}); err != nil {
		return err
	}
	if err := addRoute(everywhere, c.Underlay.Addr()); err != nil {
		return err
	}
	for _, other := range c.Nodes {
		if other.Name == n.Name {
			continue
		}
		if err := addRoute(other.PodCIDR.Masked(), other.Underlay); err != nil {
			return err
		}
	}
	return nil
}

// peer links the two gateways.
func (l *Lab) peer() error {
	end := func(c *Cluster) linkEnd {
		return linkEnd{host: l.Host(c.Name + "/gateway"), name: "peer", address: c.Peering}
	}
	p := l.outer()
	return connect(end(&p[0]), end(&p[1]), underlayMTU, l.options.Offloads)
}
