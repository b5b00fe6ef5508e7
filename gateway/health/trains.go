package health

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Of trains, batches of datagrams for which the kernel is called once. Known faults of kernels lose them, by version.
var (
	PeerTrains = cause("peer-trains", Warning, "UDP_SEGMENT trains do not arrive at the peer ({address}): it is sent single datagrams, which is slower",
		"update the kernels of both gateways' nodes if they are 7.0 to 7.1.4, or turn tx-udp-segmentation of the network interface off")
	NodeTrains = cause("node-trains", Warning, "UDP_SEGMENT trains do not arrive at {node} ({address}): it is sent single datagrams, which is slower",
		"update the node's kernel to 6.8.5 or later, but not 7.0 to 7.1.4")
	TrainsBack = cause("trains-restored", Note, "{node} is sent UDP_SEGMENT trains again", "")
)

// trains are what was said of those to whom they do not arrive.
type trains map[pathKey]Finding

func (t trains) look(o *Observation) (changes []Finding) {
	lost := make(map[pathKey]bool)
	see := func(c *Cause, kind Kind, of string, to netip.Addr) {
		key := pathKey{kind, of}
		lost[key] = true
		if _, said := t[key]; !said {
			t[key] = find(c, kind, of, "{node}", of, "{address}", to.String())
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
	for key, f := range t {
		if lost[key] {
			continue
		}
		delete(t, key)
		if o.has(key) {
			changes = append(changes, find(TrainsBack, f.Kind, f.Of, "{node}", f.Of))
		}
	}
	return changes
}

// findings returns what is the case.
func (t trains) findings() []Finding {
	return slices.SortedFunc(maps.Values(t), func(a, b Finding) int {
		return cmp.Or(strings.Compare(string(a.Kind), string(b.Kind)), strings.Compare(a.Of, b.Of))
	})
}
