package rules

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sort"
	"strings"
)

// A RuleInfo describes a compiled rule.
type RuleInfo struct {
	Origin             Key    // the resource that it comes from
	Stage              string // the hook and step at which it runs
	Priority           int32  // of its chain
	Table, Chain, Rule string // Rule is "" for the policy of a chain that drops
	Match              string // "" = all packets
	Action             string
	Counted            bool
	Packets, Bytes     uint64
}

var stageNames = [stages]string{
	stageRaw: "raw", stagePreDNAT: "pre-dnat", stageDNAT: "dnat", stagePrerouting: "prerouting", stageInput: "input",
	stageOutput: "output", stageForward: "forward",
	stagePreSNAT: "pre-snat", stageSNAT: "snat", stagePostrouting: "postrouting",
}

// A RuleList is a snapshot of a Set's rules. It may be read while the Set changes.
type RuleList []*chain

// Rules returns the committed rules.
func (s *Set) Rules() RuleList {
	var all RuleList
	for _, p := range s.pieces {
		for i := range p.chains {
			all = append(all, &p.chains[i])
		}
	}
	return all
}

// Each calls yield for each rule, in the order of evaluation, until it returns false. link names a
// Link.
func (l RuleList) Each(link func(Link) string, yield func(*RuleInfo) bool) {
	ordered := slices.SortedFunc(slices.Values(l), func(a, b *chain) int {
		if a.stage != b.stage {
			return int(a.stage) - int(b.stage)
		}
		return a.compare(b)
	})
	for _, c := range ordered {
		for i := range c.rules {
			r := &c.rules[i]
			info := RuleInfo{Origin: c.origin.key, Stage: stageNames[c.stage], Priority: c.priority, Table: c.in,
				Chain: c.name, Rule: r.name,
				Match: r.matchText(link), Action: r.actionText(), Counted: r.counted && !r.policy}
			if r.counter != nil {
				info.Packets, info.Bytes = r.counter.packets.Load(), r.counter.bytes.Load()
			}
			if !yield(&info) {
				return
			}
		}
	}
}

// A RuleCount is what the rules of one name in a chain have counted.
type RuleCount struct {
	Table, Chain, Rule string
	Packets, Bytes     uint64
}

// RulesTable is the name of the table made from Config.Rules.
const RulesTable = "rules"

// mappingTables is the name under which Counters merges the tables of all address mappings, since
// there are as many of them as mappings.
const mappingTables = "remap-ipmapping-gw"

// Counters calls yield for the counted rules, chain by chain. Rules generated from one rule of the
// configuration share a counter, and yield is called once for them.
func (l RuleList) Counters(yield func(RuleCount)) {
	for _, c := range l {
		c.counters(yield)
	}
}

func (c *chain) counters(yield func(RuleCount)) {
	table := c.in
	if strings.HasSuffix(table, "-"+mappingTables) {
		table = mappingTables
	}
	var last *Counter
	for i := range c.rules {
		r := &c.rules[i]
		if r.policy || !r.counted || r.counter == last {
			continue
		}
		last = r.counter
		yield(RuleCount{table, c.name, r.name, r.counter.packets.Load(), r.counter.bytes.Load()})
	}
}

func (r *rule) matchText(link func(Link) string) string {
	var parts []string
	for i := range r.tests {
		parts = append(parts, r.tests[i].text(link))
	}
	return strings.Join(parts, " ")
}

var fieldNames = [...]string{fieldProto: "protocol", fieldIn: "in", fieldOut: "out", fieldSource: "src",
	fieldDestination: "dst",
	fieldSourcePort:  "sport", fieldDestinationPort: "dport", fieldNoReturn: "src without a route back"}

var protocolNames = map[uint8]string{1: "icmp", 6: "tcp", 17: "udp", 58: "icmpv6", 132: "sctp"}

func (c *comparison) text(link func(Link) string) string {
	var value string
	switch c.field {
	case fieldNoReturn:
		return fieldNames[c.field]
	case fieldProto:
		if value = protocolNames[uint8(c.lo)]; value == "" {
			value = fmt.Sprint(c.lo)
		}
	case fieldIn, fieldOut:
		value = "nowhere" // the device does not exist
		if Link(c.lo) != unknownLink {
			value = link(Link(c.lo))
		}
	case fieldSource, fieldDestination:
		switch value = c.prefix.String(); {
		case c.span != nil:
			value = c.span[0].String() + "-" + c.span[1].String()
		case c.prefix.IsSingleIP():
			value = c.prefix.Addr().String()
		}
	default:
		value = fmt.Sprint(c.lo)
		if c.hi != c.lo {
			value = fmt.Sprintf("%d-%d", c.lo, c.hi)
		}
	}
	if c.negate {
		value = "not " + value
	}
	return fieldNames[c.field] + " " + value
}

func (r *rule) actionText() string {
	text := string(r.action)
	switch r.action {
	case ActionCTMark, ActionSetMark:
		text += fmt.Sprintf(" %d", r.value)
	case ActionClampMSS:
		if r.value > 0 {
			text += fmt.Sprintf(" %d", r.value)
		}
	case ActionDNAT, ActionSNAT:
		switch {
		case r.to.IsValid() && r.to.IsSingleIP():
			text += " " + r.to.Addr().String()
		case r.to.IsValid():
			text += " " + r.to.String()
		}
	}
	return text
}

// A RouteInfo describes one route of a compiled PolicyRule.
type RouteInfo struct {
	Origin      Key
	Rule        string // table/number of the rule
	Priority    int
	In          string // the link that packets come from; "" = any
	Mark        uint32 // of packets; 0 = any
	Source      netip.Prefix
	Destination netip.Prefix
	To          string     // the link that it leads to
	Via         netip.Addr // the zero Addr: the destination itself
}

// A RouteList is a snapshot of a Set's routes. It may be read while the Set changes.
type RouteList struct {
	rules []policyRoutes // copies, because a commit may change their priorities
	first Link
}

// Routes returns the committed routes.
func (s *Set) Routes() RouteList {
	l := RouteList{first: s.committed.first}
	for _, key := range slices.SortedFunc(maps.Keys(s.pieces), Key.compare) {
		for _, r := range s.pieces[key].routing {
			l.rules = append(l.rules, *r)
		}
	}
	return l
}

// Each calls yield for each route, in the order of rules, until it returns false. link names a
// Link.
func (l RouteList) Each(link func(Link) string, yield func(*RouteInfo) bool) {
	rules := slices.Clone(l.rules)
	sort.SliceStable(rules, func(i, j int) bool {
		a, b := &rules[i], &rules[j]
		if a.priority != b.priority {
			return a.priority < b.priority
		}
		return compareWritten(a.policyRule, b.policyRule) < 0
	})
	for i := range rules {
		r := &rules[i]
		for _, o := range r.offers {
			info := RouteInfo{Origin: r.origin.key, Rule: r.path(), Priority: r.priority, Mark: uint32(r.class),
				Source: r.source, Destination: o.at, Via: o.via}
			if in := r.class.link(); in != anyLink {
				info.In = link(in)
			}
			to := o.link
			if to == firstNode {
				to = l.first
			}
			if info.To = link(to); !yield(&info) {
				return
			}
		}
	}
}
