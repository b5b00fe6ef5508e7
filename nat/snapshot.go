package nat

import (
	"net/netip"

	"github.com/gaissmai/bart"
)

// A snapshot is a compiled Config. It is immutable once published.
type snapshot struct {
	generation uint32

	nodes       map[Port]netip.Addr
	first       Port // the first node: default way of mappings and backends
	pods        bart.Lite
	external    bart.Lite
	seen        bart.Table[*remap] // destination as seen here → real
	real        bart.Table[*remap] // real source → as seen here
	routes      bart.Table[Port]
	gateway     netip.Addr
	tunnel      netip.Addr
	peer        netip.Addr
	unknown     netip.Addr // U; the zero Addr if off
	byExternal  map[netip.Addr]AddressMapping
	byInternal  map[netip.Addr]AddressMapping
	mtu         int
	clamp       [2]uint16 // the MSS bound by family; 0 = off
	maxEntries  int
	maxHalfOpen int
}

// compile turns a valid Config into a snapshot.
func compile(c *Config, generation uint32) *snapshot {
	s := &snapshot{
		generation:  generation,
		nodes:       map[Port]netip.Addr{},
		gateway:     c.GatewayAddress,
		tunnel:      c.TunnelAddress,
		peer:        c.PeerTunnelAddress,
		unknown:     c.UnknownSource,
		byExternal:  map[netip.Addr]AddressMapping{},
		byInternal:  map[netip.Addr]AddressMapping{},
		mtu:         c.MTU,
		clamp:       clamps(c),
		maxEntries:  c.MaxConnections,
		maxHalfOpen: c.MaxHalfOpen,
	}
	for i, n := range c.Nodes {
		s.nodes[n.Port] = n.Address
		if i == 0 {
			s.first = n.Port
		}
	}
	for _, p := range c.LocalPodCIDRs {
		s.pods.Insert(p)
	}
	for _, p := range c.LocalExternalCIDRs {
		s.external.Insert(p)
	}
	for _, r := range c.Remote {
		there, back := remapPair(r.Seen(), r.Real)
		s.seen.Insert(r.Seen(), there)
		s.real.Insert(r.Real, back)
	}
	for _, r := range c.Routes {
		s.routes.Insert(r.Prefix, r.Port)
	}
	for _, m := range c.Addresses {
		s.byExternal[m.External], s.byInternal[m.Internal] = m, m
	}
	if s.maxEntries == 0 {
		s.maxEntries = DefaultMaxConnections
	}
	if s.maxHalfOpen == 0 {
		s.maxHalfOpen = max(64, s.maxEntries/16)
	}
	return s
}

// route returns the node that a local destination is reached through.
func (s *snapshot) route(a netip.Addr) (Port, bool) { return s.routes.Lookup(a) }

// own reports whether a is an address of the gateway or of either end of the WireGuard tunnel.
func (s *snapshot) own(a netip.Addr) bool { return a == s.gateway || a == s.tunnel || a == s.peer }

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
