package integration

import (
	"fmt"
	"net/netip"
	"strings"

	"culvert/nat/rules"
)

// nftText writes tables in nft's language, with the expressions that Liqo uses for each match and
// action. Tables and chains get other names, because nft does not accept all of ours.
func nftText(tables []rules.Table) string {
	var b strings.Builder
	for i, t := range tables {
		family := map[rules.Family]string{rules.FamilyIPv4: "ip", rules.FamilyIPv6: "ip6",
			rules.FamilyINET: "inet"}[t.Family]
		fmt.Fprintf(&b, "table %s t%d {\n", family, i)
		for j, c := range t.Chains {
			policy := c.Policy
			if policy == "" {
				policy = rules.PolicyAccept
			}
			fmt.Fprintf(&b, "\tchain c%d {\n\t\ttype %s hook %s priority %d; policy %s;\n", j, c.Type, c.Hook,
				c.Priority, policy)
			for k := range c.Rules {
				fmt.Fprintf(&b, "\t\t%s\n", nftRule(&c.Rules[k], t.Family))
			}
			b.WriteString("\t}\n")
		}
		b.WriteString("}\n")
	}
	return b.String()
}

func nftRule(r *rules.Rule, f rules.Family) string {
	var words []string
	add := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	for _, m := range r.Match {
		op := ""
		if m.Op == rules.OpNotEqual {
			op = "!= "
		}
		if m.Proto != "" {
			add("meta l4proto %s", m.Proto)
		}
		if m.Dev.Value != "" {
			add("%sifname %s%q", map[rules.Position]string{rules.PositionIn: "i",
				rules.PositionOut: "o"}[m.Dev.Position], op, m.Dev.Value)
		}
		if m.IP.Value != "" {
			add("%s", nftAddress(m.IP, op))
		}
		if m.Port.Value != "" {
			if strings.Contains(m.Port.Value, "-") {
				op = "" // a range ignores the operator
			}
			add("@th,%d,16 %s%s", map[rules.Position]int{rules.PositionSource: 0,
				rules.PositionDestination: 16}[m.Port.Position], op, m.Port.Value)
		}
	}
	if r.Action == rules.ActionClampMSS {
		add("tcp flags & syn != 0")
	}
	if !r.NoCounter {
		add("counter")
	}
	words = append(words, nftAction(r, f))
	return strings.Join(words, " ")
}

// nftAddress compares (packet & mask) with the address as written.
func nftAddress(o rules.Operand, op string) string {
	family := "ip"
	if strings.Contains(o.Value, ":") {
		family = "ip6"
	}
	field := family + " " + map[rules.Position]string{rules.PositionSource: "saddr",
		rules.PositionDestination: "daddr"}[o.Position]
	p, err := netip.ParsePrefix(o.Value)
	if err != nil {
		return fmt.Sprintf("%s %s%s", field, op, o.Value)
	}
	if op == "" {
		op = "== "
	}
	mask := make([]byte, p.Addr().BitLen()/8)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	m, _ := netip.AddrFromSlice(mask)
	return fmt.Sprintf("%s & %s %s%s", field, m, op, p.Addr())
}

func nftAction(r *rules.Rule, f rules.Family) string {
	switch r.Action {
	case rules.ActionDNAT, rules.ActionSNAT:
		if strings.Contains(r.To, "-") {
			return "" // Liqo writes nothing for a range
		}
		family := ""
		if f == rules.FamilyINET {
			family = " ip"
			if strings.Contains(r.To, ":") {
				family = " ip6"
			}
		}
		if strings.Contains(r.To, "/") {
			return fmt.Sprintf("%s%s prefix to %s", r.Action, family, r.To)
		}
		return fmt.Sprintf("%s%s to %s", r.Action, family, r.To)
	case rules.ActionReject:
		switch f {
		case rules.FamilyIPv4:
			return "reject with icmp type net-unreachable"
		case rules.FamilyIPv6:
			return "reject with icmpv6 type no-route"
		}
		return "reject with icmpx type no-route"
	case rules.ActionCTMark:
		return fmt.Sprintf("ct mark set %d", r.Value)
	case rules.ActionMetaMarkFromCT:
		return "meta mark set ct mark"
	case rules.ActionSetMark:
		return fmt.Sprintf("meta mark set %d", r.Value)
	case rules.ActionClampMSS:
		if r.Value == 0 {
			return "tcp option maxseg size set rt mtu"
		}
		return fmt.Sprintf("tcp option maxseg size set %d", r.Value)
	}
	if r.Action == "refuse-source" {
		return "drop"
	}
	return string(r.Action) // accept, drop, notrack, masquerade
}
