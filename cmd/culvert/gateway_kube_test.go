//go:build !nokube

package main

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"culvert/gateway/health"
)

// TestTrouble: while the peer answers, its Peering's message names a path that large packets do not
// pass, with the Peering's field; while it does not, the message says why.
func TestTrouble(t *testing.T) {
	o := &health.Observation{
		Peer: health.Peer{Name: "milan", Peering: true, Role: "client",
			Endpoint: netip.MustParseAddrPort("192.0.2.1:31840"), Knock: health.KnockRefused},
		Paths: []health.Path{{Kind: health.OfNode, Of: "node1", Size: 1200, Configured: 1340, Wire: 1400, Way: "to"}},
	}
	j, now := health.NewJudge(), time.Duration(0)
	for ; now < time.Minute; now += time.Second {
		o.Peer.SentHandshakes = uint64(now / (5 * time.Second))
		j.Look(now, o)
	}
	for answers, want := range map[bool]string{true: "or set spec.mtu: 1200 in the Peerings of both clusters",
		false: "is the port of spec.endpoint that of its Service"} {
		if got := trouble(j.Findings(now), answers); !strings.Contains(got, want) {
			t.Errorf("the peer answers %t: %q, want %q", answers, got, want)
		}
	}
	if got := trouble(nil, true); got != "" {
		t.Error(got)
	}
}

// TestTroubleOfClock: of a peer whose clock went back, the Peering says so, and what to do. It
// neither says that the key is wrong nor that nobody listens where the peer was.
func TestTroubleOfClock(t *testing.T) {
	at := time.Date(2026, 2, 3, 4, 5, 0, 0, time.UTC)
	j, now := health.NewJudge(), time.Duration(0)
	o := &health.Observation{Peer: health.Peer{Name: "milan", Peering: true, Role: "server", Handshake: 1,
		Endpoint: netip.MustParseAddrPort("192.0.2.1:31840")}}
	for ; now < time.Minute; now += time.Second {
		if now > 10*time.Second && now%(5*time.Second) == 0 {
			o.Peer.Outdated, o.Peer.Knock = at.Add(now), health.KnockRefused
			o.Peer.SentHandshakes++
			o.Peer.ReceivedHandshakes++
		}
		j.Look(now, o)
	}
	got := trouble(j.Findings(now), false)
	for _, want := range []string{"the peer's clock went back: its handshakes are of 2026-02-03 04:05:", " UTC and so older",
		"correct the clock of the peer's machine, or restart this gateway, which then accepts them; the keys are right"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q does not say %q", got, want)
		}
	}
}
