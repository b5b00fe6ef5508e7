package nat_test

import (
	"net/netip"
	"testing"

	"culvert/nat"
	"culvert/nat/rules"
)

// given makes given prefixes, and a rule for sources without a route back, decide about sources.
func given(c *nat.Config) {
	c.FromTunnel = []netip.Prefix{prefix("192.0.2.0/24")}
	c.NotFromNodes = []netip.Prefix{prefix("198.51.100.0/24")}
	c.SourceCheck = nat.SourceCheckCluster
	c.Firewall = []rules.Table{{Name: "unknown-source", Family: rules.FamilyIPv4, Chains: []rules.Chain{{
		Name: "c", Type: rules.ChainNAT, Hook: rules.HookPostrouting, Priority: rules.PrioritySNAT,
		Rules: []rules.Rule{{
			Name: "no-return", Action: rules.ActionSNAT, To: "10.70.0.0",
			Match: []rules.Match{{Dev: rules.Operand{Value: "liqo-tunnel", Position: rules.PositionOut},
				NoReturn: true}},
		}},
	}}}}
	c.Routing = []rules.PolicyTable{{Name: "all", Rules: []rules.PolicyRule{{Routes: []rules.PolicyRoute{
		{Destination: prefix("10.200.1.0/24"), Device: "rome-1"},
		{Destination: prefix("0.0.0.0/1"), Via: address("169.254.18.1")},
		{Destination: prefix("192.0.2.0/24"), Via: address("169.254.18.1")},
	}}}}}
}

func TestGivenSources(t *testing.T) {
	e := engine(t, given)
	forwarded(t, e, nat.Tunnel, udp("192.0.2.9", "10.200.1.5", 1, 2).Bytes(), start)
	dropped(t, e, nat.Tunnel, udp("10.200.3.9", "10.200.1.5", 1, 2).Bytes(), start, nat.ReasonBadSource)
	dropped(t, e, node1, udp("198.51.100.9", "192.0.2.9", 1, 2).Bytes(), start, nat.ReasonBadSource)
	forwarded(t, e, node1, udp("10.71.0.9", "192.0.2.9", 1, 2).Bytes(), start)

	none := engine(t, given, func(c *nat.Config) { c.FromTunnel = []netip.Prefix{} })
	dropped(t, none, nat.Tunnel, udp("192.0.2.9", "10.200.1.5", 1, 2).Bytes(), start, nat.ReasonBadSource)
}

func TestNoReturn(t *testing.T) {
	e := engine(t, given)
	_, view, _ := forwarded(t, e, node1, udp("10.200.1.5", "192.0.2.9", 1, 2).Bytes(), start)
	expect(t, view, "10.200.1.5", "192.0.2.9")
	_, view, _ = forwarded(t, e, node1, udp("172.16.0.9", "192.0.2.9", 1, 2).Bytes(), start)
	expect(t, view, "10.70.0.0", "192.0.2.9")
	ledger(t, e)
	e.ListRules(func(nat.Link) string { return "tunnel" }, func(r *rules.RuleInfo) bool {
		if want := "out tunnel src without a route back"; r.Rule == "no-return" && r.Match != want {
			t.Errorf("listed as %q, want %q", r.Match, want)
		}
		return true
	})
}
