package integration

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"culvert/integration/need"
)

// liqoCheck is a message of Liqo's connection check as its gateways read and write it.
type liqoCheck struct {
	ClusterID string    `json:"clusterID"`
	MsgType   string    `json:"msgType"`
	TimeStamp time.Time `json:"timeStamp"`
}

// TestPeerCheck has a peer that only speaks Liqo's connection check. The gateway finds it connected
// and gets answers; packets that are not messages of the check are counted and change nothing.
func TestPeerCheck(t *testing.T) {
	beside(t, func(t *testing.T) {
		rome, milan := newPeerHost(t, "rome-gw"), newPeerHost(t, "milan-gw")
		join(rome, milan, "192.0.2.1/24", "192.0.2.7/24", 1500)
		romeKey, milanKey := newKeyPair(t), newKeyPair(t)
		startWireGuard(t, milan, milanKey, romeKey.public)
		peer := startCheckPeer(t, milan)
		startGateway(rome, romeConfig+"connectionCheck: true\n", romeKey, milanKey.public)
		peer.converse(t, rome, func() error {
			if rome.metric(`culvert_check_connected{peer="milan"}`) != 1 {
				return errNotYet
			}
			return nil
		})
	})
}

// A checkPeer answers checks by a clock in another time zone, and sends what the test wants.
type checkPeer struct {
	socket net.PacketConn
	zone   *time.Location
	pongs  chan liqoCheck
}

// startCheckPeer answers at the tunnel address of a server until the end of the test.
func startCheckPeer(t *testing.T, h *peerHost) *checkPeer {
	t.Helper()
	p := &checkPeer{zone: time.FixedZone("", 5*60*60+30*60), pongs: make(chan liqoCheck, 10)}
	err := h.do(func() (err error) {
		p.socket, err = net.ListenPacket("udp4", "169.254.18.1:12345")
		return err
	})
	need.NoError(t, err)
	t.Cleanup(func() { p.socket.Close() })
	go func() {
		for b := make([]byte, 2000); ; {
			n, from, err := p.socket.ReadFrom(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			var m liqoCheck
			if err != nil || json.Unmarshal(b[:n], &m) != nil {
				continue
			}
			if m.MsgType == "PONG" {
				p.pongs <- m
				continue
			}
			m.MsgType, m.TimeStamp = "PONG", m.TimeStamp.In(p.zone)
			if answer, err := json.Marshal(m); err == nil {
				p.socket.WriteTo(answer, from)
			}
		}
	}()
	return p
}

// converse waits until the gateway finds the peer connected, sends checks to it, and then packets
// that it must ignore.
func (p *checkPeer) converse(t *testing.T, rome *peerHost, connected func() error) {
	t.Helper()
	eventually(t, "the peer is connected", connected)
	gateway := &net.UDPAddr{IP: net.IPv4(169, 254, 18, 2), Port: 12345}
	ask := func(clock int64) {
		t.Helper()
		ping := liqoCheck{"rome", "PING", time.Unix(clock, 123456789).In(p.zone)}
		text, err := json.Marshal(ping)
		need.NoError(t, err)
		if _, err := p.socket.WriteTo(text, gateway); err != nil {
			t.Fatal(err)
		}
		select {
		case m := <-p.pongs:
			if m.ClusterID != ping.ClusterID || !m.TimeStamp.Equal(ping.TimeStamp) {
				t.Errorf("%s is answered by %+v", text, m)
			}
		case <-time.After(startTimeout):
			t.Fatalf("%s is not answered", text)
		}
	}
	ask(1_000_000_000) // by a clock of 2001

	const bad = `culvert_dropped_packets_total{direction="inbound",reason="bad-check"}`
	before := rome.metric(bad)
	odd := []string{
		"junk", `{"clusterID":"rome","msgType":"PUNG","timeStamp":"2026-11-20T12:00:00Z"}`,
		`{"clusterID":"` + strings.Repeat("x", 1100) + `","msgType":"PING","timeStamp":"2026-11-20T12:00:00Z"}`,
		`{"clusterID":"paris","msgType":"PONG","timeStamp":"2026-11-20T12:00:00.5+05:30"}`,
	}
	for _, text := range odd {
		if _, err := p.socket.WriteTo([]byte(text), gateway); err != nil {
			t.Fatal(err)
		}
	}
	ask(2_000_000_000) // later than the gateway's
	if got := rome.metric(bad) - before; got != float64(len(odd)) {
		t.Errorf("%v messages are counted as bad, want %d", got, len(odd))
	}
	if err := connected(); err != nil {
		t.Error("the peer is no longer connected")
	}
}

// A bindOf opens its sockets in a host, whichever goroutine asks. A device closes and reopens them
// in a goroutine of its own when its link goes down and up.
type bindOf struct {
	conn.Bind
	h *peerHost
}

// Open implements conn.Bind.
func (b bindOf) Open(port uint16) (receive []conn.ReceiveFunc, actual uint16, err error) {
	err = b.h.do(func() (err error) {
		receive, actual, err = b.Bind.Open(port)
		return err
	})
	return receive, actual, err
}

// startWireGuard makes a host the server of a tunnel, with nothing but wireguard-go; more are
// settings of its peer.
func startWireGuard(t *testing.T, h *peerHost, own keyPair, peer string, more ...string) (d *device.Device) {
	t.Helper()
	err := h.do(func() error {
		link, err := tun.CreateTUN(liqoTunnel, kubeMTU)
		if err != nil {
			return err
		}
		d = device.NewDevice(link, bindOf{conn.NewDefaultBind(), h}, device.NewLogger(device.LogLevelSilent, ""))
		t.Cleanup(d.Close)
		if err := d.IpcSet(fmt.Sprintf("private_key=%s\nlisten_port=51840\npublic_key=%s\nallowed_ip=0.0.0.0/0\n%s\n",
			hexKey(t, own.private), hexKey(t, peer), strings.Join(more, "\n"))); err != nil {
			return err
		}
		return d.Up()
	})
	need.NoError(t, err)
	h.ip("address add 169.254.18.1/30 dev "+liqoTunnel, "link set "+liqoTunnel+" up")
	return d
}

// hexKey returns a key as wireguard-go takes it.
func hexKey(t *testing.T, text string) string {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(text)
	need.NoError(t, err)
	return hex.EncodeToString(b)
}
