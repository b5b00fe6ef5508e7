package nat_test

import (
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/rules"
)

// halfClosed opens a connection from node 1 whose client closes its direction, and returns it as it
// went out.
func halfClosed(t testing.TB, e *nat.Engine, source string, port uint16, now nat.Time) nattest.View {
	t.Helper()
	out := handshake(t, e, node1, source, port, now)
	fin := nattest.TCP{SourcePort: port, DestinationPort: 80, Seq: 1001, Ack: 5001, Flags: nattest.FIN | nattest.ACK,
		Window: 1000}
	forwarded(t, e, node1, nattest.IP{Source: source, Destination: "10.71.3.9", Body: fin}.Bytes(), now)
	serverSends(t, e, out, nattest.ACK, "", now)
	return out
}

func serverSends(t testing.TB, e *nat.Engine, out nattest.View, flags uint8, payload string, now nat.Time) {
	t.Helper()
	body := nattest.TCP{SourcePort: 80, DestinationPort: out.SourcePort, Seq: 5001, Ack: 1002, Flags: flags,
		Window: 1000, Payload: []byte(payload)}
	forwarded(t, e, nat.Tunnel, nattest.IP{Source: out.Destination.String(), Destination: out.Source.String(),
		Body: body}.Bytes(), now)
}

// A client that has closed its direction gets an answer up to an hour later, behind U too.
func TestHalfClosedGetsLateAnswer(t *testing.T) {
	for name, source := range map[string]string{"a pod": "10.200.1.5", "behind U": "203.0.113.9"} {
		t.Run(name, func(t *testing.T) {
			e := engine(t)
			out := halfClosed(t, e, source, 4000, start)
			now := start
			for range 3 { // each packet begins a new hour
				now = now.Add(time.Hour - time.Second)
				e.Sweep(now)
				serverSends(t, e, out, nattest.ACK|nattest.PSH, "late", now)
			}
			e.Sweep(now.Add(time.Hour + 2*time.Second))
			if n := e.Stats().Connections; n != 0 {
				t.Fatalf("%d connections an hour after the last packet", n)
			}
			ledger(t, e)
		})
	}
}

// Under pressure, connections that are over make room before a half-closed one, and that one before
// an established one, though it is the oldest of all.
func TestHalfClosedMakesRoomLast(t *testing.T) {
	const client, most = "203.0.113.9", 30
	e := engine(t, func(c *nat.Config) { c.MaxConnections = most })
	half := halfClosed(t, e, client, 2000, start)
	established := handshake(t, e, node1, client, 2001, start)
	for i := range uint16(4) { // over
		out := halfClosed(t, e, client, 2002+i, start.Add(time.Second))
		serverSends(t, e, out, nattest.FIN|nattest.ACK, "", start.Add(time.Second))
		last := nattest.TCP{SourcePort: 2002 + i, DestinationPort: 80, Seq: 1002, Ack: 5002, Flags: nattest.ACK,
			Window: 1000}
		forwarded(t, e, node1, nattest.IP{Source: client, Destination: "10.71.3.9", Body: last}.Bytes(),
			start.Add(time.Second))
	}
	now := start.Add(2 * time.Second)
	opened := uint16(0)
	dial := func() nat.Verdict {
		opened++
		v, _ := process(t, e, node1, tcp(client, "10.71.3.9", 3000+opened, 80, nattest.SYN, "").Bytes(), now)
		if v.Action == nat.Forward {
			// A handshake settles it, so that it makes no room for the next one.
			list, _, _ := e.Connections(0, &nat.ConnFilter{Ports: []uint16{3000 + opened}}, now, nil)
			serverSendsSYN(t, e, &list[0], now)
			ack := nattest.TCP{SourcePort: 3000 + opened, DestinationPort: 80, Seq: 1001, Ack: 5001, Flags: nattest.ACK,
				Window: 1000}
			forwarded(t, e, node1, nattest.IP{Source: client, Destination: "10.71.3.9", Body: ack}.Bytes(), now)
		}
		return v
	}
	states := func() (n map[string]int) {
		n = map[string]int{}
		list, _, _ := e.Connections(0, &nat.ConnFilter{}, now, nil)
		for i := range list {
			n[list[i].State]++
		}
		return n
	}
	for states()["time-wait"] > 0 {
		if v := dial(); v.Action != nat.Forward {
			t.Fatalf("%v, with %v", v.Reason, states())
		}
		if states()["close-wait"] != 1 {
			t.Fatalf("the half-closed connection went first: %v", states())
		}
	}
	if dial(); states()["close-wait"] != 0 {
		t.Fatalf("a half-closed connection makes no room: %v", states())
	}
	if v := dial(); v.Reason != nat.ReasonConnectionShare {
		t.Fatalf("%v, with %v", v, states())
	}
	serverSends(t, e, established, nattest.ACK, "", now)
	dropped(t, e, nat.Tunnel, nattest.IP{Source: half.Destination.String(), Destination: half.Source.String(),
		Body: nattest.TCP{SourcePort: 80, DestinationPort: half.SourcePort, Seq: 5001, Ack: 1002,
			Flags: nattest.ACK}}.Bytes(), now, nat.ReasonNoMapping)
	ledger(t, e)
}

func serverSendsSYN(t testing.TB, e *nat.Engine, c *nat.ConnInfo, now nat.Time) {
	t.Helper()
	body := nattest.TCP{SourcePort: 80, DestinationPort: c.Reply.DestinationPort(), Seq: 5000, Ack: 1001,
		Flags: nattest.SYN | nattest.ACK, Window: 1000}
	forwarded(t, e, nat.Tunnel, nattest.IP{Source: c.Reply.Source().String(),
		Destination: c.Reply.Destination().String(), Body: body}.Bytes(), now)
}

// A client that uses one port again and again, as NFS does, finds the endpoints of now: with the
// SYN after a connection that is over, and two minutes after the first SYN that an endpoint that is
// gone did not answer, however often it is repeated.
func TestHostPortAgain(t *testing.T) {
	const client, port = "198.51.100.9", 700
	syn := func(seq uint32) []byte {
		return nattest.IP{Source: client, Destination: "172.18.0.2", Body: nattest.TCP{SourcePort: port,
			DestinationPort: 30080, Seq: seq,
			Flags: nattest.SYN, Window: 1000}}.Bytes()
	}
	for name, end := range map[string]uint8{"never answered": 0, "refused": nattest.RST | nattest.ACK,
		"both have closed": nattest.FIN | nattest.ACK} {
		t.Run(name, func(t *testing.T) {
			e := host(t, only(0))
			_, was, _ := forwarded(t, e, rules.HostLink, syn(1000), start)
			expectTo(t, was, local)
			answer := func(seq, ack uint32, flags uint8) {
				t.Helper()
				forwarded(t, e, rules.HostLink, nattest.IP{Source: local, Destination: was.Source.String(),
					Body: nattest.TCP{SourcePort: 8080,
						DestinationPort: was.SourcePort, Seq: seq, Ack: ack, Flags: flags, Window: 1000}}.Bytes(),
					start)
			}
			send := func(seq, ack uint32, flags uint8) {
				t.Helper()
				forwarded(t, e, rules.HostLink, nattest.IP{Source: client, Destination: "172.18.0.2",
					Body: nattest.TCP{SourcePort: port,
						DestinationPort: 30080, Seq: seq, Ack: ack, Flags: flags, Window: 1000}}.Bytes(), start)
			}
			switch {
			case end&nattest.RST != 0:
				answer(0, 1001, end)
			case end != 0:
				answer(5000, 1001, nattest.SYN|nattest.ACK)
				send(1001, 5001, nattest.ACK)
				send(1001, 5001, end)
				answer(5001, 1002, end)
				send(1002, 5002, nattest.ACK)
			}
			if err := e.Apply(vienna(only(1))); err != nil {
				t.Fatal(err)
			}
			now := start
			if end == 0 {
				for range 3 {
					now = now.Add(30 * time.Second)
					_, v, _ := forwarded(t, e, rules.HostLink, syn(1000), now)
					expectTo(t, v, local)
				}
				now = now.Add(31 * time.Second)
			}
			_, v, _ := forwarded(t, e, rules.HostLink, syn(200_000), now)
			expectTo(t, v, remote)
			ledger(t, e)
		})
	}
}

func expectTo(t testing.TB, v nattest.View, destination string) {
	t.Helper()
	if v.Destination.String() != destination {
		t.Fatalf("the SYN goes to %s, want %s", v.Destination, destination)
	}
}
