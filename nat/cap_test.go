package nat_test

import (
	"fmt"
	"testing"

	"culvert/nat"
	"culvert/nat/nattest"
)

// A table at its cap holds connections of every rank. What is unanswered goes first, then what is closing; what is settled
// stays, with its fragments too, and what finds no room is told so by name.
func TestCapRanks(t *testing.T) {
	const settled, closing, unreplied = 40, 20, 40
	e := engine(t, func(c *nat.Config) { c.MaxConnections, c.MaxHalfOpen = settled+closing+unreplied, unreplied })
	source := func(i int) string { return fmt.Sprintf("203.0.113.%d", 1+i) }
	fromServer := func(out nattest.View, flags uint8, seq uint32) nattest.IP {
		return nattest.IP{Source: out.Destination.String(), Destination: out.Source.String(), Body: nattest.TCP{SourcePort: 80,
			DestinationPort: out.SourcePort, Seq: seq, Ack: 1001, Flags: flags, Window: 1000}}
	}
	alive := func(name string, outs []nattest.View) {
		t.Helper()
		for i, out := range outs {
			if v, _ := process(t, e, nat.Tunnel, fromServer(out, nattest.ACK, 5001).Bytes(), start); v.Action != nat.Forward || v.Out != node1 {
				t.Fatalf("%s: connection %d: %v %v", name, i, v.Action, v.Reason)
			}
		}
	}
	check := func(when string, early uint64) {
		t.Helper()
		if st := e.Stats(); st.EarlyDropped != early || st.Connections > settled+closing+unreplied {
			t.Fatalf("%s: %d dropped early, want %d; %d connections", when, st.EarlyDropped, early, st.Connections)
		}
		ledger(t, e)
	}
	var old, ending, fresh []nattest.View
	for i := range settled {
		old = append(old, handshake(t, e, node1, source(i), 2000, start))
	}
	for i := range closing {
		out := handshake(t, e, node1, source(100+i), 3000, start)
		forwarded(t, e, nat.Tunnel, fromServer(out, nattest.FIN|nattest.ACK, 5001).Bytes(), start)
		ending = append(ending, out)
	}
	for i := range unreplied {
		forwarded(t, e, node2, tcp(source(150+i), "10.71.3.9", 4000, 80, nattest.SYN, "").Bytes(), start)
	}
	check("at the cap", 0)

	for i := range unreplied {
		fresh = append(fresh, handshake(t, e, node1, source(200), uint16(5000+i), start))
	}
	check("the unanswered have gone", unreplied)
	alive("closing", ending)
	for i := range closing {
		fresh = append(fresh, handshake(t, e, node1, source(201), uint16(6000+i), start))
	}
	check("the closing have gone", unreplied+closing)

	const refused = 25
	for i := range refused {
		dropped(t, e, node2, tcp(source(202), "10.71.3.9", uint16(7000+i), 80, nattest.SYN, "").Bytes(), start, nat.ReasonTableFull)
	}
	if n := e.Stats().Outbound.Dropped[nat.ReasonTableFull]; n != refused {
		t.Errorf("%d counted as table-full, want %d", n, refused)
	}
	check("no room", unreplied+closing)
	alive("settled", old)
	alive("settled later", fresh)

	// A connection that is there goes on in fragments; a datagram in fragments that would need a new one does not.
	fragments := func(from string, sourcePort, port uint16, flags uint8) [][]byte {
		body := nattest.TCP{SourcePort: sourcePort, DestinationPort: port, Seq: 1001, Ack: 5001, Flags: flags, Window: 1000, Payload: nattest.Payload(600, 1)}
		return pieces(nattest.IP{Source: from, Destination: "10.71.3.9", Body: body}, 304, 99)
	}
	for _, b := range fragments(source(0), 2000, 80, nattest.ACK) {
		forwarded(t, e, node1, b, start)
	}
	stranger := fragments(source(203), 8000, 80, nattest.SYN)
	dropped(t, e, node2, stranger[0], start, nat.ReasonTableFull)
	for _, b := range stranger[1:] {
		if v, _ := process(t, e, node2, b, start); v.Action == nat.Forward {
			t.Errorf("a later fragment of what was refused is forwarded to port %d", v.Out)
		}
	}
	check("fragments", unreplied+closing)
}
