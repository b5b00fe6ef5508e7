package nat_test

import (
	"fmt"
	"testing"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// A table is filled with connections of every rank. Unanswered ones are evicted first, then closing
// ones. Settled ones stay, also their fragments, and a packet that finds no room is dropped with a
// reason.
func TestCapRanks(t *testing.T) {
	const settled, closing, most = 30, 15, 100
	e := engine(t, func(c *nat.Config) { c.MaxConnections = most })
	source := func(i int) string { return fmt.Sprintf("203.%d.%d.9", i/200, i%200) }
	next := 0
	open := func(in nat.Link) nattest.View {
		next++
		return handshake(t, e, in, source(next), 2000, start)
	}
	fromServer := func(out nattest.View, flags uint8, seq uint32) []byte {
		return nattest.IP{Source: out.Destination.String(), Destination: out.Source.String(),
			Body: nattest.TCP{SourcePort: 80,
				DestinationPort: out.SourcePort, Seq: seq, Ack: 1001, Flags: flags, Window: 1000}}.Bytes()
	}
	alive := func(outs []nattest.View) (n int) {
		for _, out := range outs {
			if v, _ := process(t, e, nat.Tunnel, fromServer(out, nattest.ACK, 5001), start); v.Action == nat.Forward {
				n++
			}
		}
		return n
	}
	check := func(when string) {
		t.Helper()
		if st := e.Stats(); st.Connections > most {
			t.Fatalf("%s: %d connections, want at most %d", when, st.Connections, most)
		}
		ledger(t, e)
	}
	var old, ending, later []nattest.View
	for range settled {
		old = append(old, open(node1))
	}
	first := source(next)
	for range closing {
		out := open(node1)
		forwarded(t, e, nat.Tunnel, fromServer(out, nattest.FIN|nattest.ACK, 5001), start)
		ending = append(ending, out)
	}
	const flood = 500
	for range flood {
		next++
		process(t, e, node2, tcp(source(next), "10.71.3.9", 2000, 80, nattest.SYN, "").Bytes(), start)
	}
	check("unanswered ones flood")
	if n, m := alive(old), alive(ending); n != settled || m != closing {
		t.Fatalf("%d settled and %d closing connections outlive the unanswered ones, want %d and %d", n, m,
			settled, closing)
	}

	// Settled connections replace those that may be evicted, until there are none.
	var reason nat.Reason
	for reason == nat.ReasonNone && len(later) < most {
		next++
		var p packet.Packet
		syn := tcp(source(next), "10.71.3.9", 2000, 80, nattest.SYN, "").Bytes()
		p.Parse(syn)
		if reason = e.Process(&p, node2, start).Reason; reason == nat.ReasonNone {
			later = append(later, handshake(t, e, node2, source(next), 2000, start)) // its SYN comes again
		}
	}
	check("no room")
	if st := e.Stats(); st.Unreplied != 0 || alive(ending) == closing || st.EarlyDropped == 0 {
		t.Errorf("no room beside %d unanswered and %d closing connections, %d dropped early", st.Unreplied,
			alive(ending), st.EarlyDropped)
	}
	if n := e.Stats().Outbound.Dropped[reason]; reason == nat.ReasonNone || n == 0 {
		t.Errorf("refused for %v, %d counted", reason, n)
	}
	if n, m := alive(old), alive(later); n != settled || m != len(later) {
		t.Errorf("%d and %d settled connections are left of %d and %d", n, m, settled, len(later))
	}

	// An existing connection continues in fragments; a fragmented datagram that would need a new
	// one does not pass.
	body := nattest.TCP{SourcePort: 2000, DestinationPort: 80, Seq: 1001, Ack: 5001, Flags: nattest.ACK, Window: 1000,
		Payload: nattest.Payload(600, 1)}
	for _, b := range nattest.Pieces(nattest.IP{Source: first, Destination: "10.71.3.9", Body: body}, 304, 99) {
		forwarded(t, e, node1, b, start)
	}
	next++
	body.Flags = nattest.SYN
	for _, b := range nattest.Pieces(nattest.IP{Source: source(next), Destination: "10.71.3.9", Body: body}, 304, 99) {
		if v, _ := process(t, e, node2, b, start); v.Action == nat.Forward {
			t.Errorf("a fragment of what finds no room is forwarded to link %d", v.Out)
		}
	}
	check("fragments")
}
