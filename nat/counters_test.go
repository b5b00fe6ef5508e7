package nat_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"culvert/nat"
	"culvert/nat/rules"
)

// TestRuleCounters: a rule is yielded once, however many combinations it stands for, under its own
// name, whatever that contains. Mappings, of which there are many, are yielded under one table;
// uncounted rules are not yielded.
func TestRuleCounters(t *testing.T) {
	e := engine(t, func(c *nat.Config) {
		c.Addresses = []rules.AddressMapping{
			{External: address("10.70.0.5"), Internal: address("10.200.1.5")},
			{External: address("10.70.0.6"), Internal: address("10.200.1.6")},
		}
		c.Rules = []rules.FilterRule{
			{Name: "no/dns", Action: rules.FilterDrop, Protocol: 17, Ports: []rules.PortRange{{First: 53, Last: 53},
				{First: 853, Last: 853}}},
			{Name: "pods", From: rules.FromLocal, Source: c.LocalPodCIDRs[:2],
				Destination: []netip.Prefix{prefix("10.200.0.0/16"), prefix("10.64.0.0/20")}},
			{Name: "nothing", Protocol: 132},
		}
	})
	const length = 20 + 8 + 7
	process(t, e, node1, udp("10.200.1.5", "10.71.1.3", 4000, 53).Bytes(), start)
	process(t, e, node1, udp("10.200.1.5", "10.71.1.3", 4000, 853).Bytes(), start)
	for range 3 {
		forwarded(t, e, node1, udp("10.200.1.5", "10.71.1.3", 4000, 5000).Bytes(), start)
	}
	forwarded(t, e, nat.Tunnel, udp("10.200.9.9", "10.70.0.5", 4000, 5000).Bytes(), start)
	forwarded(t, e, nat.Tunnel, udp("10.200.9.9", "10.70.0.6", 4000, 5000).Bytes(), start)

	got := map[rules.RuleCount]int{}
	e.RuleCounters(func(c rules.RuleCount) {
		if c.Table == rules.RulesTable || c.Table == "remap-ipmapping-gw" {
			got[c]++
		}
		if c.Table == "gw-ext" {
			t.Errorf("%+v: not a counted rule", c)
		}
	})
	want := map[rules.RuleCount]int{
		{Table: "rules", Chain: "forward", Rule: "no/dns", Packets: 2, Bytes: 2 * length}:                1,
		{Table: "rules", Chain: "forward", Rule: "pods", Packets: 3, Bytes: 3 * length}:                  1,
		{Table: "rules", Chain: "forward", Rule: "nothing"}:                                              1,
		{Table: "remap-ipmapping-gw", Chain: "prerouting", Rule: "10.70.0.5", Packets: 1, Bytes: length}: 1,
		{Table: "remap-ipmapping-gw", Chain: "prerouting", Rule: "10.70.0.6", Packets: 1, Bytes: length}: 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
