package wg

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"

	"culvert/gateway/wgkey"
	"culvert/integration/need"
)

// TestPresharedKey has wireguard-go itself as peer. A handshake needs the same pre-shared key at
// both ends; a change at one of them costs no session, and the end of a difference is noticed at
// once.
func TestPresharedKey(t *testing.T) {
	const timeout = 3 * time.Second // wireguard-go alone repeats a handshake after 5 s
	own, peer, one, other := wgkey.NewPrivate(), wgkey.NewPrivate(), wgkey.NewPrivate(), wgkey.NewPrivate()
	link := tuntest.NewChannelTUN()
	foreign := device.NewDevice(link.TUN(), conn.NewDefaultBind(), device.NewLogger(device.LogLevelSilent, ""))
	t.Cleanup(foreign.Close)
	give := func(k wgkey.Key) {
		t.Helper()
		need.NoError(t, foreign.IpcSet(fmt.Sprintf("public_key=%s\npreshared_key=%s\nallowed_ip=0.0.0.0/0\n",
			hexKey(own.Public()), hexKey(k))))
	}
	need.NoError(t, errors.Join(foreign.IpcSet("private_key="+hexKey(peer)+"\n"), foreign.Up()))
	give(one)
	text, err := foreign.IpcGet()
	need.NoError(t, err)
	_, port, _ := strings.Cut(text, "listen_port=")
	port, _, _ = strings.Cut(port, "\n")

	packets, closed := make(chan []byte), make(chan struct{})
	path := idlePath()
	path.Close = sync.OnceFunc(func() { close(closed) })
	path.Read = func(bufs [][]byte, sizes []int, offset int) (int, error) {
		select {
		case p := <-packets:
			sizes[0] = copy(bufs[0][offset:], p)
			return 1, nil
		case <-closed:
			return 0, os.ErrClosed
		}
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	d := New(Options{PrivateKey: own, MTU: 1340, Log: logrus.NewEntry(log)})
	t.Cleanup(d.Close)
	is := Peer{PublicKey: peer.Public(), Endpoint: "127.0.0.1:" + port}
	set := func(k wgkey.Key) {
		t.Helper()
		is.Preshared = k
		need.NoError(t, d.SetPeer(is))
	}
	handshake := func() time.Time {
		s, err := d.PeerStats()
		need.NoError(t, err)
		return s.LastHandshake
	}
	passes := func() {
		t.Helper()
		p := tuntest.Ping(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"))
		packets <- p
		select {
		case got := <-link.Inbound:
			if !slices.Equal(got, p) {
				t.Errorf("%x has become %x", p, got)
			}
		case <-time.After(timeout):
			t.Error("a packet is lost")
		}
	}
	// The peer ignores an initiation that comes within 20 ms of another, and packets wait then.
	until := func(what string, done func() bool) {
		t.Helper()
		var asked time.Time
		need.Eventually(t, timeout, what, func() error {
			if done() {
				return nil
			}
			if time.Since(asked) > 200*time.Millisecond {
				asked = time.Now()
				d.Renew()
			}
			return errors.New("none")
		})
	}
	renewed := func(before time.Time) {
		t.Helper()
		until("another handshake", func() bool { return handshake() != before })
	}

	need.NoError(t, errors.Join(d.Open(path, is), d.Up()))
	need.Eventually(t, timeout, "an answer", func() error {
		if d.Stats().Talk.ReceivedAnswers == 0 {
			return errors.New("none")
		}
		return nil
	})
	d.mu.Lock()
	d.unhurried() // as some seconds later
	d.mu.Unlock()
	if !handshake().IsZero() {
		t.Fatal("a handshake without the peer's pre-shared key")
	}
	set(one)
	need.Eventually(t, timeout, "a handshake with the peer's pre-shared key", func() error {
		if handshake().IsZero() {
			return errors.New("none")
		}
		return nil
	})
	passes()

	first := handshake()
	set(other) // here only
	passes()
	answers := d.Stats().Talk.ReceivedAnswers
	until("an answer", func() bool { return d.Stats().Talk.ReceivedAnswers != answers })
	if handshake() != first {
		t.Error("a handshake with different pre-shared keys")
	}
	give(other)
	renewed(first)
	passes()

	second := handshake()
	give(wgkey.Key{})
	set(wgkey.Key{})
	passes()
	renewed(second)
	passes()
}
