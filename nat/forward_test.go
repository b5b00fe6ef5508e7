package nat_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// A super-frame is cut into segments that a receiver can reassemble.
func TestSuperFrame(t *testing.T) {
	timestamps := []byte{1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8}
	for _, v6 := range []bool{false, true} {
		for _, options := range [][]byte{nil, timestamps} {
			for _, size := range []int{1, 1299, 1300, 1301, 2600, 65260} {
				for _, flags := range []uint8{nattest.ACK, nattest.ACK | nattest.PSH | nattest.FIN | nattest.CWR |
					nattest.ECE} {
					t.Run(fmt.Sprintf("v6=%t/options=%d/%d/%#x", v6, len(options), size, flags), func(t *testing.T) {
						body := nattest.TCP{SourcePort: 40000, DestinationPort: 443, Seq: 0xffffff00, Ack: 7,
							Flags: flags, Window: 99,
							Options: options, Payload: nattest.Payload(min(size, 65320-60-len(options)), 5),
							Partial: true}
						p := nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", ID: 0xfffe, DF: true,
							TOS: 2, Body: body}
						head := 20
						if v6 {
							p.Source, p.Destination, head = "fd00:200:0:1::5", "fd00:71:0:4000::9", 40
						}
						e := engine(t)
						v, out := process(t, e, node1, p.Bytes(), start)
						if v.Action != nat.Forward {
							t.Fatal(v.Reason)
						}
						segment := 1340 - head - 20 - len(options)
						var stream []byte
						for i, b := range out {
							got, _ := nattest.Check(b)
							first, last := i == 0, i == len(out)-1
							if len(b) > 1340 || !last && len(got.Payload) != segment {
								t.Fatalf("segment %d: %d bytes, payload %d", i, len(b), len(got.Payload))
							}
							want := flags
							if !first {
								want &^= nattest.CWR
							}
							if !last {
								want &^= nattest.FIN | nattest.PSH
							}
							if got.Flags != want || got.Seq != 0xffffff00+uint32(i*segment) || got.Ack != 7 ||
								!bytes.Equal(got.Options, options) || got.TOS != 2 {
								t.Fatalf("segment %d: %+v", i, got)
							}
							if !v6 && got.ID != 0xfffe+uint16(i) {
								t.Fatalf("segment %d: ID %#x", i, got.ID)
							}
							stream = append(stream, got.Payload...)
						}
						if !bytes.Equal(stream, body.Payload) {
							t.Fatal("the segments hold other bytes")
						}
						if d := e.Stats().Outbound; d.Received != uint64(len(out)) || d.Forwarded != d.Received {
							t.Fatalf("counted %d received, %d forwarded of %d", d.Received, d.Forwarded, len(out))
						}
					})
				}
			}
		}
	}
}

// Packets that are too big and not super-frames are refused with the MTU, or fragmented if the
// sender allows it.
func TestTooBig(t *testing.T) {
	body := func(n int) nattest.Body {
		return nattest.UDP{SourcePort: 1, DestinationPort: 2, Payload: nattest.Payload(n, 4)}
	}
	tests := []struct {
		name   string
		p      nattest.IP
		pieces int // 0 = refused
	}{
		{"fits", nattest.IP{DF: true, Body: body(1340 - 28)}, 1},
		{"IPv4 with DF", nattest.IP{DF: true, Body: body(1340 - 27)}, 0},
		{"IPv4 TCP with a finished checksum", nattest.IP{DF: true, Body: nattest.TCP{Payload: make([]byte, 1400)}}, 0},
		{"IPv6", nattest.IP{Source: "fd00:200:0:1::5", Destination: "fd00:71:0:4000::9", Body: body(1340)}, 0},
		{"IPv4 without DF", nattest.IP{ID: 9, Body: body(1340 - 27)}, 2},
		{"partial", nattest.IP{ID: 9, Body: nattest.UDP{SourcePort: 1, Payload: nattest.Payload(5000, 1),
			Partial: true}}, 4},
		{"largest", nattest.IP{ID: 9, Body: body(65507)}, 50},
		{"options", nattest.IP{ID: 9, Options: []byte{1, 7, 3, 0, 148, 4, 0, 0}, Body: body(2600)}, 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := test.p
			if p.Source == "" {
				p.Source, p.Destination = "10.200.1.5", "10.71.3.9"
			}
			e := engine(t)
			if test.pieces == 0 {
				if v := dropped(t, e, node1, p.Bytes(), start, nat.ReasonTooBig); v.Refusal != packet.TooBig ||
					v.MTU != 1340 {
					t.Fatalf("%+v", v)
				}
				return
			}
			v, out := process(t, e, node1, p.Bytes(), start)
			if v.Action != nat.Forward || len(out) != test.pieces {
				t.Fatalf("%v %v, %d packets, want %d", v.Action, v.Reason, len(out), test.pieces)
			}
			if test.pieces == 1 {
				return
			}
			checkFragments(t, out, p, p.ID)
		})
	}
}

// checkFragments verifies that out are fragments of at most 1340 bytes of p after translation, with
// each option where it belongs.
func checkFragments(t *testing.T, out [][]byte, p nattest.IP, id uint16) {
	t.Helper()
	for i, b := range out {
		v, _ := nattest.Check(b)
		if len(b) > 1340 || v.ID != id || v.MF != (i < len(out)-1) {
			t.Fatalf("fragment %d of %d: %d bytes, %+v", i, len(out), len(b), v)
		}
		if want := 20 + len(p.Options); i == 0 && len(v.Header) != want {
			t.Fatalf("first header has %d bytes", len(v.Header))
		}
		if i > 0 && len(p.Options) > 0 && !bytes.Equal(v.Header[20:], []byte{148, 4, 0, 0}) {
			t.Fatalf("later fragment has options %x", v.Header[20:])
		}
	}
	whole := nattest.Reassemble(out)
	if whole == nil {
		t.Fatal("fragments do not fit together")
	}
	if _, err := nattest.Check(whole); err != nil {
		t.Fatal(err)
	}
	p.Destination, p.TTL, p.ID = "10.200.3.9", 63, id
	if u, ok := p.Body.(nattest.UDP); ok {
		u.Partial = false
		p.Body = u
	}
	if !bytes.Equal(whole, p.Bytes()) {
		t.Fatal("the fragments hold other bytes")
	}
}

// A fragment that is still too big is fragmented again, at its own offset.
func TestFragmentOfFragment(t *testing.T) {
	e := engine(t)
	whole := nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", ID: 5,
		Body: nattest.UDP{SourcePort: 1, DestinationPort: 2, Payload: nattest.Payload(6000, 8)}}
	datagram := whole.Bytes()[20:]
	var out [][]byte
	for at := 0; at < len(datagram); at += 2000 {
		p := whole
		p.Offset, p.MF = at, at+2000 < len(datagram)
		p.Body = nattest.Raw{Protocol: 17, Payload: datagram[at:min(at+2000, len(datagram))]}
		_, pieces := process(t, e, node1, p.Bytes(), start)
		out = append(out, pieces...)
	}
	if len(out) != 7 {
		t.Fatalf("%d fragments", len(out))
	}
	checkFragments(t, out, whole, 5)
}

// A UDP train becomes its datagrams; each may have to be fragmented.
func TestTrain(t *testing.T) {
	tests := []struct {
		name             string
		segment, payload int
		v6, df, partial  bool
		noChecksum       bool
		packets          int // 0 = too big
	}{
		{"even", 1200, 24000, false, true, true, false, 20},
		{"odd last", 1200, 24300, false, true, true, false, 21},
		{"one", 1200, 1200, false, true, true, false, 1},
		{"finished checksum", 999, 5000, false, true, false, false, 6},
		{"no checksum", 999, 5000, false, true, false, true, 6},
		{"IPv6", 1200, 24300, true, false, true, false, 21},
		{"IPv6 too big", 1400, 2800, true, false, true, false, 0},
		{"IPv4 too big", 1400, 2800, false, true, true, false, 0},
		{"fragmented", 1400, 2900, false, false, true, false, 2 + 2 + 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			body := nattest.UDP{SourcePort: 4, DestinationPort: 443, Payload: nattest.Payload(test.payload, 2),
				Partial: test.partial, NoChecksum: test.noChecksum}
			p := nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", ID: 0xfff0, DF: test.df, Body: body}
			if test.v6 {
				p.Source, p.Destination = "fd00:200:0:1::5", "fd00:71:0:4000::9"
			}
			v, out := processTrain(t, engine(t), node1, p.Bytes(), test.segment, start)
			if test.packets == 0 {
				if v.Reason != nat.ReasonTooBig || v.MTU != 1340 {
					t.Fatalf("%+v", v)
				}
				return
			}
			if len(out) != test.packets {
				t.Fatalf("%v %v: %d packets, want %d", v.Action, v.Reason, len(out), test.packets)
			}
			byID := map[uint16][][]byte{}
			for _, b := range out {
				byID[binary.BigEndian.Uint16(b[4:])] = append(byID[binary.BigEndian.Uint16(b[4:])], b)
			}
			var stream []byte
			for i := range (test.payload + test.segment - 1) / test.segment {
				b := out[i%len(out)]
				if !test.v6 {
					if b = nattest.Reassemble(byID[0xfff0+uint16(i)]); b == nil {
						t.Fatalf("datagram %d is not whole", i)
					}
				}
				got, err := nattest.Check(b)
				if err != nil {
					t.Fatalf("datagram %d: %v", i, err)
				}
				if noSum := got.Body[6] == 0 && got.Body[7] == 0; noSum != test.noChecksum {
					t.Fatalf("checksum %x", got.Body[6:8])
				}
				stream = append(stream, got.Payload...)
			}
			if !bytes.Equal(stream, body.Payload) {
				t.Fatal("the datagrams hold other bytes")
			}
		})
	}
}

// What is no train: another protocol than UDP, or a contradictory length.
func TestBadTrain(t *testing.T) {
	e := engine(t)
	b := udp("10.200.1.5", "10.71.3.9", 1, 2).Bytes()
	for name, b := range map[string][]byte{
		"TCP":     tcp("10.200.1.5", "10.71.3.9", 1, 2, nattest.ACK, "0123456789").Bytes(),
		"surplus": func() []byte { b[25]--; return b }(),
		"first fragment": nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", MF: true,
			Body: nattest.UDP{Payload: make([]byte, 16)}}.Bytes(),
	} {
		if v, _ := processTrain(t, e, node1, b, 4, start); v.Reason != nat.ReasonMalformed {
			t.Errorf("%s: %v %v", name, v.Action, v.Reason)
		}
	}
}

// A translated UDP checksum of zero is sent as all ones; an absent one stays absent.
func TestUDPZero(t *testing.T) {
	e := engine(t)
	found := 0
	for i := range 1 << 16 {
		p := nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", Body: nattest.UDP{SourcePort: uint16(i),
			DestinationPort: 53, Payload: []byte{1, 2, 3}}}
		_, v, _ := forwarded(t, e, node1, p.Bytes(), start)
		if v.Body[6] == 0 && v.Body[7] == 0 {
			t.Fatalf("source port %d: checksum 0", i)
		}
		if v.Body[6] == 0xff && v.Body[7] == 0xff {
			found++
		}
	}
	if found == 0 {
		t.Fatal("no checksum became all ones")
	}
}

func TestMSS(t *testing.T) {
	mss := func(v uint16) []byte { return []byte{2, 4, byte(v >> 8), byte(v)} }
	tests := []struct {
		name    string
		clamp   rules.MSSClamp
		v6      bool
		options []byte
		want    []byte
	}{
		{"lowered", rules.MSSAuto, false, mss(1460), mss(1300)},
		{"lowered for IPv6", rules.MSSAuto, true, mss(1440), mss(1280)},
		{"never raised", rules.MSSAuto, false, mss(1200), mss(1200)},
		{"a number", 1000, false, mss(1460), mss(1000)},
		{"a number for IPv6", 1000, true, mss(1460), mss(980)},
		{"off", rules.MSSOff, false, mss(1460), mss(1460)},
		{"no option", rules.MSSAuto, false, []byte{4, 2, 1, 1}, []byte{4, 2, 1, 1}},
		{"odd offset", rules.MSSAuto, false, []byte{1, 2, 4, 5, 180, 1, 1, 1}, []byte{1, 2, 4, 5, 20, 1, 1, 1}},
		{"behind others", rules.MSSAuto, false, []byte{3, 3, 7, 4, 2, 2, 4, 5, 180, 0, 9, 9},
			[]byte{3, 3, 7, 4, 2, 2, 4, 5, 20, 0, 9, 9}},
		{"behind the end", rules.MSSAuto, false, []byte{0, 2, 4, 5, 180, 1, 1, 1}, []byte{0, 2, 4, 5, 180, 1, 1, 1}},
		{"broken option", rules.MSSAuto, false, []byte{9, 1, 2, 4, 5, 180, 1, 1}, []byte{9, 1, 2, 4, 5, 180, 1, 1}},
		{"option cut off", rules.MSSAuto, false, []byte{1, 1, 2, 4}, []byte{1, 1, 2, 4}},
	}
	for _, test := range tests {
		for _, flags := range []uint8{nattest.SYN, nattest.SYN | nattest.ACK, nattest.ACK} {
			for _, partial := range []bool{false, true} {
				for _, in := range []nat.Link{node1, nat.Tunnel} {
					t.Run(fmt.Sprintf("%s/%#x/%t/%d", test.name, flags, partial, in), func(t *testing.T) {
						e := engine(t, func(c *nat.Config) { c.MSSClamp = test.clamp })
						p := nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9",
							Body: nattest.TCP{SourcePort: 1, DestinationPort: 2, Flags: flags, Options: test.options,
								Partial: partial}}
						if test.v6 {
							p.Source, p.Destination = "fd00:200:0:1::5", "fd00:71:0:4000::9"
						}
						if in == nat.Tunnel {
							p.Source, p.Destination = "10.200.3.9", "10.200.1.5"
							if test.v6 {
								p.Source, p.Destination = "fd00:200:0:2::9", "fd00:200:0:1::5"
							}
						}
						_, v, _ := forwarded(t, e, in, p.Bytes(), start)
						want := test.want
						if flags&nattest.SYN == 0 {
							want = test.options
						}
						if !bytes.Equal(v.Options, want) {
							t.Fatalf("options %x, want %x", v.Options, want)
						}
					})
				}
			}
		}
	}
}

// The packet path allocates nothing: remap, ICMP error, super-frame, the engine's own error.
func TestAllocations(t *testing.T) {
	e := engine(t)
	quoted := tcp("10.200.1.5", "10.200.3.9", 1, 2, nattest.ACK, "")
	expired := udp("10.200.1.5", "10.71.3.9", 1, 2)
	expired.TTL = 1
	buffer, scratch := make([]byte, 65536), make([]byte, 0, 2048)
	for name, test := range map[string]struct {
		in nat.Link
		b  []byte
	}{
		"IPv4": {node1, udp("10.200.1.5", "10.71.3.9", 1, 2).Bytes()},
		"IPv6": {nat.Tunnel, udp("fd00:200:0:2::9", "fd00:200:0:1::5", 1, 2).Bytes()},
		"super-frame": {node1, nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9",
			Body: nattest.TCP{Payload: make([]byte, 20000), Partial: true}}.Bytes()},
		"fragmented": {node1, nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9",
			Body: nattest.UDP{Payload: make([]byte, 20000)}}.Bytes()},
		"ICMP error": {nat.Tunnel, nattest.IP{Source: "192.0.2.1", Destination: "10.200.1.5",
			Body: nattest.ICMP{Type: 3, Code: 4, Rest: 1300, Payload: quoted.Bytes()}}.Bytes()},
		"expired": {node1, expired.Bytes()},
	} {
		work := make([]byte, len(test.b))
		var p packet.Packet
		var c packet.Cutter
		now := start
		if n := testing.AllocsPerRun(200, func() {
			copy(work, test.b)
			p.Parse(work)
			now += 1e9
			v := e.Process(&p, test.in, now)
			if v.Action == nat.Drop {
				if e.AppendError(scratch, &p, test.in, v, now) == nil {
					t.Fatal("no answer")
				}
				return
			}
			c.Start(&p, v.SegmentSize, v.MTU)
			for c.Next(buffer) > 0 {
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// A thousand new connections allocate one chunk or segment; packets of existing ones, fragments
// too, allocate nothing.
func TestConnectionAllocations(t *testing.T) {
	for _, source := range []string{"203.0.113.9", "fd00:200:0:1::5"} {
		e := engine(t, func(c *nat.Config) { c.MaxConnections = 1 << 20 })
		destination, remote := "10.71.3.9", "10.200.3.9"
		if address(source).Is6() {
			destination, remote = "fd00:71:0:4000::9", "fd00:200::9"
		}
		p := udp(source, destination, 1000, 53)
		_, out, _ := forwarded(t, e, node1, p.Bytes(), start)
		answer := udp(remote, out.Source.String(), 53, out.SourcePort).Bytes()
		parts := nattest.Pieces(nattest.IP{Source: source, Destination: destination, Body: nattest.UDP{SourcePort: 1000,
			DestinationPort: 53, Payload: make([]byte, 2000)}}, 1000, 1)
		deliver(t, e, node1, parts, start)
		work := make([]byte, 2048)
		var q packet.Packet
		now := start
		run := func(in nat.Link, b []byte) {
			q.Parse(work[:copy(work, b)])
			if v := e.Process(&q, in, now); v.Action != nat.Forward || v.Untracked {
				t.Fatalf("%v %v", v.Action, v.Reason)
			}
		}
		there := p.Bytes()
		if n := testing.AllocsPerRun(500, func() {
			now = now.Add(31 * time.Second) // the last datagram has expired
			run(node1, there)
			run(nat.Tunnel, answer)
			run(node1, parts[0])
			run(node1, parts[1])
		}); n != 0 {
			t.Errorf("%s: %v allocations for packets of a connection", source, n)
		}
		port := 2000
		head := len(there) - 15 // UDP header and payload
		if n := testing.AllocsPerRun(20_000, func() {
			port++
			binary.BigEndian.PutUint16(there[head:], uint16(port))
			there[head+6], there[head+7] = 0x12, 0x34
			run(node1, there)
		}); n > 1 {
			t.Errorf("%s: %v allocations for a new connection", source, n)
		}
	}
}
