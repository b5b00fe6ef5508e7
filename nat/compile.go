package nat

import (
	"fmt"
	"net/netip"
	"strconv"
)

// A Config without Firewall and Routing generates them: the tables that Liqo's controllers make, under the same names where they
// mean the same. The order of translations and the return path follow from them.

// outboundMark is on the packets from nodes that are addressed to the remote cluster as the local one sees it. With overlapping
// CIDRs the translated destination alone cannot tell them from local traffic. Marks below 1<<16 are links of nodes.
const outboundMark = 1 << 16

// The priorities of generated policy rules.
const (
	priorityOutbound = 100 // what is marked outbound, to the tunnel
	priorityPods     = 400 // minus the length of the prefix, so that the longest of all nodes' comes first
	priorityReturn   = 500 // what nothing above leads back, to the node that its connection came from
	priorityVia      = 600 // mapped hosts and backends outside of the cluster
)

var toTunnel, notToTunnel = tunnelIs(PositionOut, OpEqual), tunnelIs(PositionOut, OpNotEqual)
var fromTunnel, notFromTunnel = tunnelIs(PositionIn, OpEqual), tunnelIs(PositionIn, OpNotEqual)

func tunnelIs(at Position, op Op) Match {
	return Match{Op: op, Dev: Operand{tunnelDevice, at}}
}

func source(value string) Match {
	return Match{IP: Operand{value, PositionSource}}
}

func destination(value string) Match {
	return Match{IP: Operand{value, PositionDestination}}
}

func familyOf(a netip.Addr) Family {
	if a.Is4() {
		return FamilyIPv4
	}
	return FamilyIPv6
}

// device returns what tables call the node's tunnel.
func (n *Node) device() string {
	if n.Device != "" {
		return n.Device
	}
	return n.Name
}

// masquerades returns the gateway's own addresses on the way to the tunnel and to the nodes.
func (c *Config) masquerades() [2]masquerade {
	var own [2]masquerade
	for i, a := range []netip.Addr{c.TunnelAddress, c.GatewayAddress} {
		if a.Is4() {
			own[i].v4 = a
		} else {
			own[i].v6 = a
		}
	}
	return own
}

// A namedResource is a resource with its key.
type namedResource struct {
	key Key
	Resource
}

// The order of generated chains of one hook and priority: that of Tables.
const (
	orderMapping = iota
	orderRemap
	orderUnknown
	orderOutbound
	orderRules
	orderReturn
	orderMSS
)

// resources returns what c stands for, piece by piece. The tunnel comes first, so that no node can take its name.
func (c *Config) resources() []namedResource {
	all := make([]namedResource, 0, 8+len(c.Nodes)+len(c.Addresses)+len(c.Services))
	add := func(kind, name string, r Resource) { all = append(all, namedResource{Key{Kind: kind, Name: name}, r}) }
	add(kindNetwork, "tunnel", Resource{Device: &Device{Tunnel, tunnelDevice, c.PeerTunnelAddress}})
	routes, devices := c.nodeRoutes(), c.devices()
	for i := range c.Nodes {
		n := &c.Nodes[i]
		r := Resource{Order: orderReturn, Device: &Device{n.Link, n.device(), n.Address}}
		rules := n.rules(routes[n.Link])
		switch {
		case c.Firewall == nil && c.Routing == nil:
			r.Node = &rules
		case c.Firewall == nil:
			r.Tables = []Table{returnTable([]NodeRules{rules})}
		case c.Routing == nil:
			r.Routing = rules.routing()
		}
		add(kindNode, n.Name, r)
	}
	for i, t := range c.Firewall {
		add(kindFirewall, t.Name, Resource{Order: int64(i), Tables: c.Firewall[i : i+1]})
	}
	for i, t := range c.Routing {
		add(kindRouting, t.Name, Resource{Order: int64(i), Routing: c.Routing[i : i+1]})
	}
	for _, m := range c.Addresses {
		add(kindMapping, m.External.String(), c.mapping(m, devices))
	}
	for i := range c.Services {
		s := &c.Services[i]
		r := Resource{Order: orderMapping, Service: s}
		if c.Routing == nil {
			r.Routing = c.backendRoutes(s, devices)
		}
		add(kindService, fmt.Sprintf("%s %s:%d/%d", s.Name, s.Address, s.Port, s.Protocol), r) // one of a name for each of its ports
	}
	if c.Routing == nil {
		add(kindNetwork, "routes", Resource{Routing: []PolicyTable{c.outboundRoutes()}})
	}
	if c.Firewall != nil {
		return all
	}
	add(kindNetwork, "remap", Resource{Order: orderRemap, Tables: []Table{c.remapTable("remap-podcidr", false), c.remapTable("remap-externalcidr", true)}})
	add(kindNetwork, "unknown-source", Resource{Order: orderUnknown, Tables: []Table{
		c.unknownSourceTable("unknown-source", FamilyIPv4), c.unknownSourceTable("unknown-source-6", FamilyIPv6)}})
	add(kindNetwork, "outbound", Resource{Order: orderOutbound, Tables: []Table{c.outboundTable()}})
	add(kindNetwork, "rules", Resource{Order: orderRules, Tables: []Table{c.filterTable()}})
	add(kindNetwork, "return", Resource{Order: orderReturn, Tables: []Table{restoreTable()}})
	if tables := c.mssTables(); tables != nil {
		add(kindNetwork, "mss", Resource{Order: orderMSS, Tables: tables})
	}
	return all
}

// mapping returns what an address mapping stands for.
func (c *Config) mapping(m AddressMapping, devices map[Link]string) Resource {
	rules := MappingRules{External: m.External, Internal: m.Internal, Pod: contains(c.LocalPodCIDRs, m.Internal), Device: devices[m.Via]}
	switch {
	case c.Firewall == nil && c.Routing == nil:
		return Resource{Order: orderMapping, Mapping: &rules}
	case c.Firewall == nil:
		return Resource{Order: orderMapping, Tables: []Table{rules.table()}}
	case c.Routing == nil:
		return Resource{Order: orderMapping, Routing: rules.routing()}
	}
	return Resource{Order: orderMapping}
}

// network returns what rules need to know about the gateway itself.
func (c *Config) network() network {
	n := network{own: c.masquerades(), generated: c.Firewall == nil}
	if len(c.Nodes) > 0 {
		n.first = c.Nodes[0].Link
	}
	return n
}

// Tables returns Firewall or, if that is nil, the tables that the other fields stand for.
func (c *Config) Tables() []Table {
	if c.Firewall != nil {
		return c.Firewall
	}
	var all []Table
	devices := c.devices()
	for _, m := range c.Addresses {
		if r := c.mapping(m, devices); r.Mapping != nil {
			all = append(all, r.Mapping.table())
		} else {
			all = append(all, r.Tables...)
		}
	}
	all = append(all, c.remapTable("remap-podcidr", false), c.remapTable("remap-externalcidr", true))
	all = append(all, c.unknownSourceTable("unknown-source", FamilyIPv4), c.unknownSourceTable("unknown-source-6", FamilyIPv6))
	var nodes []NodeRules
	for i := range c.Nodes {
		nodes = append(nodes, c.Nodes[i].rules(nil))
	}
	back := returnTable(nodes)
	back.Chains = append(back.Chains, restoreTable().Chains...)
	return append(append(all, c.outboundTable(), c.filterTable(), back), c.mssTables()...)
}

// mssTables clamp the MSS option, in both directions.
func (c *Config) mssTables() []Table {
	v4, v6 := uint32(0), uint32(0)
	switch c.MSSClamp {
	case MSSOff:
		return nil
	case MSSAuto:
	default:
		v4, v6 = uint32(c.MSSClamp), uint32(c.MSSClamp)-20
	}
	return []Table{mssTable("mss-clamping", FamilyIPv4, v4), mssTable("mss-clamping-6", FamilyIPv6, v6)}
}

// MappingRules let External stand for Internal, which is reached through Device.
type MappingRules struct {
	External, Internal netip.Addr
	Device             string
	Pod                bool // Internal is a pod: the remote cluster knows it by its own address, and a route leads to it
}

// table translates. Liqo's own table has a source rule without a condition on devices; here it is for packets towards the tunnel
// only, and spares pods.
func (m *MappingRules) table() Table {
	external, internal := m.External.String(), m.Internal.String()
	t := Table{
		Name:   external + "-remap-ipmapping-gw",
		Family: familyOf(m.External),
		Chains: []Chain{{
			Name: "prerouting", Type: ChainNAT, Hook: HookPrerouting, Priority: PriorityDNAT,
			Rules: []Rule{{Name: external, Match: []Match{destination(external)}, Action: ActionDNAT, To: internal}},
		}},
	}
	if !m.Pod {
		t.Chains = append(t.Chains, Chain{
			Name: "postrouting", Type: ChainNAT, Hook: HookPostrouting, Priority: PrioritySNAT,
			Rules: []Rule{{
				Name:   external,
				Match:  []Match{source(internal), notFromTunnel, toTunnel},
				Action: ActionSNAT,
				To:     external,
			}},
		})
	}
	return t
}

// routing leads to Internal. A host in a pod CIDR goes where its route leads, unless a node is named.
func (m *MappingRules) routing() []PolicyTable {
	if m.Pod && m.Device == firstNodeDevice {
		return nil
	}
	return []PolicyTable{hostRoutes(m.External.String(), []PolicyRoute{{Destination: netip.PrefixFrom(m.Internal, m.Internal.BitLen()), Device: m.Device}})}
}

// hostRoutes is a table that leads to hosts outside of the cluster.
func hostRoutes(name string, routes []PolicyRoute) PolicyTable {
	return PolicyTable{Name: name + "-extcidr", Rules: []PolicyRule{{Priority: priorityVia, Routes: routes}}}
}

// remapTable translates the destination of what leaves and the source of what enters.
func (c *Config) remapTable(name string, external bool) Table {
	outgoing := Chain{Name: "outgoing", Type: ChainNAT, Hook: HookPrerouting, Priority: PriorityDNAT}
	incoming := Chain{Name: "incoming", Type: ChainNAT, Hook: HookPostrouting, Priority: PrioritySNAT}
	for _, r := range c.Remote {
		if r.External != external || !r.Remapped.IsValid() || r.Remapped == r.Real {
			continue
		}
		remapped, real := r.Remapped.String(), r.Real.String()
		outgoing.Rules = append(outgoing.Rules, Rule{
			Name: remapped, Match: []Match{destination(remapped), notFromTunnel}, Action: ActionDNAT, To: real,
		})
		incoming.Rules = append(incoming.Rules, Rule{
			Name: remapped, Match: []Match{source(real), fromTunnel, notToTunnel}, Action: ActionSNAT, To: remapped,
		})
	}
	return Table{Name: name, Family: FamilyINET, Chains: []Chain{outgoing, incoming}}
}

// unknownSourceTable gives U to what the remote cluster could not answer. Under Liqo the nodes do it.
func (c *Config) unknownSourceTable(name string, f Family) Table {
	r := Rule{Name: "unknown-source", Match: []Match{notFromTunnel, toTunnel}, Action: ActionRefuseSource}
	for _, local := range [][]netip.Prefix{c.LocalPodCIDRs, c.LocalExternalCIDRs} {
		for _, p := range local {
			if f.sees(p.Addr()) {
				m := source(p.String())
				m.Op = OpNotEqual
				r.Match = append(r.Match, m)
			}
		}
	}
	if u := c.UnknownSource; u.IsValid() && f.sees(u) {
		r.Action, r.To = ActionSNAT, u.String()
	}
	return Table{Name: name, Family: f, Chains: []Chain{{
		Name: "postrouting", Type: ChainNAT, Hook: HookPostrouting, Priority: PrioritySNAT + 1, Rules: []Rule{r},
	}}}
}

// outboundTable sets outboundMark.
func (c *Config) outboundTable() Table {
	chain := Chain{Name: "outgoing", Type: ChainFilter, Hook: HookPrerouting, Priority: PriorityMangle}
	for _, r := range c.Remote {
		seen := r.Seen().String()
		chain.Rules = append(chain.Rules, Rule{
			Name: seen, Match: []Match{destination(seen), notFromTunnel}, Action: ActionSetMark, Value: outboundMark, NoCounter: true,
		})
	}
	return Table{Name: "gw-ext", Family: FamilyINET, Chains: []Chain{chain}}
}

// NodeRules lead to a node and back to it.
type NodeRules struct {
	Name, Device string
	Mark         uint32         // of connections that came from it
	Prefixes     []netip.Prefix // that live there
}

func (n *Node) rules(prefixes []netip.Prefix) NodeRules {
	return NodeRules{Name: n.Name, Device: n.device(), Mark: uint32(n.Link), Prefixes: prefixes}
}

// returnTable remembers the node that a connection towards the tunnel came from.
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

// restoreTable gives packets from the tunnel the mark of their connection.
func restoreTable() Table {
	restore := Chain{Name: "conntrack-mark-to-meta-mark", Type: ChainFilter, Hook: HookPrerouting}
	restore.Rules = []Rule{{Name: restore.Name, Match: []Match{fromTunnel}, Action: ActionMetaMarkFromCT, NoCounter: true}}
	return Table{Name: returnTableName, Family: FamilyINET, Chains: []Chain{restore}}
}

func mssTable(name string, f Family, value uint32) Table {
	tcp := Match{Proto: "tcp"}
	return Table{Name: name, Family: f, Chains: []Chain{{
		Name: "mss-clamping", Type: ChainFilter, Hook: HookForward,
		Rules: []Rule{
			{Name: "mss-clamping-out", Match: []Match{tcp, toTunnel}, Action: ActionClampMSS, Value: value},
			{Name: "mss-clamping-in", Match: []Match{tcp, fromTunnel}, Action: ActionClampMSS, Value: value},
		},
	}}}
}

// filterTable holds the filter rules. What a rule gives as "any of" becomes one rule for each combination, with one counter.
func (c *Config) filterTable() Table {
	chain := Chain{Name: "forward", Type: ChainFilter, Hook: HookForward}
	for _, f := range c.Rules {
		var base []Match
		switch f.From {
		case FromLocal:
			base = append(base, notFromTunnel)
		case FromRemote:
			base = append(base, fromTunnel)
		}
		if f.Protocol != 0 {
			base = append(base, Match{Proto: strconv.Itoa(int(f.Protocol))})
		}
		action := map[FilterAction]RuleAction{FilterAccept: ActionAccept, FilterDrop: ActionDrop, FilterReject: ActionReject}[f.Action]
		for _, s := range prefixMatches(f.Source, source) {
			for _, d := range prefixMatches(f.Destination, destination) {
				for _, p := range portMatches(f.Ports) {
					if len(chain.Rules) > maxRules {
						break // the builder refuses the chain
					}
					match := append(base[:len(base):len(base)], s...)
					chain.Rules = append(chain.Rules, Rule{Name: f.Name, Match: append(append(match, d...), p...), Action: action})
				}
			}
		}
	}
	return Table{Name: RulesTable, Family: FamilyINET, Chains: []Chain{chain}}
}

// prefixMatches returns a match for each prefix, or no match once if there are none.
func prefixMatches(prefixes []netip.Prefix, match func(string) Match) [][]Match {
	if len(prefixes) == 0 {
		return [][]Match{nil}
	}
	var all [][]Match
	for _, p := range prefixes {
		all = append(all, []Match{match(p.Masked().String())})
	}
	return all
}

func portMatches(ports []PortRange) [][]Match {
	if len(ports) == 0 {
		return [][]Match{nil}
	}
	var all [][]Match
	for _, p := range ports {
		all = append(all, []Match{{Port: Operand{fmt.Sprintf("%d-%d", p.First, p.Last), PositionDestination}}})
	}
	return all
}

func contains(prefixes []netip.Prefix, a netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// PolicyTables returns Routing or, if that is nil, the policy tables that the other fields stand for.
func (c *Config) PolicyTables() []PolicyTable {
	if c.Routing != nil {
		return c.Routing
	}
	all := []PolicyTable{c.outboundRoutes()}
	routes, hosts := c.nodeRoutes(), map[Link][]PolicyRoute{}
	add := func(h netip.Addr, via Link) {
		if via == 0 && (len(c.Nodes) == 0 || contains(c.LocalPodCIDRs, h)) {
			return
		}
		if via == 0 {
			via = c.Nodes[0].Link
		}
		hosts[via] = append(hosts[via], PolicyRoute{Destination: netip.PrefixFrom(h, h.BitLen())})
	}
	for _, m := range c.Addresses {
		add(m.Internal, m.Via)
	}
	for _, s := range c.Services {
		for _, b := range s.Backends {
			add(b.Address, b.Via)
		}
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		rules := n.rules(routes[n.Link])
		all = append(all, rules.routing()...)
		if hosts := hosts[n.Link]; hosts != nil {
			for i := range hosts {
				hosts[i].Device = n.device()
			}
			all = append(all, hostRoutes(n.Name, hosts))
		}
	}
	return all
}

// outboundRoutes lead what is marked outbound to the tunnel.
func (c *Config) outboundRoutes() PolicyTable {
	outbound := PolicyRule{Mark: outboundMark, Priority: priorityOutbound}
	device := ""
	if !c.PeerTunnelAddress.IsValid() {
		device = tunnelDevice
	}
	for _, r := range c.Remote {
		outbound.Routes = append(outbound.Routes, PolicyRoute{Destination: r.Real, Via: c.PeerTunnelAddress, Device: device})
	}
	return PolicyTable{Name: "gw-ext", Rules: []PolicyRule{outbound}}
}

// nodeRoutes returns the prefixes of Routes by node.
func (c *Config) nodeRoutes() map[Link][]netip.Prefix {
	all := map[Link][]netip.Prefix{}
	for _, r := range c.Routes {
		all[r.Link] = append(all[r.Link], r.Prefix)
	}
	return all
}

// routing leads to the node: its prefixes, and what belongs to connections that came from it.
func (n *NodeRules) routing() []PolicyTable {
	var all []PolicyTable
	if len(n.Prefixes) > 0 {
		t := PolicyTable{Name: n.Name}
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

// backendRoutes return the way to backends outside of the cluster.
func (c *Config) backendRoutes(s *Service, devices map[Link]string) []PolicyTable {
	var routes []PolicyRoute
	for _, b := range s.Backends {
		if b.Via == 0 && contains(c.LocalPodCIDRs, b.Address) {
			continue
		}
		routes = append(routes, PolicyRoute{Destination: netip.PrefixFrom(b.Address, b.Address.BitLen()), Device: devices[b.Via]})
	}
	if routes == nil {
		return nil
	}
	return []PolicyTable{hostRoutes(s.Name, routes)}
}

// devices returns what tables call the tunnels of nodes by port: for 0, that of the first node.
func (c *Config) devices() map[Link]string {
	all := map[Link]string{0: firstNodeDevice}
	for i := range c.Nodes {
		all[c.Nodes[i].Link] = c.Nodes[i].device()
	}
	return all
}
