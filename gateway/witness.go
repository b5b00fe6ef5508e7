package gateway

import (
	"net/netip"
	"sync/atomic"

	"culvert/gateway/config"
	"culvert/gateway/health"
	"culvert/nat"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// witness is one dropped packet: where it came from, and its addresses.
type witness struct {
	in                  nat.Link
	source, destination netip.Addr
	protocol            string    // "" = malformed
	ports               [2]uint16 // of source and destination; 0 = none
}

func newWitnesses() []atomic.Pointer[witness] {
	all := nat.Reasons()
	return make([]atomic.Pointer[witness], all[len(all)-1]+1)
}

// see keeps a packet that was dropped as an example of its reason, if there is none since
// the last look: all but the first of a second cost a load.
func (c *counters) see(p *packet.Packet, in nat.Link, r nat.Reason) {
	if c.witnesses[r].Load() != nil {
		return
	}
	if source, destination, ok := endsOf(p.Bytes()); ok {
		x := &witness{in: in, source: source, destination: destination}
		x.describe(p)
		c.witnesses[r].Store(x)
	}
}

// endsOf returns the addresses of an IP packet that may be malformed.
func endsOf(b []byte) (source, destination netip.Addr, ok bool) {
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:])), true
	case len(b) >= 40 && b[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:])), true
	}
	return netip.Addr{}, netip.Addr{}, false
}

// drops returns why packets of one direction were dropped since the last look.
func (w *watch) drops(c *config.Config, d *nat.Direction, own *counters, inbound bool) (drops []health.Drop) {
	for _, r := range nat.Reasons() {
		x := own.witnesses[r].Swap(nil)
		if x == nil {
			continue
		}
		drop := dropOf(c, r, inbound, w.g.nodeName(x.in), x.source, x.destination)
		drop.Total = d.Dropped[r]
		if r == nat.ReasonFiltered || r == nat.ReasonRejected {
			drop.Rule = w.rule(c.Rules)
		}
		drops = append(drops, drop)
		w.refused(x, r, inbound, drop.Total-own.seen[r])
		own.seen[r] = drop.Total
	}
	return drops
}

// dropOf is what is known of a packet that was dropped.
func dropOf(c *config.Config, r nat.Reason, inbound bool, node string, source, destination netip.Addr) health.Drop {
	tunnel, peer := c.WireGuard.Role.TunnelAddresses()
	return health.Drop{
		Reason: r.String(), Inbound: inbound, Node: node, Source: source, Destination: destination,
		Owner: owner(c, source), Local: within(c.Local.PodCIDRs, destination), Tunnel: tunnel.Has(source),
		Remote: remote(c, source) || c.Geneve.GatewayAddress.Has(source) || tunnel.Has(source) || peer.Has(source),
	}
}

// rule returns the rule that has refused most packets since it was called last, "" if
// they are too many to look.
func (w *watch) rule(filters []rules.FilterRule) (name string) {
	if len(filters) > maxRuleSeries {
		return ""
	}
	refuses := make(map[string]bool, len(filters))
	for _, r := range filters {
		refuses[r.Name] = r.Action != rules.FilterAccept
	}
	most := uint64(0)
	w.g.engine.RuleCounters(func(r rules.RuleCount) {
		if r.Table != rules.RulesTable || !refuses[r.Rule] {
			return
		}
		if n := r.Packets - w.rules[r.Rule]; n > most {
			most, name = n, r.Rule
		}
		w.rules[r.Rule] = r.Packets
	})
	return name
}

// owner returns the node whose pods a belongs to, "" if there is none.
func owner(c *config.Config, a netip.Addr) (name string) {
	bits := -1
	for i := range c.Geneve.Nodes {
		for _, p := range c.Geneve.Nodes[i].PodCIDRs {
			if p.Bits() > bits && p.Contains(a) {
				name, bits = c.Geneve.Nodes[i].Name, p.Bits()
			}
		}
	}
	return name
}

// remote reports whether a is of the remote cluster, as it is seen here.
func remote(c *config.Config, a netip.Addr) bool {
	for i := range c.Remote {
		if r := &c.Remote[i]; r.Seen().Contains(a) {
			return true
		}
	}
	return false
}

func within(prefixes []netip.Prefix, a netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
