package nat_test

import (
	"encoding/binary"
	"testing"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// tooBigOf returns the MTU of a Fragmentation Needed or Packet Too Big message.
func tooBigOf(v nattest.View) int {
	if v.Protocol == 1 && v.Body[0] == 3 && v.Body[1] == 4 || v.Protocol == 58 && v.Body[0] == 2 {
		return int(binary.BigEndian.Uint32(v.Body[4:]))
	}
	return 0
}

// The MTU of a narrow path limits packets on it: those that must not be fragmented are refused with
// the MTU, others are fragmented, and super-frames are cut. Other paths are unaffected.
func TestNarrowPath(t *testing.T) {
	const narrow = 1246
	udp := func(source, destination string, size int, df bool) []byte {
		return nattest.IP{Source: source, Destination: destination, DF: df, ID: 7,
			Body: nattest.UDP{SourcePort: 4000, DestinationPort: 53, Payload: nattest.Payload(size-28, 1)}}.Bytes()
	}
	for _, tt := range []struct {
		name                string
		narrow, in          nat.Link
		source, destination string
		bounded             bool
	}{
		{"to the tunnel", nat.Tunnel, node1, "10.200.1.5", "10.71.3.9", true},
		{"to a node", node1, nat.Tunnel, "10.200.3.9", "10.200.1.5", true},
		{"from node to node", node1, node2, "10.200.2.5", "10.200.1.5", true},
		{"from the tunnel", nat.Tunnel, nat.Tunnel, "10.200.3.9", "10.200.1.5", false},
		{"to another node", node2, nat.Tunnel, "10.200.3.9", "10.200.1.5", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := engine(t)
			e.SetPathMTU(tt.narrow, narrow)
			for _, first := range []bool{true, false} { // the connection's first packet and a later one
				send := func(size int, df bool) (nat.Verdict, [][]byte, []byte) {
					b := udp(tt.source, tt.destination, size, df)
					v, out := process(t, e, tt.in, b, start)
					var p packet.Packet
					p.Parse(b)
					return v, out, e.AppendError(nil, &p, tt.in, v, start)
				}
				v, _, refusal := send(narrow+1, true)
				if !tt.bounded {
					if v.Action != nat.Forward {
						t.Fatalf("first %v: %v %v", first, v.Action, v.Reason)
					}
					continue
				}
				if v.Reason != nat.ReasonTooBig || refusal == nil {
					t.Fatalf("first %v: %v %v", first, v.Action, v.Reason)
				}
				view, err := nattest.Check(refusal)
				if err != nil || tooBigOf(view) != narrow {
					t.Fatalf("told %d (%v), want %d", tooBigOf(view), err, narrow)
				}
				v, out, _ := send(narrow+1, false)
				if v.Action != nat.Forward || len(out) != 2 {
					t.Fatalf("first %v: %v in %d parts, want 2 fragments", first, v.Action, len(out))
				}
				for _, b := range out {
					if len(b) > narrow {
						t.Errorf("a fragment of %d bytes", len(b))
					}
				}
				if v, _, _ = send(narrow, true); v.Action != nat.Forward {
					t.Fatalf("first %v: a packet that fits: %v", first, v.Reason)
				}
			}
			e.SetPathMTU(tt.narrow, 0)
			if v, out := process(t, e, tt.in, udp(tt.source, tt.destination, 1340, true),
				start); v.Action != nat.Forward || len(out[0]) != 1340 {
				t.Errorf("after the path has become wide again: %v %v", v.Action, v.Reason)
			}
		})
	}
}

// SYNs of both directions are clamped to the narrower of a connection's two paths, whatever rules
// say: segments that are too big for the path to the gateway would never arrive here.
func TestNarrowMSS(t *testing.T) {
	for _, tt := range []struct {
		name  string
		clamp rules.MSSClamp
		link  nat.Link
		mtu   int
		want  uint16 // MSS of both SYNs, IPv4
		want6 uint16
	}{
		{"no narrow path", rules.MSSAuto, 0, 0, 1300, 1280},
		{"the way to the peer", rules.MSSAuto, nat.Tunnel, 1292, 1252, 1232},
		{"the way to the node", rules.MSSAuto, node1, 1292, 1252, 1232},
		{"that of another node", rules.MSSAuto, node2, 1292, 1300, 1280},
		{"less than IPv6 needs", rules.MSSAuto, node1, 600, 560, 1220},
		{"no clamp", rules.MSSOff, node1, 1292, 1252, 1232},
		{"a clamp below", 1000, node1, 1292, 1000, 980},
		{"no clamp, no narrow path", rules.MSSOff, 0, 0, 1460, 1460},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := engine(t, func(c *nat.Config) { c.MSSClamp = tt.clamp })
			if tt.mtu > 0 {
				e.SetPathMTU(tt.link, tt.mtu)
			}
			for _, end := range []struct {
				source, seen, real, answer string
				want                       uint16
			}{{"10.200.1.5", "10.71.3.9", "10.200.3.9", "10.200.1.5", tt.want},
				{"fd00:200:0:1::5", "fd00:71:0:4000::9", "fd00:200::9", "fd00:200:0:1::5", tt.want6}} {
				mss := []byte{2, 4, 1460 >> 8, 1460 & 0xff}
				syn := nattest.TCP{SourcePort: 4000, DestinationPort: 80, Seq: 1, Flags: nattest.SYN, Options: mss}
				answer := nattest.TCP{SourcePort: 80, DestinationPort: 4000, Seq: 9, Ack: 2,
					Flags: nattest.SYN | nattest.ACK, Options: mss}
				_, there, _ := forwarded(t, e, node1, nattest.IP{Source: end.source, Destination: end.seen,
					Body: syn}.Bytes(), start)
				_, back, _ := forwarded(t, e, nat.Tunnel, nattest.IP{Source: end.real, Destination: end.answer,
					Body: answer}.Bytes(), start)
				for way, v := range map[string]nattest.View{"SYN": there, "SYN-ACK": back} {
					if got := binary.BigEndian.Uint16(v.Body[22:]); got != end.want {
						t.Errorf("%s of %s: MSS %d, want %d", way, end.source, got, end.want)
					}
				}
			}
		})
	}
}

// Super-frames are cut to the narrow path.
func TestNarrowSuperFrame(t *testing.T) {
	e := engine(t)
	c := call{e, node1, "10.200.1.5", "10.71.3.9", "10.200.3.9", 4000}.begin(t, start)
	e.SetPathMTU(nat.Tunnel, 1246)
	if got := c.segment(t, start); got != 1206 {
		t.Errorf("segments of %d bytes, want 1206", got)
	}
	e.SetPathMTU(nat.Tunnel, 0)
	if got := c.segment(t, start); got != 1300 {
		t.Errorf("segments of %d bytes, want 1300", got)
	}
}

// TellNarrow makes, for each connection whose packets arrive on a narrow path, a message that its
// sender accepts, and none for others.
func TestTellNarrow(t *testing.T) {
	e := engine(t)
	c := call{e, node1, "10.200.1.5", "10.71.3.9", "10.200.3.9", 4000}.begin(t, start)
	c.segment(t, start)
	forwarded(t, e, nat.Tunnel, c.inbound(nattest.ACK, 1001, 1301), start)
	udp := nattest.UDP{SourcePort: 4001, DestinationPort: 443, Payload: nattest.Payload(100, 1)}
	forwarded(t, e, node1, nattest.IP{Source: "10.200.1.6", Destination: "10.71.3.9", Body: udp}.Bytes(), start)
	forwarded(t, e, node2, nattest.IP{Source: "10.200.2.6", Destination: "10.71.3.9", Body: udp}.Bytes(), start)
	forwarded(t, e, node1, nattest.IP{Source: "10.200.1.7", Destination: "10.71.3.9", Body: nattest.ICMP{Type: 8,
		Rest: 1 << 16}}.Bytes(), start)

	tell := func(link nat.Link) (told map[string]nattest.View) {
		t.Helper()
		told = make(map[string]nattest.View)
		for at, more := nat.Cursor(0), true; more; {
			var list [][]byte
			list, at, more = e.TellNarrow(at, link, nil)
			for _, b := range list {
				v, err := nattest.Check(b)
				if err != nil {
					t.Fatalf("%v\n%x", err, b)
				}
				q, err := nattest.Quoted(b)
				if err != nil || q.Source != v.Destination {
					t.Fatalf("quotes a packet of %v to %v (%v)", q.Source, v.Destination, err)
				}
				told[q.Source.String()] = v
				if tooBigOf(v) != 1246 {
					t.Errorf("tells %d", tooBigOf(v))
				}
			}
		}
		return told
	}
	if told := tell(node1); len(told) > 0 {
		t.Errorf("no path is narrow, and %d are told so", len(told))
	}
	e.SetPathMTU(node1, 1246)
	told := tell(node1)
	if len(told) != 2 || told["10.200.1.5"].Source.String() != "10.80.0.4" ||
		told["10.200.1.6"].Source.String() != "10.80.0.4" {
		t.Errorf("told %v, want the TCP and the UDP sender behind node 1, by the gateway", told)
	}
	quote := told["10.200.1.5"].Body[8:]
	if length, seq := binary.BigEndian.Uint16(quote[2:]), binary.BigEndian.Uint32(quote[24:]); length != 1340 ||
		seq != 1301 {
		t.Errorf("quotes %d bytes at %d, want 1340 at 1301, which is what is waited for", length, seq)
	}
	if nattest.Checksum(quote[:20]) != 0 {
		t.Errorf("the quoted header's checksum is wrong: %x", quote[:20])
	}
	e.SetPathMTU(node1, 0)
	e.SetPathMTU(nat.Tunnel, 1246)
	told = tell(nat.Tunnel)
	if len(told) != 1 || told["10.200.3.9"].Source.String() != "10.70.0.0" {
		t.Errorf("told %v, want the remote TCP end alone, by U: nobody else has answered", told)
	}
	// The message is about no real packet, so it creates, refreshes and ends no connection.
	if s := e.Stats(); s.Connections != 4 || s.Created != 4 {
		t.Errorf("%d connections of %d made", s.Connections, s.Created)
	}
	if told := tell(node1); len(told) != 0 {
		t.Errorf("told of another link: %v", told)
	}
}
