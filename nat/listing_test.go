package nat_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"culvert/nat"
	"culvert/nat/rules"
)

// Rules are listed in the order in which a packet meets them, whatever resource they come from,
// with what they match and how often they have; routes are listed in the order of their rules.
func TestListRulesAndRoutes(t *testing.T) {
	e := engine(t, func(c *nat.Config) {
		c.Rules = []rules.FilterRule{{Name: "no-dns", From: rules.FromLocal, Protocol: 17,
			Ports: []rules.PortRange{{First: 53, Last: 53}, {First: 5353, Last: 5355}}, Action: rules.FilterDrop}}
	})
	key := rules.Key{Kind: "FirewallConfiguration", Namespace: "liqo", Name: "mine"}
	if err := e.Put(key, rules.Resource{Tables: []rules.Table{{Name: "mine", Family: rules.FamilyIPv4,
		Chains: []rules.Chain{
			{Name: "early", Type: rules.ChainFilter, Hook: rules.HookPrerouting, Priority: rules.PriorityRaw,
				Policy: rules.PolicyDrop, Rules: []rules.Rule{
					{Name: "others", Match: []rules.Match{{Op: rules.OpNotEqual,
						IP: rules.Operand{Value: "192.0.2.1-192.0.2.9",
							Position: rules.PositionSource}}}, Action: rules.ActionAccept},
				}}}}}}); err != nil {
		t.Fatal(err)
	}
	e.CommitRules()
	dropped(t, e, node1, udp("10.200.1.5", "10.71.3.9", 4000, 5354).Bytes(), start, nat.ReasonFiltered)
	link := func(p nat.Link) string {
		if p == nat.Tunnel {
			return "tunnel"
		}
		return fmt.Sprintf("node%d", p)
	}
	var listed []string
	e.ListRules(link, func(r *rules.RuleInfo) bool {
		listed = append(listed, fmt.Sprintf("%s %s/%s/%s %s: %s: %s %d", r.Stage, r.Table, r.Chain, r.Rule, r.Origin,
			r.Match, r.Action, r.Packets))
		return true
	})
	for i, want := range []string{
		"raw mine/early/others FirewallConfiguration/liqo/mine: src not 192.0.2.1-192.0.2.9: accept 1",
		"raw mine/early/ FirewallConfiguration/liqo/mine: : drop 0",
	} {
		if listed[i] != want {
			t.Errorf("rule %d: %q, want %q", i, listed[i], want)
		}
	}
	at := slices.IndexFunc(listed, func(s string) bool {
		return strings.HasPrefix(s, "forward rules/") && strings.Contains(s, "dport 5353-5355")
	})
	if at < 0 || !strings.Contains(listed[at], "protocol udp") || !strings.Contains(listed[at], "in not tunnel") ||
		!strings.HasSuffix(listed[at], "drop 1") ||
		!strings.Contains(listed[at], " network/rules: ") {
		t.Errorf("at %d of %q", at, listed)
	}
	remap := slices.IndexFunc(listed, func(s string) bool {
		return strings.HasPrefix(s, "dnat ") && strings.Contains(s, "dst 10.71.0.0/16")
	})
	if remap < 2 || remap > at || !strings.Contains(listed[remap], "dnat 10.200.0.0/16") {
		t.Errorf("remap at %d of %q", remap, listed)
	}
	n := 0
	e.ListRules(link, func(*rules.RuleInfo) bool { n++; return n < 3 })
	if n != 3 {
		t.Errorf("%d rules after an end at 3", n)
	}

	var routes []string
	last := 0
	e.ListRoutes(link, func(r *rules.RouteInfo) bool {
		if r.Priority < last {
			t.Errorf("%+v after priority %d", r, last)
		}
		last = r.Priority
		routes = append(routes, fmt.Sprintf("%v %s mark %d", r.Destination, r.To, r.Mark))
		return true
	})
	for _, want := range []string{"10.200.1.0/24 node1 mark 0", "10.200.2.0/23 node7 mark 0",
		"10.200.0.0/16 tunnel mark 65536"} {
		if !slices.Contains(routes, want) {
			t.Errorf("no %q in %q", want, routes)
		}
	}
}
