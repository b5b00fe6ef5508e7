package monitor

import (
	"testing"

	"culvert/integration/need"
	"culvert/nat/rules"
)

// TestRuleAgain: the rule that refuses is named, and not one that was removed and added again,
// whose counter begins anew.
func TestRuleAgain(t *testing.T) {
	m, nodes := monitored(t)
	c, links := m.current.Get()
	changed := *c
	changed.Rules = []rules.FilterRule{
		{Name: "no-mail", Protocol: 6, Ports: []rules.PortRange{{First: 25, Last: 25}}, Action: rules.FilterReject},
		{Name: "no-dns", Protocol: 17, Ports: []rules.PortRange{{First: 53, Last: 53}}, Action: rules.FilterReject},
	}
	need.NoError(t, m.path.Engine.Apply(changed.NAT(links, 0)))
	m.rules["no-mail"] = 1000 // of the rule of that name before
	nodes[0].Send(udpPacket("10.0.1.5", "10.61.1.7", nil))
	nodes[0].Receive() // the ICMP error
	if name := m.rule(changed.Rules); name != "no-dns" {
		t.Errorf("%q refuses, want no-dns", name)
	}
}
