package wg

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.zx2c4.com/wireguard/device"

	"culvert/gateway/wgkey"
	"culvert/integration/need"
)

// TestHurryEnds: after its last initiation a hurry still looks for a session, which ends it. It
// ends with its peer and with the device as well.
func TestHurryEnds(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	d := New(Options{PrivateKey: wgkey.NewPrivate(), MTU: 1340, Log: logrus.NewEntry(log)})
	t.Cleanup(d.Close)
	need.NoError(t, errors.Join(d.Open(idlePath(), Peer{PublicKey: wgkey.NewPrivate().Public(),
		Endpoint: "127.0.0.1:9"}), d.Up()))
	h := d.bind.hurry.Load()
	if h == nil {
		t.Fatal("no hurry for a new peer")
	}
	state := func() (after time.Duration, pending, ended bool) {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.after, h.timer.Stop(), h.ended
	}
	for range 10 {
		h.mu.Lock()
		h.last = time.Now().Add(-time.Minute)
		h.mu.Unlock()
		h.again()
		if after, pending, ended := state(); after > device.RekeyTimeout || !pending || ended {
			t.Fatalf("no session: waits for %v, pending %v, ended %v", after, pending, ended)
		}
	}

	need.NoError(t, d.SetPeer(Peer{PublicKey: wgkey.NewPrivate().Public(), Endpoint: "127.0.0.1:9"}))
	if _, pending, ended := state(); pending || !ended {
		t.Errorf("another peer: pending %v, ended %v", pending, ended)
	}
	if h = d.bind.hurry.Load(); h == nil {
		t.Fatal("no hurry for the other peer")
	}
	d.Close()
	if _, pending, ended := state(); pending || !ended || d.bind.hurry.Load() != nil {
		t.Errorf("closed: pending %v, ended %v", pending, ended)
	}
}
