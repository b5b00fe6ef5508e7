package gateway

import (
	"strings"
	"testing"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/monitor"
	"culvert/gateway/path"
	"culvert/integration/need"
	"culvert/nat/nattest"
)

// TestCheckBetweenGateways: two gateways check each other; it is enough that one of them only
// answers. The end of a peer is noticed, and every packet is counted.
func TestCheckBetweenGateways(t *testing.T) {
	fast := config.ConnectionCheck{Interval: 100 * time.Millisecond, Threshold: 5}
	p := newPair(t, func(rome, _ *config.Config) { rome.ConnectionCheck = fast })
	await := func(c *cluster, want monitor.CheckState) monitor.CheckStatus {
		t.Helper()
		deadline := time.After(20 * time.Second)
		for {
			s := c.Connection()
			if s.State == want {
				return s
			}
			select {
			case <-deadline:
				t.Fatalf("%+v, want %v", s, want)
			case <-time.After(time.Millisecond):
			}
		}
	}
	if s := await(p.rome, monitor.CheckConnected); s.RTT <= 0 || s.RTT > 10*time.Second || s.Measured.IsZero() ||
		s.Answered > s.Sent {
		t.Errorf("%+v", s)
	}
	if s := p.milan.Connection(); s.State != monitor.CheckOff || s.Asked == 0 || s.Sent != 0 {
		t.Errorf("milan: %+v", s)
	}
	next := *p.milan.config()
	next.ConnectionCheck = fast
	need.NoError(t, p.milan.Apply(&next))
	await(p.milan, monitor.CheckConnected)
	p.milan.stop()
	await(p.rome, monitor.CheckError)
	s := p.rome.Connection()
	// A slow machine may answer too late, and after a second the gateways ping each other: a pong
	// here answers one of rome's pings, and rome has answered each of milan's.
	in, bad := p.rome.engine.Stats().Inbound, p.rome.path.Inbound().Dropped(path.DropBadCheck)
	checks, pings := s.Answered+s.Asked+bad, p.rome.path.Outbound().Generated()-s.Sent-s.Asked
	if in.Delivered < checks || in.Delivered > checks+pings {
		t.Errorf("%d packets delivered for %+v, %d bad, %d pings and answers to pings", in.Delivered, s, bad, pings)
	}
}

// fromPeer returns a datagram from the peer's gateway to the connection check.
func fromPeer(port int, text string) []byte {
	return nattest.IP{Source: "169.254.18.1", Destination: "169.254.18.2", TTL: 64,
		Body: nattest.UDP{SourcePort: uint16(port), DestinationPort: 12345, Payload: []byte(text)}}.Bytes()
}

// TestCheckJunk: a packet from the peer's gateway to the check's port that is not a message of the
// check is counted by name; a ping is answered.
func TestCheckJunk(t *testing.T) {
	const headroom = 16
	g := unopened(t)
	packets := [][]byte{fromPeer(12345, "junk"), fromPeer(12345, strings.Repeat(" ", 1100)+"{}"),
		fromPeer(9, `{"clusterID":"rome","msgType":"PING","timeStamp":"2026-11-20T12:00:00.123456789+02:00"}`)}
	for i, b := range packets {
		packets[i] = append(make([]byte, headroom), b...)
	}
	g.path.Carry(packets, headroom)
	if bad, delivered := g.path.Inbound().Dropped(path.DropBadCheck), g.engine.Stats().Inbound.Delivered; bad != 2 ||
		delivered != 3 {
		t.Errorf("%d of %d packets to the gateway are bad", bad, delivered)
	}
	answers, sizes := [][]byte{make([]byte, 65535), make([]byte, 65535)}, make([]int, 2)
	if n, err := g.path.Read(answers, sizes, headroom); n != 1 || err != nil {
		t.Fatalf("%d answers, %v", n, err)
	}
	v, err := nattest.Check(answers[0][headroom : headroom+sizes[0]])
	if err != nil || v.DestinationPort != 9 || !strings.Contains(string(v.Body[8:]), `"PONG"`) {
		t.Errorf("answered to port %d: %s, %v", v.DestinationPort, v.Body, err)
	}
}
