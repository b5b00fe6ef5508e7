package nat

import (
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// Rules of the input hook count delivered packets, even if no chain runs before connection
// tracking.
func TestInputRulesCount(t *testing.T) {
	c := milan()
	e, err := New([16]byte{}, c)
	need.NoError(t, err)
	if err := e.Put(rules.Key{Kind: "firewall-of-others", Name: "input"}, rules.Resource{Tables: []rules.Table{{Name: "own", Family: rules.FamilyIPv4, Chains: []rules.Chain{
		{Name: "input", Type: rules.ChainFilter, Hook: rules.HookInput, Rules: []rules.Rule{{Name: "pings", Match: []rules.Match{{Proto: "icmp"}}, Action: rules.ActionAccept}}},
	}}}}); err != nil {
		t.Fatal(err)
	}
	e.CommitRules()
	var p packet.Packet
	p.Parse(nattest.IP{Source: "10.200.1.5", Destination: "10.80.0.4", Body: nattest.ICMP{Type: 8}}.Bytes())
	if v := e.Process(&p, 9, 1); v.Action != Deliver {
		t.Fatalf("%v %v", v.Action, v.Reason)
	}
	var got uint64
	e.RuleCounters(func(r rules.RuleCount) {
		if r.Rule == "pings" {
			got = r.Packets
		}
	})
	if got != 1 {
		t.Errorf("%d packets counted, want 1", got)
	}
}

// In a full table, a flow whose connection has expired takes its own place again, and a new one
// that of any expired connection, even if no packet has come since to clear those away.
func TestExpiredMakeRoom(t *testing.T) {
	for name, source := range map[string]string{"the same flow": "10.200.1.1", "another flow": "10.200.1.77"} {
		c := milan()
		c.MaxConnections = 100
		e, err := New([16]byte{}, c)
		need.NoError(t, err)
		for i := range uint16(200) {
			send(e, 9, addr("10.200.1.1"), addr("10.71.2.6"), 1000+i, 53)
		}
		full := e.Stats().Connections
		var p packet.Packet
		p.Parse(nattest.IP{Source: source, Destination: "10.71.2.6", Body: nattest.UDP{SourcePort: 1199, DestinationPort: 53}}.Bytes())
		in := Link(9)
		if source == "10.200.1.77" {
			in = 4
		}
		if v := e.Process(&p, in, Time(time.Hour)); v.Action != Forward || v.Untracked {
			t.Errorf("%s: %+v", name, v)
		}
		if st := e.Stats(); full < 33 || st.EarlyDropped != uint64(200-full) || st.Created != 201 || uint64(st.Connections) != st.Created-st.Expired-st.EarlyDropped {
			t.Errorf("%s: %d connections before, then %+v", name, full, st)
		}
	}
}
