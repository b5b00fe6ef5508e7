package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node"
)

// edit changes fields of a host's configuration: pairs of a path and a value, in
// which nil takes the field away.
func edit(host string, pairs ...any) map[string]change {
	return map[string]change{host: func(config object, _ node.Mode) {
		for i := 0; i < len(pairs); i += 2 {
			at, path := config, strings.Split(pairs[i].(string), ".")
			for _, name := range path[:len(path)-1] {
				at = at[name].(object)
			}
			if last := path[len(path)-1]; pairs[i+1] == nil {
				delete(at, last)
			} else {
				at[last] = pairs[i+1]
			}
		}
	}}
}

// wrongCIDR gives a gateway a pod CIDR of the other cluster that it does not have,
// and the remaps that nodes route. It chooses none, so that it remembers none.
func wrongCIDR(host, pods, external string) map[string]change {
	return edit(host, "state", nil, "ipam", nil, "network.remote", object{
		"podCIDRs":      []object{{"cidr": "10.9.0.0/16", "remap": pods}},
		"externalCIDRs": []object{{"cidr": "10.70.0.0/16", "remap": external}},
	})
}

// both changes both gateways' configurations.
func both(pairs ...any) map[string]change {
	edit := edit("", pairs...)[""]
	return map[string]change{"rome/gateway": edit, "milan/gateway": edit}
}

// editFirst changes a field of what rome's gateway knows of its first node.
func editFirst(field string, value any) map[string]change {
	return editFirstNode(func(n object, _ node.Mode) { n[field] = value })
}

func editFirstNode(edit change) map[string]change {
	return map[string]change{"rome/gateway": func(config object, mode node.Mode) { edit(nodesOf(config)[0], mode) }}
}

func nodesOf(gateway object) []object { return gateway["geneve"].(object)["nodes"].([]object) }

// Priorities of policy routing rules: what is blocked is looked for before what is
// the host's own, whose rule has the first place otherwise.
const (
	blockPriority = 10
	ownPriority   = 20
)

// blockUDP drops what comes in by a link for a UDP port, as a firewall does. It is
// a rule of policy routing, for which no kernel needs a firewall.
func blockUDP(host, link string, port uint16) []kernelFault {
	return []kernelFault{blackhole(host, func(*Lab) *netlink.Rule { return udpRule(link, port) })}
}

// udpRule drops what comes in by a link for a UDP port.
func udpRule(link string, port uint16) *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Type = unix.AF_INET, blockPriority, unix.RTN_BLACKHOLE
	r.IifName, r.IPProto, r.Dport = link, unix.IPPROTO_UDP, netlink.NewRulePortRange(port, port)
	return r
}

// halfFlows drops what the first node sends its gateway from the upper half of its source
// ports, of which each inner flow has one (RFC 8926, Section 3.3; RFC 7348, Section 5).
func halfFlows() []kernelFault {
	return []kernelFault{blackhole("rome/gateway", func(l *Lab) *netlink.Rule {
		r, middle := udpRule("eth0", 6091), uint16(1<<15)
		if l.options.Mode == node.VXLAN {
			middle = (32768 + 60999) / 2 // of net.ipv4.ip_local_port_range
		}
		r.Src, r.Sport = ipNet(netip.PrefixFrom(clusters[0].Nodes[0].Underlay, 32)), netlink.NewRulePortRange(middle, 1<<16-2) // the kernel takes no 65535
		return r
	})}
}

// blackhole has a host obey a rule before it looks for its own addresses.
func blackhole(host string, block func(*Lab) *netlink.Rule) kernelFault {
	own := func(priority int) *netlink.Rule {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Table = unix.AF_INET, priority, unix.RT_TABLE_LOCAL
		return r
	}
	return kernelFault{host,
		func(l *Lab) error {
			return errors.Join(
				unless(unix.EEXIST, netlink.RuleAdd(block(l))),
				unless(unix.EEXIST, netlink.RuleAdd(own(ownPriority))),
				unless(unix.ENOENT, netlink.RuleDel(own(0))))
		},
		func(l *Lab) error {
			return errors.Join(
				unless(unix.EEXIST, netlink.RuleAdd(own(0))),
				unless(unix.ENOENT, netlink.RuleDel(own(ownPriority))),
				unless(unix.ENOENT, netlink.RuleDel(block(l))))
		},
	}
}

// forbidUDP refuses to send to a UDP port, as a firewall or a network policy does.
func forbidUDP(host string, port uint16) []kernelFault {
	forbid := netlink.NewRule()
	forbid.Family, forbid.Priority, forbid.Type = unix.AF_INET, blockPriority, unix.RTN_PROHIBIT
	forbid.IifName, forbid.IPProto, forbid.Dport = "lo", unix.IPPROTO_UDP, netlink.NewRulePortRange(port, port)
	return []kernelFault{{host,
		func(*Lab) error { return unless(unix.EEXIST, netlink.RuleAdd(forbid)) },
		func(*Lab) error { return unless(unix.ENOENT, netlink.RuleDel(forbid)) },
	}}
}

// unless forgives an error: of what is made or taken back already.
func unless(forgiven, err error) error {
	if errors.Is(err, forgiven) {
		return nil
	}
	return err
}

// holeLink is the MTU of a link through which packets of holeMTU bytes just pass:
// links leave room for a VLAN tag.
const holeLink = holeMTU - 4

// nodeHole makes a link in the middle too small, so that neither end knows. Links
// pass super-frames of any size, so the ends must cut theirs.
func nodeHole() []kernelFault {
	return []kernelFault{ordinary("rome/node1", "eth0"), ordinary("rome/gateway", "eth0"),
		{"rome/router", setMTU("node1", holeLink), setMTU("node1", underlayMTU)}}
}

// peerHole makes both ends of the link too small, and their routes claim that they
// are not.
func peerHole() []kernelFault {
	var all []kernelFault
	for i := range clusters {
		host := clusters[i].Name + "/gateway"
		all = append(all, ordinary(host, "peer"),
			kernelFault{host, setMTU("peer", holeLink), setMTU("peer", underlayMTU)},
			kernelFault{host, routeMTU("peer", clusters[i].Peering, underlayMTU), routeMTU("peer", clusters[i].Peering, 0)})
	}
	return all
}

// ordinary makes a link carry ordinary frames only.
func ordinary(host, link string) kernelFault {
	return kernelFault{host,
		func(*Lab) error { return node.SetFeatures(link, false, underlayFeatures...) },
		func(l *Lab) error { return node.SetFeatures(link, l.options.Offloads, underlayFeatures...) },
	}
}

func setMTU(link string, mtu int) func(*Lab) error {
	return onLink(link, func(l netlink.Link) error { return netlink.LinkSetMTU(l, mtu) })
}

// routeMTU sets what the route to a link's own network says of it; 0 is nothing.
func routeMTU(link string, address netip.Prefix, mtu int) func(*Lab) error {
	return onLink(link, func(l netlink.Link) error {
		return netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(address.Masked()), Src: address.Addr().AsSlice(),
			Scope: netlink.SCOPE_LINK, Protocol: unix.RTPROT_KERNEL, MTU: mtu})
	})
}

// onLink calls change with a link of the host. A node's tunnel may not be there: it
// comes with its process.
func onLink(link string, change func(netlink.Link) error) func(*Lab) error {
	return func(*Lab) error {
		l, err := netlink.LinkByName(link)
		if errors.As(err, new(netlink.LinkNotFoundError)) && link == tunnelLink {
			return nil
		}
		if err != nil {
			return fmt.Errorf("link %s: %w", link, err)
		}
		return change(l)
	}
}

// withoutVia lets the first node look for remote pods themselves behind the tunnel.
func withoutVia() []kernelFault {
	c, peer := &clusters[0], &clusters[1]
	route := func(via netip.Addr) func(*Lab) error {
		return onLink(tunnelLink, func(l netlink.Link) error {
			r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(peer.SeenPods), Scope: netlink.SCOPE_LINK}
			if via.IsValid() {
				r.Gw, r.Scope, r.Flags = via.AsSlice(), netlink.SCOPE_UNIVERSE, int(netlink.FLAG_ONLINK)
			}
			return netlink.RouteReplace(r)
		})
	}
	return []kernelFault{{"rome/node1", route(netip.Addr{}), route(c.Internal)}}
}

// byOtherNode routes the first node's packets by the second node.
func byOtherNode() []kernelFault {
	c, peer := &clusters[0], &clusters[1]
	route := &netlink.Route{Dst: ipNet(peer.SeenPods), Gw: c.Nodes[1].Underlay.AsSlice()}
	return []kernelFault{{"rome/node1",
		func(*Lab) error { return netlink.RouteReplace(route) },
		func(*Lab) error { return unless(unix.ESRCH, netlink.RouteDel(route)) },
	}}
}

func noForwarding() []kernelFault {
	set := func(value string) func(*Lab) error {
		return func(*Lab) error { return sysctl(map[string]string{"ipv4/ip_forward": value}) }
	}
	return []kernelFault{{"rome/node1", set("0"), set("1")}}
}

// cableOut takes down the router's end: the node's addresses and routes stay.
func cableOut() []kernelFault {
	return []kernelFault{{"rome/router", onLink("node1", netlink.LinkSetDown), onLink("node1", netlink.LinkSetUp)}}
}

func podWithoutRoute() []kernelFault {
	route := &netlink.Route{Dst: ipNet(everywhere), Gw: clusters[0].Nodes[0].PodCIDR.Addr().AsSlice()}
	return []kernelFault{{"rome/pod1",
		func(*Lab) error { return unless(unix.ESRCH, netlink.RouteDel(route)) },
		func(*Lab) error { return netlink.RouteReplace(route) },
	}}
}
