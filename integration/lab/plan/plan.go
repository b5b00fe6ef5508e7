package plan

import (
	"net"
	"net/netip"
)

// Hosts behind the first pod of each cluster, and the addresses that stand for its pods.
var (
	behindPod   = netip.MustParsePrefix("11.11.11.0/24")
	behindFirst = netip.MustParseAddr("11.11.11.7")
	behindOther = netip.MustParseAddr("11.11.11.8")

	balanced = netip.MustParseAddr("10.70.0.20") // real, like all of these
	sticky   = netip.MustParseAddr("10.70.0.21")
	strict   = netip.MustParseAddr("10.70.0.22")

	serviceCIDR = netip.MustParsePrefix("10.96.0.0/12")
	served      = netip.MustParseAddr("10.96.0.10")
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

// Plan is the addresses of both clusters, of one family.
type Plan [2]Cluster

// V4 is the address plan of every lab; labs with IPv6 use V6 too.
var V4 = Plan{{
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
			return Remap(a, seen)
		}
	}
	return a
}

// Remap keeps the host bits of a.
func Remap(a netip.Addr, to netip.Prefix) netip.Addr {
	host, network := a.AsSlice(), to.Masked().Addr().AsSlice()
	mask := net.CIDRMask(to.Bits(), to.Addr().BitLen())
	for i := range host {
		host[i] = network[i] | host[i]&^mask[i]
	}
	b, _ := netip.AddrFromSlice(host)
	return b
}

// Behind returns the n-th address after a, for n below 256.
func Behind(a netip.Addr, n int) netip.Addr {
	b := a.AsSlice()
	b[len(b)-1] += byte(n)
	a, _ = netip.AddrFromSlice(b)
	return a
}
