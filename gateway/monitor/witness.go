package monitor

import (
	"net/netip"

	"culvert/gateway/config"
	"culvert/gateway/health"
	"culvert/gateway/path"
	"culvert/nat"
	"culvert/nat/rules"
)

// drops returns the reasons for which packets of one direction were dropped since the last look.
func (m *Monitor) drops(c *config.Config, d *nat.Direction, own *path.Counters, inbound bool) (drops []health.Drop) {
	for _, r := range nat.Reasons() {
		x := own.Witness(r)
		if x == nil {
			continue
		}
		drop := DropOf(c, x, m.current.NodeName(x.In))
		drop.Total = d.Dropped[r]
		if r == nat.ReasonFiltered || r == nat.ReasonRejected {
			drop.Rule = m.rule(c.Rules)
		}
		drops = append(drops, drop)
		m.refused(x, drop.Total-m.dropped[inbound][r])
		m.dropped[inbound][r] = drop.Total
	}
	return drops
}

// DropOf describes a dropped packet that came by the link with this name.
func DropOf(c *config.Config, o *path.Observation, node string) health.Drop {
	tunnel, peer := c.WireGuard.Role.TunnelAddresses()
	source, destination := o.Tuple.Source(), o.Tuple.Destination()
	return health.Drop{
		Reason: o.Reason, Inbound: o.In == nat.Tunnel, Node: node, Source: source, Destination: destination,
		Owner: Owner(c, source), Local: within(c.Local.PodCIDRs, destination), Tunnel: tunnel.Has(source),
		Remote: remote(c, source) || c.Geneve.GatewayAddress.Has(source) || tunnel.Has(source) || peer.Has(source),
	}
}

// MaxRules is the number of configured rules up to which each is examined.
const MaxRules = 1000

// rule returns the rule that has refused most packets since the last call; "" if there are too many
// rules to examine.
func (m *Monitor) rule(filters []rules.FilterRule) (name string) {
	if len(filters) > MaxRules {
		return ""
	}
	refuses := make(map[string]bool, len(filters))
	for _, r := range filters {
		refuses[r.Name] = r.Action != rules.FilterAccept
	}
	most := uint64(0)
	m.path.Engine.RuleCounters(func(r rules.RuleCount) {
		if r.Table != rules.RulesTable || !refuses[r.Rule] {
			return
		}
		before := m.rules[r.Rule]
		if before > r.Packets { // the rule was removed and added again
			before = 0
		}
		if n := r.Packets - before; n > most {
			most, name = n, r.Rule
		}
		m.rules[r.Rule] = r.Packets
	})
	return name
}

// Owner returns the node that has the pod with address a, "" if none has.
func Owner(c *config.Config, a netip.Addr) (name string) {
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

// remote reports whether a belongs to the remote cluster, as this cluster sees it.
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
