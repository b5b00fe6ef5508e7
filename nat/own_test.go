package nat

import (
	"testing"

	"culvert/integration/need"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// Packets for the gateway's own addresses, and packets that it makes itself, pass the filters that
// a kernel's own traffic does. Each is counted by the rules it matched, and forwarded packets pass
// none of them.
func TestOwnTraffic(t *testing.T) {
	const here, pod, gateway = Link(9), "10.200.1.5", "10.80.0.4"
	ping := nattest.IP{Source: pod, Destination: gateway, Body: nattest.ICMP{Type: 8}}
	pong := nattest.IP{Source: gateway, Destination: pod, Body: nattest.ICMP{}}
	forwarded := nattest.IP{Source: pod, Destination: "10.71.2.6", Body: nattest.UDP{SourcePort: 7,
		DestinationPort: 53}}
	icmp := []rules.Match{{Proto: "icmp"}}
	for _, tt := range []struct {
		name      string
		chain     rules.Chain
		in, out   bool // a ping passes, its answer passes
		reason    Reason
		counted   uint64 // packets of the rule
		forwarded bool
	}{
		{"nothing", rules.Chain{Hook: rules.HookOutput}, true, true, 0, 0, true},
		{"drop at output", rules.Chain{Hook: rules.HookOutput,
			Rules: []rules.Rule{{Action: rules.ActionDrop, Match: icmp}}}, true, false, 0, 1, true},
		{"reject at output", rules.Chain{Hook: rules.HookOutput,
			Rules: []rules.Rule{{Action: rules.ActionReject, Match: icmp}}}, true, false, 0, 1, true},
		{"accept at output, drop else", rules.Chain{Hook: rules.HookOutput, Policy: rules.PolicyDrop,
			Rules: []rules.Rule{{Action: rules.ActionAccept, Match: icmp}}}, true, true, 0, 1, true},
		{"drop policy at output", rules.Chain{Hook: rules.HookOutput, Policy: rules.PolicyDrop}, true,
			false, 0, 0, true},
		{"drop at output by device", rules.Chain{Hook: rules.HookOutput,
			Rules: []rules.Rule{{Action: rules.ActionDrop,
				Match: []rules.Match{{Dev: rules.Operand{Value: "liqo.milan2", Position: rules.PositionOut}}}}}}, true,
			false, 0, 1, true},
		{"drop at output of another device", rules.Chain{Hook: rules.HookOutput,
			Rules: []rules.Rule{{Action: rules.ActionDrop,
				Match: []rules.Match{{Dev: rules.Operand{Value: "liqo-tunnel", Position: rules.PositionOut}}}}}}, true,
			true, 0, 0, true},
		{"drop at output of what came from somewhere", rules.Chain{Hook: rules.HookOutput,
			Rules: []rules.Rule{{Action: rules.ActionDrop,
				Match: []rules.Match{{Dev: rules.Operand{Value: "liqo.milan2", Position: rules.PositionIn}}}}}}, true,
			true, 0, 0, true},
		{"marks and no connection at output", rules.Chain{Hook: rules.HookOutput, Priority: rules.PriorityRaw,
			Rules: []rules.Rule{{Action: rules.ActionNoTrack, Match: icmp}}}, true, true, 0, 1, true},
		{"drop at postrouting", rules.Chain{Hook: rules.HookPostrouting,
			Rules: []rules.Rule{{Action: rules.ActionDrop,
				Match: []rules.Match{{IP: rules.Operand{Value: gateway, Position: rules.PositionSource}}}}}}, true,
			false, 0, 1, true},
		{"drop behind translation", rules.Chain{Hook: rules.HookPostrouting, Priority: 150,
			Rules: []rules.Rule{{Action: rules.ActionDrop,
				Match: []rules.Match{{IP: rules.Operand{Value: gateway, Position: rules.PositionSource}}}}}}, true,
			false, 0, 1, true},
		{"drop at input", rules.Chain{Hook: rules.HookInput,
			Rules: []rules.Rule{{Action: rules.ActionDrop, Match: icmp}}}, false, true, ReasonFiltered, 1, true},
		{"reject at input", rules.Chain{Hook: rules.HookInput,
			Rules: []rules.Rule{{Action: rules.ActionReject, Match: icmp}}}, false, true, ReasonRejected, 1, true},
		{"drop policy at input", rules.Chain{Hook: rules.HookInput, Policy: rules.PolicyDrop}, false, true,
			ReasonFiltered, 0, true},
		{"drop at prerouting", rules.Chain{Hook: rules.HookPrerouting,
			Rules: []rules.Rule{{Action: rules.ActionDrop, Match: icmp}}}, false, true, ReasonFiltered, 1, true},
		{"drop before translation", rules.Chain{Hook: rules.HookPrerouting, Priority: rules.PriorityMangle,
			Rules: []rules.Rule{{Action: rules.ActionDrop, Match: icmp}}}, false, true, ReasonFiltered, 1, true},
		{"drop policy at prerouting", rules.Chain{Hook: rules.HookPrerouting, Policy: rules.PolicyDrop}, false, true,
			ReasonFiltered, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, err := New([16]byte{}, milan())
			need.NoError(t, err)
			tt.chain.Name, tt.chain.Type = "c", rules.ChainFilter
			for i := range tt.chain.Rules {
				tt.chain.Rules[i].Name = "r"
			}
			if err := e.Put(rules.Key{Kind: "user", Name: "own"},
				rules.Resource{Tables: []rules.Table{{Name: "own", Family: rules.FamilyIPv4,
					Chains: []rules.Chain{tt.chain}}}}); err != nil {
				t.Fatal(err)
			}
			e.CommitRules()
			var p packet.Packet
			p.Parse(ping.Bytes())
			v := e.Process(&p, here, 1)
			if (v.Action == Deliver) != tt.in || v.Reason != tt.reason {
				t.Errorf("a ping: %v %v", v.Action, v.Reason)
			}
			if got := e.LetsOut(pong.Bytes(), here); got != tt.out {
				t.Errorf("the answer passes: %v", got)
			}
			var counted uint64
			e.RuleCounters(func(r rules.RuleCount) {
				if r.Table == "own" {
					counted += r.Packets
				}
			})
			if counted != tt.counted {
				t.Errorf("%d packets counted, want %d", counted, tt.counted)
			}
			p.Parse(forwarded.Bytes())
			if v := e.Process(&p, here, 1); (v.Action == Forward) != tt.forwarded {
				t.Errorf("forwarded: %v %v", v.Action, v.Reason)
			}
		})
	}
}
