package wg

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"culvert/gateway/wgkey"
	"culvert/integration/need"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// idlePath is a Path without packets.
func idlePath() Path {
	closed := make(chan struct{})
	return Path{
		Read: func([][]byte, []int, int) (int, error) {
			<-closed
			return 0, os.ErrClosed
		},
		Write: func([][]byte, int) {},
		Send:  func([]byte) {},
		Close: sync.OnceFunc(func() { close(closed) }),
	}
}

// TestNoPeer: a device without a peer is up, accepts one, gives it up and accepts another, wherever
// that is. DNS is not asked for a peer that does not exist.
func TestNoPeer(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	d := New(Options{PrivateKey: wgkey.NewPrivate(), MTU: 1340, Log: logrus.NewEntry(log)})
	t.Cleanup(d.Close)
	need.NoError(t, errors.Join(d.Open(idlePath(), Peer{Endpoint: "milan.invalid:1"}), d.Up(),
		d.updateEndpoint(t.Context(), false, false)))
	port := d.Port()
	one, other := wgkey.NewPrivate().Public(), wgkey.NewPrivate().Public()
	for _, step := range []struct {
		peer     Peer
		key      wgkey.Key // that the device has afterwards
		endpoint string
	}{
		{Peer{Endpoint: "127.0.0.1:8", Keepalive: time.Second}, wgkey.Key{}, ""},
		{Peer{PublicKey: one, Endpoint: "127.0.0.1:9", Keepalive: time.Second}, one, "127.0.0.1:9"},
		{Peer{Endpoint: "127.0.0.1:9", Keepalive: 2 * time.Second}, wgkey.Key{}, ""},
		{Peer{PublicKey: one, Endpoint: "127.0.0.1:9"}, one, "127.0.0.1:9"},
		{Peer{PublicKey: other, Endpoint: "127.0.0.1:10"}, other, "127.0.0.1:10"},
		{Peer{}, wgkey.Key{}, ""},
		{Peer{PublicKey: one}, one, ""}, // as a server
	} {
		need.NoError(t, d.SetPeer(step.peer))
		// too late: the peer does not exist any more
		if err := d.setEndpoint(&Peer{}, netip.MustParseAddrPort("127.0.0.1:11"), true); err != nil {
			t.Fatal(err)
		}
		text, err := d.device.IpcGet()
		need.NoError(t, err)
		keys, s := strings.Count(text, "public_key="), PeerStats{}
		if s, err = d.PeerStats(); err != nil {
			t.Fatal(err)
		}
		if has := strings.Contains(text, "public_key="+hexKey(step.key)); keys > 1 ||
			has != (step.key != wgkey.Key{}) || (keys == 1) != has || s.Endpoint != step.endpoint {
			t.Errorf("%+v: %d peers at %q:\n%s", step.peer, keys, s.Endpoint, text)
		}
		if d.Port() != port {
			t.Errorf("%+v: another socket", step.peer)
		}
	}
}

// TestPeerEndpoint: the peer's endpoint survives a change of the keepalive, even if it has roamed,
// and is not given to another peer.
func TestPeerEndpoint(t *testing.T) {
	const roamed = "127.0.0.1:9"
	// A peer that does not exist, so that no message of it moves the endpoint.
	peer := Peer{PublicKey: wgkey.NewPrivate().Public(), Endpoint: "127.0.0.1:8", Keepalive: 25 * time.Second}
	log := logrus.New()
	log.SetOutput(io.Discard)
	d := New(Options{PrivateKey: wgkey.NewPrivate(), MTU: 1340, Log: logrus.NewEntry(log)})
	t.Cleanup(d.Close)
	need.NoError(t, errors.Join(d.Open(idlePath(), peer), d.Up(), d.set("public_key="+hexKey(peer.PublicKey),
		"endpoint="+roamed)))
	apply := func(change func(p *Peer)) {
		t.Helper()
		change(&peer)
		need.NoError(t, d.SetPeer(peer))
	}
	device := func() string {
		text, err := d.device.IpcGet()
		need.NoError(t, err)
		_, peer, _ := strings.Cut(text, "listen_port=")
		return peer
	}
	apply(func(p *Peer) { p.Keepalive = 7 * time.Second })
	if got := device(); !strings.Contains(got, "endpoint="+roamed) ||
		!strings.Contains(got, "persistent_keepalive_interval=7\n") {
		t.Errorf("after a change of the keepalive: %s", got)
	}

	asked := peer
	other := wgkey.NewPrivate().Public()
	apply(func(p *Peer) { p.PublicKey, p.Endpoint = other, "milan.invalid:1" })
	// a late answer of DNS about the previous peer
	if err := d.setEndpoint(&asked, netip.MustParseAddrPort("127.0.0.1:10"), true); err != nil {
		t.Fatal(err)
	}
	if got := device(); strings.Contains(got, "endpoint=") || strings.Contains(got, hexKey(asked.PublicKey)) {
		t.Errorf("another peer, and no answer of DNS: %s", got)
	}

	apply(func(p *Peer) { p.Endpoint = roamed })
	need.NoError(t, d.updateEndpoint(t.Context(), false, false))
	if got := device(); !strings.Contains(got, "public_key="+hexKey(other)+"\n") ||
		!strings.Contains(got, "endpoint="+roamed) {
		t.Errorf("another peer, resolved: %s", got)
	}
}
