package nat

import (
	"fmt"
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
	if err := e.Put(rules.Key{Kind: "firewall-of-others", Name: "input"},
		rules.Resource{Tables: []rules.Table{{Name: "own", Family: rules.FamilyIPv4, Chains: []rules.Chain{
			{Name: "input", Type: rules.ChainFilter, Hook: rules.HookInput,
				Rules: []rules.Rule{{Name: "pings", Match: []rules.Match{{Proto: "icmp"}},
					Action: rules.ActionAccept}}},
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

// A commit ends the only closing connection, at the packet of its server. That packet would open
// another, for which there is no room: the lists of those that make room are as before.
func TestEvictedMakesNoRoom(t *testing.T) {
	c := milan()
	c.MaxConnections = 30
	e, err := New([16]byte{}, c)
	need.NoError(t, err)
	segment := func(in Link, source, destination string, sport, dport uint16, flags uint8, seq, ack uint32) Verdict {
		var p packet.Packet
		p.Parse(nattest.IP{Source: source, Destination: destination,
			Body: nattest.TCP{SourcePort: sport, DestinationPort: dport, Flags: flags, Seq: seq, Ack: ack,
				Window: 9}}.Bytes())
		return e.Process(&p, in, 1)
	}
	open := func(in, out Link, client, server, seenClient, seenServer string) {
		segment(in, client, server, 2000, 80, packet.SYN, 1000, 0)
		segment(out, seenServer, seenClient, 80, 2000, packet.SYN|packet.ACK, 5000, 1001)
		segment(in, client, server, 2000, 80, packet.ACK, 1001, 5001)
	}
	open(Tunnel, 4, "10.200.3.9", "10.70.0.9", "10.71.3.9", "192.0.2.10")
	segment(Tunnel, "10.200.3.9", "10.70.0.9", 2000, 80, packet.FIN|packet.ACK, 1001, 5001)
	for i := range 15 { // a half of the table
		server := fmt.Sprintf(".4.%d", i)
		open(4, Tunnel, fmt.Sprintf("203.0.%d.9", i), "10.71"+server, "10.70.0.0", "10.200"+server)
	}
	if st := e.Stats(); st.Connections != 16 || st.Unreplied != 0 {
		t.Fatalf("%+v", st)
	}
	recount(t, e)
	c.Addresses = c.Addresses[1:]
	need.NoError(t, e.Apply(c))
	if v := segment(4, "192.0.2.10", "10.71.3.9", 80, 2000, packet.ACK, 5001, 1002); v.Reason != ReasonConnectionShare {
		t.Errorf("%v %v", v.Action, v.Reason)
	}
	if st := e.Stats(); st.Evicted != 1 || st.Connections != 15 {
		t.Errorf("%+v", st)
	}
	recount(t, e)
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
		p.Parse(nattest.IP{Source: source, Destination: "10.71.2.6", Body: nattest.UDP{SourcePort: 1199,
			DestinationPort: 53}}.Bytes())
		in := Link(9)
		if source == "10.200.1.77" {
			in = 4
		}
		if v := e.Process(&p, in, Time(time.Hour)); v.Action != Forward || v.Untracked {
			t.Errorf("%s: %+v", name, v)
		}
		if st := e.Stats(); full < 33 || st.EarlyDropped != uint64(200-full) || st.Created != 201 ||
			uint64(st.Connections) != st.Created-st.Expired-st.EarlyDropped {
			t.Errorf("%s: %d connections before, then %+v", name, full, st)
		}
	}
}
