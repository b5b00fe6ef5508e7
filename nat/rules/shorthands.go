package rules

import (
	"net/netip"
)

// MappingRules make External stand for Internal, which is reached through Device.
type MappingRules struct {
	External, Internal netip.Addr
	Device             string
	Pod                bool // Internal is a pod: the remote cluster knows it by its own address, and it has a route
	ProxyProtocol      bool // as in Rule
}

// A mappingRoom is memory for the tables of a mapping.
type mappingRoom struct {
	tables  []Table
	chains  []Chain
	rules   []Rule
	matches []Match
	routing []PolicyTable
	policy  []PolicyRule
	routes  []PolicyRoute
}

// table returns the translating table, and overwrites in. Liqo's own table has a source rule
// without a device condition; here it matches only packets towards the tunnel, and not those of
// pods.
func (m *MappingRules) table(in *mappingRoom) []Table {
	external, internal := m.External.String(), m.Internal.String()
	in.matches = append(in.matches[:0], destination(external), source(internal), notFromTunnel, toTunnel)
	in.rules = append(in.rules[:0],
		Rule{Name: external, Match: in.matches[:1], Action: ActionDNAT, To: internal, ProxyProtocol: m.ProxyProtocol},
		Rule{Name: external, Match: in.matches[1:], Action: ActionSNAT, To: external, ProxyProtocol: m.ProxyProtocol})
	in.chains = append(in.chains[:0], Chain{Name: "prerouting", Type: ChainNAT, Hook: HookPrerouting,
		Priority: PriorityDNAT, Rules: in.rules[:1]})
	if !m.Pod {
		in.chains = append(in.chains, Chain{Name: "postrouting", Type: ChainNAT, Hook: HookPostrouting,
			Priority: PrioritySNAT, Rules: in.rules[1:]})
	}
	in.tables = append(in.tables[:0], Table{Name: external + "-remap-ipmapping-gw", Family: familyOf(m.External),
		Chains: in.chains})
	return in.tables
}

// routing returns the route to Internal, and overwrites in. A host in a pod CIDR uses that CIDR's
// route unless a node is named.
func (m *MappingRules) routing(in *mappingRoom) []PolicyTable {
	if m.Pod && m.Device == firstNodeDevice {
		return nil
	}
	in.routes = append(in.routes[:0], PolicyRoute{Destination: netip.PrefixFrom(m.Internal, m.Internal.BitLen()),
		Device: m.Device})
	in.policy = append(in.policy[:0], hostRule(in.routes))
	in.routing = append(in.routing[:0], PolicyTable{Name: m.External.String() + hostTableEnd, Rules: in.policy})
	return in.routing
}

// NodeRules route to a node and back to it.
type NodeRules struct {
	Name, Device string
	Mark         uint32         // of connections that came from it
	Prefixes     []netip.Prefix // of the node
}

// returnTable marks connections towards the tunnel with their node.
func returnTable(nodes []NodeRules) Table {
	mark := Chain{Name: "mark-to-conntrack", Type: ChainFilter, Hook: HookForward}
	for i := range nodes {
		n := &nodes[i]
		mark.Rules = append(mark.Rules, Rule{
			Name:      n.Name,
			Match:     []Match{{Dev: Operand{n.Device, PositionIn}}, toTunnel},
			Action:    ActionCTMark,
			Value:     n.Mark,
			NoCounter: true,
		})
	}
	return Table{Name: returnTableName, Family: FamilyINET, Chains: []Chain{mark}}
}

const returnTableName = "service-nodeport-routing"

// routing routes to the node its prefixes, and packets of connections that came from it.
func (n *NodeRules) routing() []PolicyTable {
	all := make([]PolicyTable, 0, 2)
	if len(n.Prefixes) > 0 {
		t := PolicyTable{Name: n.Name, Rules: make([]PolicyRule, 0, len(n.Prefixes))}
		for _, p := range n.Prefixes {
			t.Rules = append(t.Rules, PolicyRule{
				Destination: p,
				Priority:    priorityPods - p.Bits(),
				Routes:      []PolicyRoute{{Destination: p, Device: n.Device}},
			})
		}
		all = append(all, t)
	}
	return append(all, PolicyTable{Name: n.Name + "-" + returnTableName, Rules: []PolicyRule{{
		Mark:     n.Mark,
		Priority: priorityReturn,
		Routes: []PolicyRoute{
			{Destination: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Device: n.Device},
			{Destination: netip.PrefixFrom(netip.IPv6Unspecified(), 0), Device: n.Device},
		},
	}}})
}

// hostRoutes returns a table of routes to hosts outside the cluster.
func hostRoutes(name string, routes []PolicyRoute) PolicyTable {
	return PolicyTable{Name: name + hostTableEnd, Rules: []PolicyRule{hostRule(routes)}}
}

func hostRule(routes []PolicyRoute) PolicyRule {
	return PolicyRule{Priority: priorityVia, Routes: routes}
}

// hostTableEnd is the suffix of tables with routes to hosts outside the cluster.
const hostTableEnd = "-extcidr"
