package wg

import (
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
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

// TestRenewLeavesAnAnswerAlone: while a response becomes a session, no other handshake starts.
func TestRenewLeavesAnAnswerAlone(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	key := wgkey.NewPrivate()
	d := New(Options{PrivateKey: key, MTU: 1340, Log: logrus.NewEntry(log)})
	t.Cleanup(d.Close)
	need.NoError(t, errors.Join(d.Open(idlePath(), Peer{PublicKey: wgkey.NewPrivate().Public(),
		Endpoint: "127.0.0.1:9"}), d.Up()))
	d.mu.Lock()
	d.unhurried() // its initiations would count too
	d.mu.Unlock()
	a := d.bind.admission
	initiations := func() uint64 {
		before := a.handshakes.sentInitiations.Load()
		d.Renew()
		return a.handshakes.sentInitiations.Load() - before
	}
	if n := initiations(); n != 1 {
		t.Errorf("without an answer, Renew sends %d initiations, want 1", n)
	}
	answer := func(to uint32) []byte {
		m := make([]byte, device.MessageResponseSize)
		binary.LittleEndian.PutUint32(m, device.MessageResponseType)
		binary.LittleEndian.PutUint32(m[receiverAt:], to)
		var macs device.CookieGenerator
		macs.Init(device.NoisePublicKey(key.Public()))
		macs.AddMacs(m)
		return m
	}
	for _, tt := range []struct {
		to   string
		from string // the peer answers from another address if it is behind a translation
		off  uint32
		want uint64
	}{{"another initiation", "127.0.0.1", 1, 1}, {"the last initiation", "192.0.2.1", 0, 0}} {
		if _, ok := a.admit(answer(a.asked.Load()+tt.off), netip.MustParseAddr(tt.from)); !ok {
			t.Fatal("the answer is refused")
		}
		if n := initiations(); n != tt.want {
			t.Errorf("after an answer to %s, Renew sends %d initiations, want %d", tt.to, n, tt.want)
		}
	}
	a.mu.Lock()
	a.answered = a.answered.Add(-answerTime)
	a.mu.Unlock()
	if n := initiations(); n != 1 {
		t.Errorf("%v after an answer, Renew sends %d initiations, want 1", answerTime, n)
	}
}
