package fault

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node"
	"culvert/integration/lab"
	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
)

// edit changes fields of a host's configuration: pairs of a path and a value.
func edit(host string, pairs ...any) map[string]change {
	return map[string]change{host: func(config lab.Object, _ node.Mode) {
		for i := 0; i < len(pairs); i += 2 {
			lab.Set(config, pairs[i].(string), pairs[i+1])
		}
	}}
}

// wrongCIDR gives a gateway a wrong pod CIDR of the other cluster, with the remaps that nodes
// route. It chooses none, so that none is stored.
func wrongCIDR(host, pods, external string) map[string]change {
	return edit(host, "state", nil, "ipam", nil, "network.remote", lab.Object{
		"podCIDRs":      []lab.Object{{"cidr": "10.9.0.0/16", "remap": pods}},
		"externalCIDRs": []lab.Object{{"cidr": "10.70.0.0/16", "remap": external}},
	})
}

// both changes both gateways' configurations.
func both(pairs ...any) map[string]change {
	edit := edit("", pairs...)[""]
	return map[string]change{"rome/gateway": edit, "milan/gateway": edit}
}

// withoutState adds to the changes that gateways have no state, as when they are set up. A server
// that remembered the address of its peer would call it there, and the fault would have no effect.
func withoutState(changes map[string]change) map[string]change {
	all := make(map[string]change)
	for _, host := range []string{"rome/gateway", "milan/gateway"} {
		all[host] = func(config lab.Object, mode node.Mode) {
			config["ipam"].(lab.Object)["file"] = filepath.Join(config["state"].(string), "ipam.json") // as before
			delete(config, "state")
			if change := changes[host]; change != nil {
				change(config, mode)
			}
		}
	}
	return all
}

// editFirst changes a field of what rome's gateway knows of its first node.
func editFirst(field string, value any) map[string]change {
	return editFirstNode(func(n lab.Object, _ node.Mode) { n[field] = value })
}

func editFirstNode(edit change) map[string]change {
	return map[string]change{"rome/gateway": func(config lab.Object, mode node.Mode) {
		edit(lab.NodesOf(config)[0],
			mode)
	}}
}

// Priorities of policy rules: blocking rules come before the rule of the local table, which is
// first otherwise.
const (
	blockPriority = 10
	ownPriority   = 20
)

// blockUDP drops packets for a UDP port arriving on a link, like a firewall. It is a policy rule,
// which every kernel supports.
func blockUDP(host, link string, port uint16) []kernelFault {
	return blackhole(host, func(l *Lab) *netlink.Rule { return l.udpRule(link, port) })
}

// rule has the family of the tunnels' underlay.
func (l *Lab) rule(priority int) *netlink.Rule {
	r := netlink.NewRule()
	if r.Family, r.Priority = unix.AF_INET, priority; l.Outer().Is6() {
		r.Family = unix.AF_INET6
	}
	return r
}

// udpRule drops packets for a UDP port arriving on a link.
func (l *Lab) udpRule(link string, port uint16) *netlink.Rule {
	r := l.rule(blockPriority)
	r.Type = unix.RTN_BLACKHOLE
	r.IifName, r.IPProto, r.Dport = link, unix.IPPROTO_UDP, netlink.NewRulePortRange(port, port)
	return r
}

// halfFlows drops the first node's packets to its gateway from the upper half of its source ports;
// each inner flow has one (RFC 8926, Section 3.3; RFC 7348, Section 5).
func halfFlows() []kernelFault {
	return blackhole("rome/gateway", func(l *Lab) *netlink.Rule {
		r, middle := l.udpRule("eth0", 6091), uint16(1<<15)
		if l.Options.Mode == node.VXLAN {
			middle = (32768 + 60999) / 2 // of net.ipv4.ip_local_port_range
		}
		from := l.Outer()[0].Nodes[0].Underlay
		// the kernel does not accept 65535
		r.Src, r.Sport = netns.IPNet(netip.PrefixFrom(from, from.BitLen())), netlink.NewRulePortRange(middle, 1<<16-2)
		return r
	})
}

// blackhole makes a host apply a rule before it looks up its own addresses.
func blackhole(host string, block func(*Lab) *netlink.Rule) []kernelFault {
	own := func(priority int) kernelFault {
		return withRule(host, func(l *Lab) *netlink.Rule {
			r := l.rule(priority)
			r.Table = unix.RT_TABLE_LOCAL
			return r
		})
	}
	return []kernelFault{withRule(host, block), own(ownPriority), opposite(own(0))}
}

// forbidUDP refuses to send to a UDP port, like a firewall or a network policy.
func forbidUDP(host string, port uint16) []kernelFault {
	return []kernelFault{withRule(host, func(l *Lab) *netlink.Rule {
		r := l.udpRule("lo", port)
		r.Type = unix.RTN_PROHIBIT
		return r
	})}
}

// withRule adds a policy rule.
func withRule(host string, rule func(*Lab) *netlink.Rule) kernelFault {
	return kernelFault{host,
		func(l *Lab) error { return unless(unix.EEXIST, netlink.RuleAdd(rule(l))) },
		func(l *Lab) error { return unless(unix.ENOENT, netlink.RuleDel(rule(l))) },
	}
}

// withRoute adds or replaces a route.
func withRoute(host string, route func(*Lab) *netlink.Route) kernelFault {
	return kernelFault{host,
		func(l *Lab) error { return netlink.RouteReplace(route(l)) },
		func(l *Lab) error { return unless(unix.ESRCH, netlink.RouteDel(route(l))) },
	}
}

// opposite removes what k adds.
func opposite(k kernelFault) kernelFault { return kernelFault{k.host, k.undo, k.do} }

// unless ignores an error that means that something was made or removed already.
func unless(forgiven, err error) error {
	if errors.Is(err, forgiven) {
		return nil
	}
	return err
}

// holeLink is the MTU of a link that just passes packets of holeMTU bytes: links leave room for a
// VLAN tag.
const holeLink = holeMTU - 4

// nodeHole makes a link in the middle too small, so that neither end knows. Links pass super-frames
// of any size, so the ends must cut theirs.
func nodeHole() []kernelFault {
	return []kernelFault{ordinary("rome/node1", "eth0"), ordinary("rome/gateway", "eth0"),
		{"rome/router", setMTU("node1", holeLink), setMTU("node1", lab.UnderlayMTU)}}
}

// peerHole gives both ends of the link a small MTU, and the routes over it the usual one.
func peerHole() []kernelFault {
	var all []kernelFault
	for i := range plan.V4 {
		host := plan.V4[i].Name + "/gateway"
		all = append(all, ordinary(host, "peer"),
			kernelFault{host, setMTU("peer", holeLink), setMTU("peer", lab.UnderlayMTU)},
			kernelFault{host, routeMTU("peer", i, lab.UnderlayMTU), routeMTU("peer", i, 0)})
	}
	return all
}

// ordinary makes a link carry only ordinary frames.
func ordinary(host, link string) kernelFault {
	return kernelFault{host,
		func(*Lab) error { return node.SetFeatures(link, false, netns.UnderlayFeatures...) },
		func(l *Lab) error { return node.SetFeatures(link, l.Options.Offloads, netns.UnderlayFeatures...) },
	}
}

func setMTU(link string, mtu int) func(*Lab) error {
	return func(*Lab) error { return netns.SetMTU(link, mtu) }
}

// routeMTU sets the MTU of the route to the network between the gateways at clusters[i]; 0 removes
// it.
func routeMTU(link string, i, mtu int) func(*Lab) error {
	return func(l *Lab) error {
		address := l.Outer()[i].Peering
		return onLink(link, func(l netlink.Link) error {
			r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: netns.IPNet(address.Masked()),
				Protocol: unix.RTPROT_KERNEL, MTU: mtu}
			if address.Addr().Is6() {
				r.Priority = connected6
			} else {
				r.Src, r.Scope = address.Addr().AsSlice(), netlink.SCOPE_LINK
			}
			return netlink.RouteReplace(r)
		})(l)
	}
}

// connected6 is the metric of the kernel's own routes of IPv6 (IP6_RT_PRIO_ADDRCONF).
const connected6 = 256

// onLink calls change with a link of the host. A node's tunnel may be missing, because its process
// makes it.
func onLink(link string, change func(netlink.Link) error) func(*Lab) error {
	return func(*Lab) error {
		l, err := netlink.LinkByName(link)
		if errors.As(err, new(netlink.LinkNotFoundError)) && link == lab.TunnelLink {
			return nil
		}
		if err != nil {
			return fmt.Errorf("link %s: %w", link, err)
		}
		return change(l)
	}
}

// withoutVia replaces the first node's route to remote pods by one without a gateway. The node's
// file must not have the route, or it would be restored.
func withoutVia() []kernelFault {
	route := func(change func(*netlink.Route) error) func(*Lab) error {
		return func(l *Lab) error {
			to := l.Plan()[1].SeenPods
			return onLink(lab.TunnelLink, func(l netlink.Link) error {
				return change(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: netns.IPNet(to),
					Scope: netlink.SCOPE_LINK})
			})(l)
		}
	}
	remove := func(r *netlink.Route) error { return unless(unix.ESRCH, netlink.RouteDel(r)) }
	return []kernelFault{{"rome/node1", route(netlink.RouteReplace), route(remove)}}
}

// byOtherNode routes the first node's packets by the second node.
func byOtherNode() []kernelFault {
	return []kernelFault{withRoute("rome/node1", func(l *Lab) *netlink.Route {
		p := l.Plan()
		return &netlink.Route{Dst: netns.IPNet(p[1].SeenPods), Gw: p[0].Nodes[1].Underlay.AsSlice()}
	})}
}

func noForwarding() []kernelFault {
	set := func(value string) func(*Lab) error {
		return func(l *Lab) error { return netns.Sysctl(map[string]string{l.Plan().Forwarding(): value}) }
	}
	return []kernelFault{{"rome/node1", set("0"), set("1")}}
}

// cableOut takes down the router's end, so that the node's addresses and routes stay.
func cableOut() []kernelFault {
	return []kernelFault{{"rome/router", onLink("node1", netlink.LinkSetDown), onLink("node1", netlink.LinkSetUp)}}
}

func podWithoutRoute() []kernelFault {
	return []kernelFault{opposite(withRoute("rome/pod1", func(l *Lab) *netlink.Route {
		c := &l.Plan()[0]
		return &netlink.Route{Dst: netns.IPNet(c.Anywhere()), Gw: c.Nodes[0].PodCIDR.Addr().AsSlice()}
	}))}
}
