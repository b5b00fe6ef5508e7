package nat

import (
	"net/netip"
	"time"

	"github.com/gaissmai/bart"
)

// A snapshot is a compiled Config. It is immutable once published, but for its counters and hits.
type snapshot struct {
	generation uint32
	rules      *ruleset
	hits       ruleHits // guarded by Engine.mu
	timeouts   [states]time.Duration

	nodes                          map[Port]netip.Addr
	pods, external                 bart.Lite
	homes                          bart.Table[Port]   // sources that one node alone may send from
	seen                           bart.Table[*remap] // destination as seen here → real
	real                           bart.Table[*remap] // real source → as seen here
	gateway, tunnel, peer, unknown netip.Addr         // unknown is U; the zero Addr if off
	mtu                            int
	maxEntries                     int
}

// compile turns a Config into the snapshot that follows previous, or returns all of its faults.
func compile(c *Config, previous *snapshot) (*snapshot, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	var old *ruleset
	generation := uint32(1)
	if previous != nil {
		old, generation = previous.rules, previous.generation+1
	}
	rules, err := newRuleset(c, old)
	if err != nil {
		return nil, err
	}
	s := &snapshot{
		generation: generation,
		rules:      rules,
		hits:       newRuleHits(),
		timeouts:   c.Timeouts.compile(),
		nodes:      map[Port]netip.Addr{},
		gateway:    c.GatewayAddress,
		tunnel:     c.TunnelAddress,
		peer:       c.PeerTunnelAddress,
		unknown:    c.UnknownSource,
		mtu:        c.MTU,
		maxEntries: c.MaxConnections,
	}
	for _, n := range c.Nodes {
		s.nodes[n.Port] = n.Address
	}
	for _, p := range c.LocalPodCIDRs {
		s.pods.Insert(p)
	}
	for _, p := range c.LocalExternalCIDRs {
		s.external.Insert(p)
	}
	if c.SourceCheck == SourceCheckNode {
		for _, r := range c.Routes {
			s.homes.Insert(r.Prefix, r.Port)
		}
	}
	for _, r := range c.Remote {
		there, back := remapPair(r.Seen(), r.Real)
		s.seen.Insert(r.Seen(), there)
		s.real.Insert(r.Real, back)
	}
	if s.maxEntries == 0 {
		s.maxEntries = DefaultMaxConnections
	}
	return s, nil
}

// admits is the source check. From the tunnel only the remote cluster may speak, by its real addresses, and the peer. From a node
// comes whatever can be a host's address, but for the gateway's own, those of the remote cluster and those of other nodes.
func (s *snapshot) admits(source netip.Addr, in Port) bool {
	if in == Tunnel {
		return s.real.Contains(source) || source == s.peer
	}
	return !unusable(source) && !s.own(source) && !s.seen.Contains(source) && !s.foreign(source, in)
}

// foreign reports whether a lives at another node than in.
func (s *snapshot) foreign(a netip.Addr, in Port) bool {
	home, ok := s.homes.Lookup(a)
	return ok && home != in
}

// owns reports whether a packet is for the gateway itself: its internal address from nodes, its tunnel address from the tunnel.
func (s *snapshot) owns(destination netip.Addr, in Port) bool {
	if in == Tunnel {
		return destination == s.tunnel
	}
	return destination == s.gateway
}

// noRoute is the verdict on what leads nowhere: a pod without a node is unreachable as a host, all else as a network (RFC 1812,
// Section 5.2.7.1).
func (s *snapshot) noRoute(destination netip.Addr) Verdict {
	if s.pods.Contains(destination) {
		return refuse(ReasonNoRoute, AnswerHostUnreachable)
	}
	return refuse(ReasonNoRoute, AnswerNetUnreachable)
}

// own reports whether a is an address of the gateway or of either end of the WireGuard tunnel.
func (s *snapshot) own(a netip.Addr) bool { return a == s.gateway || a == s.tunnel || a == s.peer }

// Forwardable reports whether a router passes on packets to and from a: it is no multicast, broadcast, loopback or link-local address.
func Forwardable(a netip.Addr) bool { return !unusable(a) }

// unusable reports whether a packet to a is never forwarded: multicast, broadcast, loopback, link-local, "this network".
func unusable(a netip.Addr) bool {
	if a.IsMulticast() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsUnspecified() {
		return true
	}
	if a.Is4() {
		b := a.As4()
		return b[0] == 0 || b[0] >= 240 // RFC 1122, Section 3.2.1.3; RFC 1112, Section 4
	}
	return a.Is4In6()
}
