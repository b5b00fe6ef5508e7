package nat

import (
	"fmt"
	"net/netip"
	"strconv"
)

// A Config without Firewall and Routing generates them: the tables that Liqo's controllers make, under the same names where they
// mean the same. The order of translations and the return path follow from them.

// outboundMark is on the packets from nodes that are addressed to the remote cluster as the local one sees it. With overlapping
// CIDRs the translated destination alone cannot tell them from local traffic. Marks below 1<<16 are ports of nodes.
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

// devices returns the ports by the names that tables use.
func (c *Config) devices() (map[string]Port, error) {
	all := map[string]Port{tunnelDevice: Tunnel}
	for i := range c.Nodes {
		name := c.Nodes[i].device()
		if _, ok := all[name]; ok {
			return nil, fmt.Errorf("nat: Nodes[%d]: device %q is taken", i, name)
		}
		all[name] = c.Nodes[i].Port
	}
	return all, nil
}

// neighbours returns the ports by the addresses that routes go via.
func (c *Config) neighbours() map[netip.Addr]Port {
	all := map[netip.Addr]Port{c.PeerTunnelAddress: Tunnel}
	for _, n := range c.Nodes {
		all[n.Address] = n.Port
	}
	return all
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

// Tables returns Firewall or, if that is nil, the tables that the other fields stand for.
func (c *Config) Tables() []Table {
	if c.Firewall != nil {
		return c.Firewall
	}
	var all []Table
	for _, m := range c.Addresses {
		all = append(all, c.mappingTable(m))
	}
	all = append(all, c.remapTable("remap-podcidr", false), c.remapTable("remap-externalcidr", true))
	all = append(all, c.unknownSourceTable("unknown-source", FamilyIPv4), c.unknownSourceTable("unknown-source-6", FamilyIPv6))
	all = append(all, c.outboundTable(), c.filterTable(), c.returnTable())
	if c.MSSClamp != MSSOff {
		v4, v6 := uint32(0), uint32(0)
		if c.MSSClamp != MSSAuto {
			v4, v6 = uint32(c.MSSClamp), uint32(c.MSSClamp)-20
		}
		all = append(all, mssTable("mss-clamping", FamilyIPv4, v4), mssTable("mss-clamping-6", FamilyIPv6, v6))
	}
	return all
}

// mappingTable lets External stand for Internal. Liqo's own table has a source rule without a condition on devices; here it is
// for packets towards the tunnel only, and spares pods, which the remote cluster knows by their own addresses.
func (c *Config) mappingTable(m AddressMapping) Table {
	external, internal := m.External.String(), m.Internal.String()
	t := Table{
		Name:   external + "-remap-ipmapping-gw",
		Family: familyOf(m.External),
		Chains: []Chain{{
			Name: "prerouting", Type: ChainNAT, Hook: HookPrerouting, Priority: PriorityDNAT,
			Rules: []Rule{{Name: external, Match: []Match{destination(external)}, Action: ActionDNAT, To: internal}},
		}},
	}
	if !contains(c.LocalPodCIDRs, m.Internal) {
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
	r := Rule{Name: "unknown-source", Match: []Match{notFromTunnel, toTunnel}, Action: actionRefuseSource}
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

// returnTable remembers the node that a connection towards the tunnel came from. The mark of a node is its port.
func (c *Config) returnTable() Table {
	mark := Chain{Name: "mark-to-conntrack", Type: ChainFilter, Hook: HookForward}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		mark.Rules = append(mark.Rules, Rule{
			Name:      n.Name,
			Match:     []Match{{Dev: Operand{n.device(), PositionIn}}, toTunnel},
			Action:    ActionCTMark,
			Value:     uint32(n.Port),
			NoCounter: true,
		})
	}
	restore := Chain{Name: "conntrack-mark-to-meta-mark", Type: ChainFilter, Hook: HookPrerouting}
	restore.Rules = []Rule{{Name: restore.Name, Match: []Match{fromTunnel}, Action: ActionMetaMarkFromCT, NoCounter: true}}
	return Table{Name: "service-nodeport-routing", Family: FamilyINET, Chains: []Chain{mark, restore}}
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
	outbound := PolicyRule{Mark: outboundMark, Priority: priorityOutbound}
	for _, r := range c.Remote {
		outbound.Routes = append(outbound.Routes, PolicyRoute{Destination: r.Real, Via: c.PeerTunnelAddress})
	}
	all := []PolicyTable{{Name: "gw-ext", Rules: []PolicyRule{outbound}}}
	routes := map[Port][]PolicyRule{}
	device := map[Port]string{}
	for i := range c.Nodes {
		device[c.Nodes[i].Port] = c.Nodes[i].device()
	}
	for _, r := range c.Routes {
		routes[r.Port] = append(routes[r.Port], PolicyRule{
			Destination: r.Prefix,
			Priority:    priorityPods - r.Prefix.Bits(),
			Routes:      []PolicyRoute{{Destination: r.Prefix, Device: device[r.Port]}},
		})
	}
	vias := c.vias()
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if rules := routes[n.Port]; rules != nil {
			all = append(all, PolicyTable{Name: n.Name, Rules: rules})
		}
		all = append(all, PolicyTable{Name: n.Name + "-service-nodeport-routing", Rules: []PolicyRule{{
			Mark:     uint32(n.Port),
			Priority: priorityReturn,
			Routes: []PolicyRoute{
				{Destination: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Device: n.device()},
				{Destination: netip.PrefixFrom(netip.IPv6Unspecified(), 0), Device: n.device()},
			},
		}}})
		if hosts := vias[n.Port]; hosts != nil {
			rule := PolicyRule{Priority: priorityVia}
			for _, h := range hosts {
				rule.Routes = append(rule.Routes, PolicyRoute{Destination: netip.PrefixFrom(h, h.BitLen()), Device: n.device()})
			}
			all = append(all, PolicyTable{Name: n.Name + "-extcidr", Rules: []PolicyRule{rule}})
		}
	}
	return all
}

// vias returns the hosts outside of the cluster by the node that leads to them, the first one by default. A host in a pod CIDR
// goes where its route leads.
func (c *Config) vias() map[Port][]netip.Addr {
	all := map[Port][]netip.Addr{}
	add := func(host netip.Addr, via Port) {
		if via == 0 {
			if len(c.Nodes) == 0 || contains(c.LocalPodCIDRs, host) {
				return
			}
			via = c.Nodes[0].Port
		}
		all[via] = append(all[via], host)
	}
	for _, m := range c.Addresses {
		add(m.Internal, m.Via)
	}
	for _, s := range c.Services {
		for _, b := range s.Backends {
			add(b.Address, b.Via)
		}
	}
	return all
}
