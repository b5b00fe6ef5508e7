package lab

import (
	"fmt"
	"maps"
	"net/netip"

	"culvert/gateway/node"
	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
)

// Outside is a lab with hosts that have no pod address: clients outside the clusters, the nodes
// themselves, and hosts behind a pod. Its gateways have address mappings and services.
func Outside(mode node.Mode, offloads bool) Options {
	o := Standard(mode, offloads)
	o.Outside = true
	return o
}

const (
	ServicePort = 80
	BackendPort = 8080
)

// outsideMTU is the MTU of the links to the clients.
func (l *Lab) outsideMTU() int {
	if l.Options.Outside {
		return probe.SmallMTU
	}
	return UnderlayMTU
}

// addOutside gives hosts the addresses and routes that only these labs need.
// The first node routes between the outside and the other cluster.
func (l *Lab) addOutside(c, peer *plan.Cluster) error {
	first, second := &c.Nodes[0], &c.Nodes[1]
	for _, step := range []struct {
		host string
		add  func() error
	}{
		{"router", func() error { return netns.AddRoute(peer.SeenPods, first.Underlay) }},
		{"router", func() error { return netns.AddRoute(peer.SeenExt, first.Underlay) }},
		{"client", func() error { return netns.AddSecond("eth0", netip.PrefixFrom(c.Mapped, c.Outside.Bits())) }},
		{second.Name, func() error { return netns.AddSecond("eth0", netip.PrefixFrom(c.VIP, c.Underlay.Bits())) }},
		{first.PodName, func() error {
			return netns.AddSecond("lo", netip.PrefixFrom(c.BehindFirst, c.BehindFirst.BitLen()))
		}},
		{first.PodName, func() error {
			return netns.AddSecond("lo", netip.PrefixFrom(c.BehindOther, c.BehindOther.BitLen()))
		}},
		{first.Name, func() error { return netns.AddRoute(c.Behind, first.Pod) }},
	} {
		if err := l.Host(c.Name + "/" + step.host).Do(step.add); err != nil {
			return fmt.Errorf("%s: %w", step.host, err)
		}
	}
	return nil
}

// natConfig is the nat section of a gateway's configuration, for the families of cs, which are one
// cluster.
func natConfig(cs ...*plan.Cluster) Object {
	addresses, services := []Object{}, []Object{}
	for _, c := range cs {
		a, s := mapped(c)
		addresses, services = append(addresses, a), append(services, s...)
	}
	return Object{"addresses": addresses, "services": services}
}

func mapped(c *plan.Cluster) (address Object, services []Object) {
	var backends []Object
	for _, n := range c.Nodes {
		backends = append(backends, Object{"address": n.Pod, "port": BackendPort})
	}
	service := func(name string, address netip.Addr, more Object) Object {
		o := Object{"name": name + c.Suffix(), "address": address, "port": ServicePort, "protocol": "tcp",
			"backends": backends}
		maps.Copy(o, more)
		return o
	}
	return Object{"external": c.MappedAs, "internal": c.Mapped, "via": c.Name + "-" + c.Nodes[0].Name}, []Object{
		service("balanced", c.Balanced, nil),
		service("sticky", c.Sticky, Object{"affinity": "clientIP"}),
		service("strict", c.Strict, Object{"balance": "hash", "onRemoval": "reset"}),
	}
}

// Attacks is a lab in which each check has an attacker and an innocent bystander, which must lose
// nothing.
func Attacks(mode node.Mode, offloads bool) Options {
	o := Outside(mode, offloads)
	o.Attacks = true
	return o
}
