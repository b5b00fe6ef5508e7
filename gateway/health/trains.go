package health

import (
	"maps"
	"net/netip"
	"slices"
	"sort"
)

// About trains, batches of datagrams in one call of the kernel. Some kernel versions lose them.
var (
	PeerTrains = cause("peer-trains", Warning,
		"UDP_SEGMENT trains do not arrive at the peer ({address}): it is sent single datagrams, which is slower",
		"update the kernels of both gateways' nodes if they are 7.0 to 7.1.4, or turn tx-udp-segmentation of the network interface off")
	NodeTrains = cause("node-trains", Warning,
		"UDP_SEGMENT trains do not arrive at {node} ({address}): it is sent single datagrams, which is slower",
		"update the node's kernel to 6.8.5 or later, but not 7.0 to 7.1.4")
	TrainsBack = cause("trains-restored", Note, "{node} is sent UDP_SEGMENT trains again", "")
)

// trains holds what was logged about destinations that trains do not reach.
type trains map[pathKey]Finding

func (t trains) judge(o *Observation) (changes []Finding) {
	lost := make(map[pathKey]bool)
	see := func(c *Cause, kind Kind, of string, to netip.Addr) {
		key := pathKey{kind, of}
		lost[key] = true
		if _, said := t[key]; !said {
			t[key] = findingOf(c, kind, of, "{node}", of, "{address}", to.String())
			changes = append(changes, t[key])
		}
	}
	if o.Peer.TrainsLost {
		see(PeerTrains, OfPeer, o.Peer.Name, o.Peer.Endpoint.Addr())
	}
	for i := range o.Nodes {
		if n := &o.Nodes[i]; n.TrainsLost {
			see(NodeTrains, OfNode, n.Name, n.Underlay)
		}
	}
	return append(changes, o.over(t, lost, TrainsBack)...)
}

// findings returns the current findings.
func (t trains) findings() []Finding {
	all := slices.Collect(maps.Values(t))
	sort.Slice(all, func(i, j int) bool {
		a, b := &all[i], &all[j]
		return a.Kind < b.Kind || a.Kind == b.Kind && a.Of < b.Of
	})
	return all
}
