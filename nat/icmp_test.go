package nat_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"
)

// architecture.md, Section 2.1 no. 6: a router beyond the tunnel, or one before the pod, complains about a packet of ours.
func TestICMPErrors(t *testing.T) {
	tests := []struct {
		name                           string
		in, out                        nat.Port
		router                         string
		quotedSource, quotedDest       string
		wantSource, wantDest           string
		wantQuotedSource, wantQuotedDs string
	}{
		{"from a router in a remote CIDR", nat.Tunnel, node1, "10.70.0.0", "10.200.1.5", "10.200.3.9",
			"10.74.0.0", "10.200.1.5", "10.200.1.5", "10.71.3.9"},
		{"from a router elsewhere", nat.Tunnel, node2, "192.0.2.77", "10.200.2.5", "10.64.1.9",
			"10.72.49.9", "10.200.2.5", "10.200.2.5", "10.72.49.9"},
		{"to the tunnel, from a pod", node1, nat.Tunnel, "10.200.1.5", "10.72.49.9", "10.200.1.5",
			"10.200.1.5", "10.64.1.9", "10.64.1.9", "10.200.1.5"},
		{"to the tunnel, from a node", node1, nat.Tunnel, "10.80.0.2", "10.71.3.9", "10.200.1.5",
			"10.70.0.0", "10.200.3.9", "10.200.3.9", "10.200.1.5"},
		{"IPv6 from a router elsewhere", nat.Tunnel, node1, "2001:db8::1", "fd00:200:0:1::5", "fd00:200::9",
			"fd00:71:0:4000::9", "fd00:200:0:1::5", "fd00:200:0:1::5", "fd00:71:0:4000::9"},
		{"IPv6 to the tunnel, from a node", node1, nat.Tunnel, "2001:db8::2", "fd00:71:0:4000::9", "fd00:200:0:1::5",
			"fd00:200:0:1::5", "fd00:200::9", "fd00:200::9", "fd00:200:0:1::5"},
	}
	for _, test := range tests {
		v6 := address(test.router).Is6()
		for name, body := range bodies(v6) {
			if name == "empty" {
				continue
			}
			for _, kind := range []string{"plain", "long header"} {
				t.Run(fmt.Sprintf("%s/%s/%s", test.name, name, kind), func(t *testing.T) {
					e := engine(t)
					p := nattest.IP{Source: test.quotedSource, Destination: test.quotedDest, TTL: 1, Body: body}
					m := nattest.ICMP{Type: 11}
					if v6 {
						m.Type = 3
					}
					if kind != "plain" {
						p.Options = []byte{1, 7, 3, 0}
						p.First, p.Extensions = 60, [][]byte{{0, 0, 1, 4, 0, 0, 0, 0}}
					}
					m.Payload = p.Bytes()
					b := nattest.IP{Source: test.router, Destination: test.quotedSource, Body: m}.Bytes()
					v, got, out := forwarded(t, e, test.in, b, start)
					if v.Out != test.out {
						t.Fatalf("to port %d", v.Out)
					}
					expect(t, got, test.wantSource, test.wantDest)
					quoted, err := nattest.Quoted(out)
					if err != nil {
						t.Fatal(err)
					}
					expect(t, quoted, test.wantQuotedSource, test.wantQuotedDs)
					if name != "tcp partial" && name != "udp partial" {
						if _, err := nattest.CheckQuoted(out); err != nil {
							t.Fatal(err)
						}
					}
				})
			}
		}
	}
}

// A quotation may end anywhere behind 8 bytes of transport header (RFC 792); the ICMP checksum is right at each length.
func TestICMPErrorTruncated(t *testing.T) {
	e := engine(t)
	for _, p := range []nattest.IP{
		{Source: "10.200.1.5", Destination: "10.200.3.9", Options: []byte{1, 7, 3, 0}, Body: nattest.TCP{SourcePort: 1, Payload: make([]byte, 11)}},
		{Source: "fd00:200:0:1::5", Destination: "fd00:200::9", First: 0, Extensions: [][]byte{{0, 0, 1, 4, 0, 0, 0, 0}}, Body: nattest.UDP{SourcePort: 1, Payload: make([]byte, 11)}},
	} {
		whole := p.Bytes()
		for n := range len(whole) + 1 {
			m := nattest.ICMP{Type: 11, Payload: whole[:n]}
			router, enough := "192.0.2.1", 24+8
			if whole[0]>>4 == 6 {
				m.Type, router, enough = 3, "2001:db8::1", 48+8
			}
			b := nattest.IP{Source: router, Destination: p.Source, Body: m}.Bytes()
			if n < enough {
				dropped(t, e, nat.Tunnel, b, start, nat.ReasonMalformed)
				continue
			}
			forwarded(t, e, nat.Tunnel, b, start)
		}
	}
}

func TestICMPErrorUnrelated(t *testing.T) {
	quote := func(source, destination string) []byte { return udp(source, destination, 1, 2).Bytes() }
	inner := nattest.IP{Source: "10.200.1.5", Destination: "10.200.3.9", Body: nattest.ICMP{Type: 3, Payload: quote("10.200.3.9", "10.200.1.5")}}.Bytes()
	tests := []struct {
		name   string
		in     nat.Port
		to     string
		quoted []byte
		want   nat.Reason
	}{
		{"not the sender of what is quoted", nat.Tunnel, "10.200.1.5", quote("10.200.1.6", "10.200.3.9"), nat.ReasonICMPUnrelated},
		{"not to the remote cluster", nat.Tunnel, "10.200.1.5", quote("10.200.1.5", "192.0.2.1"), nat.ReasonICMPUnrelated},
		{"as seen here, not as sent", nat.Tunnel, "10.200.1.5", quote("10.200.1.5", "10.71.3.9"), nat.ReasonICMPUnrelated},
		{"not the sender, from a node", node1, "10.71.3.9", quote("10.71.3.8", "10.200.1.5"), nat.ReasonICMPUnrelated},
		{"error about an error", nat.Tunnel, "10.200.1.5", inner, nat.ReasonMalformed},
		{"no packet", nat.Tunnel, "10.200.1.5", make([]byte, 40), nat.ReasonMalformed},
		{"to a pod on no node", nat.Tunnel, "10.200.99.5", quote("10.200.99.5", "10.200.3.9"), nat.ReasonNoRoute},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			source := "192.0.2.1"
			if test.in != nat.Tunnel {
				source = "10.200.1.5"
			}
			b := nattest.IP{Source: source, Destination: test.to, Body: nattest.ICMP{Type: 3, Code: 1, Payload: test.quoted}}.Bytes()
			v := dropped(t, engine(t), test.in, b, start, test.want)
			if v.Answer != nat.AnswerNone {
				t.Fatalf("answers an error: %d", v.Answer)
			}
		})
	}
}

// A too-big message lowers the size of the segments of super-frames towards its destination, for 10 minutes.
func TestPathMTU(t *testing.T) {
	e := engine(t)
	super := tcp("10.200.1.5", "10.71.3.9", 1, 2, nattest.ACK, "")
	super.Body = nattest.TCP{SourcePort: 1, DestinationPort: 2, Flags: nattest.ACK, Payload: nattest.Payload(20000, 3), Partial: true}
	size := func(now nat.Time) int {
		v, _ := process(t, e, node1, super.Bytes(), now)
		return v.SegmentSize
	}
	tooBig := func(mtu uint32) []byte {
		quoted := tcp("10.200.1.5", "10.200.3.9", 1, 2, nattest.ACK, "")
		return nattest.IP{Source: "10.70.0.0", Destination: "10.200.1.5",
			Body: nattest.ICMP{Type: 3, Code: 4, Rest: mtu, Payload: quoted.Bytes()}}.Bytes()
	}
	if got := size(start); got != 1300 {
		t.Fatalf("segments of %d bytes, want 1300", got)
	}
	_, _, out := forwarded(t, e, nat.Tunnel, tooBig(1280), start)
	if got := out[27]; got != 1280&0xff {
		t.Fatalf("the MTU in the message changed: %x", out[20:28])
	}
	steps := []struct {
		after time.Duration
		learn uint32
		want  int
	}{
		{time.Second, 0, 1240},
		{time.Minute, 1300, 1240}, // does not grow
		{2 * time.Minute, 1000, 960},
		{11*time.Minute + 59*time.Second, 0, 960},
		{12 * time.Minute, 0, 1300}, // expired
		{13 * time.Minute, 68, 512}, // not below minPathMTU
	}
	for _, s := range steps {
		now := start.Add(s.after)
		if s.learn > 0 {
			forwarded(t, e, nat.Tunnel, tooBig(s.learn), now)
		}
		if got := size(now); got != s.want {
			t.Fatalf("after %v segments of %d bytes, want %d", s.after, got, s.want)
		}
	}
	// Other destinations keep the MTU.
	super.Destination = "10.71.3.10"
	if got := size(start.Add(time.Second)); got != 1300 {
		t.Fatalf("another destination gets segments of %d bytes", got)
	}
}

// TestAppendError follows the errors that we originate.
func TestAppendError(t *testing.T) {
	long := udp("10.200.1.5", "10.71.3.9", 5, 6)
	long.DF = true
	long.Body = nattest.UDP{SourcePort: 5, DestinationPort: 6, Payload: make([]byte, 1400)}
	expired := udp("10.200.3.9", "10.200.1.5", 5, 6)
	expired.TTL = 1
	six := udp("fd00:200:0:1::5", "fd00:71:0:4000::9", 5, 6)
	six.Body = long.Body
	tests := []struct {
		name       string
		in         nat.Port
		p          nattest.IP
		change     func(*nat.Config)
		source     string
		kind, code uint8
		mtu        uint16
		size       int
	}{
		{"too big, to a node", node1, long, nil, "10.80.0.4", 3, 4, 1340, 576},
		{"time exceeded, to the tunnel", nat.Tunnel, expired, nil, "10.70.0.0", 11, 0, 0, 28 + 35},
		{"time exceeded, to the tunnel, U off", nat.Tunnel, expired, func(c *nat.Config) { c.UnknownSource = netip.Addr{} },
			"169.254.18.2", 11, 0, 0, 28 + 35},
		{"host unreachable", nat.Tunnel, udp("10.200.3.9", "10.200.99.1", 1, 2), nil, "10.70.0.0", 3, 1, 0, 28 + 35},
		{"net unreachable", node1, udp("10.200.1.5", "192.0.2.1", 1, 2), nil, "10.80.0.4", 3, 0, 0, 28 + 35},
		{"IPv6 too big", node1, six, func(c *nat.Config) { c.GatewayAddress = address("fd00:80::4") }, "fd00:80::4", 2, 0, 1340, 1280},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e := engine(t)
			if test.change != nil {
				e = engine(t, test.change)
			}
			b := test.p.Bytes()
			v, _ := process(t, e, test.in, b, start)
			got := answer(t, e, test.in, b, v, start)
			if got == nil {
				t.Fatalf("no answer to %v %v", v.Action, v.Reason)
			}
			view, _ := nattest.Check(got)
			expect(t, view, test.source, test.p.Source)
			if view.Body[0] != test.kind || view.Body[1] != test.code || uint16(view.Body[6])<<8|uint16(view.Body[7]) != test.mtu {
				t.Fatalf("message %x", view.Body[:8])
			}
			if len(got) != test.size || !bytes.HasPrefix(b, view.Payload) {
				t.Fatalf("%d bytes, want %d; quotes %x", len(got), test.size, view.Payload)
			}
		})
	}
}

// RFC 1122, Section 3.2.2: no error about errors, later fragments, or what was not sent by one host to one host.
func TestNoAppendError(t *testing.T) {
	e := engine(t)
	about := func(p nattest.IP) []byte { p.TTL = 1; return p.Bytes() }
	quoted := udp("10.200.3.9", "10.200.1.5", 1, 2)
	for name, b := range map[string][]byte{
		"ICMP error":     about(nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", Body: nattest.ICMP{Type: 3, Payload: quoted.Bytes()}}),
		"later fragment": about(nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", Offset: 80, Body: nattest.Raw{Protocol: 17, Payload: make([]byte, 8)}}),
		"multicast":      about(udp("10.200.1.5", "224.0.0.9", 1, 2)),
		"broadcast":      about(udp("10.200.1.5", "255.255.255.255", 1, 2)),
		"no source":      about(udp("0.0.0.0", "10.71.3.9", 1, 2)),
		"redirect":       about(nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", Body: nattest.ICMP{Type: 5}}),
		"malformed":      {0x45, 0, 0},
	} {
		v := nat.Verdict{Action: nat.Drop, Reason: nat.ReasonTTLExceeded, Answer: nat.AnswerTimeExceeded}
		if got := answer(t, e, node1, b, v, start); got != nil {
			t.Errorf("%s: answered %x", name, got)
		}
	}
}

func TestErrorRate(t *testing.T) {
	e := engine(t)
	send := func(host int, now nat.Time) bool {
		p := udp(fmt.Sprintf("10.200.%d.%d", 1+host/250, 1+host%250), "10.71.3.9", 1, 2)
		p.TTL = 1
		b := p.Bytes()
		v, _ := process(t, e, node1, b, now)
		return answer(t, e, node1, b, v, now) != nil
	}
	n := 0
	for range 1000 {
		if send(0, start) {
			n++
		}
	}
	if n != 20 {
		t.Fatalf("%d errors at once to one destination, want 20", n)
	}
	if !send(0, start.Add(time.Second/20)) || send(0, start.Add(time.Second/20)) {
		t.Fatal("not one more after a twentieth of a second")
	}
	e, n = engine(t), 0
	for host := range 700 {
		if send(host, start) {
			n++
		}
	}
	if n != 200 {
		t.Fatalf("%d errors at once, want 200", n)
	}
	for host := range 2000 {
		if send(host%700, start.Add(time.Second)) {
			n++
		}
	}
	if n != 400 {
		t.Fatalf("%d errors after a second, want 400", n)
	}
	if got := e.Stats().Outbound.Answered; got != 400 {
		t.Fatalf("counted %d", got)
	}
}

// RFC 5508, Section 4.1, REQ-3.
func TestICMPErrorChecksum(t *testing.T) {
	for _, p := range []nattest.IP{
		{Source: "192.0.2.1", Destination: "10.200.1.5", Body: nattest.ICMP{Type: 11, Payload: udp("10.200.1.5", "10.200.3.9", 1, 2).Bytes()}},
		{Source: "2001:db8::1", Destination: "fd00:200:0:1::5", Body: nattest.ICMP{Type: 3, Payload: udp("fd00:200:0:1::5", "fd00:200::9", 1, 2).Bytes()}},
	} {
		e := engine(t)
		b := p.Bytes()
		forwarded(t, e, nat.Tunnel, b, start)
		for i := len(b) - 1; i > len(b)-30; i-- {
			b[i] ^= 0x10
			dropped(t, e, nat.Tunnel, b, start, nat.ReasonMalformed)
			b[i] ^= 0x10
		}
	}
}

// RFC 5508, Section 4.3, REQ-6; RFC 7857, Section 7.
func TestICMPErrorRefreshesNothing(t *testing.T) {
	e := engine(t)
	_, _, sent := forwarded(t, e, node1, udp("203.0.113.9", "10.71.3.9", 1, 2).Bytes(), start)
	m := nattest.IP{Source: "192.0.2.66", Destination: "10.70.0.0", Body: nattest.ICMP{Type: 3, Code: 3, Payload: sent}}.Bytes()
	forwarded(t, e, nat.Tunnel, m, start.Add(119*time.Second))
	if st := e.Stats(); st.Connections != 1 || st.Unreplied != 1 {
		t.Fatalf("%+v", st)
	}
	dropped(t, e, nat.Tunnel, m, start.Add(120*time.Second), nat.ReasonICMPUnrelated)
}

// RFC 5508, Section 5, REQ-7: a router between the node and a mapped host complains about a hairpinned packet.
func TestHairpinICMPError(t *testing.T) {
	e := engine(t, func(c *nat.Config) {
		c.Addresses = []nat.AddressMapping{{External: address("10.70.0.9"), Internal: address("192.0.2.10"), Via: node2}}
	})
	for _, body := range []nattest.Body{nattest.ICMP{Type: 8, Rest: 7 << 16}, nattest.UDP{SourcePort: 1, DestinationPort: 2}} {
		p := nattest.IP{Source: "10.200.1.5", Destination: "10.70.0.9", Body: body}
		_, _, sent := forwarded(t, e, node1, p.Bytes(), start)
		m := nattest.IP{Source: "198.51.100.1", Destination: "10.80.0.4", Body: nattest.ICMP{Type: 11, Payload: sent}}
		v, got, out := forwarded(t, e, node2, m.Bytes(), start)
		if v.Out != node1 {
			t.Fatalf("to port %d", v.Out)
		}
		expect(t, got, "198.51.100.1", "10.200.1.5")
		quoted, err := nattest.CheckQuoted(out)
		if err != nil {
			t.Fatal(err)
		}
		expect(t, quoted, "10.200.1.5", "10.70.0.9")
	}
}
