package nat

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// A RuleInfo is a compiled rule as others see it.
type RuleInfo struct {
	Origin             Key    // the resource that it comes from
	Stage              string // where on a packet's way
	Priority           int32  // of its chain
	Table, Chain, Rule string // Rule is "" for the policy of a chain that drops
	Match              string // "" = all packets
	Action             string
	Counted            bool
	Packets, Bytes     uint64
}

var stageNames = [stages]string{
	stageRaw: "raw", stagePreDNAT: "pre-dnat", stageDNAT: "dnat", stagePrerouting: "prerouting", stageInput: "input", stageForward: "forward",
	stagePreSNAT: "pre-snat", stageSNAT: "snat", stagePostrouting: "postrouting",
}

// ListRules calls yield for each rule, in the order of evaluation, until it returns false. link names a Port. It keeps neither packets
// nor, while yield runs, a new configuration waiting.
func (e *Engine) ListRules(link func(Link) string, yield func(*RuleInfo) bool) {
	e.apply.Lock()
	var all []*chain
	for _, p := range e.set.pieces {
		all = append(all, p.chains...)
	}
	e.apply.Unlock()
	slices.SortFunc(all, func(a, b *chain) int {
		if a.stage != b.stage {
			return int(a.stage) - int(b.stage)
		}
		return a.compare(b)
	})
	for _, c := range all {
		table, name, _ := strings.Cut(c.name, "/")
		for i := range c.rules {
			r := &c.rules[i]
			info := RuleInfo{Origin: c.origin.key, Stage: stageNames[c.stage], Priority: c.priority, Table: table, Chain: name, Rule: r.name,
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

func (r *rule) matchText(link func(Link) string) string {
	var parts []string
	for i := range r.tests {
		parts = append(parts, r.tests[i].text(link))
	}
	return strings.Join(parts, " ")
}

var fieldNames = [...]string{fieldProto: "protocol", fieldIn: "in", fieldOut: "out", fieldSource: "src", fieldDestination: "dst",
	fieldSourcePort: "sport", fieldDestinationPort: "dport", fieldNoReturn: "src without a route back"}

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
		value = "nowhere" // a device that there is not
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

// A RouteInfo is one route of a compiled PolicyRule, as others see it.
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

// ListRoutes calls yield for each route, in the order of rules, until it returns false.
func (e *Engine) ListRoutes(link func(Link) string, yield func(*RouteInfo) bool) {
	e.apply.Lock()
	var rules []policyRule // copies: a commit may give them other priorities
	for _, key := range slices.SortedFunc(maps.Keys(e.set.pieces), Key.compare) {
		for _, r := range e.set.pieces[key].routing {
			rules = append(rules, *r)
		}
	}
	first := e.set.committed.first
	e.apply.Unlock()
	slices.SortStableFunc(rules, func(a, b policyRule) int {
		if a.priority != b.priority {
			return a.priority - b.priority
		}
		return compareWritten(&a, &b)
	})
	for i := range rules {
		r := &rules[i]
		for _, o := range r.offers {
			info := RouteInfo{Origin: r.origin.key, Rule: r.name, Priority: r.priority, Mark: uint32(r.class), Source: r.source, Destination: o.at, Via: o.via}
			if in := r.class.link(); in != anyLink {
				info.In = link(in)
			}
			to := o.link
			if to == firstNode {
				to = first
			}
			if info.To = link(to); !yield(&info) {
				return
			}
		}
	}
}
