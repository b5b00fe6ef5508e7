package integration

import (
	"fmt"
	"strings"
	"testing"

	"culvert/integration/need"
)

// both are the families of a dual-stack cluster.
var both = []peerFamily{{}, onlyIPv6Peers}

// newPeeringLabs6 builds two clusters with the same CIDRs in both families, whose nodes and pods
// have both.
func newPeeringLabs6(t *testing.T, families []peerFamily) (rome, milan *peeringLab) {
	t.Helper()
	services := "--service-cluster-ip-range=" + kubeServices + "," + onlyIPv6Peers.of("10.96.0.0") + "/108"
	rome, milan = newPeeringLab(t, &kubeRome, &kubeMilan, services), newPeeringLab(t, &kubeMilan, &kubeRome, services)
	rome.connect(milan.kubeLab)
	for _, p := range []*peeringLab{rome, milan} {
		p.families = families
		for i := range kubeNodes {
			p.addIPv6(i)
		}
		six := onlyIPv6Peers.of
		p.gatewayHost.ip(fmt.Sprintf("address add %s/64 dev %s nodad", six(p.kubeLab.gateway()), p.network.name))
	}
	for _, p := range [][2]*peeringLab{{rome, milan}, {milan, rome}} {
		p[0].gatewayHost.ip(fmt.Sprintf("address add %s/64 dev %s nodad", onlyIPv6Peers.of(p[0].kubeEnd.peering),
			p[1].gatewayHost.name))
	}
	return rome, milan
}

// addIPv6 gives a node and its pod addresses of IPv6, routes, and a Node that says so.
func (p *peeringLab) addIPv6(i int) {
	p.t.Helper()
	n, six := &kubeNodes[i], onlyIPv6Peers.of
	node, pod := p.nodes[i], p.pods[i]
	for _, h := range []*peerHost{node, pod} {
		h.acceptAddresses()
	}
	node.sysctl("net/ipv6/conf/all/forwarding", "1")
	node.ip(fmt.Sprintf("address add %s/64 dev %s nodad", six(p.address(n.number)), p.network.name),
		fmt.Sprintf("address add %s/64 dev %s nodad", six(p.pod(n, 1)), pod.name))
	pod.ip(fmt.Sprintf("address add %s/64 dev %s nodad", six(p.pod(n, 5)), node.name),
		"route add default via "+six(p.pod(n, 1)))
	for k := range kubeNodes {
		if other := &kubeNodes[k]; other != n {
			node.ip(fmt.Sprintf("route add %s via %s", six(p.pod(other, 0)+"/24"), six(p.address(other.number))))
		}
	}
	need.NoError(p.t, p.api.admin.delete(p.node(n))) // its podCIDRs cannot change
	p.apply(p.node(n))
}

// requirePods: pods reach those of the other cluster in a family, with their own addresses, and
// nodes as unknown sources.
func requirePods(t *testing.T, f peerFamily, from, to *peeringLab) {
	t.Helper()
	for i, pod := range from.pods {
		for j, other := range to.pods {
			e := exchange{from: pod, to: other, listen: f.of(to.pod(&kubeNodes[j], 5)),
				dial: f.of(to.seen(to.pod(&kubeNodes[j], 5))), source: f.of(from.seen(from.pod(&kubeNodes[i], 5))),
				bytes: kubeBytes}
			pingThrough(pod, e.dial)
			e.run(t)
			e.datagrams(t, 1, 1292, 4000)
		}
	}
	for _, node := range from.nodes {
		exchange{from: node, to: to.pods[0], listen: f.of(to.pod(&kubeNodes[0], 5)),
			dial: f.of(to.seen(to.pod(&kubeNodes[0], 5))), source: f.of(from.seen(from.unknown())),
			bytes: kubeBytes}.run(t)
	}
}

func startPeerings(t *testing.T, labs ...*peeringLab) {
	t.Helper()
	for _, p := range labs {
		p.install()
		p.masquerade()
		p.startGateway("gateway-1")
		for i := range kubeNodes {
			p.startAgent(i)
		}
	}
	labs[0].meet(labs[1])
	labs[1].meet(labs[0])
	awaitPeerings(labs...)
}

func awaitPeerings(labs ...*peeringLab) {
	for _, p := range labs {
		p.awaitCondition("Accepted", "True")
		p.awaitCondition("NodesReady", "True")
		p.awaitCondition("Connected", "True")
	}
}

// TestKubePeeringDual: clusters with equal CIDRs in both families are joined by both. While
// connections of IPv4 are open, IPv6 goes and comes back. Agents restore what others remove of it.
func TestKubePeeringDual(t *testing.T) {
	isolated(t, func(t *testing.T) {
		rome, milan := newPeeringLabs6(t, both)
		labs := []*peeringLab{rome, milan}
		startPeerings(t, labs...)
		if got := rome.status("podsSeenAs"); got != "10.71.0.0/16, fd00:71::/48" {
			t.Error(got)
		}
		for _, f := range both {
			requirePods(t, f, rome, milan)
			requirePods(t, f, milan, rome)
		}
		streams := linkStreams(t, rome.kubeLab, milan.kubeLab, 20)
		t.Run("put back", func(t *testing.T) {
			for i, node := range rome.nodes {
				node.run("ip", "-6", "route", "flush", "proto", "99")
				node.run("nft", "delete", "table", "ip6", "culvert")
				eventually(t, "the exception of IPv6 is back", func() error {
					_, err := node.try("", "nft", "list", "table", "ip6", "culvert")
					return err
				})
				pingThrough(rome.pods[i], onlyIPv6Peers.of(milan.seen(milan.pod(&kubeNodes[0], 5))))
			}
			requirePods(t, onlyIPv6Peers, rome, milan)
		})
		target := onlyIPv6Peers.of(milan.seen(milan.pod(&kubeNodes[0], 5)))
		for _, families := range [][]peerFamily{nil, both} {
			for _, p := range labs {
				p.families = families
				with, _ := p.keyed()
				p.apply(with)
			}
			awaitPeerings(labs...)
			eventually(t, fmt.Sprintf("%d families", len(families)), func() error {
				_, err := rome.pods[0].try("", "ping", "-c", "1", "-W", "1", target)
				if (err == nil) != (families != nil) {
					return fmt.Errorf("IPv6: %v", err)
				}
				return nil
			})
			if out := rome.nodes[0].run("ip", "-6", "route", "show", "proto", "99"); (out != "") != (families != nil) {
				t.Errorf("routes of IPv6: %s", out)
			}
			requireAlive(t, fmt.Sprintf("%d families", len(families)), streams)
			requirePods(t, peerFamily{}, milan, rome)
		}
		requirePods(t, onlyIPv6Peers, milan, rome)
		requireAlive(t, "all of it", streams)
		rome.api.admin.delete(rome.peering())
		eventually(t, "nothing of IPv6 is left on nodes", func() error {
			for _, node := range rome.nodes {
				routes := node.run("ip", "-6", "route", "show", "proto", "99")
				if tables := node.run("nft", "list", "tables"); routes != "" || strings.Contains(tables, "culvert") {
					return fmt.Errorf("%s%s", routes, tables)
				}
			}
			return nil
		})
	}, kubernetes)
}

// TestKubePeeringSix: clusters of IPv6 alone, whose gateways, nodes and pods know no other address.
func TestKubePeeringSix(t *testing.T) {
	isolated(t, func(t *testing.T) {
		rome, milan := newPeeringLabs6(t, []peerFamily{onlyIPv6Peers})
		startPeerings(t, rome, milan)
		requirePods(t, onlyIPv6Peers, rome, milan)
		requirePods(t, onlyIPv6Peers, milan, rome)
	}, kubernetes)
}
