package nat_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// handshake opens a TCP connection from a node and returns its first packet as it went out.
func handshake(t testing.TB, e *nat.Engine, in nat.Link, source string, port uint16, now nat.Time) nattest.View {
	t.Helper()
	_, out, _ := forwarded(t, e, in, tcp(source, "10.71.3.9", port, 80, nattest.SYN, "").Bytes(), now)
	answer := nattest.IP{Source: out.Destination.String(), Destination: out.Source.String(),
		Body: nattest.TCP{SourcePort: 80,
			DestinationPort: out.SourcePort, Seq: 5000, Ack: 1001, Flags: nattest.SYN | nattest.ACK, Window: 1000}}
	forwarded(t, e, nat.Tunnel, answer.Bytes(), now)
	ack := nattest.IP{Source: source, Destination: "10.71.3.9", Body: nattest.TCP{SourcePort: port, DestinationPort: 80,
		Seq: 1001, Ack: 5001,
		Flags: nattest.ACK, Window: 1000}}
	forwarded(t, e, in, ack.Bytes(), now)
	return out
}

// A flood of half-open connections replaces itself, and evicts no established connection.
func TestFlood(t *testing.T) {
	const established, most = 1000, 8000
	e := engine(t, func(c *nat.Config) { c.MaxConnections = most })
	var out [established]nattest.View
	for i := range out {
		out[i] = handshake(t, e, node1, fmt.Sprintf("203.0.113.%d", 1+i/100), uint16(2000+i), start)
	}
	flood := tcp("198.51.100.1", "10.71.3.10", 1, 80, nattest.SYN, "").Bytes()
	for i := range 100_000 {
		copy(flood[12:], []byte{198, 51, byte(i), byte(i >> 8), 10, 71, byte(i >> 14), 7})
		flood[20], flood[21] = byte(i>>8)|4, byte(i)
		b := append([]byte(nil), nattest.Fix(flood)...)
		var p packet.Packet
		p.Parse(b)
		if v := e.Process(&p, node2, start.Add(time.Duration(i)*time.Microsecond)); v.Action != nat.Forward {
			t.Fatalf("packet %d: %v", i, v.Reason)
		}
	}
	st := e.Stats()
	// The last few of the half are not available to networks that have 13 each.
	if limit := (most-established)/2 - 3; st.Connections != established+limit ||
		st.EarlyDropped != 100_000-uint64(limit) {
		t.Fatalf("%+v", st)
	}
	for i := range out {
		p := nattest.IP{Source: "10.200.3.9", Destination: "10.70.0.0", Body: nattest.TCP{SourcePort: 80,
			DestinationPort: out[i].SourcePort,
			Seq:             5001, Ack: 1001, Flags: nattest.ACK, Payload: []byte("x")}}
		if v, _, _ := forwarded(t, e, nat.Tunnel, p.Bytes(), start.Add(time.Second)); v.Out != node1 {
			t.Fatalf("connection %d is answered at link %d", i, v.Out)
		}
	}
	ledger(t, e)
}

// A host with one connection is served at once although its network is at its share: a neighbour
// has most of that. Another network of the link holds less, but older connections. A host of a
// small network keeps its connection, whoever asks for one.
func TestFloodOfTwoNetworks(t *testing.T) {
	const most = 256
	e := engine(t, func(c *nat.Config) { c.MaxConnections = most })
	// the small network's, the oldest
	forwarded(t, e, node1, tcp("203.0.112.9", "10.71.3.9", 3000, 80, nattest.SYN, "").Bytes(), start)
	flood(t, e, node1, udp("198.51.100.66", "10.71.3.9", 1, 53), 40, start)
	handshake(t, e, node1, "203.0.113.10", 2000, start)
	flood(t, e, node1, udp("203.0.113.66", "10.71.3.9", 1, 54), 57, start)
	for i := range 40 { // another node takes the free places
		handshake(t, e, node2, "192.0.2.200", uint16(2000+i), start)
	}
	if st := e.Stats(); st.Connections != 1+40+1+57+40 {
		t.Fatalf("%+v", st)
	}
	for i := range 6 {
		handshake(t, e, node1, "203.0.113.10", uint16(2001+i), start.Add(time.Second))
	}
	if st := e.Stats(); st.EarlyDropped != 6 || st.Connections != 1+40+1+57+40 {
		t.Fatalf("%+v", st)
	}
	list, _, _ := e.Connections(0, &nat.ConnFilter{Addresses: []netip.Prefix{prefix("203.0.112.9/32")}}, start, nil)
	if len(list) != 1 {
		t.Fatalf("%d connections of the small network", len(list))
	}
	ledger(t, e)
}

// A full table without evictable connections: packets that need no state are forwarded, others are
// dropped.
func TestCap(t *testing.T) {
	const most = 50
	config := func(c *nat.Config) {
		c.Addresses = []rules.AddressMapping{{External: address("10.70.0.9"), Internal: address("192.0.2.10")}}
	}
	e := engine(t, config)
	for i := range most {
		handshake(t, e, node1, "203.0.113.9", uint16(2000+i), start)
	}
	less := rome()
	config(less)
	less.MaxConnections = most
	need.NoError(t, e.Apply(less))
	tests := []struct {
		name      string
		in        nat.Link
		p         nattest.IP
		untracked bool
	}{
		{"pod to the tunnel", node1, udp("10.200.1.5", "10.71.3.9", 1, 2), true},
		{"from the tunnel to a pod", nat.Tunnel, udp("10.200.3.9", "10.200.1.5", 1, 2), true},
		{"IPv6", node1, udp("fd00:200:0:1::5", "fd00:71:0:4000::9", 1, 2), true},
		{"an unknown source", node1, udp("203.0.113.9", "10.71.3.9", 1, 2), false},
		{"already U", node1, udp("10.70.0.0", "10.71.3.9", 1, 2), false},
		{"a pod without a route back", node1, udp("10.200.99.5", "10.71.3.9", 1, 2), false},
		{"a mapped address", nat.Tunnel, udp("10.200.3.9", "10.70.0.9", 1, 2), false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if !test.untracked {
				dropped(t, e, test.in, test.p.Bytes(), start, nat.ReasonTableFull)
				return
			}
			if v, _, _ := forwarded(t, e, test.in, test.p.Bytes(), start); !v.Untracked {
				t.Fatalf("%+v", v)
			}
		})
	}
	if st := e.Stats(); st.Connections != most || st.Outbound.Untracked != 2 || st.Inbound.Untracked != 1 {
		t.Fatalf("%+v", st)
	}
	// A closing connection makes room.
	reset := nattest.IP{Source: "203.0.113.9", Destination: "10.71.3.9", Body: nattest.TCP{SourcePort: 2000,
		DestinationPort: 80, Seq: 1001, Flags: nattest.RST}}
	forwarded(t, e, node1, reset.Bytes(), start)
	forwarded(t, e, node1, udp("203.0.113.9", "10.71.3.9", 1, 2).Bytes(), start)
	if st := e.Stats(); st.EarlyDropped != 1 || st.Connections != most {
		t.Fatalf("%+v", st)
	}
	ledger(t, e)
}

// Above three quarters of the cap, unsettled connections live 30 s.
func TestPressure(t *testing.T) {
	const node3 nat.Link = 9
	e := engine(t, func(c *nat.Config) {
		c.MaxConnections = 100
		c.Nodes = append(c.Nodes, rules.Node{Link: node3, Name: "rome-3", Address: rules.PairOf(address("10.80.0.5"))})
	})
	for i := range 80 {
		in := node1
		switch {
		case i >= 72:
			in = node3
		case i >= 49:
			in = node2
		}
		forwarded(t, e, in, udp(fmt.Sprintf("203.0.%d.9", i), "10.71.3.9", 3000, 80).Bytes(), start)
	}
	if st := e.Stats(); st.Connections != 80 {
		t.Fatalf("%+v", st)
	}
	now := start.Add(31 * time.Second)
	for i := range 5 {
		forwarded(t, e, node1, udp(fmt.Sprintf("198.51.%d.9", i), "10.71.3.9", 3000, 80).Bytes(), now)
	}
	// Each new one makes two expire while the pressure lasts, down to 75.
	if st := e.Stats(); st.Expired < 5 || st.Connections > 80 {
		t.Fatalf("%+v", st)
	}
	ledger(t, e)
}

// The table grows to a million tuples and shrinks again; each tuple stays findable.
func TestGrowth(t *testing.T) {
	const n = 200_000
	e := engine(t, func(c *nat.Config) { c.MaxConnections = 3*n + 3 })
	template := tcp("10.200.1.5", "10.71.0.1", 1, 80, nattest.ACK, "").Bytes()
	at := func(i int) []byte {
		b := append([]byte(nil), template...)
		b[20], b[21], b[22] = byte(i>>8), byte(i), byte(1+i>>16)
		return b
	}
	for i := range n {
		var p packet.Packet
		p.Parse(at(i))
		if v := e.Process(&p, node1, start); v.Action != nat.Forward || v.Untracked {
			t.Fatal(i, v.Reason)
		}
	}
	if st := e.Stats(); st.Connections != n || st.Created != n {
		t.Fatalf("%+v", st)
	}
	for i := range n {
		var p packet.Packet
		p.Parse(at(i))
		e.Process(&p, node1, start)
	}
	if st := e.Stats(); st.Created != n {
		t.Fatalf("%d connections made for %d", st.Created, n)
	}
	for !e.Sweep(start.Add(24 * time.Hour)) {
	}
	if st := e.Stats(); st.Connections != 0 {
		t.Fatalf("%d connections left", st.Connections)
	}
}
