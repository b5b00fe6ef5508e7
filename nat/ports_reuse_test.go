package nat_test

import (
	"fmt"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/rules"
)

// A fewPorts is a node with 100 ports for its clients and one endpoint, which allows 93
// connections.
func fewPorts(t *testing.T) *nat.Engine {
	return host(t, only(1), func(c *nat.Config) { c.Host.Ports.Last = 61099 })
}

// connect sends a client's SYN with a sequence number to the node port. It returns the port that
// the endpoint sees, or 0 and why the SYN was dropped. With closed, both ends close the connection
// at once.
func connect(t *testing.T, e *nat.Engine, client string, port uint16, seq uint32, closed bool, now nat.Time) (uint16,
	nat.Reason) {
	t.Helper()
	segment := func(from, to string, sport, dport uint16, seq, ack uint32, flags uint8) []byte {
		return nattest.IP{Source: from, Destination: to, DF: true,
			Body: nattest.TCP{SourcePort: sport, DestinationPort: dport, Seq: seq, Ack: ack, Flags: flags,
				Window: 65535}}.Bytes()
	}
	const node, endpoint = "172.18.0.2", remote
	v, out := process(t, e, rules.HostLink, segment(client, node, port, 30080, seq, 0, nattest.SYN), now)
	if v.Action == nat.Drop {
		return 0, v.Reason
	}
	syn, err := nattest.Check(out[0])
	need.NoError(t, err)
	const other = 5000 // the endpoint's sequence number
	request := func(seq, ack uint32, flags uint8) {
		t.Helper()
		forwarded(t, e, rules.HostLink, segment(client, node, port, 30080, seq, ack, flags), now)
	}
	answer := func(seq, ack uint32, flags uint8) {
		t.Helper()
		_, got, _ := forwarded(t, e, rules.HostLink, segment(endpoint, node, 8080, syn.SourcePort, seq,
			ack, flags), now)
		if expect(t, got, node, client); got.DestinationPort != port {
			t.Fatalf("the answer goes to port %d, want %d", got.DestinationPort, port)
		}
	}
	answer(other, seq+1, nattest.SYN|nattest.ACK)
	request(seq+1, other+1, nattest.ACK)
	if closed {
		request(seq+1, other+1, nattest.FIN|nattest.ACK)
		answer(other+1, seq+2, nattest.FIN|nattest.ACK)
		request(seq+2, other+2, nattest.ACK)
	}
	return syn.SourcePort, nat.ReasonNone
}

// A client that closes its connections opens any number to one endpoint: the port of a closed one
// serves the next, whose sequence number is higher than those of the closed one.
func TestClosedConnectionsLeaveTheirPorts(t *testing.T) {
	e := fewPorts(t)
	for i := range 3000 {
		if port, why := connect(t, e, "198.51.100.9", uint16(1024+i), uint32(1000*i), true, start); port == 0 {
			t.Fatalf("connection %d: %v", i, why)
		}
	}
	if st := e.Stats(); st.Created != 3000 || st.Connections > 93 || st.Ports != st.Connections ||
		int(st.EarlyDropped) != 3000-st.Connections {
		t.Errorf("%d created, %d there, %d ports, %d early dropped", st.Created, st.Connections, st.Ports,
			st.EarlyDropped)
	}
}

// The endpoint's side of a closed connection would take a SYN with a lower number for a packet of
// that connection, so the port is not given out.
func TestClosedConnectionsKeepTheirPorts(t *testing.T) {
	for name, test := range map[string]struct {
		closed bool
		seq    uint32
	}{"older sequence number": {true, 999}, "the last sequence number": {true, 1002}, "not closed": {false, 1 << 20}} {
		t.Run(name, func(t *testing.T) {
			e := fewPorts(t)
			opened := uint16(0)
			for port := uint16(1024); ; port++ {
				got, why := connect(t, e, "198.51.100.9", port, 1000, test.closed, start)
				if got == 0 {
					if why != nat.ReasonPortShare {
						t.Fatalf("dropped for %v", why)
					}
					break
				}
				opened++
			}
			if port, why := connect(t, e, "198.51.100.9", 9000, test.seq, false, start); port != 0 ||
				why != nat.ReasonPortShare {
				t.Errorf("after %d connections: port %d, %v", opened, port, why)
			}
			// Two minutes after the last packet all ports are free again, except those of open
			// connections.
			later := start.Add(3 * time.Minute)
			for !e.Sweep(later) {
			}
			if port, _ := connect(t, e, "198.51.100.9", 9001, test.seq, false, later); (port != 0) != test.closed {
				t.Errorf("three minutes later: port %d", port)
			}
		})
	}
}

// A source at its share of the ports takes over no port of others' closed connections; a source
// without any gets one even if all ports are given out.
func TestClosedConnectionsOfOthers(t *testing.T) {
	e := fewPorts(t)
	fill := func(client string, closed bool) (opened int) {
		for port := uint16(1024); ; port++ {
			if got, _ := connect(t, e, client, port, 1000, closed, start); got == 0 {
				return opened
			}
			if opened++; opened == 93 {
				t.Fatal("one client has all ports")
			}
		}
	}
	greedy := fill("198.51.100.9", false)
	for i := 0; e.Stats().Ports < 93; i++ {
		if got, why := connect(t, e, fmt.Sprintf("198.51.100.%d", 10+i), 1024, 1000, true, start); got == 0 {
			t.Fatalf("client %d: %v", i, why)
		}
	}
	if port, why := connect(t, e, "198.51.100.9", 9000, 1<<20, false, start); port != 0 || why != nat.ReasonPortShare {
		t.Errorf("with %d connections: port %d, %v", greedy, port, why)
	}
	if port, why := connect(t, e, "198.51.100.200", 9000, 1<<20, false, start); port == 0 {
		t.Errorf("a new client: %v", why)
	}
}
