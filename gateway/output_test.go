package gateway

import (
	"testing"

	"culvert/gateway/path"
	"culvert/integration/need"
	"culvert/nat/nattest"
	"culvert/nat/rules"
)

// TestOutputRules: rules at output drop, and count, only packets that the gateway itself makes for
// a node or the peer.
func TestOutputRules(t *testing.T) {
	p := newPair(t, nil)
	drop := func(to string) rules.Rule {
		return rules.Rule{Name: to, Action: rules.ActionDrop,
			Match: []rules.Match{{Proto: "icmp", IP: rules.Operand{Value: to, Position: rules.PositionDestination}}}}
	}
	if err := p.rome.Put(rules.Key{Kind: "user", Name: "output"},
		rules.Resource{Tables: []rules.Table{{Name: "own", Family: rules.FamilyIPv4, Chains: []rules.Chain{
			{Name: "c", Type: rules.ChainFilter, Hook: rules.HookOutput, Rules: []rules.Rule{drop("10.0.1.5"),
				drop("169.254.18.1")}},
		}}}}); err != nil {
		t.Fatal(err)
	}
	p.rome.CommitRules()
	ping := func(source, destination string) []byte {
		return nattest.IP{Source: source, Destination: destination, Body: nattest.ICMP{Type: 8, Rest: 7}}.Bytes()
	}
	node := p.rome.nodes[0]
	node.Send(ping("10.0.1.5", "10.80.0.4"))
	node.Send(ping("10.0.1.6", "10.80.0.4"))
	expect(t, node, "10.80.0.4", "10.0.1.6")
	if made, dropped := p.rome.path.Inbound().Generated(), p.rome.path.Inbound().Dropped(path.DropOutput); made != 2 ||
		dropped != 1 {
		t.Errorf("to nodes: %d made, %d dropped", made, dropped)
	}
	// They also drop what answers nothing: probes of the path, and messages about its MTU.
	sender := p.rome.endpoint.NewSender()
	for _, to := range []string{"10.0.1.5", "10.0.1.6"} {
		// a node takes pings for itself
		pong := nattest.IP{Source: "10.80.0.4", Destination: to, Body: nattest.ICMP{Rest: 7}}.Bytes()
		p.rome.path.SendTo(sender, p.rome.links().ByName[p.rome.config().Geneve.Nodes[0].Name], pong)
	}
	need.NoError(t, sender.Flush())
	expect(t, node, "10.80.0.4", "10.0.1.6")
	if made, dropped := p.rome.path.Inbound().Generated(), p.rome.path.Inbound().Dropped(path.DropOutput); made != 4 ||
		dropped != 2 {
		t.Errorf("to nodes, not answers: %d made, %d dropped", made, dropped)
	}
	made := p.rome.path.Outbound().Generated()
	p.rome.path.Send(ping("169.254.18.2", "169.254.18.1"))
	if more, dropped := p.rome.path.Outbound().Generated()-made,
		p.rome.path.Outbound().Dropped(path.DropOutput); more != 1 || dropped != 1 {
		t.Errorf("to the peer: %d made, %d dropped", more, dropped)
	}
}
