package nat

import (
	"testing"

	"culvert/integration/need"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// counting returns an engine whose rules count packets from the tunnel: n in prerouting, a
// translation, and one in forward.
func counting(t *testing.T, n int) (*Engine, []rules.Table) {
	t.Helper()
	early := rules.Chain{Name: "early", Type: rules.ChainFilter, Hook: rules.HookPrerouting,
		Priority: rules.PriorityMangle}
	for i := range n {
		early.Rules = append(early.Rules, rules.Rule{Name: string(rune('a' + i)), Action: rules.ActionSetMark})
	}
	c := milan()
	c.Firewall = []rules.Table{{Name: "t", Family: rules.FamilyIPv4, Chains: []rules.Chain{
		early,
		{Name: "dnat", Type: rules.ChainNAT, Hook: rules.HookPrerouting, Priority: rules.PriorityDNAT,
			Rules: []rules.Rule{{Name: "to", Action: rules.ActionDNAT, To: "10.200.1.6"}}},
		{Name: "late", Type: rules.ChainFilter, Hook: rules.HookForward,
			Rules: []rules.Rule{{Name: "a", Action: rules.ActionSetMark}}},
	}}}
	e, err := New([16]byte{}, c)
	need.NoError(t, err)
	return e, c.Firewall
}

func (e *Engine) counted(rule string) uint64 {
	var n uint64
	e.RuleCounters(func(c rules.RuleCount) {
		if c.Table == "t" && c.Chain+"/"+c.Rule == rule {
			n = c.Packets
		}
	})
	return n
}

func (e *Engine) arrive(ttl uint8) Verdict {
	var p packet.Packet
	p.Parse(nattest.IP{Source: "10.200.3.9", Destination: "10.200.1.5", TTL: ttl, Body: nattest.UDP{SourcePort: 1,
		DestinationPort: 2}}.Bytes())
	return e.Process(&p, Tunnel, 0)
}

// A kernel drops packets that are too old or too large between routing and the forward hook, after
// the rules before have counted them.
func TestRefusedPacketsAreCounted(t *testing.T) {
	e, _ := counting(t, 1)
	steps := []struct {
		name               string
		ttl                uint8
		early, to, forward uint64
	}{
		{"first packet refused", 1, 1, 1, 0},
		{"first packet", 64, 2, 2, 1},
		{"refused", 1, 3, 2, 1},
		{"another", 64, 4, 2, 2},
	}
	for _, s := range steps {
		if v := e.arrive(s.ttl); (v.Action == Forward) != (s.ttl > 1) {
			t.Fatalf("%s: %v %v", s.name, v.Action, v.Reason)
		}
		if early, to, forward := e.counted("early/a"), e.counted("dnat/to"), e.counted("late/a"); early != s.early ||
			to != s.to || forward != s.forward {
			t.Fatalf("%s: counted %d, %d, %d; want %d, %d, %d", s.name, early, to, forward, s.early, s.to, s.forward)
		}
	}
}

// However many rules and lists of rules count, an established packet is not matched against the
// rules again. Packets that are not counted are reported.
func TestHitsAreBounded(t *testing.T) {
	const listed = 8 // in rules.Hits
	tests := []struct {
		name                      string
		rules, lists              int
		early, forward, uncounted uint64
	}{
		{"few", 1, 2, 3, 3, 0},
		{"as many as are listed", listed - 1, 2, 3, 3, 0},
		{"more rules than are listed", listed, 2, 3, 0, 3},
		{"no list left", 1, maxHitLists, 0, 0, 3},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e, _ := counting(t, test.rules)
			h := &e.hits
			for len(h.lists) < test.lists {
				h.lists = append(h.lists, rules.Hits{})
			}
			for i := range 3 {
				if v := e.arrive(64); v.Action != Forward {
					t.Fatalf("%v %v", v.Action, v.Reason)
				}
				if i > 0 && e.scratch.tr.In != anyNode {
					t.Fatal("an established packet has met the rules")
				}
				e.scratch.tr.In = anyNode
			}
			if len(h.lists) > maxHitLists {
				t.Errorf("%d lists", len(h.lists))
			}
			if early, forward := e.counted("early/a"), e.counted("late/a"); early != test.early ||
				forward != test.forward || e.Stats().Uncounted != test.uncounted {
				t.Errorf("counted %d and %d, %d not; want %d and %d, %d not", early, forward, e.Stats().Uncounted,
					test.early, test.forward, test.uncounted)
			}
		})
	}
}
