package service

import (
	"bytes"
	"crypto/sha256"
	"maps"
	"net/netip"
	"slices"

	"culvert/gateway/services"
)

// SetAlive says which nodes may announce addresses, and reports whether that changes anything.
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

// answers returns the addresses that this node answers for at layer 2, in order: of those that it serves, the ones for which it is the owner.
func (s *State) answers(c *services.Config) (all []netip.Addr) {
	if len(c.Announce) == 0 {
		return nil
	}
	served := map[netip.Addr]bool{}
	for i := range c.Services {
		for _, a := range c.Services[i].LoadBalancerIPs {
			served[a] = c.Announces(a) && !slices.Contains(c.Addresses, a)
		}
	}
	for a, own := range s.announcing() {
		if served[a] && own == s.self {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// announcing returns the node that announces each address of a load balancer, as MetalLB's layer 2 mode has it: of the nodes that may, the first
// by a hash. It follows from what all nodes know alike, not from what one of them can serve.
//
// Where several Services have an address, it is one node's that may for all of them, or else for the oldest.
func (s *State) announcing() map[netip.Addr]string {
	type bid struct {
		key   netip.Addr
		nodes map[string]bool
	}
	bids := map[netip.Addr]*bid{}
	eligible := s.eligible()
	for _, x := range slices.SortedFunc(maps.Values(s.services), (*service).compare) {
		var addresses []netip.Addr
		for i := range x.ports {
			addresses = append(addresses, x.ports[i].LoadBalancerIPs...)
		}
		if len(addresses) == 0 {
			continue
		}
		nodes := s.announcers(x, eligible)
		slices.SortFunc(addresses, netip.Addr.Compare)
		for _, a := range slices.Compact(addresses) {
			switch b := bids[a]; {
			case len(nodes) == 0:
			case b == nil:
				bids[a] = &bid{x.first, nodes}
			default:
				both := maps.Clone(b.nodes)
				maps.DeleteFunc(both, func(n string, _ bool) bool { return !nodes[n] })
				if len(both) > 0 {
					b.nodes = both
				}
			}
		}
	}
	owners := make(map[netip.Addr]string, len(bids))
	for a, b := range bids {
		owners[a] = first(maps.Keys(b.nodes), b.key)
	}
	return owners
}

// eligible returns the nodes that may announce anything: those that are alive and that clients outside may be led to.
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

// announcers returns the nodes that may announce the addresses of a Service: none without an endpoint that serves, and with the Local
// policy those that have one.
func (s *State) announcers(x *service, eligible map[string]bool) map[string]bool {
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
		return nil
	case x.local:
		return here
	}
	return eligible
}

// first returns the node that comes first by its hash with an address; "" of none.
func first(nodes func(func(string) bool), key netip.Addr) (owner string) {
	var least [sha256.Size]byte
	for n := range nodes {
		if hash := sha256.Sum256([]byte(n + "#" + key.String())); owner == "" || bytes.Compare(hash[:], least[:]) < 0 {
			owner, least = n, hash
		}
	}
	return owner
}
