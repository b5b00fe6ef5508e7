package rules

import (
	"fmt"
	"net/netip"
	"strconv"
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

// Tables returns Firewall or, if that is nil, the tables that the other fields stand for.
func (c *Config) Tables() []Table {
	if c.Firewall != nil {
		return c.Firewall
	}
	var all []Table
	devices := c.devices()
	for _, m := range c.Addresses {
		if r := c.mapping(m, devices); r.Mapping != nil {
			all = append(all, r.Mapping.table(new(mappingRoom))...)
		} else {
			all = append(all, r.Tables...)
		}
	}
	all = append(all, c.remapTable("remap-podcidr", false), c.remapTable("remap-externalcidr", true))
	all = append(all, c.unknownSourceTable("unknown-source", FamilyIPv4),
		c.unknownSourceTable("unknown-source-6", FamilyIPv6))
	var nodes []NodeRules
	for i := range c.Nodes {
		nodes = append(nodes, c.Nodes[i].rules(nil))
	}
	back := returnTable(nodes)
	back.Chains = append(back.Chains, restoreTable().Chains...)
	return append(append(all, c.outboundTable(), c.filterTable(), back), c.mssTables()...)
}

// remapTable translates the destination of outbound and the source of inbound packets.
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

// unknownSourceTable gives source U to packets that the remote cluster could not answer. Under Liqo
// the nodes do it.
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
	if u := c.UnknownSource.Of(f == FamilyIPv6); u.IsValid() {
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
			Name: seen, Match: []Match{destination(seen), notFromTunnel}, Action: ActionSetMark, Value: outboundMark,
			NoCounter: true,
		})
	}
	return Table{Name: "gw-ext", Family: FamilyINET, Chains: []Chain{chain}}
}

// restoreTable gives packets from the tunnel the mark of their connection.
func restoreTable() Table {
	restore := Chain{Name: "conntrack-mark-to-meta-mark", Type: ChainFilter, Hook: HookPrerouting}
	restore.Rules = []Rule{{Name: restore.Name, Match: []Match{fromTunnel}, Action: ActionMetaMarkFromCT,
		NoCounter: true}}
	return Table{Name: returnTableName, Family: FamilyINET, Chains: []Chain{restore}}
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

// filterTable holds the filter rules. A rule with "any of" lists becomes one rule for each
// combination, with one counter.
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
		action := map[FilterAction]Action{FilterAccept: ActionAccept, FilterDrop: ActionDrop,
			FilterReject: ActionReject}[f.Action]
		for _, s := range prefixMatches(f.Source, source) {
			for _, d := range prefixMatches(f.Destination, destination) {
				for _, p := range portMatches(f.Ports) {
					if len(chain.Rules) > maxRules {
						break // the builder refuses the chain
					}
					match := append(base[:len(base):len(base)], s...)
					chain.Rules = append(chain.Rules, Rule{Name: f.Name, Match: append(append(match, d...), p...),
						Action: action})
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
