package nat_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// proxied is rome with a service of each family and a mapped host that get PROXY protocol headers.
func proxied(c *nat.Config) {
	dual(c)
	v4 := service(rules.Backend{Address: address("10.200.1.5"), Port: 8080})
	v4.ProxyProtocol = true
	v6 := v4
	v6.Address, v6.Backends = address("fd00:70::14"), []rules.Backend{{Address: address(pod6), Port: 8080}}
	c.Services = []rules.Service{v4, v6}
	c.Addresses = []rules.AddressMapping{{External: address("10.70.0.9"), Internal: address("192.0.2.10"), Via: node2,
		ProxyProtocol: true}}
}

// A path is one connection between a client and a server, through an Engine.
type path struct {
	t              testing.TB
	e              *nat.Engine
	now            nat.Time
	client, server nat.Link
	// The connection as the client sees it, and as the server sees it.
	from, to, as, at netip.AddrPort
	header           []byte
}

// told returns the header that a server must get, built by hand.
func told(client, server string) []byte {
	c, s := netip.MustParseAddrPort(client), netip.MustParseAddrPort(server)
	b := []byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c")
	if c.Addr().Is6() {
		b[13], b[15] = 0x21, 0x24
	}
	b = slices.Concat(b, c.Addr().AsSlice(), s.Addr().AsSlice())
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, c.Port()), s.Port())
}

// pathTo returns a connection from a pod of the remote cluster to a service, or from a local pod to
// the mapped host.
func pathTo(t testing.TB, e *nat.Engine, to string) *path {
	p := &path{t: t, e: e, now: start, client: nat.Tunnel, server: node1}
	addresses := map[string][5]string{
		// The client's real address and the address that it contacts; the source that the server
		// sees; the server; the client's address in the header, as the server's cluster knows it.
		"service": {"10.200.3.9:40000", "10.70.0.20:80", "10.71.3.9:40000", "10.200.1.5:8080", "10.71.3.9:40000"},
		"service 6": {"[fd00:200::9]:40000", "[fd00:70::14]:80", "[fd00:71:0:4000::9]:40000", "[fd00:200:0:1::5]:8080",
			"[fd00:71:0:4000::9]:40000"},
		"mapping": {"10.200.1.9:40000", "10.70.0.9:443", "10.80.0.4:40000", "192.0.2.10:443", "10.200.1.9:40000"},
	}[to]
	if to == "mapping" {
		p.client, p.server = node1, node2
	}
	for i, a := range []*netip.AddrPort{&p.from, &p.to, &p.as, &p.at} {
		*a = netip.MustParseAddrPort(addresses[i])
	}
	p.header = told(addresses[4], addresses[1])
	return p
}

func segmentOf(from, to netip.AddrPort, s nattest.TCP) []byte {
	s.SourcePort, s.DestinationPort = from.Port(), to.Port()
	if s.Window == 0 {
		s.Window = 65535
	}
	return nattest.IP{Source: from.Addr().String(), Destination: to.Addr().String(), DF: true, Body: s}.Bytes()
}

// fromClient sends a segment of the client and returns what the server receives, segment by
// segment.
func (p *path) fromClient(s nattest.TCP) []nattest.View {
	p.t.Helper()
	v, out := process(p.t, p.e, p.client, segmentOf(p.from, p.to, s), p.now)
	return p.views(v, out, p.server, p.as, p.at)
}

// fromServer sends a segment of the server and returns what the client receives.
func (p *path) fromServer(s nattest.TCP) nattest.View {
	p.t.Helper()
	v, out := process(p.t, p.e, p.server, segmentOf(p.at, p.as, s), p.now)
	return p.views(v, out, p.client, p.to, p.from)[0]
}

func (p *path) views(v nat.Verdict, out [][]byte, link nat.Link, from, to netip.AddrPort) (all []nattest.View) {
	p.t.Helper()
	if v.Action != nat.Forward || v.Out != link {
		p.t.Fatalf("%v %v to %d, want %d", v.Action, v.Reason, v.Out, link)
	}
	for _, b := range out {
		view, err := nattest.Check(b)
		need.NoError(p.t, err)
		if netip.AddrPortFrom(view.Source, view.SourcePort) != from || netip.AddrPortFrom(view.Destination,
			view.DestinationPort) != to {
			p.t.Fatalf("%s:%d > %s:%d, want %s > %s", view.Source, view.SourcePort, view.Destination,
				view.DestinationPort, from, to)
		}
		all = append(all, view)
	}
	return all
}

// open does the handshake without its last segment.
func (p *path) open() {
	p.t.Helper()
	if v := p.fromClient(nattest.TCP{Seq: 1000, Flags: nattest.SYN}); v[0].Seq != 1000 || len(v[0].Payload) > 0 {
		p.t.Fatalf("SYN %d with %q", v[0].Seq, v[0].Payload)
	}
	if v := p.fromServer(nattest.TCP{Seq: 9000, Ack: 1001, Flags: nattest.SYN | nattest.ACK}); v.Ack != 1001 {
		p.t.Fatalf("SYN-ACK of %d", v.Ack)
	}
}

// openWide is open with windows of 1 GiB.
func (p *path) openWide() {
	p.t.Helper()
	scale := []byte{3, 3, 14, 0}
	p.fromClient(nattest.TCP{Seq: 1000, Flags: nattest.SYN, Options: scale})
	p.fromServer(nattest.TCP{Seq: 9000, Ack: 1001, Flags: nattest.SYN | nattest.ACK, Options: scale})
}

// leads fails unless a segment is the header followed by payload, at the beginning of the stream.
func (p *path) leads(v []nattest.View, payload string) {
	p.t.Helper()
	if len(v) != 1 || v[0].Seq != 1001 || !bytes.Equal(v[0].Payload, append(bytes.Clone(p.header), payload...)) {
		p.t.Fatalf("%d segments; number %d, %q; want the header and %q at 1001", len(v), v[0].Seq,
			v[0].Payload, payload)
	}
}

var pathNames = []string{"service", "service 6", "mapping"}

// eachPath runs a test for connections through services of both families and through a mapping.
func eachPath(t *testing.T, test func(*testing.T, *path)) {
	for _, to := range pathNames {
		t.Run(to, func(t *testing.T) {
			p := pathTo(t, engine(t, proxied), to)
			test(t, p)
			ledger(t, p.e)
		})
	}
}

const ack = nattest.ACK

// The client sends first, in its third segment or after it.
func TestProxyProtocolPayloadFirst(t *testing.T) {
	eachPath(t, func(t *testing.T, p *path) {
		n := uint32(len(p.header))
		p.open()
		p.leads(p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack}), "")
		// Until the server has acknowledged the header, every segment at the beginning repeats it:
		// nobody knows what was lost.
		p.leads(p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack | nattest.PSH, Payload: []byte("GET /")}),
			"GET /")
		if v := p.fromClient(nattest.TCP{Seq: 1006, Ack: 9001, Flags: ack, Payload: []byte("index")})[0]; v.Seq != 1006+
			n || string(v.Payload) != "index" {
			t.Fatalf("%d %q", v.Seq, v.Payload)
		}
		// The server has the first segment without its end; then all of it.
		if v := p.fromServer(nattest.TCP{Seq: 9001, Ack: 1001 + n + 2, Flags: ack}); v.Ack != 1003 {
			t.Fatalf("acknowledgement %d, want 1003", v.Ack)
		}
		if v := p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack, Payload: []byte("GET /")})[0]; v.Seq != 1001+
			n || string(v.Payload) != "GET /" {
			t.Fatalf("%d %q: the server has the header", v.Seq, v.Payload)
		}
		if v := p.fromServer(nattest.TCP{Seq: 9001, Ack: 1011 + n, Flags: ack, Payload: []byte("200")}); v.Ack !=
			1011 || v.Seq != 9001 || string(v.Payload) != "200" {
			t.Fatalf("%d %d %q", v.Seq, v.Ack, v.Payload)
		}
		if v := p.fromClient(nattest.TCP{Seq: 1011, Ack: 9004, Flags: ack | nattest.FIN})[0]; v.Seq != 1011+n {
			t.Fatalf("FIN %d", v.Seq)
		}
		if v := p.fromServer(nattest.TCP{Seq: 9004, Ack: 1012 + n, Flags: ack | nattest.FIN}); v.Ack != 1012 {
			t.Fatalf("acknowledgement %d of FIN", v.Ack)
		}
		p.fromClient(nattest.TCP{Seq: 1012, Ack: 9005, Flags: ack})
		if c := p.connection(); c.State != "time-wait" {
			t.Errorf("state %s", c.State)
		}
	})
}

// connection returns the only one.
func (p *path) connection() nat.ConnInfo {
	p.t.Helper()
	list, _, _ := p.e.Connections(0, &nat.ConnFilter{}, p.now, nil)
	if len(list) != 1 {
		p.t.Fatalf("%d connections", len(list))
	}
	return list[0]
}

// The server sends first, as with SMTP, but not before it has the header; so the acknowledgement of
// its SYN carries the header.
func TestProxyProtocolServerFirst(t *testing.T) {
	eachPath(t, func(t *testing.T, p *path) {
		n := uint32(len(p.header))
		p.open()
		p.leads(p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack}), "") // this one is lost
		p.fromServer(nattest.TCP{Seq: 9000, Ack: 1001, Flags: nattest.SYN | ack})
		p.leads(p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack}), "")
		if v := p.fromServer(nattest.TCP{Seq: 9001, Ack: 1001 + n, Flags: ack, Payload: []byte("220 hello")}); v.Ack !=
			1001 {
			t.Fatalf("acknowledgement %d", v.Ack)
		}
		if v := p.fromClient(nattest.TCP{Seq: 1001, Ack: 9010, Flags: ack})[0]; v.Seq != 1001+n || len(v.Payload) != 0 {
			t.Fatalf("%d %q", v.Seq, v.Payload)
		}
		// A keepalive repeats the last number, with or without a byte (RFC 1122, Section 4.2.3.6).
		if v := p.fromClient(nattest.TCP{Seq: 1000, Ack: 9010, Flags: ack, Payload: []byte{0}})[0]; v.Seq != 1000+n ||
			len(v.Payload) != 1 {
			t.Fatalf("keepalive %d %q", v.Seq, v.Payload)
		}
	})
}

// A header lost after the handshake is repeated by the next keepalive, if neither end has anything
// to send.
func TestProxyProtocolKeepalive(t *testing.T) {
	eachPath(t, func(t *testing.T, p *path) {
		p.open()
		p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack})
		for _, garbage := range [][]byte{nil, {0}} {
			p.leads(p.fromClient(nattest.TCP{Seq: 1000, Ack: 9001, Flags: ack, Payload: garbage}), "")
		}
	})
}

// A client that has nothing to send closes at once.
func TestProxyProtocolFIN(t *testing.T) {
	eachPath(t, func(t *testing.T, p *path) {
		n := uint32(len(p.header))
		p.open()
		v := p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack | nattest.FIN})
		if p.leads(v, ""); v[0].Flags&nattest.FIN == 0 {
			t.Fatalf("flags %#x", v[0].Flags)
		}
		// Bytes behind the header count as the client's FIN.
		if v := p.fromServer(nattest.TCP{Seq: 9001, Ack: 1002 + n, Flags: ack | nattest.FIN}); v.Ack != 1002 {
			t.Fatalf("acknowledgement %d", v.Ack)
		}
		p.fromClient(nattest.TCP{Seq: 1002, Ack: 9002, Flags: ack})
		if c := p.connection(); c.State != "time-wait" {
			t.Errorf("state %s", c.State)
		}
	})
}

// A RST has the number that the server expects (RFC 5961, Section 3.2), whether or not the server
// has the header.
func TestProxyProtocolReset(t *testing.T) {
	eachPath(t, func(t *testing.T, p *path) {
		n := uint32(len(p.header))
		p.open()
		rst := nattest.TCP{Seq: 1001, Flags: nattest.RST}
		explained := func() uint32 {
			var q packet.Packet
			q.Parse(segmentOf(p.from, p.to, rst))
			if v := p.e.Explain(&q, p.client, p.now, nil); v.Action != nat.Forward {
				t.Fatalf("%v %v", v.Action, v.Reason)
			}
			return q.SequenceNumber()
		}
		if got := explained(); got != 1001 {
			t.Errorf("before the header: %d", got)
		}
		p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack})
		if got := explained(); got != 1001+n {
			t.Errorf("behind the header: %d, want %d", got, 1001+n)
		}
		// The header was lost: the server's challenge shows the number that it expects.
		if v := p.fromServer(nattest.TCP{Seq: 9001, Ack: 1001, Flags: ack}); v.Ack != 1001 {
			t.Fatalf("acknowledgement %d", v.Ack)
		}
		if got := explained(); got != 1001 {
			t.Errorf("after the challenge: %d", got)
		}
		rst.Seq = 1007
		if got := explained(); got != 1007+n {
			t.Errorf("after data: %d", got)
		}
		rst.Seq = 1001
		p.fromClient(rst)
		if c := p.connection(); c.State != "closed" {
			t.Errorf("state %s", c.State)
		}
	})
}

// A RST of the server that acknowledges the header and more, or the SYN, is one for the client.
func TestProxyProtocolServerReset(t *testing.T) {
	eachPath(t, func(t *testing.T, p *path) {
		p.fromClient(nattest.TCP{Seq: 1000, Flags: nattest.SYN})
		if v := p.fromServer(nattest.TCP{Ack: 1001, Flags: nattest.RST | ack}); v.Ack != 1001 {
			t.Errorf("acknowledgement %d", v.Ack)
		}
		if c := p.connection(); c.State != "closed" {
			t.Errorf("state %s", c.State)
		}
	})
}

// Data in a SYN would come before the header; the client sends it again (RFC 7413, Section 4.2).
func TestProxyProtocolFastOpen(t *testing.T) {
	cookie := []byte{34, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1}
	eachPath(t, func(t *testing.T, p *path) {
		v := p.fromClient(nattest.TCP{Seq: 1000, Flags: nattest.SYN, Options: cookie, Payload: []byte("GET /")})[0]
		if len(v.Payload) != 0 || !bytes.Equal(v.Options, cookie) {
			t.Fatalf("%q with options %x", v.Payload, v.Options)
		}
		if v := p.fromServer(nattest.TCP{Seq: 9000, Ack: 1001, Flags: nattest.SYN | ack}); v.Ack != 1001 {
			t.Fatalf("acknowledgement %d", v.Ack)
		}
		p.leads(p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack, Payload: []byte("GET /")}), "GET /")
	})
}

// The subflows of Multipath TCP map numbers of the stream. The server takes the connection for an
// ordinary one.
func TestProxyProtocolMultipath(t *testing.T) {
	eachPath(t, func(t *testing.T, p *path) {
		v := p.fromClient(nattest.TCP{Seq: 1000, Flags: nattest.SYN, Options: []byte{2, 4, 5, 0, 30, 4, 1, 1}})[0]
		if !bytes.Equal(v.Options, []byte{2, 4, 5, 0, 1, 1, 1, 1}) {
			t.Fatalf("options %x", v.Options)
		}
	})
}

// The first bytes of a client may come in a super-frame with an unfinished checksum, or fill a
// segment completely: then they take one more segment, none of which exceeds the MTU or the
// server's MSS. TCP options make no difference.
func TestProxyProtocolLongStarts(t *testing.T) {
	timestamps := []byte{1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8}
	for _, options := range [][]byte{nil, timestamps} {
		for _, partial := range []bool{false, true} {
			for _, mss := range []int{0, 536, 1300} {
				for _, size := range []int{1, 500, 1200, 1260, 65535 - 40 - 20 - 12} {
					if size > 1260 && !partial {
						continue // nothing else is longer than the MTU
					}
					eachPath(t, func(t *testing.T, p *path) {
						synOptions := []byte(nil)
						if mss > 0 {
							synOptions = []byte{2, 4, byte(mss >> 8), byte(mss)}
						}
						p.fromClient(nattest.TCP{Seq: 1000, Flags: nattest.SYN})
						p.fromServer(nattest.TCP{Seq: 9000, Ack: 1001, Flags: nattest.SYN | ack, Options: synOptions})
						data := nattest.Payload(size, 5)
						got, most := []byte(nil), 1340-40-len(options)
						if mss > 0 {
							most = min(most, mss-len(options))
						}
						if p.from.Addr().Is6() {
							most = min(most, 1340-60-len(options))
						}
						if !partial && size > most { // its sender would have kept it smaller
							return
						}
						for _, v := range p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack | nattest.PSH,
							Options: options, Payload: data, Partial: partial}) {
							if v.Seq != 1001+uint32(len(got)) || !bytes.Equal(v.Options, options) ||
								len(v.Payload) > most {
								t.Fatalf("%d bytes at %d with options %x", len(v.Payload), v.Seq, v.Options)
							}
							got = append(got, v.Payload...)
						}
						if !bytes.Equal(got, append(bytes.Clone(p.header), data...)) {
							t.Fatalf("%d bytes, want the header and %d", len(got), size)
						}
						// Later ones are only renumbered.
						if v := p.fromClient(nattest.TCP{Seq: 1001 + uint32(size), Ack: 9001, Flags: ack,
							Options: options, Payload: []byte("x"), Partial: partial})[0]; v.Seq != 1001+
							uint32(size+len(p.header)) {
							t.Fatalf("%d", v.Seq)
						}
					})
				}
			}
		}
	}
}

// The known path MTU limits the segments with the header.
func TestProxyProtocolPathMTU(t *testing.T) {
	p := pathTo(t, engine(t, proxied), "service")
	p.open()
	p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack, Payload: nattest.Payload(1000, 1)})
	quoted := nattest.IP{Source: p.as.Addr().String(), Destination: p.at.Addr().String(), DF: true,
		Body: nattest.TCP{SourcePort: p.as.Port(),
			DestinationPort: p.at.Port(), Seq: 1001, Flags: ack, Payload: nattest.Payload(1028, 1)}}
	forwarded(t, p.e, p.server, tooBig(700, quoted), p.now)
	for _, v := range p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack, Payload: nattest.Payload(640, 1)}) {
		if n := len(v.Header) + len(v.Body); n > 700 {
			t.Errorf("%d bytes, the path carries 700", n)
		}
	}
}

// A server never gets more than it has room for: the client sees a window that is smaller by the
// bytes that it does not know about.
func TestProxyProtocolWindow(t *testing.T) {
	eachPath(t, func(t *testing.T, p *path) {
		n := len(p.header)
		window := func(v nattest.View) int { return int(binary.BigEndian.Uint16(v.Body[14:])) }
		p.fromClient(nattest.TCP{Seq: 1000, Flags: nattest.SYN, Options: []byte{3, 3, 7, 0}})
		if v := p.fromServer(nattest.TCP{Seq: 9000, Ack: 1001, Flags: nattest.SYN | ack, Window: 1000,
			Options: []byte{3, 3, 3, 0}}); window(v) != 1000-n {
			t.Errorf("SYN-ACK: window %d, want %d", window(v), 1000-n)
		}
		p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack, Payload: []byte("x")})
		for _, tt := range []struct{ of, window, want int }{
			{0, 100, 100 - (n+7)/8}, // of units of 8 bytes
			{0, 1, 0},
			{n - 9, 100, 98}, {n - 8, 100, 99}, {n - 1, 100, 99}, {n, 100, 100}, {n + 1, 100, 100},
		} {
			if v := p.fromServer(nattest.TCP{Seq: 9001, Ack: 1001 + uint32(tt.of), Flags: ack,
				Window: uint16(tt.window)}); window(v) != tt.want {
				t.Errorf("%d bytes acknowledged, window %d: %d, want %d", tt.of, tt.window, window(v), tt.want)
			}
		}
	})
}

// The sender of a packet that a router could not forward finds its own number in the quotation (RFC
// 5927, Section 4.1), however short that is.
func TestProxyProtocolICMPErrors(t *testing.T) {
	eachPath(t, func(t *testing.T, p *path) {
		n := uint32(len(p.header))
		p.open()
		p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack, Payload: []byte("first")})
		p.fromClient(nattest.TCP{Seq: 1006, Ack: 9001, Flags: ack, Payload: []byte("second")})
		for _, tt := range []struct{ quoted, want uint32 }{{1001, 1001}, {1006 + n, 1006}} {
			sent := segmentOf(p.as, p.at, nattest.TCP{Seq: tt.quoted, Ack: 9001, Flags: ack, Payload: []byte("second")})
			head := 20
			if p.from.Addr().Is6() {
				head = 40
			}
			for _, length := range []int{head + 8, head + 19, head + 20, len(sent)} {
				m := nattest.ICMP{Type: 11, Payload: sent[:length]}
				if p.from.Addr().Is6() {
					m.Type = 3
				}
				router := nattest.IP{Source: p.at.Addr().String(), Destination: p.as.Addr().String(), Body: m}
				_, _, out := forwarded(t, p.e, p.server, router.Bytes(), p.now)
				check := nattest.Quoted
				if length == len(sent) {
					check = nattest.CheckQuoted
				}
				v, err := check(out)
				if got := binary.BigEndian.Uint32(v.Body[4:]); err != nil || got != tt.want {
					t.Fatalf("%v; %d is quoted as %d of %d bytes, want %d", err, tt.quoted, got, length, tt.want)
				}
			}
		}
		// The numbers of what the server sent are unchanged.
		sent := segmentOf(p.to, p.from, nattest.TCP{Seq: 9001, Ack: 1001, Flags: ack})
		m := nattest.ICMP{Type: 11, Payload: sent}
		if p.from.Addr().Is6() {
			m.Type = 3
		}
		_, _, out := forwarded(t, p.e, p.client, nattest.IP{Source: p.from.Addr().String(),
			Destination: p.to.Addr().String(), Body: m}.Bytes(), p.now)
		if v, err := nattest.CheckQuoted(out); err != nil || v.Seq != 9001 {
			t.Fatalf("%v; number %d", err, v.Seq)
		}
	})
}

// In mid-stream the server's numbers are unknown. The client is told, and so is the mapped host.
func TestProxyProtocolMidStream(t *testing.T) {
	eachPath(t, func(t *testing.T, p *path) {
		for _, flags := range []uint8{ack, ack | nattest.PSH, nattest.SYN | ack, nattest.FIN | ack} {
			b := segmentOf(p.from, p.to, nattest.TCP{Seq: 1001, Ack: 9001, Flags: flags, Payload: []byte("tail")})
			v := dropped(t, p.e, p.client, b, p.now, nat.ReasonMidStream)
			a, err := nattest.Check(answer(t, p.e, p.client, b, v, p.now))
			if err != nil || a.Flags&nattest.RST == 0 || a.Seq != 9001 {
				t.Fatalf("%v; flags %#x, number %d", err, a.Flags, a.Seq)
			}
		}
		b := segmentOf(p.from, p.to, nattest.TCP{Seq: 1001, Flags: nattest.RST})
		if v := dropped(t, p.e, p.client, b, p.now, nat.ReasonMidStream); answer(t, p.e, p.client, b, v, p.now) != nil {
			t.Error("a RST was answered")
		}
	})
	e := engine(t, proxied)
	dropped(t, e, node2, tcp("192.0.2.10", "10.71.3.9", 443, 40000, nattest.ACK, "tail").Bytes(), start,
		nat.ReasonMidStream)
	// The host may also be a client, whose own stream gets no header; UDP has no stream.
	_, v, _ := forwarded(t, e, node2, tcp("192.0.2.10", "10.71.3.9", 50000, 80, nattest.SYN, "").Bytes(), start)
	expect(t, v, "10.70.0.9", "10.200.3.9")
	if _, v, _ = forwarded(t, e, node2, tcp("192.0.2.10", "10.71.3.9", 50000, 80, nattest.ACK, "mine").Bytes(),
		start); v.Seq != 1000 || string(v.Payload) != "mine" {
		t.Errorf("%d %q", v.Seq, v.Payload)
	}
	forwarded(t, e, nat.Tunnel, udp("10.200.3.9", "10.70.0.9", 40000, 53).Bytes(), start)
	ledger(t, e)
}

// A client that reuses its port begins another stream: after the old connection has ended, and when
// its server has forgotten it.
func TestProxyProtocolPortsAgain(t *testing.T) {
	eachPath(t, func(t *testing.T, p *path) {
		n := uint32(len(p.header))
		begin := func(number uint32) {
			t.Helper()
			p.fromClient(nattest.TCP{Seq: number, Flags: nattest.SYN})
			if v := p.fromServer(nattest.TCP{Seq: 70000, Ack: number + 1, Flags: nattest.SYN | ack}); v.Ack != number+
				1 {
				t.Fatalf("acknowledgement %d, want %d", v.Ack, number+1)
			}
			v := p.fromClient(nattest.TCP{Seq: number + 1, Ack: 70001, Flags: ack, Payload: []byte("again")})
			if v[0].Seq != number+1 || !bytes.Equal(v[0].Payload, append(bytes.Clone(p.header), "again"...)) {
				t.Fatalf("%d %q", v[0].Seq, v[0].Payload)
			}
			if v := p.fromServer(nattest.TCP{Seq: 70001, Ack: number + 6 + n, Flags: ack}); v.Ack != number+6 {
				t.Fatalf("acknowledgement %d, want %d", v.Ack, number+6)
			}
		}
		begin(1000)
		begin(500_000) // while the first one is established here: the server has restarted
		p.fromClient(nattest.TCP{Seq: 500_006, Ack: 70001, Flags: nattest.RST})
		begin(0xfffffffe)
		// A SYN that the server does not accept changes nothing.
		p.fromClient(nattest.TCP{Seq: 7777, Flags: nattest.SYN})
		if v := p.fromServer(nattest.TCP{Seq: 70001, Ack: 4 + n, Flags: ack}); v.Ack != 4 {
			t.Fatalf("challenge: acknowledgement %d, want 4", v.Ack)
		}
		if v := p.fromClient(nattest.TCP{Seq: 4, Ack: 70001, Flags: ack, Payload: []byte("x")})[0]; v.Seq != 4+n {
			t.Fatalf("%d", v.Seq)
		}
	})
}

// A change affects new connections: existing ones keep their header or its absence, and so do their
// ports, until they end.
func TestProxyProtocolChanges(t *testing.T) {
	plain := func(c *nat.Config) {
		proxied(c)
		c.Services[0].ProxyProtocol, c.Services[1].ProxyProtocol, c.Addresses[0].ProxyProtocol = false, false, false
	}
	apply := func(p *path, change func(*nat.Config)) {
		c := rome()
		change(c)
		need.NoError(t, p.e.Apply(c))
	}
	eachPath(t, func(t *testing.T, p *path) {
		n := uint32(len(p.header))
		p.open()
		p.leads(p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack, Payload: []byte("one")}), "one")
		apply(p, plain)
		p.leads(p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack, Payload: []byte("one")}), "one")
		if v := p.fromServer(nattest.TCP{Seq: 9001, Ack: 1004 + n, Flags: ack}); v.Ack != 1004 {
			t.Fatalf("%d", v.Ack)
		}
		p.fromServer(nattest.TCP{Seq: 9001, Ack: 1004 + n, Flags: ack | nattest.RST})
		// The same port again, now without a header.
		p.open()
		if v := p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack, Payload: []byte("two")})[0]; string(
			v.Payload) != "two" {
			t.Fatalf("%q", v.Payload)
		}
		apply(p, proxied)
		if v := p.fromClient(nattest.TCP{Seq: 1004, Ack: 9001, Flags: ack, Payload: []byte("three")})[0]; v.Seq !=
			1004 || string(v.Payload) != "three" {
			t.Fatalf("%d %q", v.Seq, v.Payload)
		}
		p.fromServer(nattest.TCP{Seq: 9001, Ack: 1009, Flags: ack | nattest.RST})
		p.open()
		p.leads(p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack, Payload: []byte("four")}), "four")
	})
}

// A service whose backend is a mapped host that also gets headers: one header.
func TestProxyProtocolOnce(t *testing.T) {
	e := engine(t, proxied, func(c *nat.Config) {
		c.Services[0].Backends = []rules.Backend{{Address: address("192.0.2.10"), Port: 8080, Via: node2}}
	})
	p := pathTo(t, e, "service")
	p.server, p.at = node2, netip.MustParseAddrPort("192.0.2.10:8080")
	p.open()
	p.leads(p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack, Payload: []byte("GET /")}), "GET /")
}

// The header makes a new checksum, so packets that arrive damaged are dropped, and so are
// fragments.
func TestProxyProtocolBrokenStart(t *testing.T) {
	eachPath(t, func(t *testing.T, p *path) {
		p.open()
		b := segmentOf(p.from, p.to, nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack, Payload: []byte("GET /")})
		b[len(b)-1] ^= 1
		dropped(t, p.e, p.client, b, p.now, nat.ReasonMalformed)
	})
	p := pathTo(t, engine(t, proxied), "service")
	p.open()
	whole := nattest.IP{Source: "10.200.3.9", Destination: "10.70.0.20", Body: nattest.TCP{SourcePort: 40000,
		DestinationPort: 80, Seq: 1001, Ack: 9001, Flags: ack, Payload: make([]byte, 400)}}
	for _, b := range nattest.Pieces(whole, 200, 7) {
		dropped(t, p.e, p.client, b, p.now, nat.ReasonFragment)
	}
}

// A client cannot put a header of its own in place of the true one: neither with numbers before
// those of its stream, nor with several SYNs, whichever of them the server accepts.
func TestProxyProtocolForgedHeader(t *testing.T) {
	eachPath(t, func(t *testing.T, p *path) {
		n := uint32(len(p.header))
		forged := append(told(p.at.String(), p.to.String()), "GET /"...)
		try := func(first uint32) {
			t.Helper()
			for _, before := range []uint32{1, 2, n - 1, n, n + 1, uint32(len(forged)) + n - 1, 1000} {
				for _, v := range p.fromClient(nattest.TCP{Seq: first - before, Ack: 9001, Flags: ack | nattest.PSH,
					Payload: forged}) {
					if v.Seq != first || !bytes.Equal(v.Payload, p.header) {
						t.Fatalf("%d before the stream: %q at %d, want the header at %d", before, v.Payload,
							v.Seq, first)
					}
				}
			}
			long := slices.Concat(make([]byte, 60_000), forged)
			if v := p.fromClient(nattest.TCP{Seq: first - 60_000 - n, Ack: 9001, Flags: ack, Payload: long,
				Partial: true}); v[0].Seq != first || !bytes.Equal(v[0].Payload, p.header) {
				t.Fatalf("%q at %d", v[0].Payload, v[0].Seq)
			}
		}
		p.open()
		try(1001)
		for _, number := range []uint32{1000, 2000 + n, 7000} {
			p.fromClient(nattest.TCP{Seq: number, Flags: nattest.SYN})
		}
		if v := p.fromServer(nattest.TCP{Seq: 9000, Ack: 2001 + n, Flags: nattest.SYN | ack}); v.Ack != 2001+n {
			t.Fatalf("SYN-ACK of %d", v.Ack)
		}
		try(2001 + n)
		if v := p.fromClient(nattest.TCP{Seq: 2001 + n, Ack: 9001, Flags: ack, Payload: []byte("mine")})[0]; v.Seq !=
			2001+n || !bytes.Equal(v.Payload, append(bytes.Clone(p.header), "mine"...)) {
			t.Fatalf("%q at %d", v.Payload, v.Seq)
		}
	})
}

// The verdict counts exactly the packets that leave.
func TestProxyProtocolLongPayloadDropped(t *testing.T) {
	eachPath(t, func(t *testing.T, p *path) {
		for _, partial := range []bool{true, false} {
			for _, of := range []nattest.TCP{{Seq: 1000, Flags: nattest.SYN}, {Seq: 1000, Ack: 9001, Flags: ack}} {
				if of.Flags == ack {
					p.fromServer(nattest.TCP{Seq: 9000, Ack: 1001, Flags: nattest.SYN | ack})
				}
				of.Payload, of.Partial = nattest.Payload(9000, 1), partial
				if v := p.fromClient(of); len(v) != 1 || of.Flags == ack && !bytes.Equal(v[0].Payload, p.header) ||
					of.Flags != ack && len(v[0].Payload) > 0 {
					t.Errorf("flags %#x: %d segments, the first of %d bytes", of.Flags, len(v), len(v[0].Payload))
				}
			}
		}
		// One that may be fragmented.
		b := nattest.IP{Source: p.from.Addr().String(), Destination: p.to.Addr().String(),
			Body: nattest.TCP{SourcePort: p.from.Port(),
				DestinationPort: p.to.Port(), Seq: 1000, Flags: nattest.SYN, Window: 65535,
				Payload: nattest.Payload(9000, 1)}}.Bytes()
		v, out := process(t, p.e, p.client, b, p.now)
		p.views(v, out, p.server, p.as, p.at)
	})
}

// Records keep the difference between a stream's numbers, at each stage of it.
func TestProxyProtocolRecords(t *testing.T) {
	for stage, name := range []string{"SYN", "header", "part of it acknowledged", "acknowledged", "1 GiB later"} {
		eachPath(t, func(t *testing.T, p *path) {
			n := uint32(len(p.header))
			p.openWide()
			at := uint32(1001) // the client's next byte
			if stage > 0 {
				p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack})
			}
			if stage == 2 {
				p.fromServer(nattest.TCP{Seq: 9001, Ack: 1010, Flags: ack})
			}
			if stage > 2 {
				p.fromServer(nattest.TCP{Seq: 9001, Ack: 1001 + n, Flags: ack})
			}
			if stage > 3 {
				for range 20 {
					at += 1 << 26
					p.fromClient(nattest.TCP{Seq: at - 1000, Ack: 9001, Flags: ack, Payload: make([]byte, 1000)})
					p.fromServer(nattest.TCP{Seq: 9001, Ack: at + n, Flags: ack})
				}
			}
			other := engine(t, proxied)
			if got := restore(other, p.now.Add(time.Second), records(p.e, 0, p.now)); got.Connections != 1 ||
				!got.Whole {
				t.Fatalf("%s: %+v", name, got)
			}
			p.e, p.now = other, p.now.Add(time.Second)
			if stage < 3 {
				p.leads(p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack, Payload: []byte("x")}), "x")
			} else if v := p.fromClient(nattest.TCP{Seq: at, Ack: 9001, Flags: ack, Payload: []byte("x")})[0]; v.Seq !=
				at+n || string(v.Payload) != "x" {
				t.Fatalf("%s: %d %q, want %d", name, v.Seq, v.Payload, at+n)
			}
			if v := p.fromServer(nattest.TCP{Seq: 9001, Ack: at + 1 + n, Flags: ack}); v.Ack != at+1 {
				t.Fatalf("%s: acknowledgement %d, want %d", name, v.Ack, at+1)
			}
		})
	}
}

// Numbers wrap after 4 GiB: those of the header then belong to data.
func TestProxyProtocolFarStreams(t *testing.T) {
	eachPath(t, func(t *testing.T, p *path) {
		n := uint32(len(p.header))
		p.openWide()
		p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack})
		p.fromServer(nattest.TCP{Seq: 9001, Ack: 1001 + n, Flags: ack})
		at := uint32(1001)
		for range 3 << 6 { // 12 GiB
			at += 1 << 26
			if v := p.fromClient(nattest.TCP{Seq: at - 1000, Ack: 9001, Flags: ack,
				Payload: make([]byte, 1000)})[0]; v.Seq != at-1000+n || len(v.Payload) != 1000 {
				t.Fatalf("%#x: %#x, %d bytes", at, v.Seq, len(v.Payload))
			}
			for _, behind := range []uint32{3000, 0} {
				if v := p.fromServer(nattest.TCP{Seq: 9001, Ack: at + n - behind, Flags: ack}); v.Ack != at-behind {
					t.Fatalf("acknowledgement %#x, want %#x", v.Ack, at-behind)
				}
			}
		}
	})
}
