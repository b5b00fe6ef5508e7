package nat_test

import (
	"fmt"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// A router beyond the tunnel, or one before the pod, reports an error about one of our packets. It
// may have any address.
func TestICMPErrors(t *testing.T) {
	tests := []struct {
		name                           string
		in, out                        nat.Link
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
		for name, body := range nattest.Bodies(v6) {
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
						t.Fatalf("to link %d", v.Out)
					}
					expect(t, got, test.wantSource, test.wantDest)
					quoted, err := nattest.Quoted(out)
					need.NoError(t, err)
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

// A quotation may end anywhere behind 8 bytes of transport header (RFC 792); the ICMP checksum is
// right at each length.
func TestICMPErrorTruncated(t *testing.T) {
	e := engine(t)
	for _, p := range []nattest.IP{
		{Source: "10.200.1.5", Destination: "10.200.3.9", Options: []byte{1, 7, 3, 0}, Body: nattest.TCP{SourcePort: 1,
			Payload: make([]byte, 11)}},
		{Source: "fd00:200:0:1::5", Destination: "fd00:200::9", First: 0,
			Extensions: [][]byte{{0, 0, 1, 4, 0, 0, 0, 0}}, Body: nattest.UDP{SourcePort: 1,
				Payload: make([]byte, 11)}},
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
	inner := nattest.IP{Source: "10.200.1.5", Destination: "10.200.3.9", Body: nattest.ICMP{Type: 3,
		Payload: quote("10.200.3.9", "10.200.1.5")}}.Bytes()
	tests := []struct {
		name   string
		in     nat.Link
		to     string
		quoted []byte
		want   nat.Reason
	}{
		{"not the sender of what is quoted", nat.Tunnel, "10.200.1.5", quote("10.200.1.6", "10.200.3.9"),
			nat.ReasonICMPUnrelated},
		{"not to the remote cluster", nat.Tunnel, "10.200.1.5", quote("10.200.1.5", "192.0.2.1"),
			nat.ReasonICMPUnrelated},
		{"as seen here, not as sent", nat.Tunnel, "10.200.1.5", quote("10.200.1.5", "10.71.3.9"),
			nat.ReasonICMPUnrelated},
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
			b := nattest.IP{Source: source, Destination: test.to, Body: nattest.ICMP{Type: 3, Code: 1,
				Payload: test.quoted}}.Bytes()
			v := dropped(t, engine(t), test.in, b, start, test.want)
			if v.Refusal != packet.NoRefusal {
				t.Fatalf("answers an error: %d", v.Refusal)
			}
		})
	}
}

// RFC 5508, Section 4.1, REQ-3.
func TestICMPErrorChecksum(t *testing.T) {
	for _, p := range []nattest.IP{
		{Source: "192.0.2.1", Destination: "10.200.1.5", Body: nattest.ICMP{Type: 11, Payload: udp("10.200.1.5",
			"10.200.3.9", 1, 2).Bytes()}},
		{Source: "2001:db8::1", Destination: "fd00:200:0:1::5", Body: nattest.ICMP{Type: 3,
			Payload: udp("fd00:200:0:1::5", "fd00:200::9", 1, 2).Bytes()}},
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
	m := nattest.IP{Source: "192.0.2.66", Destination: "10.70.0.0", Body: nattest.ICMP{Type: 3, Code: 3,
		Payload: sent}}.Bytes()
	forwarded(t, e, nat.Tunnel, m, start.Add(119*time.Second))
	if st := e.Stats(); st.Connections != 1 || st.Unreplied != 1 {
		t.Fatalf("%+v", st)
	}
	dropped(t, e, nat.Tunnel, m, start.Add(120*time.Second), nat.ReasonICMPUnrelated)
}

// RFC 5508, Section 5, REQ-7: a router between the node and a mapped host complains about a
// hairpinned packet.
func TestHairpinICMPError(t *testing.T) {
	e := engine(t, func(c *nat.Config) {
		c.Addresses = []rules.AddressMapping{{External: address("10.70.0.9"),
			Internal: address("192.0.2.10"), Via: node2}}
	})
	for _, body := range []nattest.Body{nattest.ICMP{Type: 8, Rest: 7 << 16}, nattest.UDP{SourcePort: 1,
		DestinationPort: 2}} {
		p := nattest.IP{Source: "10.200.1.5", Destination: "10.70.0.9", Body: body}
		_, _, sent := forwarded(t, e, node1, p.Bytes(), start)
		m := nattest.IP{Source: "198.51.100.1", Destination: "10.80.0.4", Body: nattest.ICMP{Type: 11, Payload: sent}}
		v, got, out := forwarded(t, e, node2, m.Bytes(), start)
		if v.Out != node1 {
			t.Fatalf("to link %d", v.Out)
		}
		expect(t, got, "198.51.100.1", "10.200.1.5")
		quoted, err := nattest.CheckQuoted(out)
		need.NoError(t, err)
		expect(t, quoted, "10.200.1.5", "10.70.0.9")
	}
}

// ICMP errors about translated packets reach the sender with what it had sent, through the
// connection.
func TestTrackedICMPErrors(t *testing.T) {
	for name, body := range nattest.Bodies(false) {
		if name == "empty" || name == "gre" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			e := engine(t)
			p := nattest.IP{Source: "203.0.113.9", Destination: "10.72.49.9", Body: body}
			forwarded(t, e, node1, p.Bytes(), start)
			_, sent, b := forwarded(t, e, node2, p.Bytes(), start) // has another port
			_ = sent
			b[8] = 1
			b = nattest.Fix(b)
			for _, router := range []struct{ source, want string }{{"192.0.2.66", "10.72.49.9"},
				{"10.200.7.7", "10.71.7.7"}} {
				m := nattest.IP{Source: router.source, Destination: "10.70.0.0", Body: nattest.ICMP{Type: 11,
					Payload: b}}.Bytes()
				v, got, out := forwarded(t, e, nat.Tunnel, m, start)
				if v.Out != node2 {
					t.Fatalf("goes to link %d", v.Out)
				}
				expect(t, got, router.want, "203.0.113.9")
				quoted, err := nattest.Quoted(out)
				need.NoError(t, err)
				expect(t, quoted, p.Source, p.Destination)
				want, _ := nattest.Check(p.Bytes())
				if quoted.SourcePort != want.SourcePort || quoted.DestinationPort != want.DestinationPort {
					t.Fatalf("quotes ports %d > %d", quoted.SourcePort, quoted.DestinationPort)
				}
				if name != "sctp" { // the error's own sums are right; SCTP's CRC cannot be corrected in a quotation
					if _, err := nattest.CheckQuoted(out); err != nil {
						t.Fatal(err)
					}
				}
			}
			// The same for the answer, from node 1 towards the tunnel: U is the source that the
			// remote cluster knows.
			answer := nattest.IP{Source: "10.200.3.9", Destination: "10.200.1.5", Body: nattest.UDP{SourcePort: 9,
				DestinationPort: 10}}
			_, _, arrived := forwarded(t, e, nat.Tunnel, answer.Bytes(), start)
			m := nattest.IP{Source: "10.80.0.2", Destination: "10.71.3.9", Body: nattest.ICMP{Type: 3, Code: 3,
				Payload: arrived}}.Bytes()
			v, got, out := forwarded(t, e, node1, m, start)
			expect(t, got, "10.70.0.0", "10.200.3.9")
			quoted, err := nattest.CheckQuoted(out)
			if err != nil || v.Out != nat.Tunnel {
				t.Fatal(v.Out, err)
			}
			expect(t, quoted, "10.200.3.9", "10.200.1.5")
			if st := e.Stats(); st.Connections != 3 {
				t.Fatalf("an ICMP error made a connection: %d", st.Connections)
			}
		})
	}
}
