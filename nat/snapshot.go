package nat

import (
	"net/netip"
	"reflect"
	"slices"
	"time"

	"culvert/nat/packet"
	"culvert/nat/rules"

	"github.com/gaissmai/bart"
)

// A snapshot is a compiled Config. It is immutable once published, but for the counters of its rules.
type snapshot struct {
	generation uint32
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
	seen           bart.Table[*remap] // destination as seen here → real
	real           bart.Table[*remap] // real source → as seen here
	refused        bart.Lite          // sources from nodes
}

// surroundings are the routes of a Config.
type surroundings struct {
	routes []rules.Route
	homes  bart.Table[Link] // sources that one node alone may send from
}

// compile turns a Config into the snapshot that follows previous, without rules. It shares what has not changed. all: what has concerns
// all connections, whatever the rules say.
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
	if all || !slices.Equal(s.routes, c.Routes) {
		// Nodes are resources, and with them their routes, unless rules or routing are given.
		all = all || c.Firewall != nil || c.Routing != nil
		s.surroundings = newSurroundings(c)
	}
	return s, all
}

func newSite(is siteConfig) *site {
	is.localPods, is.localExternal, is.remote = slices.Clone(is.localPods), slices.Clone(is.localExternal), slices.Clone(is.remote)
	is.fromTunnel, is.notFromNodes = slices.Clone(is.fromTunnel), slices.Clone(is.notFromNodes)
	s := &site{siteConfig: is}
	for _, p := range is.localPods {
		s.pods.Insert(p)
	}
	for _, p := range is.localExternal {
		s.external.Insert(p)
	}
	for _, r := range is.remote {
		there, back := remapPair(r.Seen(), r.Real)
		s.seen.Insert(r.Seen(), there)
		s.real.Insert(r.Real, back)
		if is.notFromNodes == nil {
			s.refused.Insert(r.Seen())
		}
	}
	for _, p := range is.notFromNodes {
		s.refused.Insert(p)
	}
	return s
}

func newSurroundings(c *Config) *surroundings {
	s := &surroundings{routes: slices.Clone(c.Routes)}
	if c.SourceCheck == SourceCheckNode {
		for _, r := range c.Routes {
			s.homes.Insert(r.Prefix, r.Link)
		}
	}
	return s
}

// admits is the source check. From an outside link only the cluster there may speak, by its real addresses, and the peer. From a node
// comes whatever can be a host's address, but for the gateway's own, those of the remote cluster and those of other nodes.
func (s *snapshot) admits(source netip.Addr, in Link) bool {
	if in.Outside() {
		return s.rules.Admits(in, source)
	}
	return packet.Forwardable(source) && !s.own(source) && !s.refused.Contains(source) && !s.foreign(source, in)
}

// linkLocal6 reports whether what comes from a may go no further than to the gateway itself (RFC 4291, Section 2.5.6). Packets from the IPv4
// address of the peer's gateway, which is link-local too, Liqo's gateway forwards.
func linkLocal6(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

// foreign reports whether a lives at another node than in.
func (s *snapshot) foreign(a netip.Addr, in Link) bool {
	home, ok := s.homes.Lookup(a)
	return ok && home != in
}

// owns reports whether a packet is for the gateway itself: its internal address from nodes, its own on an outside link from there.
func (s *snapshot) owns(destination netip.Addr, in Link) bool {
	if in.Outside() {
		return s.rules.Own(in).Has(destination)
	}
	return s.gateway.Has(destination)
}

// noRoute is the verdict on what leads nowhere: a pod without a node is unreachable as a host, all else as a network (RFC 1812,
// Section 5.2.7.1).
func (s *snapshot) noRoute(destination netip.Addr) Verdict {
	if s.pods.Contains(destination) {
		return refuse(ReasonNoRoute, packet.HostUnreachable)
	}
	return refuse(ReasonNoRoute, packet.NetUnreachable)
}

// isPod reports whether the cluster at an outside link knows a by its own address.
func (s *snapshot) isPod(a netip.Addr, at Link) bool {
	if s.fromTunnel == nil {
		return s.pods.Contains(a)
	}
	out, ok := s.rules.Route(at, 0, s.peer.Of(a.Is6()), a)
	return ok && !out.Outside()
}

// hostOf returns what a rate or a share of who is at link is kept by: its address or, where a host has as many as it likes, their /64.
func (s *snapshot) hostOf(a netip.Addr, link Link) [16]byte {
	b := a.As16()
	if !s.isHost(a, link) {
		clear(b[8:])
	}
	return b
}

// isHost reports whether one address is all that a host at link has: an IPv4 address, or one of the CIDRs of the cluster there.
// Elsewhere a host of IPv6 has a /64 to itself (RFC 8273); the pods of a node, too, have one /64, but each has one address of it.
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
