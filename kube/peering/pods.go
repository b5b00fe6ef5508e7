package peering

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// A podIndex says where pods are. A change of one pod costs time only for the pods of its node,
// because a cluster has too many to look at all of them each time.
type podIndex struct {
	pods table[*pod] // by namespace/name
	// claims are the pods that claim an address, in the order in which the claims came. The first
	// one has it until it gives it up: a node writes the addresses of its own pods, so that neither
	// a name nor the age of a pod may take an address.
	claims map[netip.Addr][]string
	// contested are the addresses with several claims: one pod ends while another already has its
	// address, or a node lies.
	contested map[netip.Addr]bool
	ordered   bool // the claims of the first list are in order
	nodes     map[string]*nodePods
	within    []netip.Prefix // the CIDRs of pods that lists contain
}

// nodePods are the addresses of the pods of a node.
type nodePods struct {
	all   []netip.Addr   // sorted
	list  []netip.Prefix // those of all within the CIDRs of pods; configurations share it, so it is never changed
	stale bool           // list must be computed again from all
}

func newPodIndex() *podIndex {
	return &podIndex{pods: table[*pod]{}, claims: map[netip.Addr][]string{}, contested: map[netip.Addr]bool{},
		nodes: map[string]*nodePods{}}
}

// set records where a pod is; nil: nowhere. All addresses concerned leave the nodes that have them
// by the claims so far, then the claims change, then the addresses come to the nodes that have them
// by the new claims.
func (x *podIndex) set(key string, p *pod) {
	var before, after []netip.Addr
	was := x.pods[key]
	if was != nil {
		before = was.addresses
	}
	if p != nil {
		after = p.addresses
	}
	if was != nil && p != nil && was.node == p.node && was.ending == p.ending && slices.Equal(before, after) {
		return // most changes of a Pod are about something else
	}
	x.each(before, after, (*nodePods).remove)
	for _, a := range before {
		if p == nil || p.node != was.node || !slices.Contains(after, a) {
			x.claim(a, key, false)
		}
	}
	for _, a := range after {
		x.claim(a, key, true)
	}
	x.pods.set(key, p)
	x.each(before, after, (*nodePods).add)
}

// each calls do for each address and the node that has it according to the current claims and pods.
func (x *podIndex) each(before, after []netip.Addr, do func(*nodePods, netip.Addr)) {
	for _, list := range [][]netip.Addr{before, after} {
		for _, a := range list {
			if len(x.claims[a]) == 0 {
				continue
			}
			name := x.pods[x.claims[a][0]].node
			n := x.nodes[name]
			if n == nil {
				n = new(nodePods)
				x.nodes[name] = n
			}
			if do(n, a); len(n.all) == 0 {
				delete(x.nodes, name)
			}
		}
	}
}

// claim records whether a pod claims an address.
func (x *podIndex) claim(a netip.Addr, key string, claims bool) {
	keys := x.claims[a]
	i := slices.Index(keys, key)
	switch {
	case claims == (i >= 0):
	case claims:
		x.claims[a] = append(keys, key)
	case len(keys) == 1:
		delete(x.claims, a)
	default:
		x.claims[a] = slices.Delete(keys, i, i+1)
	}
	if delete(x.contested, a); len(x.claims[a]) > 1 {
		x.contested[a] = true
	}
}

// orderClaims puts, once, the claims of nodes that have disputed before behind those of others. The
// claims of the first list came in the order of the pods' ages.
func (x *podIndex) orderClaims(disputed func(node string) bool) {
	if x.ordered {
		return
	}
	x.ordered = true
	for a := range x.contested {
		x.each([]netip.Addr{a}, nil, (*nodePods).remove)
		slices.SortStableFunc(x.claims[a], func(i, k string) int {
			return cmp.Compare(rank(disputed(x.pods[i].node)), rank(disputed(x.pods[k].node)))
		})
		x.each([]netip.Addr{a}, nil, (*nodePods).add)
	}
}

// rank is 1 for true, so that false comes first.
func rank(last bool) int {
	if last {
		return 1
	}
	return 0
}

// disputes returns, by node, the first address within the CIDRs pods that a pod of it claims
// although one of another node has it, and how many there are. An ending pod does not dispute, and
// nobody disputes its address.
func (x *podIndex) disputes(pods []netip.Prefix) map[string]*dispute {
	all := map[string]*dispute{}
	for _, a := range slices.SortedFunc(maps.Keys(x.contested), netip.Addr.Compare) {
		if !within(pods, netip.PrefixFrom(a, a.BitLen())) {
			continue
		}
		keys := x.claims[a]
		has := x.pods[keys[0]]
		for _, key := range keys[1:] {
			p := x.pods[key]
			if p.node == has.node || p.ending || has.ending {
				continue
			}
			if all[p.node] == nil {
				all[p.node] = &dispute{pod: key, address: a, has: keys[0], node: has.node}
			}
			all[p.node].n++
		}
	}
	return all
}

// A dispute is the claim of a pod to the address of another node's pod, which had it first, the
// first of n such claims of a node.
type dispute struct {
	pod       string
	address   netip.Addr
	has, node string
	n         int
}

func (n *nodePods) add(a netip.Addr) {
	if i, there := slices.BinarySearchFunc(n.all, a, netip.Addr.Compare); !there {
		n.all, n.stale = slices.Insert(n.all, i, a), true
	}
}

func (n *nodePods) remove(a netip.Addr) {
	if i, there := slices.BinarySearchFunc(n.all, a, netip.Addr.Compare); there {
		n.all, n.stale = slices.Delete(n.all, i, i+1), true
	}
}

// of returns the addresses of a node's pods that lie in the CIDRs pods. As long as neither changes,
// it returns the same slice.
func (x *podIndex) of(node string, pods []netip.Prefix) []netip.Prefix {
	if !slices.Equal(x.within, pods) {
		x.within = pods
		for _, n := range x.nodes {
			n.stale = true
		}
	}
	n := x.nodes[node]
	if n == nil {
		return nil
	}
	if n.stale {
		n.list, n.stale = nil, false
		for _, a := range n.all {
			if p := netip.PrefixFrom(a, a.BitLen()); within(pods, p) {
				n.list = append(n.list, p)
			}
		}
	}
	return n.list
}

// within reports whether a prefix lies in one of several CIDRs.
func within(all []netip.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(all, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) })
}

// ofFamily reports whether one of several CIDRs has the family of another.
func ofFamily(all []netip.Prefix, c netip.Prefix) bool {
	return slices.ContainsFunc(all, func(o netip.Prefix) bool { return o.Addr().Is4() == c.Addr().Is4() })
}

// podsOf returns where the pods of each node are.
func (g *Gateway) podsOf(d *Plan) map[string][]netip.Prefix {
	p, all := g.good, map[string][]netip.Prefix{}
	if p.FollowPods {
		g.pods.orderClaims(g.hadDisputes)
		for name, x := range g.pods.disputes(p.Pods) {
			d.dispute(name)
			d.fault(kindNode+" "+name, "status.podIPs of its Pod %s: %s is of Pod %s on node %s, which had it first%s",
				x.pod, x.address, x.has, x.node, more(x.n))
		}
		for name := range g.nodes {
			all[name] = g.pods.of(name, p.Pods)
		}
		return all
	}
	type owned struct {
		cidr netip.Prefix
		by   string
	}
	var owners []owned // sorted, and none overlaps another
	for _, name := range slices.SortedFunc(maps.Keys(g.nodes),
		func(a, b string) int { return g.nodes[a].age(g.nodes[b]) }) {
		n := g.nodes[name]
		for i, c := range n.pods {
			k, _ := slices.BinarySearchFunc(owners, c, func(o owned, c netip.Prefix) int {
				return o.cidr.Addr().Compare(c.Addr())
			})
			near := owners[max(k-1, 0):min(k+1, len(owners))]
			other := slices.IndexFunc(near, func(o owned) bool { return o.cidr.Overlaps(c) })
			switch {
			case !ofFamily(p.Pods, c):
			case slices.ContainsFunc(p.takes(), c.Overlaps): // latecomers has named it
			case !within(p.Pods, c):
				d.fault(kindNode+" "+name,
					"spec.podCIDRs[%d]: %s is outside spec.local.podCIDRs of Peering %s; add a CIDR there that contains it",
					i, c, g.self.Name)
			case other >= 0:
				d.fault(kindNode+" "+name, "spec.podCIDRs[%d]: %s is of node %s too, which is older", i, c,
					near[other].by)
			default:
				owners = slices.Insert(owners, k, owned{c, name})
				all[name] = append(all[name], c)
			}
		}
		for i, c := range p.Pods {
			if len(n.pods) > 0 && !ofFamily(n.pods, c) && !ofFamily(p.Pods[:i], c) {
				d.fault(kindNode+" "+name, "spec.podCIDRs: none of %s, of which spec.local.podCIDRs of Peering %s has some; "+
					"give the node one, or leave %[1]s out there", familyOf(c), g.self.Name)
			}
		}
		if len(n.pods) == 0 {
			d.fault(kindNode+" "+name, "spec.podCIDRs: missing; set spec.podsFrom of Peering %s to Pods", g.self.Name)
		}
	}
	return all
}
