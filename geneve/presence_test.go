package geneve

import (
	"net/netip"
	"testing"
	"time"

	"culvert/geneve/genevetest"
	"culvert/geneve/udp"
	"culvert/integration/need"
)

// TestPresences follows a node from before it is known until it is silent.
func TestPresences(t *testing.T) {
	f := newFixture(t)
	see := func(what string, id uint16, want Presence) {
		t.Helper()
		f.e.Presences(func(p Presence) {
			if p.ID != id {
				return
			}
			if want.ID = id; !p.Known {
				p.Silence = 0
			}
			if p != want {
				t.Errorf("%s: %+v, want %+v", what, p, want)
			}
		})
	}
	ask := func() {
		f.advance(time.Second)
		f.e.AskAll(func() {})
	}
	see("a tunnel without frames", toIP, Presence{})
	see("before anything", toNode, Presence{ARP: true})
	ask()
	f.asked()
	f.datagrams(f.node) // to the VXLAN tunnel
	see("when asked", toNode, Presence{ARP: true, Asked: 1, AllRequests: 1})
	f.ipFrom(nodeMAC)
	see("heard by a packet", toNode, Presence{ARP: true, Asked: 1, Known: true, ReceivedPackets: 1, AllRequests: 1})
	f.advance(2 * time.Millisecond)
	f.arpFrom(us, 2, nodeMAC, nodeInner, gatewayInner)
	see("answered", toNode, Presence{ARP: true, Answered: true, Known: true, ReceivedPackets: 1,
		RTT: 2 * time.Millisecond, Requests: 1, AllRequests: 1})
	f.s.Send(toNode, genevetest.UDP(pod, remotePod, []byte("x")))
	f.s.Flush()
	f.advance(5 * time.Second)
	see("sent to", toNode, Presence{ARP: true, Answered: true, Known: true, ReceivedPackets: 1, SentPackets: 1,
		Silence: 5 * time.Second, RTT: 2 * time.Millisecond, Requests: 1,
		AllRequests: 1})
	f.advance(reachableTime - 5*time.Second)
	for range 3 {
		ask()
	}
	see("silent", toNode, Presence{ARP: true, Answered: true, Asked: 3, Known: true, ReceivedPackets: 1, SentPackets: 1,
		Silence: reachableTime + 3*time.Second,
		RTT:     2 * time.Millisecond, Requests: 3, Lost: 2, AllRequests: 4, AllMissed: 2})
	for range 2 {
		ask()
	}
	see("long silent", toNode, Presence{ARP: true, Answered: true, Asked: 4, Known: true, ReceivedPackets: 1,
		SentPackets: 1, Silence: reachableTime + 5*time.Second, Requests: 4, Lost: 3,
		AllRequests: 5, AllMissed: 3})
	f.arpFrom(us, 2, nodeMAC, nodeInner, gatewayInner)
	see("back", toNode, Presence{ARP: true, Answered: true, Known: true, ReceivedPackets: 1, SentPackets: 1,
		RTT: time.Second, Requests: 1,
		AllRequests: 5, AllMissed: 3})
}

// TestLostRequests: requests that a node leaves unanswered now and then count as lost on the way.
func TestLostRequests(t *testing.T) {
	f := newFixture(t)
	for second := range 60 {
		f.advance(askInterval)
		f.e.AskAll(func() {})
		if second%4 != 0 {
			f.arpFrom(us, 2, nodeMAC, nodeInner, gatewayInner)
			f.arpFrom(us, 2, nodeMAC, nodeInner, gatewayInner) // counts once
		}
	}
	f.e.Presences(func(p Presence) {
		if p.ID == toNode && (p.Requests != 32 || p.Lost != 8) {
			t.Errorf("%d of %d lost, want 8 of 32", p.Lost, p.Requests)
		}
	})
}

// TestEachNodeHasItsOwnRTT: what one node takes to answer is not counted for another that is asked
// in the same round.
func TestEachNodeHasItsOwnRTT(t *testing.T) {
	f := newFixture(t)
	after := map[uint16]time.Duration{toNode: 300 * time.Microsecond, toNode2: 7 * time.Millisecond}
	answers := map[uint16]udp.Message{
		toNode: {Source: netip.AddrPortFrom(nodeOuter, 40000), Data: genevetest.Geneve(nodeVNI, 0x6558,
			genevetest.Frame(us, nodeMAC, genevetest.ARP, arpMessage(2, nodeMAC, nodeInner, us, gatewayInner)))},
		toNode2: {Source: netip.AddrPortFrom(node2Outer, 40000), Data: genevetest.Geneve(node2VNI, 0x6558,
			genevetest.Frame(toGateway(node2VNI), nodeMAC, genevetest.ARP, arpMessage(2, nodeMAC, node2Inner,
				toGateway(node2VNI), gatewayInner)))},
	}
	presences := func() map[uint16]Presence {
		all := make(map[uint16]Presence)
		f.e.Presences(func(p Presence) { all[p.ID] = p })
		return all
	}
	f.e.AskAll(func() {
		for id, p := range presences() {
			if answer, ok := answers[id]; ok && p.Asked > 0 {
				f.advance(after[id])
				f.deliver(answer)
			}
		}
	})
	for id, p := range presences() {
		if p.RTT != after[id] {
			t.Errorf("tunnel %d: %v, want %v", id, p.RTT, after[id])
		}
	}
}

// TestAskAll: every node is asked once a second, and less often if it does not answer; if there
// are many nodes, they are asked in turn.
func TestAskAll(t *testing.T) {
	f := newFixture(t)
	sent := func() uint64 { return f.e.Stats().ARPSent }
	for second := range 120 {
		before := sent()
		f.e.AskAll(func() {})
		f.e.AskAll(func() {})
		want := uint64(3) // all but the tunnel without frames
		if second > maxUnanswered && second%5 != maxUnanswered {
			want = 0
		}
		if got := sent() - before; got != want {
			t.Fatalf("second %d: %d requests, want %d", second, got, want)
		}
		f.advance(time.Second)
	}
	var tunnels []Tunnel
	for i := range 3 * maxAsked {
		tunnels = append(tunnels, Tunnel{ID: uint16(i + 1), VNI: VNI(i + 1), Remote: nodeOuter, Encap: Geneve,
			Local: Pair{V4: gatewayInner}, Peer: Pair{V4: nodeInner}})
	}
	need.NoError(t, f.e.Apply(tunnels))
	for round := range 4 {
		before := sent()
		f.e.AskAll(func() {})
		want := uint64(maxAsked)
		if round == 3 {
			want = 0
		}
		if got := sent() - before; got != want {
			t.Errorf("round %d: %d requests, want %d", round, got, want)
		}
	}
}

// TestAskAllBesideApply: tunnels may all leave between two requests.
func TestAskAllBesideApply(t *testing.T) {
	f := newFixture(t)
	asked := 0
	f.e.AskAll(func() {
		asked++
		need.NoError(t, f.e.Apply(nil))
	})
	if asked != 1 {
		t.Errorf("%d requests, want that before the tunnels left", asked)
	}
}

// TestSigns: the first datagram of each kind that does not fit tells why, until asked.
func TestSigns(t *testing.T) {
	other := netip.MustParseAddr("10.80.0.7")
	request := func(sender, target netip.Addr) []byte {
		return genevetest.Geneve(nodeVNI, 0x6558, genevetest.Frame(broadcastMAC, nodeMAC, genevetest.ARP,
			arpMessage(1, nodeMAC, sender, [6]byte{}, target)))
	}
	frame := genevetest.Frame(us, nodeMAC, genevetest.IPv4, genevetest.UDP(pod, remotePod, []byte("x")))
	for _, tt := range []struct {
		name     string
		datagram []byte
		want     *Sign
	}{
		{"what fits", genevetest.Geneve(nodeVNI, 0x6558, frame), nil},
		{"another VNI", genevetest.Geneve(99, 0x6558, frame), &Sign{Reason: UnknownNode, VNI: 99,
			Source: netip.AddrPortFrom(nodeOuter, 40000)}},
		{"another encapsulation", genevetest.Geneve(vxlanVNI, 0x6558, frame), &Sign{Reason: WrongEncap, Tunnel: toVXLAN,
			VNI: vxlanVNI}},
		{"no frame", genevetest.Geneve(nodeVNI, 0x800, frame[14:]), &Sign{Reason: WrongInner, Tunnel: toNode,
			VNI: nodeVNI}},
		{"ARP from another address", request(other, gatewayInner), &Sign{Reason: Accepted, Tunnel: toNode, VNI: nodeVNI,
			Sender: other, Target: gatewayInner}},
		{"ARP for another address", request(nodeInner, other), &Sign{Reason: OtherARP, Tunnel: toNode, VNI: nodeVNI,
			Sender: nodeInner, Target: other}},
		{"ARP from and for others", request(other, netip.MustParseAddr("10.80.0.9")),
			&Sign{Reason: OtherARP, Tunnel: toNode, VNI: nodeVNI, Sender: other,
				Target: netip.MustParseAddr("10.80.0.9")}},
		{"an address that is being looked for", request(netip.IPv4Unspecified(), gatewayInner), nil},
		{"ARP as it is to be", request(nodeInner, gatewayInner), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			f.deliver(message(tt.datagram), message(tt.datagram))
			var got []*Sign
			f.e.Signs(func(s *Sign) { got = append(got, s) })
			if tt.want == nil && len(got) > 0 || tt.want != nil && (len(got) != 1 || *got[0] != *tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			f.e.Signs(func(s *Sign) { t.Errorf("%+v is told twice", s) })
		})
	}
}
