package integration

import (
	"fmt"
	"net/netip"
)

// The clusters of the Kubernetes tests. rome and milan have the same CIDRs, the same
// nodes and the same pods; only the underlays differ. Each has an API server.
//
//	pod1 ─ node1 ─┐                     ┌─ node1 ─ pod1
//	pod2 ─ node2 ─┤                     ├─ node2 ─ pod2
//	      client ─┤ underlay   underlay ├─ client
//	         api ─┤                     ├─ api
//	     gateway ─┘                     └─ gateway
//	        └───────────── peering ─────────┘
//
// rome has a second gateway, to turin, whose CIDRs overlap with no others and which runs
// without Kubernetes. The gateways of rome are on different nodes, so that each tunnel has
// an address of its own at its node: culvert node needs one for each tunnel.

// kubeEnd is a cluster with its end of one peering.
type kubeEnd struct {
	name     string
	underlay string // the first three bytes of its addresses
	pods     string // its CIDRs
	external string
	seenPods string // how the other cluster sees them
	seenExt  string
	mode     string // of the gateway
	peering  string // address of the gateway on the link to the other
	gatewayN int    // of the gateway on the underlay
	internal string // address of the gateway towards the nodes
	firstVNI int    // of the tunnels to the nodes
	on       int    // which node the gateway runs on
}

const (
	kubeMTU    = 1340
	kubeMapped = "10.70.0.5" // stands for the client of the cluster
)

// The ends, in pairs.
var (
	kubeRome = kubeEnd{"rome", "172.18.0", "10.244.0.0/16", "10.70.0.0/16", "10.73.0.0/16", "10.74.0.0/16",
		"client", "192.0.2.1", 9, "10.80.0.4", 0, 0}
	kubeMilan = kubeEnd{"milan", "172.19.0", "10.244.0.0/16", "10.70.0.0/16", "10.71.0.0/16", "10.68.0.0/16",
		"server", "192.0.2.7", 9, "10.80.0.4", 0, 0}
	kubeRomeTurin = kubeEnd{"rome", "172.18.0", "10.244.0.0/16", "10.70.0.0/16", "10.244.0.0/16", "10.70.0.0/16",
		"server", "192.0.3.1", 10, "10.80.0.5", 2, 1}
	kubeTurin = kubeEnd{"turin", "172.20.0", "10.245.0.0/16", "10.71.0.0/16", "10.245.0.0/16", "10.69.0.0/16",
		"client", "192.0.3.7", 9, "10.80.0.4", 0, 0}
)

// kubeNode is a node with one pod; every cluster has the same ones.
type kubeNode struct {
	name     string
	number   int    // of its mark, and in addresses
	internal string // its internal address
	device   string // Liqo's name of the gateway's end of its tunnels
}

var kubeNodes = []kubeNode{
	{"node1", 1, "10.80.0.2", "liqo.klqsmd2krc"},
	{"node2", 2, "10.80.0.1", "liqo.7k49zqs2z6"},
}

func (e *kubeEnd) address(n int) string { return fmt.Sprintf("%s.%d", e.underlay, n) }

// gateway is the address of the gateway's pod.
func (e *kubeEnd) gateway() string { return e.address(e.gatewayN) }
func (e *kubeEnd) client() string  { return e.address(50) }
func (e *kubeEnd) api() string     { return e.address(60) }

// outer returns the addresses that a node has for its tunnels: to a gateway on the same
// node, and to gateways elsewhere.
func (e *kubeEnd) outer(n *kubeNode) (local, remote string) {
	if n.number > len(kubeNodes) {
		one := fmt.Sprintf("%s.%d", fakeNodesUnderlay, n.number)
		return one, one
	}
	return e.address(100 + n.number), e.address(n.number)
}

// pod returns an address in a node's part of the pod CIDR: host 0 is the part itself, 1 the
// node, 5 its pod.
func (e *kubeEnd) pod(n *kubeNode, host byte) string {
	a := netip.MustParsePrefix(e.pods).Addr().As4()
	return netip.AddrFrom4([4]byte{a[0], a[1], byte(n.number), host}).String()
}

// seen returns the address under which the other cluster sees an address.
func (e *kubeEnd) seen(address string) string {
	a := netip.MustParseAddr(address)
	prefix := netip.MustParsePrefix(e.seenPods)
	if netip.MustParsePrefix(e.external).Contains(a) {
		prefix = netip.MustParsePrefix(e.seenExt)
	}
	seen, host := prefix.Addr().As4(), a.As4()
	return netip.AddrFrom4([4]byte{seen[0], seen[1], host[2], host[3]}).String()
}

// vni is that of the tunnel between a node and the gateway.
func (e *kubeEnd) vni(n *kubeNode) int { return e.firstVNI + n.number - 1 }

// unknown returns the address that stands for unknown sources.
func (e *kubeEnd) unknown() string { return netip.MustParsePrefix(e.external).Addr().String() }
