package monitor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/wgkey"
	"culvert/integration/need"
	"culvert/nat/nattest"
)

var (
	checkOwn    = netip.MustParseAddr("169.254.18.2")
	checkPeer   = netip.MustParseAddr("169.254.18.1")
	checkConfig = config.LiqoConnectionCheck
	checkStart  = time.Date(2026, 11, 20, 12, 0, 0, 123456789, time.FixedZone("", 2*60*60))
)

// newTestCheck returns a check that pings milan.
func newTestCheck() *check {
	c := newCheck(checkOwn, checkPeer, 1340)
	c.begin(testCheckConfig(), checkStart)
	return c
}

func testCheckConfig() *config.Config {
	return &config.Config{Peer: "milan", ConnectionCheck: checkConfig,
		WireGuard: config.WireGuard{PeerPublicKey: wgkey.Key{1}}}
}

// fromPeer is a datagram from the peer's gateway to the check.
func fromPeer(port int, text string) []byte {
	return nattest.IP{Source: checkPeer.String(), Destination: checkOwn.String(), TTL: 64,
		Body: nattest.UDP{SourcePort: uint16(port), DestinationPort: 12345, Payload: []byte(text)}}.Bytes()
}

// toPeer returns the content of a packet of the check and its destination port. It fails if the
// packet is malformed.
func toPeer(t *testing.T, packet []byte) (port uint16, text string) {
	t.Helper()
	v, err := nattest.Check(packet)
	need.NoError(t, err)
	if v.Source != checkOwn || v.Destination != checkPeer || v.SourcePort != 12345 {
		t.Fatalf("from %v port %d to %v", v.Source, v.SourcePort, v.Destination)
	}
	return v.DestinationPort, string(v.Body[8:])
}

// pong answers a ping as Liqo's gateway does: it decodes the ping and encodes it again, which may
// change the time zone.
func pong(t *testing.T, packet []byte, zone *time.Location) []byte {
	t.Helper()
	var m struct {
		ClusterID string    `json:"clusterID"`
		MsgType   string    `json:"msgType"`
		TimeStamp time.Time `json:"timeStamp"`
	}
	port, text := toPeer(t, packet)
	if err := json.Unmarshal([]byte(text), &m); err != nil || m.MsgType != "PING" || m.ClusterID != "milan" ||
		port != 12345 {
		t.Fatalf("ping %s to port %d: %v", text, port, err)
	}
	m.MsgType, m.TimeStamp = "PONG", m.TimeStamp.In(zone)
	b, err := json.Marshal(m)
	need.NoError(t, err)
	return fromPeer(12345, string(b))
}

// TestCheckAnswersPings: a ping comes back unchanged except for its type, from the port it was sent
// to, whatever the peer's clock and zone.
func TestCheckAnswersPings(t *testing.T) {
	for _, stamp := range []string{
		"2026-11-20T12:00:00.123456789+02:00", "2026-11-20T12:00:00Z", "1999-01-01T00:00:00.5-09:30",
		"2026-11-20T12:00:00.100000000+00:00",
	} {
		for _, cluster := range []string{"rome", "somebody", ""} {
			c := newTestCheck()
			ask := fmt.Sprintf(`{"clusterID":%q,"msgType":"PING","timeStamp":%q}`, cluster, stamp)
			packet := fromPeer(40000, ask)
			if !c.mine(packet) {
				t.Fatalf("%s is not for the check", ask)
			}
			answer, ok := c.receive(packet, checkStart)
			if !ok || answer == nil {
				t.Fatalf("%s is not answered", ask)
			}
			if port, text := toPeer(t, answer); port != 40000 || text != strings.Replace(ask, "PING", "PONG", 1) {
				t.Errorf("%s is answered to port %d by %s", ask, port, text)
			}
			if s := c.found(); s != (CheckStatus{State: CheckConnecting, Asked: 1}) {
				t.Errorf("%+v", s)
			}
		}
	}
}

// TestCheckConnects: the first answer connects, silence for Threshold intervals is an error, and
// the next answer connects again. The peer is in another time zone.
func TestCheckConnects(t *testing.T) {
	c := newTestCheck()
	now := checkStart
	zone := time.FixedZone("", -5*60*60)
	sent := 0
	step := func(want CheckState) (ping []byte) {
		t.Helper()
		ping, next := c.tick(now, true)
		if ping != nil {
			sent++
		}
		if s := c.found(); s.State != want || s.Sent != uint64(sent) {
			t.Fatalf("%v after %v: %+v, want %v and %d pings", now, now.Sub(checkStart), s, want, sent)
		}
		if !next.After(now) {
			t.Fatalf("next at %v, it is %v", next, now)
		}
		now = next
		return ping
	}
	answer := func(ping []byte, rtt time.Duration) {
		t.Helper()
		if _, ok := c.receive(pong(t, ping, zone), now.Add(-checkConfig.Interval+rtt)); !ok {
			t.Fatal("an answer is not taken")
		}
		if s := c.found(); s.State != CheckConnected || s.RTT != rtt {
			t.Fatalf("%+v, want connected with %v", s, rtt)
		}
	}
	answer(step(CheckConnecting), 12*time.Millisecond)
	answer(step(CheckConnected), 850*time.Microsecond)
	// The last answer came at 2 s.
	heard := checkStart.Add(2*time.Second + 850*time.Microsecond)
	for now.Sub(heard) <= 10*time.Second {
		step(CheckConnected)
	}
	if late := now.Sub(heard) - 10*time.Second; late != 1 {
		t.Fatalf("looks %v after the time for an answer", late)
	}
	step(CheckError)
	if s := c.found(); s.RTT != 0 || !s.Measured.IsZero() || s.Answered != 2 {
		t.Errorf("%+v", s)
	}
	answer(step(CheckError), time.Second)
	off, noPeer := testCheckConfig(), testCheckConfig()
	off.ConnectionCheck, noPeer.WireGuard.PeerPublicKey = config.ConnectionCheck{}, wgkey.Key{}
	for _, without := range []*config.Config{off, noPeer} {
		c.begin(without, now)
		if ping, next := c.tick(now, true); ping != nil || !next.IsZero() || c.found().State != CheckOff {
			t.Errorf("pings when switched off, or without a peer: %v, %+v", next, c.found())
		}
		if !c.mine(fromPeer(12345, "")) {
			t.Error("the peer's pings are not answered")
		}
	}
}

// TestCheckOfUnreachablePeer: while no endpoint is known, nothing is sent, but timeouts pass as if
// it were.
func TestCheckOfUnreachablePeer(t *testing.T) {
	c := newTestCheck()
	for now := checkStart; now.Sub(checkStart) < 20*time.Second; {
		var ping []byte
		if ping, now = c.tick(now, false); ping != nil {
			t.Fatal("a ping to nowhere")
		}
	}
	if s := c.found(); s != (CheckStatus{State: CheckError}) {
		t.Errorf("%+v", s)
	}
}

// TestCheckRefuses: only the answer to a pending ping changes the state of the check.
func TestCheckRefuses(t *testing.T) {
	c := newTestCheck()
	var pings [][]byte
	now := checkStart
	for range 7 { // the first two are forgotten
		ping, _ := c.tick(now, true)
		pings = append(pings, ping)
		now = now.Add(checkConfig.Interval)
	}
	good := pong(t, pings[6], time.UTC)
	before := c.found()
	message := func(cluster, kind, stamp string) []byte {
		return fromPeer(12345, fmt.Sprintf(`{"clusterID":%q,"msgType":%q,"timeStamp":%s}`, cluster, kind, stamp))
	}
	const stamp = `"2026-11-20T12:00:00Z"`
	badSum := bytes.Clone(good)
	badSum[26]++
	tooLong := bytes.Clone(good)
	tooLong[25]++ // UDP's length
	tooShort := bytes.Clone(good)
	tooShort[24], tooShort[25] = 0, 7
	for _, tt := range []struct {
		name   string
		packet []byte
	}{
		{"nothing", fromPeer(12345, "")},
		{"junk", fromPeer(12345, "\x00\xff{")},
		{"a number", fromPeer(12345, "5")},
		{"an empty object", fromPeer(12345, "{}")},
		{"two objects", fromPeer(12345, `{"msgType":"PING","timeStamp":`+stamp+`}{}`)},
		{"unknown type", message("milan", "PUNG", stamp)},
		{"no time", fromPeer(12345, `{"clusterID":"milan","msgType":"PING"}`)},
		{"null for a time", message("milan", "PING", "null")},
		{"a number for a time", message("milan", "PING", "5")},
		{"a bad time", message("milan", "PING", `"yesterday"`)},
		{"oversize", fromPeer(12345, `{"clusterID":"`+strings.Repeat("m", 1000)+
			`","msgType":"PING","timeStamp":`+stamp+`}`)},
		{"grows when answered", fromPeer(12345, `{"clusterID":"`+strings.Repeat("<", 500)+
			`","msgType":"PING","timeStamp":`+stamp+`}`)},
		{"answer of an unknown cluster", fromPeer(12345, strings.Replace(string(good[28:]), "milan", "paris", 1))},
		{"answer to what was not sent", message("milan", "PONG", stamp)},
		{"answer to what was forgotten", pong(t, pings[1], time.UTC)},
		{"bad checksum", badSum},
		{"longer than it is", tooLong},
		{"shorter than a header", tooShort},
	} {
		c.limit.SetBurstAt(now, checkBurst)
		if answer, ok := c.receive(tt.packet, now); ok || answer != nil {
			t.Errorf("%s: taken, answered by %q", tt.name, answer)
		}
		if s := c.found(); s != before {
			t.Errorf("%s: %+v", tt.name, s)
		}
	}
	if _, ok := c.receive(good, now); !ok {
		t.Fatal("the answer to the last ping is refused")
	}
	if _, ok := c.receive(good, now); ok {
		t.Error("taken twice")
	}
	if _, ok := c.receive(pong(t, pings[5], time.UTC), now); ok {
		t.Error("an older answer is taken after a newer one")
	}
}

// TestCheckRate: if a peer sends many messages a second, most are ignored.
func TestCheckRate(t *testing.T) {
	c := newTestCheck()
	ping := fromPeer(12345, `{"clusterID":"rome","msgType":"PING","timeStamp":"2026-11-20T12:00:00Z"}`)
	answered := 0
	for i := range 10_000 { // in a second
		if _, ok := c.receive(ping, checkStart.Add(time.Duration(i)*100*time.Microsecond)); ok {
			answered++
		}
	}
	if most := checkBurst + checkRate + 1; answered < checkBurst || answered > most {
		t.Errorf("%d answers, want %d to %d", answered, checkBurst, most)
	}
}

// TestCheckMine: the check takes packets of the peer's gateway only, and reassembles no fragments.
func TestCheckMine(t *testing.T) {
	build := func(edit func(*nattest.IP, *nattest.UDP)) []byte {
		ip := nattest.IP{Source: checkPeer.String(), Destination: checkOwn.String(), TTL: 64}
		udp := nattest.UDP{SourcePort: 12345, DestinationPort: 12345, Payload: []byte("{}")}
		edit(&ip, &udp)
		if ip.Body == nil {
			ip.Body = udp
		}
		return ip.Bytes()
	}
	for _, tt := range []struct {
		name   string
		packet []byte
		want   bool
	}{
		{"from the peer", build(func(*nattest.IP, *nattest.UDP) {}), true},
		{"from any port", build(func(_ *nattest.IP, udp *nattest.UDP) { udp.SourcePort = 1 }), true},
		{"from a pod", build(func(ip *nattest.IP, _ *nattest.UDP) { ip.Source = "10.0.1.5" }), false},
		{"to another address", build(func(ip *nattest.IP, _ *nattest.UDP) { ip.Destination = "10.80.0.4" }), false},
		{"to another port", build(func(_ *nattest.IP, udp *nattest.UDP) { udp.DestinationPort = 12346 }), false},
		{"a first fragment", build(func(ip *nattest.IP, _ *nattest.UDP) { ip.MF = true }), false},
		{"a later fragment", build(func(ip *nattest.IP, _ *nattest.UDP) { ip.Offset = 800 }), false},
		{"TCP", build(func(ip *nattest.IP, _ *nattest.UDP) {
			ip.Body = nattest.Raw{Protocol: 6, Payload: []byte{0x30, 0x39, 0x30, 0x39, 0, 0, 0, 0}}
		}), false},
		{"half a header", build(func(ip *nattest.IP, _ *nattest.UDP) {
			ip.Body = nattest.Raw{Protocol: 17, Payload: []byte{0x30, 0x39, 0x30, 0x39}}
		}), false},
	} {
		if got := newTestCheck().mine(tt.packet); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// FuzzCheck gives the check any packet of the peer: the answer must be well-formed, or there must
// be none.
func FuzzCheck(f *testing.F) {
	f.Add([]byte(`{"clusterID":"rome","msgType":"PING","timeStamp":"2026-11-20T12:00:00.123456789+02:00"}`))
	f.Add([]byte(`{"CLUSTERID":"\ud800","msgType":"PING","timeStamp":"0001-01-01T00:00:00.0Z"}`))
	f.Add([]byte(`{"clusterID":"milan","msgType":"PONG","timeStamp":"2026-11-20T12:00:00.123456789+02:00"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c := newTestCheck()
		if len(text) > 2000 || !c.mine(fromPeer(9, string(text))) {
			return
		}
		answer, ok := c.receive(fromPeer(9, string(text)), checkStart)
		if answer == nil {
			return
		}
		port, said := toPeer(t, answer)
		m, valid := parseCheck([]byte(said))
		if !ok || port != 9 || !valid || m.Type != checkPong {
			t.Errorf("%q is answered by %q", text, said)
		}
	})
}

// TestCheckRoundTrips: each answer is counted under the smallest bound that it meets, and the sum
// covers all.
func TestCheckRoundTrips(t *testing.T) {
	c := newTestCheck()
	now := checkStart
	for _, rtt := range []time.Duration{time.Millisecond, 10 * time.Millisecond, 11 * time.Millisecond, time.Second} {
		ping, _ := c.tick(now, true)
		if _, ok := c.receive(pong(t, ping, time.UTC), now.Add(rtt)); !ok {
			t.Fatalf("an answer after %v is not taken", rtt)
		}
		now = now.Add(checkConfig.Interval)
	}
	var want CheckStatus
	want.RTTs[0], want.RTTs[1], want.RTTs[len(RTTBounds)] = 2, 1, 1
	if found := c.found(); found.RTTs != want.RTTs || found.RTTSum != 1022*time.Millisecond {
		t.Errorf("%v, together %v", found.RTTs, found.RTTSum)
	}
}
