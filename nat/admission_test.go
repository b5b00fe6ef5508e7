package nat_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

const (
	exporter, hidden, stranger = "10.200.1.5", "10.200.1.6", "10.200.3.9" // stranger: of the other cluster
	strangerSeen               = "10.71.3.9"
)

func endpoint(prefix string, protocol uint8, port uint16) rules.Endpoint {
	return rules.Endpoint{Prefix: netip.MustParsePrefix(prefix), Protocol: protocol, Port: port}
}

// restricted is rome with a service and few exports.
func restricted(c *nat.Config) {
	dual(c)
	c.Admit = []rules.Endpoint{
		endpoint(exporter+"/32", packet.TCP, 80), endpoint(exporter+"/32", packet.UDP, 53),
		endpoint(exporter+"/32", packet.SCTP, 700),
		endpoint("10.200.1.64/26", packet.UDP, 0), endpoint("10.200.1.80/32", packet.TCP, 81),
		endpoint("10.200.2.0/24", packet.ICMP, 0), endpoint("fd00:200:0:1::5/128", packet.TCP, 80),
	}
	c.Services = []rules.Service{service(rules.Backend{Address: address("10.200.1.7"), Port: 8080})}
}

func sctp(source, destination string, sport, dport uint16, chunk uint8) nattest.IP {
	return nattest.IP{Source: source, Destination: destination,
		Body: nattest.SCTP{SourcePort: sport, DestinationPort: dport, Tag: 7,
			Chunks: []byte{chunk, 0, 0, 20, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}}}
}

func ping(source, destination string, kind uint8) nattest.IP {
	return nattest.IP{Source: source, Destination: destination, Body: nattest.ICMP{Type: kind, Rest: 7 << 16,
		Payload: []byte("ping")}}
}

func syn(source, destination string, sport, dport uint16) nattest.IP {
	return tcp(source, destination, sport, dport, nattest.SYN, "")
}

// TestAdmission: of what a cluster sends to begin something, what is exported to it passes, of
// every protocol, and nothing else. The sender learns why.
func TestAdmission(t *testing.T) {
	esp := nattest.Raw{Protocol: 50, Payload: []byte("encrypted")}
	tests := []struct {
		name  string
		sent  nattest.IP
		let   bool
		reset bool // TCP in mid-stream
	}{
		{"TCP", syn(stranger, exporter, 4000, 80), true, false},
		{"TCP in mid-stream", tcp(stranger, exporter, 4000, 80, nattest.ACK, "x"), true, false},
		{"UDP", udp(stranger, exporter, 4000, 53), true, false},
		{"SCTP", sctp(stranger, exporter, 4000, 700, 1), true, false},
		{"another port", syn(stranger, exporter, 4000, 81), false, false},
		{"another port, in mid-stream", tcp(stranger, exporter, 4000, 81, nattest.ACK, "x"), false, true},
		{"another protocol of the port", udp(stranger, exporter, 4000, 80), false, false},
		{"another protocol of the other port", syn(stranger, exporter, 4000, 53), false, false},
		{"UDP-Lite of UDP's port", nattest.IP{Source: stranger, Destination: exporter, Body: nattest.Raw{Protocol: 136,
			Payload: []byte{15, 160, 0, 53, 0, 0, 0, 0}}}, false, false},
		{"SCTP to another port", sctp(stranger, exporter, 4000, 701, 1), false, false},
		{"from the exported port", udp(stranger, exporter, 53, 4000), false, false},
		{"a ping of an exporter", ping(stranger, exporter, 8), false, false},
		{"the answer to no ping", ping(stranger, exporter, 0), false, false},
		{"no transport protocol", nattest.IP{Source: stranger, Destination: exporter, Body: esp}, false, false},
		{"a SYN-ACK", tcp(stranger, exporter, 4000, 81, nattest.SYN|nattest.ACK, ""), false, false},
		{"a RST", tcp(stranger, exporter, 4000, 81, nattest.RST, ""), false, false},
		{"another pod", syn(stranger, hidden, 4000, 80), false, false},
		{"all ports of a protocol", udp(stranger, "10.200.1.70", 4000, 999), true, false},
		{"another protocol of these", syn(stranger, "10.200.1.70", 4000, 999), false, false},
		{"beside the prefix", udp(stranger, "10.200.1.128", 4000, 999), false, false},
		{"the protocol of a shorter prefix", udp(stranger, "10.200.1.80", 4000, 81), true, false},
		{"that of the longest prefix", syn(stranger, "10.200.1.80", 4000, 81), true, false},
		{"a ping", ping(stranger, "10.200.2.8", 8), true, false},
		{"a service", syn(stranger, "10.70.0.20", 4000, 80), true, false},
		{"another port of a service", syn(stranger, "10.70.0.20", 4000, 81), false, false},
		{"its backend", syn(stranger, "10.200.1.7", 4000, 8080), false, false},
		{"U", udp(stranger, "10.70.0.0", 53, 4000), false, false},
		{"no pod", udp(stranger, "10.200.77.1", 53, 4000), false, false},
		{"IPv6", syn(remoteReal6, "fd00:200:0:1::5", 4000, 80), true, false},
		{"another port over IPv6", syn(remoteReal6, "fd00:200:0:1::5", 4000, 81), false, false},
		{"another pod over IPv6", syn(remoteReal6, "fd00:200:0:1::6", 4000, 80), false, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e := engine(t, restricted)
			b := test.sent.Bytes()
			v, _ := process(t, e, nat.Tunnel, b, start)
			if test.let {
				if v.Action != nat.Forward || v.Untracked {
					t.Fatalf("%v %v, untracked %v", v.Action, v.Reason, v.Untracked)
				}
				return
			}
			want := packet.Prohibited
			if test.reset {
				want = packet.Reset
			}
			if body, ok := test.sent.Body.(nattest.TCP); ok && body.Flags&nattest.RST != 0 {
				want = packet.Reset // of which AppendError makes nothing
			}
			if v.Action != nat.Drop || v.Reason != nat.ReasonNotAdmitted || v.Refusal != want {
				t.Fatalf("%v %v, refusal %v", v.Action, v.Reason, v.Refusal)
			}
			if st := e.Stats(); st.Connections != 0 || st.Inbound.Dropped[nat.ReasonNotAdmitted] != 1 {
				t.Errorf("%d connections, %d counted", st.Connections, st.Inbound.Dropped[nat.ReasonNotAdmitted])
			}
			open := engine(t, func(c *nat.Config) { restricted(c); c.Admit = nil })
			if v, _ := process(t, open, nat.Tunnel, b, start); v.Reason == nat.ReasonNotAdmitted {
				t.Error("without admission, too")
			}
		})
	}
}

// TestAdmissionOfAnswers: what a cluster begins is answered, whatever is exported, and so are
// errors about it. A guess next to it is not, nor a SYN against its direction.
func TestAdmissionOfAnswers(t *testing.T) {
	for name, c := range map[string]struct{ call, answer, guess nattest.IP }{
		"TCP": {syn(hidden, strangerSeen, 4000, 80), tcp(stranger, hidden, 80, 4000, nattest.SYN|nattest.ACK, ""),
			tcp(stranger, hidden, 80, 4001, nattest.ACK, "x")},
		"UDP": {udp(hidden, strangerSeen, 4000, 53), udp(stranger, hidden, 53, 4000), udp(stranger, hidden, 54, 4000)},
		"SCTP": {sctp(hidden, strangerSeen, 4000, 700, 1), sctp(stranger, hidden, 700, 4000, 2),
			sctp(stranger, hidden, 700, 4001, 2)},
		"ping": {ping(hidden, strangerSeen, 8), ping(stranger, hidden, 0), ping(stranger, hidden, 8)},
		"U": {udp("203.0.113.9", strangerSeen, 4000, 53), udp(stranger, "10.70.0.0", 53, 4000),
			udp(stranger, "10.70.0.0", 53, 4001)},
		"from an exported port": {syn(exporter, strangerSeen, 80, 90),
			tcp(stranger, exporter, 90, 80, nattest.SYN|nattest.ACK, ""),
			tcp(stranger, exporter, 90, 81, nattest.SYN|nattest.ACK, "")},
	} {
		t.Run(name, func(t *testing.T) {
			e := engine(t, restricted)
			opened := name != "from an exported port" // to which everybody may answer
			if opened {
				v, _ := process(t, e, nat.Tunnel, c.answer.Bytes(), start)
				if v.Action != nat.Drop {
					t.Fatal("an answer comes before the call")
				}
			}
			_, out, sent := forwarded(t, e, node1, c.call.Bytes(), start)
			expect(t, out, out.Source.String(), stranger)
			forwarded(t, e, nat.Tunnel, c.answer.Bytes(), start)
			dropped(t, e, nat.Tunnel, c.guess.Bytes(), start, nat.ReasonNotAdmitted)
			unreachable := func(about []byte) []byte {
				return nattest.IP{Source: "192.0.2.1", Destination: out.Source.String(),
					Body: nattest.ICMP{Type: 3, Code: 1, Payload: about}}.Bytes()
			}
			forwarded(t, e, nat.Tunnel, unreachable(sent), start)
			other := udp(out.Source.String(), stranger, 4999, 9)
			dropped(t, e, nat.Tunnel, unreachable(other.Bytes()), start, nat.ReasonICMPUnrelated)
			ledger(t, e)
		})
	}
}

// TestAdmissionWithoutConnection: what may belong to a connection that others opened, and that the
// gateway does not know, opens none, so that it stays closed when its export goes. It passes if its
// answers are admitted anyway, or if it has none.
func TestAdmissionWithoutConnection(t *testing.T) {
	const behindU = "203.0.113.9"
	for _, c := range []struct {
		name   string
		in     nat.Link
		sent   nattest.IP
		passes bool
	}{
		{"a segment of an exporter", node1, tcp(exporter, strangerSeen, 80, 4000, nattest.ACK, "x"), true},
		{"a datagram of an exporter", node1, udp(exporter, strangerSeen, 53, 4000), true},
		{"data of an exporter over SCTP", node1, sctp(exporter, strangerSeen, 700, 4000, 0), true},
		{"a segment of another", node1, tcp(hidden, strangerSeen, 80, 4000, nattest.ACK, "x"), false},
		{"one from another port", node1, tcp(exporter, strangerSeen, 81, 4000, nattest.ACK, "x"), false},
		{"a FIN", node1, tcp(hidden, strangerSeen, 80, 4000, nattest.FIN|nattest.ACK, ""), false},
		{"a segment behind U", node1, tcp(behindU, strangerSeen, 80, 4000, nattest.ACK, "x"), false},
		{"a SYN-ACK", node1, tcp(hidden, strangerSeen, 80, 4000, nattest.SYN|nattest.ACK, ""), true},
		{"a RST", node1, tcp(hidden, strangerSeen, 80, 4000, nattest.RST, ""), true},
		{"a RST behind U", node1, tcp(behindU, strangerSeen, 80, 4000, nattest.RST, ""), false},
		{"the answer to a ping", node1, ping(hidden, strangerSeen, 0), true},
		{"an INIT ACK", node1, sctp(hidden, strangerSeen, 700, 4000, 2), true},
		{"a RST to an exporter", nat.Tunnel, tcp(stranger, exporter, 4000, 80, nattest.RST, ""), true},
	} {
		e := engine(t, restricted)
		v, _ := process(t, e, c.in, c.sent.Bytes(), start)
		if passed := v.Action == nat.Forward; passed != c.passes || passed != v.Untracked || !passed &&
			v.Reason != nat.ReasonNotAdmitted {
			t.Errorf("%s: %v %v, untracked %v", c.name, v.Action, v.Reason, v.Untracked)
		}
		if n := e.Stats().Connections; n != 0 {
			t.Errorf("%s: %d connections", c.name, n)
		}
	}
}

// TestAdmissionOfErrors: no ICMP error about a packet without a connection comes in, also about
// what an exporter could have sent, while without admission prefixes alone translate it.
func TestAdmissionOfErrors(t *testing.T) {
	for _, from := range []string{exporter, hidden} {
		quoted := udp(from, stranger, 53, 4000)
		about := nattest.IP{Source: "192.0.2.1", Destination: from, Body: nattest.ICMP{Type: 3, Code: 4, Rest: 1300,
			Payload: quoted.Bytes()}}
		dropped(t, engine(t, restricted), nat.Tunnel, about.Bytes(), start, nat.ReasonICMPUnrelated)
		forwarded(t, engine(t), nat.Tunnel, about.Bytes(), start)
		for i, piece := range nattest.Pieces(about, 24, 5) {
			if v, _ := process(t, engine(t, restricted), nat.Tunnel, piece, start); v.Action == nat.Forward {
				t.Errorf("fragment %d passes", i)
			}
		}
	}
}

// TestAdmissionOfTurns: the other end of a connection that began here cannot use its ports to begin
// one of its own once the connection has opened.
func TestAdmissionOfTurns(t *testing.T) {
	e := engine(t, restricted)
	turned := syn(stranger, hidden, 80, 4000)
	forwarded(t, e, node1, syn(hidden, strangerSeen, 4000, 80).Bytes(), start)
	forwarded(t, e, nat.Tunnel, turned.Bytes(), start) // a simultaneous open
	e = engine(t, restricted)
	handshake(t, e, node1, hidden, 4000, start)
	dropped(t, e, nat.Tunnel, turned.Bytes(), start, nat.ReasonNotAdmitted)
	forwarded(t, e, nat.Tunnel, tcp(stranger, hidden, 80, 4000, nattest.ACK, "x").Bytes(), start)
	forwarded(t, e, node1, tcp(hidden, strangerSeen, 4000, 80, nattest.RST|nattest.ACK, "").Bytes(), start)
	dropped(t, e, nat.Tunnel, turned.Bytes(), start, nat.ReasonNotAdmitted)
	need.NoError(t, e.Admit(nil, []rules.Endpoint{endpoint(hidden+"/32", packet.TCP, 4000)}))
	forwarded(t, e, nat.Tunnel, turned.Bytes(), start)
}

// TestAdmissionOfFragments: the first fragment decides about all, in any order, and those whose
// first one nobody has seen do not pass, even if there is no room for them to wait.
func TestAdmissionOfFragments(t *testing.T) {
	big := func(to string, port uint16) [][]byte {
		return nattest.Pieces(nattest.IP{Source: stranger, Destination: to, Body: nattest.UDP{SourcePort: 4000,
			DestinationPort: port, Payload: nattest.Payload(3000, 1)}}, 1000, 1)
	}
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 0, 3, 2}} {
		for _, c := range []struct {
			to   string
			port uint16
			let  int
		}{{exporter, 53, 4}, {exporter, 54, 0}, {hidden, 53, 0}} {
			e := engine(t, restricted)
			all, passed := big(c.to, c.port), 0
			for _, i := range order {
				v, out := process(t, e, nat.Tunnel, all[i], start)
				passed += len(out)
				for range v.Held {
					var p packet.Packet
					if v, ok := e.Release(&p, make([]byte, 2048), nat.Tunnel, start); ok && v.Action == nat.Forward {
						passed++
					}
				}
			}
			if passed != c.let {
				t.Errorf("%s port %d in order %v: %d fragments pass, want %d", c.to, c.port, order, passed, c.let)
			}
			ledger(t, e)
		}
	}
	e := engine(t, restricted)
	for i := range 3000 { // until some must give up their places
		for _, to := range []string{exporter, hidden, "10.200.1.70"} {
			late := udp(stranger, to, 4000, 53)
			late.Body = nattest.UDP{SourcePort: 4000, DestinationPort: 53, Payload: nattest.Payload(3000, 1)}
			piece := nattest.Pieces(late, 1000, uint32(i))[1]
			if v, _ := process(t, e, nat.Tunnel, piece, start); v.Action == nat.Forward {
				t.Fatalf("later fragment %d to %s passes without a first one", i, to)
			}
		}
	}
	large := nattest.Pieces(nattest.IP{Source: stranger, Destination: exporter, Body: nattest.UDP{SourcePort: 4000,
		DestinationPort: 53, Payload: nattest.Payload(6000, 1)}}, 2400, 1)[1]
	dropped(t, e, nat.Tunnel, large, start, nat.ReasonFragmentLimit) // too large to wait
}

// TestWithdrawal: what is withdrawn closes at once. TCP is reset at both ends; other protocols get
// nothing through in either direction, so the server cannot open its connections again by going on
// to send. What began here goes on, and so does the rest. If the export comes back, the connections
// may go on.
func TestWithdrawal(t *testing.T) {
	withdrawn := []rules.Endpoint{endpoint(exporter+"/32", packet.TCP, 80),
		endpoint(exporter+"/32", packet.UDP, 53), endpoint(exporter+"/32", packet.SCTP, 700)}
	for name, withdraw := range map[string]func(e *nat.Engine) error{
		"by Admit": func(e *nat.Engine) error { return e.Admit(withdrawn, nil) },
		"by Apply": func(e *nat.Engine) error {
			c := rome()
			restricted(c)
			c.Admit = c.Admit[3:]
			return e.Apply(c)
		},
		"from all to few": func(e *nat.Engine) error {
			c := rome()
			restricted(c)
			c.Admit = nil
			need.NoError(t, e.Apply(c))
			restricted(c)
			c.Admit = c.Admit[3:]
			return e.Apply(c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := engine(t, restricted)
			forwarded(t, e, nat.Tunnel, syn(stranger, exporter, 4000, 80).Bytes(), start)
			forwarded(t, e, node1, tcp(exporter, strangerSeen, 80, 4000, nattest.SYN|nattest.ACK, "").Bytes(), start)
			forwarded(t, e, nat.Tunnel, tcp(stranger, exporter, 4000, 80, nattest.ACK, "x").Bytes(), start)
			forwarded(t, e, nat.Tunnel, udp(stranger, exporter, 4000, 53).Bytes(), start)
			forwarded(t, e, node1, udp(exporter, strangerSeen, 53, 4000).Bytes(), start)
			forwarded(t, e, nat.Tunnel, sctp(stranger, exporter, 4000, 700, 1).Bytes(), start)
			forwarded(t, e, nat.Tunnel, syn(stranger, "10.70.0.20", 4000, 80).Bytes(), start)
			handshake(t, e, node1, hidden, 4000, start)
			forwarded(t, e, node1, udp(exporter, strangerSeen, 5000, 53).Bytes(), start)
			need.NoError(t, withdraw(e))

			now := start
			for range 10 {
				for _, b := range [][]byte{
					tcp(stranger, exporter, 4000, 80, nattest.ACK, "x").Bytes(),
					syn(stranger, exporter, 4001, 80).Bytes(),
					udp(stranger, exporter, 4000, 53).Bytes(), udp(stranger, exporter, 4001, 53).Bytes(),
					sctp(stranger, exporter, 4000, 700, 0).Bytes(), ping(stranger, exporter, 8).Bytes(),
				} {
					dropped(t, e, nat.Tunnel, b, now, nat.ReasonNotAdmitted)
				}
				v := dropped(t, e, node1, tcp(exporter, strangerSeen, 80, 4000, nattest.ACK, "y").Bytes(), now,
					nat.ReasonNotAdmitted)
				if v.Refusal != packet.Reset {
					t.Errorf("the server of TCP gets %v", v.Refusal)
				}
				v = dropped(t, e, node1, udp(exporter, strangerSeen, 53, 4000).Bytes(), now, nat.ReasonNotAdmitted)
				if v.Refusal != packet.Prohibited {
					t.Errorf("the server of UDP gets %v", v.Refusal)
				}
				dropped(t, e, node1, sctp(exporter, strangerSeen, 700, 4000, 0).Bytes(), now, nat.ReasonNotAdmitted)
				now = now.Add(25 * time.Second) // longer than the timeouts in all
				for !e.Sweep(now) {
				}
				forwarded(t, e, nat.Tunnel, tcp(stranger, hidden, 80, 4000, nattest.ACK, "x").Bytes(), now)
				forwarded(t, e, nat.Tunnel, udp(stranger, exporter, 53, 5000).Bytes(), now)
				forwarded(t, e, nat.Tunnel, tcp(stranger, "10.70.0.20", 4000, 80, nattest.ACK, "x").Bytes(), now)
			}
			ledger(t, e)
			if name == "by Admit" {
				need.NoError(t, e.Admit(nil, withdrawn))
			} else {
				c := rome()
				restricted(c)
				need.NoError(t, e.Apply(c))
			}
			forwarded(t, e, node1, udp(exporter, strangerSeen, 53, 4000).Bytes(), now)
			forwarded(t, e, nat.Tunnel, udp(stranger, exporter, 4000, 53).Bytes(), now)
			forwarded(t, e, nat.Tunnel, tcp(stranger, exporter, 4000, 80, nattest.ACK, "x").Bytes(), now)
			forwarded(t, e, node1, tcp(exporter, strangerSeen, 80, 4000, nattest.ACK, "y").Bytes(), now)
		})
	}
}

// TestWithdrawnService: a service that is no more closes too, whatever its onRemoval says, and its
// backend cannot go on under its own address or under U.
func TestWithdrawnService(t *testing.T) {
	for _, backend := range []string{"10.200.1.7", "192.0.2.10"} {
		for _, protocol := range []uint8{packet.TCP, packet.UDP} {
			with := func(c *nat.Config) {
				restricted(c)
				c.Services[0].Protocol = protocol
				c.Services[0].Backends = []rules.Backend{{Address: address(backend), Port: 8080}}
				if backend == "192.0.2.10" {
					c.Services[0].Backends[0].Via = node1
				}
			}
			call, answer, push := syn(stranger, "10.70.0.20", 4000, 80),
				tcp(backend, strangerSeen, 8080, 4000, nattest.SYN|nattest.ACK, ""),
				tcp(backend, strangerSeen, 8080, 4000, nattest.ACK, "more")
			if protocol == packet.UDP {
				call, answer = udp(stranger, "10.70.0.20", 4000, 80), udp(backend, strangerSeen, 8080, 4000)
				push = answer
			}
			e := engine(t, with)
			forwarded(t, e, nat.Tunnel, call.Bytes(), start)
			_, out, _ := forwarded(t, e, node1, answer.Bytes(), start)
			expect(t, out, "10.70.0.20", stranger)
			c := rome()
			with(c)
			c.Services = nil
			need.NoError(t, e.Apply(c))
			for range 2 {
				dropped(t, e, node1, push.Bytes(), start, nat.ReasonNotAdmitted)
				dropped(t, e, nat.Tunnel, call.Bytes(), start, nat.ReasonNotAdmitted)
			}
		}
	}
}

// TestAdmissionWithoutRoom: the other cluster fills its share of the table, and what begins here
// finds room still. In a full table, what begins here is dropped, because its answers could not
// come in.
func TestAdmissionWithoutRoom(t *testing.T) {
	e := engine(t, func(c *nat.Config) { restricted(c); c.MaxConnections = 300 })
	for i := range 3000 {
		process(t, e, nat.Tunnel, udp(fmt.Sprintf("10.200.%d.%d", i/250, i%250), exporter, 4000, 53).Bytes(), start)
	}
	forwarded(t, e, node1, udp(hidden, strangerSeen, 4000, 53).Bytes(), start)
	forwarded(t, e, nat.Tunnel, udp(stranger, hidden, 53, 4000).Bytes(), start)
	if st := e.Stats(); st.Inbound.Untracked != 0 {
		t.Errorf("%d packets of a flood passed without a connection", st.Inbound.Untracked)
	}
	e = engine(t, func(c *nat.Config) { restricted(c); c.MaxConnections = 1 })
	handshake(t, e, node1, hidden, 4000, start)
	v, _ := process(t, e, node1, udp(hidden, strangerSeen, 4000, 53).Bytes(), start)
	if v.Action != nat.Drop || v.Reason != nat.ReasonTableFull {
		t.Errorf("without room, what begins here: %v %v", v.Action, v.Reason)
	}
	v, _ = process(t, e, nat.Tunnel, udp(stranger, exporter, 4000, 53).Bytes(), start)
	if v.Action != nat.Drop || v.Reason != nat.ReasonTableFull {
		t.Errorf("without room, what begins there: %v %v", v.Action, v.Reason)
	}
	forwarded(t, e, node1, tcp(exporter, strangerSeen, 80, 4000, nattest.ACK, "y").Bytes(), start)
}

// TestAdmissionRestored: another process goes on with all connections of pods, with those that
// began here, and with what it must not let begin again.
func TestAdmissionRestored(t *testing.T) {
	e := engine(t, restricted)
	handshake(t, e, node1, hidden, 4000, start)
	forwarded(t, e, node1, udp(hidden, strangerSeen, 4000, 53).Bytes(), start)
	forwarded(t, e, nat.Tunnel, udp(stranger, exporter, 4000, 53).Bytes(), start)
	forwarded(t, e, nat.Tunnel, syn(stranger, exporter, 4000, 80).Bytes(), start)
	fewer := func(c *nat.Config) { restricted(c); c.Admit = c.Admit[2:] }
	for name, next := range map[string]*nat.Engine{"records": engine(t, fewer), "a mirror": engine(t, fewer)} {
		if name == "records" {
			if r := restore(next, start, records(e, 0, start)); r.Connections != 3 || r.Unbound != 1 {
				t.Errorf("%+v", r)
			}
		} else {
			m := next.Mirror(recordLink)
			m.Write(write(e.Feed(recordName), start), start)
			m.Close()
		}
		forwarded(t, next, nat.Tunnel, tcp(stranger, hidden, 80, 4000, nattest.ACK, "x").Bytes(), start)
		forwarded(t, next, nat.Tunnel, udp(stranger, hidden, 53, 4000).Bytes(), start)
		dropped(t, next, node1, udp(exporter, strangerSeen, 53, 4000).Bytes(), start, nat.ReasonNotAdmitted)
		dropped(t, next, nat.Tunnel, udp(stranger, exporter, 4000, 53).Bytes(), start, nat.ReasonNotAdmitted)
		dropped(t, next, node1, tcp(exporter, strangerSeen, 80, 4000, nattest.ACK, "y").Bytes(), start,
			nat.ReasonNotAdmitted)
	}
}

// TestAdmissionFed: when admission begins, a Feed sends the connections between pods that it did
// not send before.
func TestAdmissionFed(t *testing.T) {
	open := func(c *nat.Config) { restricted(c); c.Admit = nil }
	e, next := engine(t, open), engine(t, restricted)
	feed, m := e.Feed(recordName), next.Mirror(recordLink)
	handshake(t, e, node1, hidden, 4000, start)
	m.Write(write(feed, start), start)
	if n := next.Stats().Connections; n != 0 {
		t.Fatalf("%d connections that need no copy", n)
	}
	c := rome()
	restricted(c)
	need.NoError(t, e.Apply(c))
	for !e.Sweep(start) {
	}
	m.Write(write(feed, start), start)
	forwarded(t, next, nat.Tunnel, tcp(stranger, hidden, 80, 4000, nattest.ACK, "x").Bytes(), start)
}

// TestAdmissionModel: whatever two clusters send, and however exports change, a packet of the other
// one comes in only to what is exported now, or over what began here. A connection counts as begun
// where its first packet came from, and as over when it has been refused; while it is refused, no
// packet leaves that could begin it here.
func TestAdmissionModel(t *testing.T) {
	type flow struct {
		protocol   uint8
		pod        int
		port, from uint16
	}
	pods := []string{exporter, hidden, "10.200.1.7"}
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		e := engine(t, func(c *nat.Config) { dual(c); c.Admit = []rules.Endpoint{} })
		exported, begun := map[rules.Endpoint]bool{}, map[flow]string{}
		for step := range 3000 {
			f := flow{packet.TCP, r.IntN(len(pods)), uint16(80 + r.IntN(2)), uint16(4000 + r.IntN(2))}
			if r.IntN(2) == 0 {
				f.protocol = packet.UDP
			}
			x := endpoint(pods[f.pod]+"/32", f.protocol, f.port)
			if r.IntN(12) == 0 {
				var none, some = []rules.Endpoint(nil), []rules.Endpoint{x}
				if exported[x] {
					none, some = some, none
				}
				need.NoError(t, e.Admit(none, some))
				exported[x] = !exported[x]
				continue
			}
			in, source, destination, sport, dport := nat.Tunnel, stranger, pods[f.pod], f.from, f.port
			if r.IntN(2) == 0 {
				in, source, destination, sport, dport = node1, pods[f.pod], strangerSeen, f.port, f.from
			}
			flags := []uint8{nattest.SYN, nattest.SYN | nattest.ACK, nattest.ACK, nattest.ACK, nattest.RST}[r.IntN(5)]
			p := tcp(source, destination, sport, dport, flags, "")
			if f.protocol == packet.UDP {
				p = udp(source, destination, sport, dport)
			}
			v, _ := process(t, e, in, p.Bytes(), start)
			passed := v.Action == nat.Forward
			switch {
			case !passed && begun[f] == "there" && f.protocol == packet.TCP:
				delete(begun, f)
			case in == nat.Tunnel && passed:
				if !exported[x] && begun[f] != "here" {
					t.Fatalf("seed %d, step %d: %+v comes in, begun %q", seed, step, f, begun[f])
				}
				if begun[f] == "" && !v.Untracked {
					begun[f] = "there"
				}
			case in == nat.Tunnel && (exported[x] || begun[f] == "here" && flags != nattest.SYN):
				t.Fatalf("seed %d, step %d: %+v is refused: %v", seed, step, f, v.Reason)
			case in == node1 && passed && begun[f] == "there" && !exported[x] && f.protocol == packet.UDP:
				t.Fatalf("seed %d, step %d: %+v leaves", seed, step, f)
			case in == node1 && passed && !v.Untracked && (begun[f] == "" || begun[f] == "there" && !exported[x]):
				if f.protocol == packet.TCP && flags != nattest.SYN {
					t.Fatalf("seed %d, step %d: %+v begins in mid-stream", seed, step, f)
				}
				begun[f] = "here"
			}
		}
		ledger(t, e)
	}
}

// TestAdmitRefuses: a change of exports that is wrong, or of none, has no effect.
func TestAdmitRefuses(t *testing.T) {
	if engine(t).Admit(nil, []rules.Endpoint{endpoint("10.200.1.5/32", packet.TCP, 80)}) == nil {
		t.Error("admission begins by Admit")
	}
	e := engine(t, restricted)
	for _, x := range []rules.Endpoint{{}, endpoint("10.200.1.5/24", packet.TCP, 80), endpoint(hidden+"/32", 0, 80),
		endpoint(hidden+"/32", packet.ICMP, 80)} {
		if e.Admit(nil, []rules.Endpoint{endpoint(hidden+"/32", packet.TCP, 80), x}) == nil {
			t.Errorf("%+v is admitted", x)
		}
		c := rome()
		if c.Admit = []rules.Endpoint{x}; nat.Check(c) == nil {
			t.Errorf("%+v is no fault of a Config", x)
		}
	}
	dropped(t, e, nat.Tunnel, syn(stranger, hidden, 4000, 80).Bytes(), start, nat.ReasonNotAdmitted)
	c := rome()
	twice := endpoint(hidden+"/32", packet.TCP, 80)
	if c.Admit = []rules.Endpoint{twice, twice}; nat.Check(c) == nil {
		t.Error("the same one twice")
	}
}

// TestAdmissionAllocates: neither a packet that is admitted nor one that is not costs the heap
// anything.
func TestAdmissionAllocates(t *testing.T) {
	e := engine(t, restricted)
	for _, b := range [][]byte{syn(stranger, exporter, 4000, 80).Bytes(), syn(stranger, hidden, 4000, 80).Bytes()} {
		var p packet.Packet
		work := make([]byte, len(b))
		if n := testing.AllocsPerRun(100, func() {
			copy(work, b)
			p.Parse(work)
			e.Process(&p, nat.Tunnel, start)
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}
