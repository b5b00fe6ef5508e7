package lab

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"culvert/gateway/node"
)

// Cluster is the address plan of one cluster.
type Cluster struct {
	Name     string
	Role     string       // of its gateway on the WireGuard tunnel
	Underlay netip.Prefix // with the router's address
	Outside  netip.Prefix // with the router's address towards the client
	Client   netip.Addr   // outside the cluster
	Mapped   netip.Addr   // a second address of the client, represented by MappedAs
	MappedAs netip.Addr   // real, of External
	VIP      netip.Addr   // on the underlay; the second node owns it
	Gateway  netip.Addr   // underlay address
	Internal netip.Addr   // internal address of the gateway
	Peering  netip.Prefix // gateway's address on the link to the other gateway
	PodCIDR  netip.Prefix // real
	External netip.Prefix // real
	SeenPods netip.Prefix // remapped: how the other cluster sees PodCIDR
	SeenExt  netip.Prefix // remapped: how the other cluster sees External
	Nodes    []ClusterNode

	Behind                   netip.Prefix // hosts behind the first pod, and two of them
	BehindFirst, BehindOther netip.Addr
	Balanced, Sticky, Strict netip.Addr // of services; real, of External

	Services netip.Prefix // of cluster addresses
	Served   netip.Addr   // the cluster address that the first node serves
}

// ClusterNode is a node and the pod on it.
type ClusterNode struct {
	Name     string
	VNI      int
	Underlay netip.Addr
	Internal netip.Addr
	PodCIDR  netip.Prefix // with the node's address on its pod's link
	PodName  string
	Pod      netip.Addr
}

// plan is the addresses of both clusters, of one family.
type plan [2]Cluster

// clusters is the address plan of every lab; labs with IPv6 use clusters6 too.
var clusters = plan{{
	Name: "rome", Role: "client",
	Underlay: netip.MustParsePrefix("172.18.0.1/24"),
	Outside:  netip.MustParsePrefix("203.0.113.1/24"), Client: netip.MustParseAddr("203.0.113.10"),
	Mapped: netip.MustParseAddr("203.0.113.20"), MappedAs: netip.MustParseAddr("10.70.0.9"),
	VIP:     netip.MustParseAddr("172.18.0.100"),
	Gateway: netip.MustParseAddr("172.18.0.9"), Internal: netip.MustParseAddr("10.80.0.4"),
	Peering: netip.MustParsePrefix("192.0.2.1/24"),
	PodCIDR: netip.MustParsePrefix("10.0.0.0/16"), External: netip.MustParsePrefix("10.70.0.0/16"),
	SeenPods: netip.MustParsePrefix("10.62.0.0/16"), SeenExt: netip.MustParsePrefix("10.72.0.0/16"),
	Nodes: []ClusterNode{
		{"node1", 1, netip.MustParseAddr("172.18.0.2"), netip.MustParseAddr("10.80.0.2"),
			netip.MustParsePrefix("10.0.1.1/24"), "pod1", netip.MustParseAddr("10.0.1.5")},
		{"node2", 2, netip.MustParseAddr("172.18.0.3"), netip.MustParseAddr("10.80.0.3"),
			netip.MustParsePrefix("10.0.2.1/24"), "pod2", netip.MustParseAddr("10.0.2.6")},
	},
	Behind: behindPod, BehindFirst: behindFirst, BehindOther: behindOther, Balanced: balanced, Sticky: sticky,
	Strict:   strict,
	Services: serviceCIDR, Served: served,
}, {
	Name: "milan", Role: "server",
	Underlay: netip.MustParsePrefix("172.19.0.1/24"),
	Outside:  netip.MustParsePrefix("198.51.100.1/24"), Client: netip.MustParseAddr("198.51.100.10"),
	Mapped: netip.MustParseAddr("198.51.100.20"), MappedAs: netip.MustParseAddr("10.70.3.9"),
	VIP:     netip.MustParseAddr("172.19.0.100"),
	Gateway: netip.MustParseAddr("172.19.0.9"), Internal: netip.MustParseAddr("10.80.0.4"),
	Peering: netip.MustParsePrefix("192.0.2.7/24"),
	PodCIDR: netip.MustParsePrefix("10.0.0.0/16"), External: netip.MustParsePrefix("10.70.0.0/16"),
	SeenPods: netip.MustParsePrefix("10.61.0.0/16"), SeenExt: netip.MustParsePrefix("10.71.0.0/16"),
	Nodes: []ClusterNode{
		{"node1", 101, netip.MustParseAddr("172.19.0.2"), netip.MustParseAddr("10.80.0.2"),
			netip.MustParsePrefix("10.0.1.1/24"), "pod1", netip.MustParseAddr("10.0.1.5")},
		{"node2", 102, netip.MustParseAddr("172.19.0.3"), netip.MustParseAddr("10.80.0.3"),
			netip.MustParsePrefix("10.0.128.1/17"), "pod2", netip.MustParseAddr("10.0.130.7")},
	},
	Behind: behindPod, BehindFirst: behindFirst, BehindOther: behindOther, Balanced: balanced, Sticky: sticky,
	Strict:   strict,
	Services: serviceCIDR, Served: served,
}}

// UnknownSource is the address that stands for unknown sources (U).
func (c *Cluster) UnknownSource() netip.Addr { return c.External.Masked().Addr() }

// Seen is the other cluster's view of an address of this one.
func (c *Cluster) Seen(a netip.Addr) netip.Addr {
	for real, seen := range map[netip.Prefix]netip.Prefix{c.PodCIDR: c.SeenPods, c.External: c.SeenExt} {
		if real.Contains(a) {
			return remap(a, seen)
		}
	}
	return a
}

// remap keeps the host bits of a.
func remap(a netip.Addr, to netip.Prefix) netip.Addr {
	host, network := a.AsSlice(), to.Masked().Addr().AsSlice()
	mask := net.CIDRMask(to.Bits(), to.Addr().BitLen())
	for i := range host {
		host[i] = network[i] | host[i]&^mask[i]
	}
	b, _ := netip.AddrFromSlice(host)
	return b
}

// linkEnd is one end of a veth pair.
type linkEnd struct {
	host   *Host
	name   string
	bridge string // of which it becomes a port, or ""
}

// underlayFeatures are the features for super-frames: without them a link carries ordinary frames
// with complete checksums, like a cable between machines.
var underlayFeatures = []string{
	"tx-checksum-ip-generic", "tx-scatter-gather", "tx-scatter-gather-fraglist", "tx-tcp-segmentation",
	"tx-tcp-ecn-segmentation",
	"tx-tcp-mangleid-segmentation", "tx-tcp6-segmentation", "tx-generic-segmentation", "tx-udp_tnl-segmentation",
	"tx-udp_tnl-csum-segmentation", node.FeatureUDPSegmentation, "rx-gro",
}

// connect joins two hosts by a veth pair.
func connect(a, b linkEnd, mtu int, offloads bool) error {
	err := a.host.Do(func() error {
		veth := netlink.NewVeth(netlink.NewLinkAttrs())
		veth.Name, veth.MTU = a.name, mtu
		veth.PeerName, veth.PeerMTU, veth.PeerNamespace = b.name, uint32(mtu), netlink.NsFd(b.host.ns.Fd())
		return netlink.LinkAdd(veth)
	})
	if err != nil {
		return fmt.Errorf("link %s to %s: %w", a.host.Name, b.host.Name, err)
	}
	for _, end := range []linkEnd{a, b} {
		if err := end.host.Do(func() error { return end.raise(offloads) }); err != nil {
			return fmt.Errorf("%s: link %s: %w", end.host.Name, end.name, err)
		}
	}
	return nil
}

// raise finishes the end on a thread in its namespace.
func (e *linkEnd) raise(offloads bool) error {
	l, err := netlink.LinkByName(e.name)
	if err != nil {
		return err
	}
	if !offloads {
		if err := node.SetFeatures(e.name, false, underlayFeatures...); err != nil {
			return err
		}
	}
	if e.bridge != "" {
		bridge, err := netlink.LinkByName(e.bridge)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(l, bridge); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(l)
}

// addBridge makes a bridge on a thread in its namespace.
func addBridge(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(bridge); err != nil {
		return err
	}
	return netlink.LinkSetUp(bridge)
}

// addRoute adds a route in this thread's namespace. The gateway must be on one of its links.
func addRoute(to netip.Prefix, via netip.Addr) error {
	if err := netlink.RouteAdd(&netlink.Route{Dst: ipNet(to), Gw: via.AsSlice()}); err != nil {
		return fmt.Errorf("route %s via %s: %w", to, via, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
