package service

import (
	"bytes"
	"crypto/sha256"
	"maps"
	"net/netip"
	"slices"

	"culvert/gateway/node/services"
)

// SetAlive sets which nodes may announce addresses, and reports whether that changes anything.
func (s *State) SetAlive(nodes []string) bool {
	next := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		next[n] = true
	}
	if maps.Equal(next, s.alive) {
		return false
	}
	s.alive = next
	return true
}

// SetUnable sets the addresses that a node cannot announce, and reports whether that changes
// anything. For other nodes they come from their Leases.
func (s *State) SetUnable(node string, addresses []netip.Prefix) bool {
	if slices.Equal(s.unable[node], addresses) {
		return false
	}
	if len(addresses) == 0 {
		delete(s.unable, node)
	} else {
		s.unable[node] = addresses
	}
	s.winners = nil
	return true
}

// maxUnable is the maximum number of addresses of a family in a Lease.
const maxUnable = 64

// Unable returns which of the announced addresses this node cannot announce. Preconditions: Config
// was called since the last change.
func (s *State) Unable() []netip.Prefix { return s.unable[s.self] }

// lacks returns which of the announced addresses this node cannot announce: those it does not
// serve, because its kernel has refused them or their Service's cluster address, a whole family of
// which it has no address, or those beyond its limit. Preconditions: places are assigned.
func (s *State) lacks(c *services.Config) (all []netip.Prefix) {
	if len(c.Announce) == 0 {
		return nil
	}
	wanted := map[netip.Addr]bool{}
	for _, x := range s.services {
		for i := range x.ports {
			for _, a := range x.ports[i].LoadBalancerIPs {
				wanted[a] = c.Announces(a)
			}
		}
	}
	for _, f := range s.fronts {
		for i := range f.ports {
			for _, a := range f.ports[i].LoadBalancerIPs {
				delete(wanted, a)
			}
		}
	}
	for _, whole := range []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0),
		netip.PrefixFrom(netip.IPv6Unspecified(), 0)} {
		var lacking []netip.Prefix
		for a, announced := range wanted {
			if announced && whole.Contains(a) {
				lacking = append(lacking, netip.PrefixFrom(a, a.BitLen()))
			}
		}
		announces := slices.ContainsFunc(c.Announce, func(p netip.Prefix) bool { return whole.Contains(p.Addr()) })
		if announces && !slices.ContainsFunc(c.Addresses, whole.Contains) || len(lacking) > maxUnable {
			lacking = []netip.Prefix{whole}
		}
		slices.SortFunc(lacking, netip.Prefix.Compare)
		all = append(all, lacking...)
	}
	return all
}

// able reports whether a node can announce an address.
func (s *State) able(node string, a netip.Addr) bool {
	return !slices.ContainsFunc(s.unable[node], func(p netip.Prefix) bool { return p.Contains(a) })
}

// answers returns the addresses that this node announces at layer 2, in order: those it serves and
// owns. Services beyond the limit, and those that no node may announce, get an Event.
func (s *State) answers(c *services.Config) (all []netip.Addr) {
	for _, key := range s.surplus {
		delete(s.wrong, key)
	}
	s.surplus = nil
	if len(c.Announce) == 0 {
		return nil
	}
	served := map[netip.Addr]bool{}
	for i := range c.Services {
		for _, a := range c.Services[i].LoadBalancerIPs {
			served[a] = c.Announces(a) && !slices.Contains(c.Addresses, a)
		}
	}
	owners := s.announcing()
	for a, own := range owners {
		if served[a] && own == s.self {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	n := min(len(all), services.MaxAnnounced)
	eligible := s.eligible()
	for _, x := range s.services {
		if !x.first.IsValid() {
			continue
		}
		var what faults
		shunned := false // every node that may announce is excluded
		if nodes, _ := s.announcers(x, eligible); len(nodes) == 0 {
			nodes, _ = s.announcers(x, s.alive)
			shunned = len(nodes) > 0
		}
		for i := range x.ports {
			for _, a := range x.ports[i].LoadBalancerIPs {
				if _, found := slices.BinarySearchFunc(all[n:], a, netip.Addr.Compare); found {
					what.add("status.loadBalancer", "nobody answers for %s: one node does for %d addresses at most", a,
						services.MaxAnnounced)
				} else if shunned && c.Announces(a) && owners[a] == "" {
					what.add("status.loadBalancer",
						"nobody answers for %s: every node that could has the label %s or the condition NetworkUnavailable; "+
							"remove the label from one", a, labelExcluded)
				}
			}
		}
		if len(what) > 0 {
			slices.Sort(what)
			key := "announced " + x.name.String()
			s.wrong[key], s.surplus = report{KindService, x.meta, slices.Compact(what)}, append(s.surplus, key)
		}
	}
	return all[:n:n]
}

// A lot is an address, and its Service's address whose hash decides who announces it.
type lot struct{ address, key netip.Addr }

// announcing returns the node that announces each load balancer address, as in MetalLB's layer 2
// mode: the first, by a hash, of the nodes that may. It depends only on what all nodes see; what a
// node cannot serve is in its Lease.
//
// If several Services share an address, the node is chosen among those that may announce it for all
// of them, or else for the oldest.
//
// Endpoints change all the time: the hashes of all nodes are computed again only when nodes have
// come or gone.
func (s *State) announcing() map[netip.Addr]string {
	type bid struct {
		key   netip.Addr
		nodes map[string]bool
		all   bool // nodes are all that may announce anything
	}
	bids := map[netip.Addr]*bid{}
	eligible := s.eligible()
	if !maps.Equal(eligible, s.bidders) {
		s.bidders, s.winners = eligible, nil
	}
	var balanced []*service
	for _, x := range s.services {
		if x.first.IsValid() {
			balanced = append(balanced, x)
		}
	}
	slices.SortFunc(balanced, (*service).compare)
	for _, x := range balanced {
		var addresses []netip.Addr
		for i := range x.ports {
			addresses = append(addresses, x.ports[i].LoadBalancerIPs...)
		}
		nodes, all := s.announcers(x, eligible)
		slices.SortFunc(addresses, netip.Addr.Compare)
		for _, a := range slices.Compact(addresses) {
			switch b := bids[a]; {
			case len(nodes) == 0:
			case b == nil:
				bids[a] = &bid{x.first, nodes, all}
			case !all:
				both := maps.Clone(b.nodes)
				maps.DeleteFunc(both, func(n string, _ bool) bool { return !nodes[n] })
				if len(both) > 0 {
					b.nodes, b.all = both, false
				}
			}
		}
	}
	owners, winners := make(map[netip.Addr]string, len(bids)), make(map[lot]string, len(bids))
	for a, b := range bids {
		l := lot{a, b.key}
		owner, known := s.winners[l]
		if !b.all || !known {
			owner = first(func(yield func(string) bool) {
				for n := range b.nodes {
					if s.able(n, a) && !yield(n) {
						return
					}
				}
			}, b.key)
			// every node declares the family unservable: choose among all, for one may still serve
			// this address
			if owner == "" {
				owner = first(maps.Keys(b.nodes), b.key)
			}
		}
		if owners[a] = owner; b.all {
			winners[l] = owner
		}
	}
	s.winners = winners
	return owners
}

// eligible returns the nodes that may announce addresses: those that are alive and not excluded for
// external clients.
func (s *State) eligible() map[string]bool {
	all := make(map[string]bool, len(s.alive))
	for name := range s.alive {
		n := s.others[Name{"", name}]
		if name == s.self {
			n = s.node
		}
		if n == nil || !n.shunned {
			all[name] = true
		}
	}
	return all
}

// announcers returns the nodes that may announce the addresses of a Service, and whether these are
// all eligible nodes: none if there is no serving endpoint; with the Local policy those with one.
func (s *State) announcers(x *service, eligible map[string]bool) (nodes map[string]bool, all bool) {
	any, here := false, map[string]bool{}
	for _, l := range s.slices[x.name] {
		for i := range l.endpoints {
			if e := &l.endpoints[i]; e.active {
				any = true
				if node := e.node.Value(); eligible[node] {
					here[node] = true
				}
			}
		}
	}
	switch {
	case !any:
		return nil, false
	case x.local:
		return here, false
	}
	return eligible, true
}

// first returns the first node by its hash with an address; "" if there is none.
func first(nodes func(func(string) bool), key netip.Addr) (owner string) {
	var least [sha256.Size]byte
	for n := range nodes {
		if hash := sha256.Sum256([]byte(n + "#" + key.String())); owner == "" || bytes.Compare(hash[:], least[:]) < 0 {
			owner, least = n, hash
		}
	}
	return owner
}
