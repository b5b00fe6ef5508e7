package wg

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"culvert/integration/need"
)

// TestPeerTrains: while trains are lost, the bind sends single datagrams, except one probe when it
// is due, and only to that endpoint.
func TestPeerTrains(t *testing.T) {
	a, b, receive, to := bindPair(t)
	need.Offloads(t, a.offload() && b.stats()[0].GRO)
	received := func(want ...int) { // sizes
		t.Helper()
		got := newBatch(BatchSize)
		for len(want) > 0 {
			n, err := receive(got.packets, got.sizes, got.eps)
			need.NoError(t, err)
			for _, size := range got.sizes[:n] {
				if size != want[0] {
					t.Fatalf("datagram of %d bytes, want %d", size, want[0])
				}
				want = want[1:]
			}
		}
	}
	data, probe := newData(500), newData(probeMessage)
	batch := [][]byte{data, data, data, probe[:64], probe, probe, probe[:80]}
	lost := to.(*endpoint).addr
	elsewhere := netip.AddrPortFrom(lost.Addr(), lost.Port()-1)
	for _, tt := range []struct {
		name     string
		lost     *netip.AddrPort
		probe    bool
		messages uint64 // at the receiver
		left     bool   // the probe is still due
	}{
		{"arrive", nil, false, 2, false}, // 3 × 500 and 64; 2 × 96 and 80
		{"lost", &lost, false, 7, false},
		{"lost, probe due", &lost, true, 6, false},
		{"lost elsewhere", &elsewhere, true, 2, true},
	} {
		a.trains.lost.Store(tt.lost)
		a.trains.probe.Store(tt.probe)
		before := b.stats()[0].ReceivedMessages
		need.NoError(t, a.Send(batch, to))
		received(500, 500, 500, 64, 96, 96, 80)
		if n := b.stats()[0].ReceivedMessages - before; n != tt.messages {
			t.Errorf("%s: %d messages, want %d", tt.name, n, tt.messages)
		}
		if a.trains.probe.Load() != tt.left {
			t.Errorf("%s: probe still due: %v", tt.name, !tt.left)
		}
	}
	if last := a.trains.to.Load(); last == nil || *last != lost {
		t.Errorf("last train to %v, want %v", last, lost)
	}
	sent := a.trains.sent.Load()
	need.NoError(t, a.Send([][]byte{probe, probe}, to))
	if n := a.trains.sent.Load() - sent; n != 0 {
		t.Errorf("a probe counts as %d trains", n)
	}
}

// TestPeerRoams: nothing is known about another endpoint.
func TestPeerRoams(t *testing.T) {
	b, _, _, _ := bindPair(t)
	need.Offloads(t, b.offload())
	own, peer := netip.MustParseAddr("169.254.18.2"), netip.MustParseAddr("169.254.18.1")
	p := newPeerProbe(b, own, peer)
	p.send = func(request []byte) { // as if trains were lost
		if len(request) != singleEcho {
			return
		}
		reply := header.IPv4(bytes.Clone(request))
		reply.SetSourceAddress(tcpip.AddrFrom4(peer.As4()))
		reply.SetDestinationAddress(tcpip.AddrFrom4(own.As4()))
		header.ICMPv4(reply.Payload()).SetType(header.ICMPv4EchoReply)
		if _, ok := p.answer(reply); !ok {
			t.Error("the reply is no answer")
		}
	}
	now := time.Hour
	second := func() {
		now += time.Second
		p.step(now)
	}
	b.trains.sent.Add(1) // as if one had been sent
	at, other := netip.MustParseAddrPort("127.0.0.1:8"), netip.MustParseAddrPort("127.0.0.1:9")
	b.trains.to.Store(&at)
	for range 4 {
		second()
	}
	if !p.Lost() || !b.trains.lostTo(at) {
		t.Fatal("the loss is not noticed")
	}
	b.trains.to.Store(&other)
	second()
	if p.Lost() || b.trains.lostTo(at) {
		t.Error("a loss on the old path counts on the new one")
	}
}
