package nat_test

import (
	"bytes"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// busy returns an engine with connections of every kind, which fuzzed packets may match.
func busy(t testing.TB) *nat.Engine {
	e := engine(t, func(c *nat.Config) {
		c.Addresses = []rules.AddressMapping{{External: address("10.70.0.9"),
			Internal: address("192.0.2.10"), Via: node2}}
		c.Services = []rules.Service{service(rules.Backend{Address: address("10.200.1.5"), Port: 8080})}
		c.Addresses = append(c.Addresses, rules.AddressMapping{External: address("10.70.0.11"),
			Internal: address("192.0.2.11"), Via: node2, ProxyProtocol: true})
		c.Rules = []rules.FilterRule{{Name: "no-telnet", Protocol: 6, Ports: []rules.PortRange{{First: 23, Last: 23}},
			Action: rules.FilterReject}}
	})
	for _, source := range []string{"10.200.1.5", "203.0.113.9", "10.70.0.0"} {
		for _, body := range nattest.Bodies(false) {
			process(t, e, node1, nattest.IP{Source: source, Destination: "10.71.3.9", Body: body}.Bytes(), start)
		}
	}
	for _, body := range nattest.Bodies(true) {
		process(t, e, node1, nattest.IP{Source: "fd00:200:0:1::5", Destination: "fd00:71:0:4000::9",
			Body: body}.Bytes(), start)
	}
	for _, to := range []string{"10.200.1.5", "10.70.0.9", "10.70.0.20", "10.70.0.11"} {
		process(t, e, nat.Tunnel, tcp("10.200.3.9", to, 40000, 80, nattest.SYN, "").Bytes(), start)
	}
	return e
}

// examples are packets to start from.
func examples() [][]byte {
	var all [][]byte
	for _, v6 := range []bool{false, true} {
		for _, body := range nattest.Bodies(v6) {
			p := nattest.IP{Source: "203.0.113.9", Destination: "10.71.3.9", ID: 7, Options: []byte{148, 4, 0,
				0}, Body: body}
			if v6 {
				p = nattest.IP{Source: "fd00:200:0:1::5", Destination: "fd00:71:0:4000::9", First: 60,
					Extensions: [][]byte{{0, 0, 1, 4, 0, 0, 0, 0}}, Body: body}
			}
			all = append(all, p.Bytes())
		}
	}
	big := nattest.IP{Source: pod6, Destination: remote6, Body: nattest.UDP{SourcePort: 1, DestinationPort: 2,
		Payload: make([]byte, 1000)}}
	all = append(all, nattest.Pieces(big, 400, 9)...)
	all = append(all, tooBig(1280, tcp(pod6, remoteReal6, 40000, 80, nattest.ACK, "x")))
	quoted := tcp("10.70.0.0", "10.200.3.9", 40000, 80, nattest.ACK, "x").Bytes()
	return append(all,
		nattest.IP{Source: "192.0.2.1", Destination: "10.70.0.0", Body: nattest.ICMP{Type: 3, Code: 4, Rest: 1280,
			Payload: quoted}}.Bytes(),
		nattest.IP{Source: "203.0.113.9", Destination: "10.71.3.9", MF: true,
			Body: nattest.UDP{Payload: make([]byte, 16)}}.Bytes(),
		nattest.IP{Source: "203.0.113.9", Destination: "10.71.3.9", Offset: 24, Body: nattest.Raw{Protocol: 17,
			Payload: make([]byte, 16)}}.Bytes(),
		nattest.IP{Source: "203.0.113.9", Destination: "10.71.3.9", Body: nattest.TCP{Flags: nattest.SYN,
			Options: []byte{2, 4, 5, 180, 1, 3, 3, 7}}}.Bytes(),
		nattest.IP{Source: "203.0.113.9", Destination: "10.71.3.9", Body: nattest.TCP{Flags: nattest.ACK,
			Payload: make([]byte, 5000), Partial: true}}.Bytes(),
		nattest.IP{Source: "203.0.113.9", Destination: "10.71.3.9",
			Body: nattest.UDP{Payload: make([]byte, 5000)}}.Bytes(),
	)
}

// sound reports whether a correct sender could make a packet, so that the result must be correct
// too.
func sound(b []byte) bool {
	v, err := nattest.Check(b)
	if err != nil {
		if v, err = nattest.CheckPartial(b); err != nil || v.Protocol != 6 && v.Protocol != 17 {
			return false
		}
	}
	// nattest does not check their sums.
	return v.Protocol != 33 && v.Protocol != 136
}

// FuzzPacket sends any bytes through Parse, Process, AppendError and the Cutter. Nothing may panic;
// packets that are not forwarded stay unchanged; the result of a sound packet, except its
// fragments, is sound; the ledger balances.
func FuzzPacket(f *testing.F) {
	for i, b := range examples() {
		f.Add(b, uint8(i), uint16(i*100))
	}
	f.Fuzz(func(t *testing.T, b []byte, in uint8, segment uint16) {
		e := busy(t)
		links := [...]nat.Link{nat.Tunnel, node1, node2}
		from := links[int(in)%len(links)]
		work := bytes.Clone(b)
		var p packet.Packet
		fault := p.Parse(work)
		if !bytes.Equal(work, b) {
			t.Fatal("Parse changed the packet")
		}
		p.SegmentSize = int(segment)
		v := e.Process(&p, from, start)
		if fault != packet.NoFault && (v.Action != nat.Drop || v.Reason != reasonOf[fault]) {
			t.Fatalf("parsed as %v, then %v %v", fault, v.Action, v.Reason)
		}
		if v.Action != nat.Forward {
			if !bytes.Equal(work, b) {
				t.Fatalf("%v changed the packet", v.Action)
			}
			if a := e.AppendError(nil, &p, from, v, start); a != nil {
				if _, err := nattest.Check(a); err != nil {
					t.Fatalf("answer: %v", err)
				}
			}
			ledger(t, e)
			return
		}
		before := sound(b[:len(p.Bytes())])
		out := cut(t, &p, v)
		if len(out) != v.Packets {
			t.Fatalf("%d packets, the verdict says %d", len(out), v.Packets)
		}
		whole := out
		if v.MTU > 0 && segment == 0 {
			whole = [][]byte{nattest.Reassemble(out)}
		}
		for _, o := range whole {
			if o == nil || !before || v.MTU > 0 {
				continue
			}
			if _, err := nattest.Check(o); err != nil {
				t.Fatalf("%v\nin  %x\nout %x", err, b, o)
			}
		}
		ledger(t, e)
	})
}

// FuzzQuoted puts any bytes into ICMP errors from both sides.
func FuzzQuoted(f *testing.F) {
	for i, b := range examples() {
		f.Add(b, uint8(i), uint8(3), uint8(i))
		f.Add(b, uint8(i), uint8(2), uint8(0))
	}
	for _, body := range nattest.Bodies(true) { // as they are quoted beyond the tunnel and beyond a node
		f.Add(nattest.IP{Source: pod6, Destination: remoteReal6, Body: body}.Bytes(), uint8(0), uint8(1), uint8(4))
		f.Add(nattest.IP{Source: remote6, Destination: pod6, Body: body}.Bytes(), uint8(1), uint8(3), uint8(0))
	}
	f.Fuzz(func(t *testing.T, quoted []byte, in, kind, code uint8) {
		if len(quoted) > 1200 {
			return
		}
		e := busy(t)
		from, p := nat.Tunnel, nattest.IP{Source: "192.0.2.1", Destination: "10.70.0.0"}
		if in%2 == 1 {
			from, p = node1, nattest.IP{Source: "10.80.0.2", Destination: "10.71.3.9"}
		}
		if len(quoted) > 20 && quoted[0]>>4 == 4 {
			p.Destination = netipFrom4(quoted[12:16])
		}
		if len(quoted) > 40 && quoted[0]>>4 == 6 {
			if p.Source = "2001:db8::1"; in%2 == 1 {
				p.Source = "fd80::2"
			}
			p.Destination = netipFrom16(quoted[8:24])
		}
		p.Body = nattest.ICMP{Type: kind, Code: code, Payload: quoted}
		v, out := process(t, e, from, p.Bytes(), start)
		if v.Action == nat.Forward {
			if _, err := nattest.Check(out[0]); err != nil {
				t.Fatal(err)
			}
		}
		ledger(t, e)
	})
}

// FuzzSequence reads its input as packets of both sides in virtual time. Every packet that leaves
// for the tunnel is answered at once, and the answer must come back to the packet's source.
func FuzzSequence(f *testing.F) {
	f.Add([]byte("0123456789abcdefghijklmnopqrstuvwxyz"))
	f.Add(bytes.Repeat([]byte{0, 1, 2, 3, 4, 5, 255, 254}, 40))
	f.Add(nattest.Payload(600, 7))
	f.Fuzz(playSequence)
}

func playSequence(t *testing.T, ops []byte) {
	if len(ops) > 6*100 {
		return
	}
	e := engine(t, dual, func(c *nat.Config) {
		c.MaxConnections = 40
		c.Addresses = []rules.AddressMapping{{External: address("10.70.0.9"),
			Internal: address("192.0.2.10"), Via: node2}}
	})
	now := start
	locals := []string{"10.200.1.5", "203.0.113.9", "10.70.0.0", "192.0.2.10", "10.80.0.2", "10.200.2.9", pod6,
		"2001:db8::9"}
	remotes := map[string]string{"10.71.3.9": "10.200.3.9", "10.72.49.9": "10.64.1.9", "10.99.70.1": "10.99.70.1",
		remote6: remoteReal6}
	seen := []string{"10.71.3.9", "10.72.49.9", "10.99.70.1"}
	for ; len(ops) >= 6; ops = ops[6:] {
		now = now.Add(time.Duration(ops[0]) * time.Duration(ops[0]) * time.Millisecond)
		local, to := locals[int(ops[1])%len(locals)], seen[int(ops[2])%len(seen)]
		v6 := address(local).Is6()
		if v6 {
			to = remote6
		}
		port := uint16(2000 + int(ops[3])%3)
		payload := nattest.Payload(int(ops[5])*8, uint32(ops[5]))
		var body nattest.Body
		switch ops[4] % 6 {
		case 0:
			body = nattest.UDP{SourcePort: port, DestinationPort: 53, Payload: payload}
		case 1:
			body = nattest.TCP{SourcePort: port, DestinationPort: 80, Flags: ops[5], Seq: uint32(ops[3]),
				Payload: payload[:len(payload)/2]}
		case 2:
			if body = (nattest.ICMP{Type: 8, Rest: uint32(port) << 16}); v6 {
				body = nattest.ICMP{Type: 128, Rest: uint32(port) << 16}
			}
		case 3:
			body = nattest.SCTP{SourcePort: port, DestinationPort: 9, Chunks: []byte{ops[5], 0, 0, 4}}
		case 4:
			body = nattest.TCP{SourcePort: port, DestinationPort: 80, Flags: nattest.ACK, Payload: nattest.Payload(5000,
				1), Partial: true}
		case 5:
			if ops[5]%8 > 1 {
				continue
			}
			c := rome()
			dual(c)
			c.MaxConnections = 40
			if ops[5]%2 == 0 {
				c.UnknownSource = rules.PairOf(address("10.70.0.1"), address("fd00:70::1"))
			}
			need.NoError(t, e.Apply(c))
			e.Sweep(now)
			continue
		}
		if ops[4]&0x80 != 0 {
			p := nattest.IP{Source: remotes[to], Destination: local, Body: body}
			process(t, e, nat.Tunnel, p.Bytes(), now)
			continue
		}
		in := []nat.Link{node1, node2}[ops[4]>>6&1]
		p := nattest.IP{Source: local, Destination: to, Body: body}
		v, out := process(t, e, in, p.Bytes(), now)
		if v.Action != nat.Forward || v.Untracked {
			continue
		}
		view, err := nattest.Check(out[0])
		if err != nil || v.Out != nat.Tunnel {
			t.Fatal(v.Out, err)
		}
		answerTo(t, e, p, view, now)
	}
	ledger(t, e)
}

// answerTo sends an answer to a packet that left for the tunnel.
func answerTo(t *testing.T, e *nat.Engine, p nattest.IP, view nattest.View, now nat.Time) {
	t.Helper()
	answer := nattest.IP{Source: view.Destination.String(), Destination: view.Source.String()}
	switch b := p.Body.(type) {
	case nattest.UDP:
		answer.Body = nattest.UDP{SourcePort: view.DestinationPort, DestinationPort: view.SourcePort}
	case nattest.TCP:
		answer.Body = nattest.TCP{SourcePort: view.DestinationPort, DestinationPort: view.SourcePort,
			Flags: b.Flags &^ nattest.RST, Seq: b.Ack, Ack: b.Seq}
	case nattest.ICMP:
		answer.Body = nattest.ICMP{Type: map[bool]uint8{true: 129}[view.Source.Is6()],
			Rest: uint32(view.SourcePort) << 16}
	case nattest.SCTP:
		answer.Body = nattest.SCTP{SourcePort: view.DestinationPort, DestinationPort: view.SourcePort, Tag: 1}
	}
	v, back := process(t, e, nat.Tunnel, answer.Bytes(), now)
	if v.Action != nat.Forward {
		t.Fatalf("the answer to %s > %s: %v %v", p.Source, p.Destination, v.Action, v.Reason)
	}
	got, err := nattest.Check(back[0])
	need.NoError(t, err)
	expect(t, got, p.Destination, p.Source)
	if want, _ := nattest.Check(p.Bytes()); got.DestinationPort != want.SourcePort ||
		got.SourcePort != want.DestinationPort {
		// A super-frame has ports, but no finished checksum.
		t.Fatalf("the answer has ports %d > %d, want %d > %d", got.SourcePort, got.DestinationPort,
			want.DestinationPort, want.SourcePort)
	}
}
