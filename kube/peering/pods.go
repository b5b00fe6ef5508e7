package peering

import (
	"maps"
	"net/netip"
	"slices"
)

// A podIndex says where pods are. A change of one pod costs time only for the pods of its node, because a cluster has too many to look at all of them
// each time.
type podIndex struct {
	pods table[*pod] // by namespace/name
	// claims are the pods that claim an address, in the order of their keys. The first one has it: while one pod ends, another may already have its
	// address.
	claims map[netip.Addr][]string
	nodes  map[string]*nodePods
	within []netip.Prefix // the CIDRs of pods that lists contain
}

// nodePods are the addresses of the pods of a node.
type nodePods struct {
	all  []netip.Addr   // sorted
	list []netip.Prefix // those of all within the CIDRs of pods; configurations share it, so it is never changed
	old  bool           // list must be computed again from all
}

func newPodIndex() *podIndex {
	return &podIndex{pods: table[*pod]{}, claims: map[netip.Addr][]string{}, nodes: map[string]*nodePods{}}
}

func (x *podIndex) keys() []string { return x.pods.keys() }

// set records where a pod is; nil: nowhere.
func (x *podIndex) set(key string, p *pod) {
	var before, after []netip.Addr
	was := x.pods[key]
	if was != nil {
		before = was.addresses
	}
	if p != nil {
		after = p.addresses
	}
	if was != nil && p != nil && was.node == p.node && slices.Equal(before, after) {
		return // most changes of a Pod are about something else
	}
	x.each(before, after, (*nodePods).remove)
	for _, a := range before {
		x.claim(a, key, false)
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
	i, there := slices.BinarySearch(keys, key)
	switch {
	case claims == there:
	case claims:
		x.claims[a] = slices.Insert(keys, i, key)
	case len(keys) == 1:
		delete(x.claims, a)
	default:
		x.claims[a] = slices.Delete(keys, i, i+1)
	}
}

func (n *nodePods) add(a netip.Addr) {
	if i, there := slices.BinarySearchFunc(n.all, a, netip.Addr.Compare); !there {
		n.all, n.old = slices.Insert(n.all, i, a), true
	}
}

func (n *nodePods) remove(a netip.Addr) {
	if i, there := slices.BinarySearchFunc(n.all, a, netip.Addr.Compare); there {
		n.all, n.old = slices.Delete(n.all, i, i+1), true
	}
}

// of returns the addresses of a node's pods that lie in the CIDRs pods. As long as neither changes, it returns the same slice.
func (x *podIndex) of(node string, pods []netip.Prefix) []netip.Prefix {
	if !slices.Equal(x.within, pods) {
		x.within = pods
		for _, n := range x.nodes {
			n.old = true
		}
	}
	n := x.nodes[node]
	if n == nil {
		return nil
	}
	if n.old {
		n.list, n.old = nil, false
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

// podsOf returns where the pods of each node are.
func (g *Gateway) podsOf(d *Plan) map[string][]netip.Prefix {
	p, all := g.good, map[string][]netip.Prefix{}
	if p.FollowPods {
		for name := range g.nodes {
			all[name] = g.pods.of(name, p.Pods)
		}
		return all
	}
	owner := map[netip.Prefix]string{}
	for _, name := range slices.Sorted(maps.Keys(g.nodes)) {
		n, six := g.nodes[name], 0
		for i, c := range n.pods {
			switch {
			case !c.Addr().Is4():
				six++
			case !within(p.Pods, c):
				d.fault(kindNode+" "+name, "spec.podCIDRs[%d]: %s is outside spec.local.podCIDRs of Peering %s; add a CIDR there that contains it",
					i, c, g.self.Name)
			case owner[c] != "":
				d.fault(kindNode+" "+name, "spec.podCIDRs[%d]: %s is of node %s too", i, c, owner[c])
			default:
				owner[c] = name
				all[name] = append(all[name], c)
			}
		}
		if six > 0 && six == len(n.pods) {
			d.fault(kindNode+" "+name, "spec.podCIDRs: of IPv6 alone, which Peerings do not carry so far")
		}
		if len(n.pods) == 0 {
			d.fault(kindNode+" "+name, "spec.podCIDRs: missing; set spec.podsFrom of Peering %s to Pods", g.self.Name)
		}
	}
	return all
}
