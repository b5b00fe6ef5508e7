package wg

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"culvert/gateway/wgkey"
	"culvert/integration/need"
)

// TestCallsInVain: a call was in vain if another follows it without a handshake.
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

// TestLost: a peer is lost when it has sent nothing for lostTime.
func TestLost(t *testing.T) {
	begin := time.Unix(100, 0)
	c := calls{received: 7, heard: begin}
	for i, step := range []struct {
		received uint64
		after    time.Duration
		lost     bool
	}{
		{7, lostTime - 1, false},
		{8, lostTime, false},
		{8, 2*lostTime - 1, false},
		{8, 2 * lostTime, true},
		{9, 2*lostTime + 1, false},
		{0, 4 * lostTime, false}, // another peer
	} {
		if got := c.lost(step.received, begin.Add(step.after)); got != step.lost {
			t.Errorf("step %d: %v", i, got)
		}
	}
}

// TestComeHome: the name of a peer that has roamed is resolved again when its session has ended;
// that of a peer still at its address is not.
func TestComeHome(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	d := New(Options{PrivateKey: wgkey.NewPrivate(), MTU: 1340, Log: logrus.NewEntry(log)})
	t.Cleanup(d.Close)
	need.NoError(t, errors.Join(d.Open(idlePath(), Peer{PublicKey: wgkey.NewPrivate().Public(),
		Endpoint: "127.0.0.1:8"}), d.Up()))
	d.comeHome("127.0.0.1:8")
	if d.endpoint.String() != "127.0.0.1:8" {
		t.Fatalf("at home: %v", d.endpoint)
	}
	need.NoError(t, d.set("public_key="+hexKey(d.peer.PublicKey), "endpoint=127.0.0.1:9"))
	need.NoError(t, d.updateEndpoint(t.Context(), false, true))
	if s, _ := d.PeerStats(); s.Endpoint != "127.0.0.1:9" {
		t.Fatalf("a session has roamed, and is called at %s", s.Endpoint)
	}
	d.comeHome("127.0.0.1:9")
	need.NoError(t, d.updateEndpoint(t.Context(), false, true))
	if s, _ := d.PeerStats(); s.Endpoint != "127.0.0.1:8" {
		t.Errorf("it is called at %s", s.Endpoint)
	}
}

// TestTurns: a name whose addresses are all called in vain, one after another, is logged once. A
// session that has roamed stays where it is, even after a lost call, unless nothing comes from the
// peer any more.
func TestTurns(t *testing.T) {
	real := lookup
	t.Cleanup(func() { lookup = real })
	lookup = func(context.Context, string, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")}, nil
	}
	log, said := logtest.NewNullLogger()
	d := New(Options{PrivateKey: wgkey.NewPrivate(), MTU: 1340, Log: logrus.NewEntry(log)})
	t.Cleanup(d.Close)
	need.NoError(t, errors.Join(d.Open(idlePath(), Peer{PublicKey: wgkey.NewPrivate().Public(),
		Endpoint: "gw.milan.example:8"}), d.Up()))
	lost := false
	turn := func(vain bool, want string) {
		t.Helper()
		need.NoError(t, d.updateEndpoint(t.Context(), vain, lost))
		if s, _ := d.PeerStats(); s.Endpoint != want {
			t.Errorf("it is called at %s, want %s", s.Endpoint, want)
		}
	}
	turn(false, "127.0.0.1:8")
	for range 3 {
		turn(true, "[::1]:8")
		turn(true, "127.0.0.1:8")
	}
	need.NoError(t, d.set("public_key="+hexKey(d.peer.PublicKey), "endpoint=127.0.0.1:9"))
	turn(true, "127.0.0.1:9")
	lost = true // now by turns, for another peer may be at the name's addresses
	for range 2 {
		turn(true, "127.0.0.1:8")
		turn(true, "[::1]:8")
		turn(true, "127.0.0.1:9")
	}
	turn(false, "127.0.0.1:9")
	n := 0
	for _, e := range said.AllEntries() {
		if e.Message == "peer endpoint set" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d lines say where the peer is, want 1", n)
	}
}

// TestInterleave: addresses of the two families alternate.
func TestInterleave(t *testing.T) {
	for _, tt := range []struct{ name, addresses, want string }{
		{"one", "192.0.2.1", "192.0.2.1"},
		{"IPv6 first", "2001:db8::1 2001:db8::2 192.0.2.1 192.0.2.2", "2001:db8::1 192.0.2.1 2001:db8::2 192.0.2.2"},
		{"IPv4 first", "::ffff:192.0.2.1 192.0.2.2 192.0.2.3 2001:db8::1", "192.0.2.1 2001:db8::1 192.0.2.2 192.0.2.3"},
	} {
		var addrs []netip.Addr
		for _, a := range strings.Fields(tt.addresses) {
			addrs = append(addrs, netip.MustParseAddr(a))
		}
		var got []string
		for _, a := range interleave(addrs) {
			got = append(got, a.String())
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, got, tt.want)
		}
	}
}

// TestFallBack: after a call in vain, an address gives way to one of the other family; one that
// answers stays.
func TestFallBack(t *testing.T) {
	six, four, other := netip.MustParseAddrPort("[2001:db8::1]:8"), netip.MustParseAddrPort("192.0.2.1:8"),
		netip.MustParseAddrPort("192.0.2.2:8")
	all := []netip.AddrPort{six, four, other}
	current := netip.AddrPort{}
	for step, tt := range []struct {
		vain bool
		want netip.AddrPort
	}{{false, six}, {false, six}, {true, four}, {false, four}, {true, other}, {true, six}} {
		if current = choose(all, current, tt.vain); current != tt.want {
			t.Fatalf("step %d: called at %v, want %v", step, current, tt.want)
		}
	}
	if got := choose([]netip.AddrPort{four}, four, true); got != four {
		t.Errorf("the only address gave way to %v", got)
	}
	if got := choose(all, netip.MustParseAddrPort("192.0.2.9:8"), false); got != six {
		t.Errorf("an address that is gone gave way to %v, want the first", got)
	}
}
