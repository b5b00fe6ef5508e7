package wg

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/wgkey"
)

// TestCallsInVain: a call is in vain when another follows it and no handshake was made.
func TestCallsInVain(t *testing.T) {
	one, two := time.Unix(100, 0), time.Unix(220, 0)
	var c calls
	for i, step := range []struct {
		made  time.Time
		begun uint64
		vain  bool
	}{
		{time.Time{}, 0, false},
		{time.Time{}, 1, false}, // the first
		{time.Time{}, 2, true},
		{time.Time{}, 2, false}, // nobody calls any more
		{time.Time{}, 3, true},
		{one, 3, false},
		{one, 4, false}, // a new session, in time
		{two, 4, false},
		{two, 6, true},
		{two, 6, false},
		{two, 7, true},
		{time.Time{}, 7, false}, // another peer
		{time.Time{}, 8, false},
		{time.Time{}, 9, true},
	} {
		if got := c.vain(step.made, step.begun); got != step.vain {
			t.Errorf("step %d: %v", i, got)
		}
	}
}

// TestComeHome: the endpoint of a peer that has roamed is looked up anew when its session has
// ended, that of one that is where its name says is kept.
func TestComeHome(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	d := New(Options{PrivateKey: wgkey.NewPrivate(), MTU: 1340, Log: logrus.NewEntry(log)})
	t.Cleanup(d.Close)
	if err := errors.Join(d.Open(idlePath(), Peer{PublicKey: wgkey.NewPrivate().Public(), Endpoint: "127.0.0.1:8"}), d.Up()); err != nil {
		t.Fatal(err)
	}
	d.comeHome("127.0.0.1:8")
	if d.endpoint.String() != "127.0.0.1:8" {
		t.Fatalf("at home: %v", d.endpoint)
	}
	if err := d.set("public_key="+hexKey(d.peer.PublicKey), "endpoint=127.0.0.1:9"); err != nil {
		t.Fatal(err)
	}
	if err := d.updateEndpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s, _ := d.PeerStats(); s.Endpoint != "127.0.0.1:9" {
		t.Fatalf("a session has roamed, and is called at %s", s.Endpoint)
	}
	d.comeHome("127.0.0.1:9")
	if err := d.updateEndpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s, _ := d.PeerStats(); s.Endpoint != "127.0.0.1:8" {
		t.Errorf("it is called at %s", s.Endpoint)
	}
}
