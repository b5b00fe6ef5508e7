package nat_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// A forgery is a packet that a pod sends from addresses of its node's network that are not its own,
// and the answer.
type forgery struct {
	name, network, to string
	body              func(i int) nattest.Body
	answer            func(i int) nattest.Body // nil: nothing answers
}

// A bystander uses a service of the attacked cluster or of the forger's.
type bystander struct {
	name     string
	in       nat.Link
	from, to string
}

// forgerSides are the two gateways that a forger's packets pass: that of the destination's cluster,
// which distinguishes the forger's nodes only by their addresses, and his own.
var forgerSides = []struct {
	name                   string
	in                     nat.Link
	of64, of24, to64, to24 string
	bystanders             []bystander
}{
	{"where the packets go", nat.Tunnel, "fd00:200:0:2::%x", "10.200.5.%d", "fd00:200:0:1::5",
		"10.200.1.5", []bystander{
			{"a pod of the forger's node", nat.Tunnel, "fd00:200:0:2:a::1", "fd00:70::20"},
			{"a pod of the forger's node over IPv4", nat.Tunnel, "10.200.5.253", "10.70.0.20"},
			{"a pod of another node", nat.Tunnel, "fd00:200:0:3::a1", "fd00:70::20"},
			{"a pod of another node over IPv4", nat.Tunnel, "10.200.6.7", "10.70.0.20"},
			{"a host behind a node there, as U", node1, "203.0.113.9", "10.71.3.9"},
		}},
	{"where they come from", node1, "fd00:200:0:1::%x", "10.64.32.%d", remote6, "10.71.3.9", []bystander{
		{"a pod of the other cluster", nat.Tunnel, "fd00:200:0:3::a1", "fd00:70::20"},
		{"a pod of the other cluster over IPv4", nat.Tunnel, "10.200.6.7", "10.70.0.20"},
		{"a host behind the forger's node, as U", node1, "203.0.113.9", "10.71.3.9"},
		{"a host behind another node, as U", node2, "203.0.113.9", "10.71.3.9"},
	}},
}

// A forger has 250 addresses of a /24, and each opens this many connections.
func forgeries(of64, of24, to64, to24 string) []forgery {
	port := func(i int) uint16 { return uint16(1024 + i/250%60_000) }
	echo := func(kind uint8) func(int) nattest.Body {
		return func(i int) nattest.Body { return nattest.ICMP{Type: kind, Rest: uint32(port(i)) << 16} }
	}
	datagram := func(i int) nattest.Body { return nattest.UDP{SourcePort: port(i), DestinationPort: 53} }
	segment := func(flags uint8) func(int) nattest.Body {
		return func(i int) nattest.Body {
			return nattest.TCP{SourcePort: port(i), DestinationPort: 80, Seq: 1000, Flags: flags, Window: 1000}
		}
	}
	back := func(i int) nattest.Body { return nattest.UDP{SourcePort: 53, DestinationPort: port(i)} }
	backSegment := func(flags uint8) func(int) nattest.Body {
		return func(i int) nattest.Body {
			return nattest.TCP{SourcePort: 80, DestinationPort: port(i), Seq: 5000, Ack: 1001,
				Flags: flags | nattest.ACK, Window: 1000}
		}
	}
	return []forgery{
		{"pings of a 64", of64, to64, echo(128), echo(129)},
		{"pings of a 24", of24, to24, echo(8), echo(0)},
		{"questions of a 64", of64, to64, datagram, back},
		{"questions of a 24", of24, to24, datagram, back},
		{"SYNs of a 64", of64, to64, segment(nattest.SYN), backSegment(nattest.SYN)},
		{"SYNs of a 24 to a closed port", of24, to24, segment(nattest.SYN), backSegment(nattest.RST)},
		{"SYNs of a 64 that nobody answers", of64, to64, segment(nattest.SYN), nil},
	}
}

// services of both families.
func servicesOfBoth(c *nat.Config) {
	for i, s := range [][2]string{{"10.70.0.20", "10.200.1.6"}, {"fd00:70::20", "fd00:200:0:1::6"}} {
		c.Services = append(c.Services, rules.Service{Name: fmt.Sprint("web", i), Address: address(s[0]), Port: 80,
			Protocol: packet.TCP,
			Backends: []rules.Backend{{Address: address(s[1]), Port: 8080}}})
	}
}

// TestForgedSources: a pod gets answers at 50,000 addresses of its node's network, and continues
// with 730 a second. Nobody else may be denied a connection, not even in the same network. The
// table has the size of a gateway with 64 MiB.
func TestForgedSources(t *testing.T) {
	const burst, rate, tries = 50_000, 730, 10
	for _, side := range forgerSides {
		for i, f := range forgeries(side.of64, side.of24, side.to64, side.to24) {
			if i != 1 && testing.Short() {
				continue // one row is enough for the race detector, and not the one of 300 seconds
			}
			t.Run(side.name+"/"+f.name, func(t *testing.T) {
				e := engine(t, dual, servicesOfBoth, func(c *nat.Config) { c.MaxConnections = 65_535 })
				now, sent := start, 0
				forge := func(n int, pace time.Duration) {
					for range n {
						now = now.Add(pace)
						host := sent + 2
						if f.network == side.of24 {
							host = sent%250 + 2
						}
						q := nattest.IP{Source: fmt.Sprintf(f.network, host&0xffff), Destination: f.to,
							Body: f.body(sent)}
						var p packet.Packet
						p.Parse(q.Bytes())
						v := e.Process(&p, side.in, now)
						if v.Action != nat.Forward {
							t.Fatalf("forged packet %d: %v", sent, v.Reason)
						}
						var there packet.Tuple
						if p.Tuple(&there, v.Out); f.answer != nil {
							a := nattest.IP{Source: there.Destination().String(), Destination: there.Source().String(),
								Body: f.answer(sent)}
							p.Parse(a.Bytes())
							if v := e.Process(&p, v.Out, now); v.Action != nat.Forward {
								t.Fatalf("answer %d: %v", sent, v.Reason)
							}
						}
						sent++
					}
				}
				seconds := 30
				if f.name == "pings of a 64" {
					seconds = 300
				}
				forge(burst, 8*time.Second/burst)
				reached := make([]int, len(side.bystanders))
				for second := range seconds {
					forge(rate, time.Second/rate)
					if second%(seconds/tries) != 0 {
						continue
					}
					for i, b := range side.bystanders {
						if connects(t, e, b, uint16(40_000+second),
							func() nat.Time { forge(2, time.Millisecond/2); return now }) {
							reached[i]++
						}
					}
				}
				for i, n := range reached {
					if n != tries {
						t.Errorf("%s: %d of %d connections", side.bystanders[i].name, n, tries)
					}
				}
				ledger(t, e)
			})
		}
	}
}

// connects reports whether a bystander gets a connection that carries data. later is called before
// each packet and returns its time.
func connects(t *testing.T, e *nat.Engine, b bystander, port uint16, later func() nat.Time) bool {
	t.Helper()
	send := func(in nat.Link, source, destination string, body nattest.TCP) (v nat.Verdict,
		view nattest.View, ok bool) {
		v, out := process(t, e, in, nattest.IP{Source: source, Destination: destination, Body: body}.Bytes(), later())
		if v.Action != nat.Forward || v.Untracked {
			return v, view, false
		}
		view, err := nattest.Check(out[0])
		return v, view, err == nil
	}
	v, there, ok := send(b.in, b.from, b.to, nattest.TCP{SourcePort: port, DestinationPort: 80, Seq: 1000,
		Flags: nattest.SYN, Window: 1000})
	for i := range 3 {
		if !ok {
			return false
		}
		flags, payload := uint8(nattest.SYN|nattest.ACK), ""
		if i > 0 {
			flags, payload = nattest.ACK, "answer"
		}
		_, here, ok := send(v.Out, there.Destination.String(), there.Source.String(),
			nattest.TCP{SourcePort: there.DestinationPort, DestinationPort: there.SourcePort,
				Seq: 5000 + uint32(i), Ack: 1001, Flags: flags, Window: 1000, Payload: []byte(payload)})
		if !ok || here.Source != address(b.to) || here.Destination != address(b.from) || here.DestinationPort != port {
			return false
		}
		_, there, ok = send(b.in, b.from, b.to, nattest.TCP{SourcePort: port, DestinationPort: 80, Seq: 1001, Ack: 5001,
			Flags: nattest.ACK, Window: 1000})
		if !ok {
			return false
		}
	}
	return true
}

// TestAnswersOpenNothing: a packet that can only be an answer passes without making a connection if
// it needs none. If it would need translation, nothing has changed. Later packets create the
// connection.
func TestAnswersOpenNothing(t *testing.T) {
	tcp := func(flags uint8) nattest.Body {
		return nattest.TCP{SourcePort: 80, DestinationPort: 4000, Seq: 5000, Ack: 1001, Flags: flags, Window: 1000}
	}
	for _, test := range []struct {
		name                string
		source, destination string
		body                nattest.Body
		opens               bool
	}{
		{name: "echo reply", body: nattest.ICMP{Type: 0, Rest: 7 << 16}},
		{name: "timestamp reply", body: nattest.ICMP{Type: 14, Rest: 7 << 16, Payload: make([]byte, 12)}},
		{name: "echo reply over IPv6", source: pod6, destination: remote6, body: nattest.ICMP{Type: 129,
			Rest: 7 << 16}},
		{name: "SYN-ACK", body: tcp(nattest.SYN | nattest.ACK)},
		{name: "RST", body: tcp(nattest.RST)},
		{name: "RST-ACK", body: tcp(nattest.RST | nattest.ACK)},
		{name: "INIT ACK", body: nattest.SCTP{SourcePort: 80, DestinationPort: 4000, Tag: 1, Chunks: []byte{2, 0, 0, 20,
			0, 0, 0, 9, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0}}},
		{name: "echo request", body: nattest.ICMP{Type: 8, Rest: 7 << 16}, opens: true},
		{name: "SYN", body: tcp(nattest.SYN), opens: true},
		{name: "a segment in mid-stream", body: tcp(nattest.ACK), opens: true},
		{name: "FIN", body: tcp(nattest.FIN | nattest.ACK), opens: true},
		{name: "SYN-ACK of an unknown source", source: "203.0.113.9", body: tcp(nattest.SYN | nattest.ACK),
			opens: true},
		{name: "echo reply of an unknown source", source: "203.0.113.9", body: nattest.ICMP{Type: 0, Rest: 7 << 16},
			opens: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := engine(t, dual)
			p := nattest.IP{Source: test.source, Destination: test.destination, Body: test.body}
			if p.Source == "" {
				p.Source = "10.200.1.5"
			}
			if p.Destination == "" {
				p.Destination = "10.71.3.9"
			}
			v, _, _ := forwarded(t, e, node1, p.Bytes(), start)
			if n := e.Stats().Connections; v.Untracked == test.opens || n != map[bool]int{true: 1}[test.opens] {
				t.Errorf("untracked %t, %d connections", v.Untracked, n)
			}
			ledger(t, e)
		})
	}
}

// TestRestartInAHandshake: a gateway that has not seen a SYN forwards the answer, and has the
// connection from the next segment on.
func TestRestartInAHandshake(t *testing.T) {
	e := engine(t)
	forwarded(t, e, nat.Tunnel, tcp("10.200.3.9", "10.200.1.5", 80, 4000, nattest.SYN|nattest.ACK, "").Bytes(), start)
	forwarded(t, e, node1, tcp("10.200.1.5", "10.71.3.9", 4000, 80, nattest.ACK, "question").Bytes(), start)
	forwarded(t, e, nat.Tunnel, tcp("10.200.3.9", "10.200.1.5", 80, 4000, nattest.ACK, "answer").Bytes(), start)
	list, _, _ := e.Connections(0, &nat.ConnFilter{}, start, nil)
	if len(list) != 1 || list[0].State != "established" || !list[0].Replied ||
		list[0].Original.Source() != address("10.200.1.5") {
		t.Fatalf("%+v", list)
	}
	ledger(t, e)
}

// TestAnswersCountForNobody: datagrams that have passed without a connection, because their
// senders' network is at its share, are answered, and the answers do not count against the
// answering host.
func TestAnswersCountForNobody(t *testing.T) {
	const most = 3000
	e := engine(t, func(c *nat.Config) { c.MaxConnections = most })
	untracked := 0
	for i := range 2 * most {
		q := udp(fmt.Sprintf("10.200.5.%d", i%250), "10.200.1.5", uint16(2000+i/250), 53)
		v, _, _ := forwarded(t, e, nat.Tunnel, q.Bytes(), start)
		for range 2 {
			a := udp("10.200.1.5", fmt.Sprintf("10.71.5.%d", i%250), 53, uint16(2000+i/250))
			forwarded(t, e, node1, a.Bytes(), start)
			forwarded(t, e, nat.Tunnel, q.Bytes(), start)
		}
		if v.Untracked {
			untracked++
		}
	}
	list, _, _ := e.Connections(0, &nat.ConnFilter{Addresses: []netip.Prefix{prefix("10.71.0.0/16")}}, start, nil)
	if n := e.Stats().Connections; n != most*2/5 || untracked != 2*most-n || len(list) > 0 &&
		list[0].Original.Link != nat.Tunnel {
		t.Errorf("%d connections, %d without; want %d", n, untracked, most*2/5)
	}
	ledger(t, e)
}
