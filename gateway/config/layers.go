package config

import (
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"culvert/geneve"
	"culvert/nat"
	"culvert/nat/rules"
)

// Links gives each node its nat.Link. Connections remember links, so a node that leaves and returns
// gets the same link, as long as new nodes can have others.
type Links struct {
	ByName map[string]nat.Link // immutable
	last   map[nat.Link]string // its last owner
	next   nat.Link
}

// Name returns a name by which Find finds link in other Links too; "" = the link has never had an
// owner.
func (l Links) Name(link nat.Link) string {
	if link == nat.Tunnel {
		return tunnelLink
	}
	return l.last[link]
}

// Find returns the link with a name.
func (l Links) Find(name string) (nat.Link, bool) {
	if name == tunnelLink {
		return nat.Tunnel, true
	}
	link, ok := l.ByName[name]
	return link, ok
}

// tunnelLink is the name of nat.Tunnel; no node can have it.
const tunnelLink = "(tunnel)"

// Assign returns the links of nodes; each keeps its link from l.
func (l Links) Assign(nodes []Node) Links {
	had := make(map[string]nat.Link, len(l.last))
	for link, name := range l.last {
		had[name] = link
	}
	assigned := Links{make(map[string]nat.Link, len(nodes)), maps.Clone(l.last), l.next}
	if assigned.last == nil {
		assigned.last = make(map[nat.Link]string, len(nodes))
	}
	inUse := make(map[nat.Link]bool, len(nodes))
	for _, n := range nodes {
		if link, ok := had[n.Name]; ok {
			assigned.ByName[n.Name] = link
			inUse[link] = true
		}
	}
	for _, n := range nodes {
		if _, ok := assigned.ByName[n.Name]; ok {
			continue
		}
		for {
			assigned.next = assigned.next%maxNodes + 1
			if !inUse[assigned.next] {
				break
			}
		}
		assigned.ByName[n.Name], assigned.last[assigned.next] = assigned.next, n.Name
		inUse[assigned.next] = true
	}
	return assigned
}

// NAT returns the part of c about packets; maxConnections replaces auto.
func (c *Config) NAT(links Links, maxConnections int) *nat.Config {
	own, peer := c.WireGuard.Role.TunnelAddresses()
	nc := &nat.Config{MTU: int(c.MTU), SourceCheck: c.Geneve.SourceCheck, MaxConnections: c.MaxConnections}
	nc.Config = rules.Config{
		LocalPodCIDRs:      c.Local.PodCIDRs,
		LocalExternalCIDRs: c.Local.ExternalCIDRs,
		Remote:             c.Remote,
		GatewayAddress:     c.Geneve.GatewayAddress,
		TunnelAddress:      own,
		PeerTunnelAddress:  peer,
		MSSClamp:           c.MSSClamp,
		UnknownSource:      c.UnknownSource,
		Rules:              c.Rules,
	}
	if c.Admit == AdmitExports {
		nc.Admit = notNil(c.Exports)
	}
	if nc.MaxConnections == 0 {
		nc.MaxConnections = maxConnections
	}
	if g := &c.Given; g.Rules {
		nc.Firewall, nc.Routing = []rules.Table{}, []rules.PolicyTable{}
		nc.FromTunnel, nc.NotFromNodes = notNil(g.FromTunnel), notNil(g.NotFromNodes)
	}
	for _, m := range c.Addresses {
		for a := range m.External.All() {
			nc.Addresses = append(nc.Addresses, rules.AddressMapping{External: a, Internal: m.Internal.Of(a.Is6()),
				Via: links.ByName[m.Via], ProxyProtocol: m.ProxyProtocol})
		}
	}
	for i := range c.Services {
		nc.Services = append(nc.Services, c.Services[i].nat(links)...)
	}
	for _, n := range c.Geneve.Nodes {
		link := links.ByName[n.Name]
		nc.Nodes = append(nc.Nodes, rules.Node{Link: link, Name: n.Name, Device: n.Device, Address: n.Address})
		for _, p := range n.routes() {
			nc.Routes = append(nc.Routes, rules.Route{Prefix: p, Link: link})
		}
	}
	return nc
}

// routes returns the destinations behind a node: its internal address and its pods.
func (n *Node) routes() (all []netip.Prefix) {
	for a := range n.Address.All() {
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	return append(all, n.PodCIDRs...)
}

// nat returns a service for each family.
func (s *Service) nat(links Links) (all []rules.Service) {
	for a := range s.Address.All() {
		one := rules.Service{
			Name: s.Name, Address: a, Port: s.Port, Protocol: s.Protocol,
			Balance: s.Balance, Affinity: s.Affinity, AffinityTimeout: s.AffinityTimeout, OnRemoval: s.OnRemoval,
			ProxyProtocol: s.ProxyProtocol,
		}
		for _, b := range s.Backends {
			if b.Address.Is4() == a.Is4() {
				one.Backends = append(one.Backends, rules.Backend{Address: b.Address, Port: b.Port, Weight: b.Weight,
					Via: links.ByName[b.Via]})
			}
		}
		all = append(all, one)
	}
	return all
}

// An Amendment has what changes at the pace of pods: the arguments for Reroute, Amend and Admit of
// a nat.Engine.
type Amendment struct {
	Routes           map[nat.Link][]netip.Prefix
	Services         []rules.Service
	Withdrawn, Added []rules.Endpoint
}

// Empty reports whether m changes nothing.
func (m *Amendment) Empty() bool {
	return len(m.Routes)+len(m.Services)+len(m.Withdrawn)+len(m.Added) == 0
}

// Amended returns an Amendment if c differs from old, whose links are given, only in the PodCIDRs
// of some nodes, in the backends, all of them pods, of some services, and in exports of pods. It
// returns false if more differs, or if something is wrong that Validate must report. Another order
// of nodes or services counts as more.
func (c *Config) Amended(old *Config, links Links) (m Amendment, alone bool) {
	a, b := *c, *old
	a.Geneve.Nodes, b.Geneve.Nodes, a.Services, b.Services = nil, nil, nil, nil
	a.Exports, b.Exports = nil, nil
	if len(c.Geneve.Nodes) != len(old.Geneve.Nodes) || len(c.Services) != len(old.Services) ||
		!reflect.DeepEqual(&a, &b) {
		return m, false
	}
	m.Withdrawn, m.Added = differ(old.Exports, c.Exports)
	for i := range m.Added {
		if !c.Local.hasPods(m.Added[i].Prefix) {
			return m, false
		}
	}
	if len(m.Withdrawn)+len(m.Added) > 0 && c.Admit != AdmitExports {
		return m, false
	}
	m.Routes = map[nat.Link][]netip.Prefix{}
	for i := range c.Geneve.Nodes {
		n, was := c.Geneve.Nodes[i], old.Geneve.Nodes[i]
		if !slices.Equal(n.PodCIDRs, was.PodCIDRs) {
			if slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return !c.Local.hasPods(p) }) {
				return m, false
			}
			m.Routes[links.ByName[n.Name]] = n.routes()
		}
		n.PodCIDRs, was.PodCIDRs = nil, nil
		if !reflect.DeepEqual(&n, &was) {
			return m, false
		}
	}
	for i := range c.Services {
		s, was := c.Services[i], old.Services[i]
		if !slices.Equal(s.Backends, was.Backends) {
			if !c.ofPods(&s) {
				return m, false
			}
			m.Services = append(m.Services, s.nat(links)...)
		}
		s.Backends, was.Backends = nil, nil
		if !reflect.DeepEqual(&s, &was) {
			return m, false
		}
	}
	return m, true
}

// differ returns what is only in was, and what is only in is. Neither has an element twice. Where
// they agree at both ends, as sorted lists do after a small change, that costs next to nothing.
func differ[T comparable](was, is []T) (gone, added []T) {
	for len(was) > 0 && len(is) > 0 && was[0] == is[0] {
		was, is = was[1:], is[1:]
	}
	for len(was) > 0 && len(is) > 0 && was[len(was)-1] == is[len(is)-1] {
		was, is = was[:len(was)-1], is[:len(is)-1]
	}
	there := make(map[T]bool, len(was))
	for _, x := range was {
		there[x] = true
	}
	for _, x := range is {
		if !there[x] {
			added = append(added, x)
		}
		delete(there, x)
	}
	for _, x := range was {
		if there[x] {
			gone = append(gone, x)
		}
	}
	return gone, added
}

// ofPods reports whether a service has no backends, or only pods, with one in each family of which
// it has an address.
func (c *Config) ofPods(s *Service) bool {
	has := s.families()
	for a := range s.Address.All() {
		if len(s.Backends) > 0 && !has.Of(a.Is6()).IsValid() {
			return false
		}
	}
	return !slices.ContainsFunc(s.Backends, func(b Backend) bool {
		return b.Via != "" || !b.Address.IsValid() || !s.Address.Of(b.Address.Is6()).IsValid() ||
			!c.Local.hasPods(netip.PrefixFrom(b.Address, b.Address.BitLen()))
	})
}

// hasPods reports whether a prefix lies within one of the pod CIDRs.
func (n *LocalNetwork) hasPods(p netip.Prefix) bool {
	return slices.ContainsFunc(n.PodCIDRs, func(o netip.Prefix) bool {
		return o.Bits() <= p.Bits() && o.Contains(p.Addr())
	})
}

// notNil keeps an empty list distinct from nil.
func notNil[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

// Tunnels returns the tunnels of the Geneve endpoint; a tunnel's ID is its node's nat.Link. Without
// an internal address, the gateway has none.
func (c *Config) Tunnels(links Links) []geneve.Tunnel {
	var ts []geneve.Tunnel
	if !c.Geneve.GatewayAddress.IsValid() {
		return nil
	}
	for _, n := range c.Geneve.Nodes {
		ts = append(ts, geneve.Tunnel{
			ID:     uint16(links.ByName[n.Name]),
			VNI:    n.VNI,
			Remote: n.Underlay,
			Encap:  n.Encap,
			Inner:  n.Inner,
			Local:  geneve.Pair(c.Geneve.GatewayAddress),
			Peer:   geneve.Pair(n.Address),
			Role:   geneve.Gateway,
		})
	}
	return ts
}

// Check returns all faults for which a gateway refuses c, each with its path in the configuration
// file. It does not cover what a gateway finds only at start: ports and files held by others.
func Check(c *Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	links := Links{}.Assign(c.Geneve.Nodes)
	// Validate should find these too. An error without a path is a bug there.
	return errors.Join(nat.Check(c.NAT(links, 0)), geneve.Check(c.Tunnels(links)))
}
