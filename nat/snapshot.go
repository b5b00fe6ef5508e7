package nat

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"culvert/nat/packet"
	"culvert/nat/rules"

	"github.com/gaissmai/bart"
)

// A snapshot is a compiled Config. Once published it is immutable, except for the counters of its
// rules.
type snapshot struct {
	generation uint32
	restricts  bool // others may open only some connections: see admission.go
	rules      *rules.Ruleset
	timeouts   [states]time.Duration
	maxEntries int
	*site
	*surroundings
}

// A siteConfig is what a Config says about the two clusters and the gateway.
type siteConfig struct {
	localPods, localExternal       []netip.Prefix
	remote                         []rules.RemoteCIDR
	fromTunnel, notFromNodes       []netip.Prefix
	gateway, tunnel, peer, unknown rules.Pair // unknown is U; the zero Addr of a family for which it is off
	mtu                            int
	check                          SourceCheck
}

// A site is a compiled siteConfig.
type site struct {
	siteConfig
	pods, external bart.Lite
	seen           bart.Table[*netip.Prefix] // destination as seen here → the real prefix
	real           bart.Table[*netip.Prefix] // real source → the prefix as seen here
	refused        bart.Lite                 // sources from nodes
}

// surroundings are the nodes and routes of a Config.
type surroundings struct {
	nodes         []rules.Node
	routes        map[Link][]netip.Prefix
	homes         *bart.Table[Link] // the link of each route, for admits and reserved; rules route packets
	nodeAddresses *bart.Lite
}

// compile turns a Config into the snapshot that follows previous, without rules. It shares what has
// not changed. all: the change affects all connections, whatever the rules say.
func compile(c *Config, previous *snapshot) (s *snapshot, all bool) {
	s = &snapshot{
		timeouts:     c.Timeouts.compile(),
		maxEntries:   c.MaxConnections,
		site:         previous.site,
		surroundings: previous.surroundings,
	}
	if s.maxEntries == 0 {
		s.maxEntries = DefaultMaxConnections
	}
	is := siteConfig{
		c.LocalPodCIDRs, c.LocalExternalCIDRs, c.Remote, c.FromTunnel, c.NotFromNodes,
		c.GatewayAddress, c.TunnelAddress, c.PeerTunnelAddress, c.UnknownSource, c.MTU, c.SourceCheck,
	}
	if s.site == nil || !reflect.DeepEqual(s.siteConfig, is) {
		all = true
		s.site = newSite(is)
	}
	routes := all || !maps.EqualFunc(s.routes, c.RoutesByLink(), slices.Equal)
	if routes {
		// Nodes and their routes are resources, unless rules or routing are configured.
		all = all || c.Firewall != nil || c.Routing != nil
	}
	if routes || !slices.Equal(s.nodes, c.Nodes) {
		s.surroundings = newSurroundings(c)
	}
	return s, all
}

func newSite(is siteConfig) *site {
	is.localPods, is.localExternal, is.remote = slices.Clone(is.localPods), slices.Clone(is.localExternal),
		slices.Clone(is.remote)
	is.fromTunnel, is.notFromNodes = slices.Clone(is.fromTunnel), slices.Clone(is.notFromNodes)
	s := &site{siteConfig: is}
	for _, p := range is.localPods {
		s.pods.Insert(p)
	}
	for _, p := range is.localExternal {
		s.external.Insert(p)
	}
	for _, r := range is.remote {
		seen := r.Seen()
		s.seen.Insert(seen, &r.Real)
		s.real.Insert(r.Real, &seen)
		if is.notFromNodes == nil {
			s.refused.Insert(seen)
		}
	}
	for _, p := range is.notFromNodes {
		s.refused.Insert(p)
	}
	return s
}

func newSurroundings(c *Config) *surroundings {
	s := &surroundings{nodes: slices.Clone(c.Nodes), routes: c.RoutesByLink(), homes: new(bart.Table[Link]),
		nodeAddresses: new(bart.Lite)}
	for i := range c.Nodes {
		for a := range c.Nodes[i].Address.All() {
			s.nodeAddresses.Insert(netip.PrefixFrom(a, a.BitLen()))
		}
	}
	for _, r := range c.Routes {
		s.homes.Insert(r.Prefix, r.Link)
	}
	return s
}

// admits is the source check. On an outside link only the cluster there may send, from its real
// addresses, and the peer. A node may send from any host address except the gateway's own, those of
// the remote cluster and those of other nodes.
func (s *snapshot) admits(source netip.Addr, in Link) bool {
	if in.Outside() {
		return s.rules.Admits(in, source)
	}
	return packet.Forwardable(source) && !s.own(source) && !s.refused.Contains(source) && !s.foreign(source, in)
}

// closed reports whether a packet from outside is addressed to a node itself. Routes lead there
// only for the answers to nodes' connections, which arrive at U. Configured rules decide this
// themselves.
func (s *snapshot) closed(destination netip.Addr, in Link) bool {
	return in.Outside() && s.rules.Generated() && s.nodeAddresses.Contains(destination)
}

// reserved reports whether the node of a pod network takes packets to a for its own, although the
// network's route leads there: to its broadcast addresses, the last one and, for Linux before 5.14,
// the first, and to the subnet-router anycast address, the first (RFC 4291, Section 2.6.1).
// Networks of two addresses have none (RFC 3021, RFC 6164). Configured rules decide this
// themselves.
func (s *snapshot) reserved(a netip.Addr) bool {
	p, _, _ := s.homes.LookupPrefixLPM(netip.PrefixFrom(a, a.BitLen()))
	return p.IsValid() && p.Bits() < a.BitLen()-1 && (a == p.Addr() || a.Is4() && !p.Contains(a.Next())) &&
		s.rules.Generated()
}

// linkLocal6 reports whether packets from a may go no further than the gateway (RFC 4291, Section
// 2.5.6). Liqo's gateway forwards packets from the IPv4 address of the peer's gateway, which is
// link-local too.
func linkLocal6(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

// foreign reports whether a belongs to another node than in.
func (s *snapshot) foreign(a netip.Addr, in Link) bool {
	home, ok := s.homes.Lookup(a)
	return ok && home != in && s.check == SourceCheckNode
}

// owns reports whether a packet is for the gateway itself: from nodes, for its internal address;
// from an outside link, for its address there.
func (s *snapshot) owns(destination netip.Addr, in Link) bool {
	if in.Outside() {
		return s.rules.Own(in).Has(destination)
	}
	return s.gateway.Has(destination)
}

// noRoute is the verdict on a packet without a route: a pod without a node is unreachable as a
// host, anything else as a network (RFC 1812, Section 5.2.7.1).
func (s *snapshot) noRoute(destination netip.Addr) Verdict {
	if s.pods.Contains(destination) {
		return refuse(ReasonNoRoute, packet.HostUnreachable)
	}
	return refuse(ReasonNoRoute, packet.NetUnreachable)
}

// isPod reports whether the cluster at an outside link knows a under a's own address.
func (s *snapshot) isPod(a netip.Addr, at Link) bool {
	if s.fromTunnel == nil {
		return s.pods.Contains(a)
	}
	out, ok := s.rules.Route(at, 0, s.peer.Of(a.Is6()), a)
	return ok && !out.Outside()
}

// hostOf returns the key of rates and shares for a host at link: its address or, where a host may
// use many addresses, their /64.
func (s *snapshot) hostOf(a netip.Addr, link Link) [16]byte {
	b := a.As16()
	if !s.isHost(a, link) {
		clear(b[8:])
	}
	return b
}

// isHost reports whether a host at link has only one address: an IPv4 address, or one in the CIDRs
// of the cluster there. Elsewhere an IPv6 host has a /64 to itself (RFC 8273); the pods of a node
// share a /64 too, but each has only one address.
func (s *snapshot) isHost(a netip.Addr, link Link) bool {
	if link.Outside() {
		return a.Is4() || s.real.Contains(a)
	}
	return a.Is4() || s.pods.Contains(a)
}

// own reports whether a is an address of the gateway or of either end of the WireGuard tunnel.
func (s *snapshot) own(a netip.Addr) bool {
	return s.gateway.Has(a) || s.tunnel.Has(a) || s.peer.Has(a)
}
