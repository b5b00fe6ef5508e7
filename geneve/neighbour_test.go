package geneve

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"culvert/geneve/genevetest"
	"culvert/geneve/udp"
	"culvert/integration/need"
)

var (
	us      = toGateway(nodeVNI)
	station = [6]byte{0x02, 's', 0, 0, 0, 1} // another station behind the node
)

// arpFrom delivers an ARP message in a frame from its sender.
func (f *fixture) arpFrom(to [6]byte, operation byte, sender [6]byte, senderIP, targetIP netip.Addr) {
	f.Helper()
	frame := genevetest.Frame(to, sender, genevetest.ARP, arpMessage(operation, sender, senderIP, [6]byte{}, targetIP))
	if got := f.deliver(message(genevetest.Geneve(nodeVNI, 0x6558, frame))); len(got) > 0 {
		f.Fatalf("ARP came out as %d packets", len(got))
	}
}

// ipFrom delivers an IP packet in a frame from the given station.
func (f *fixture) ipFrom(from [6]byte) {
	f.Helper()
	frame := genevetest.Frame(us, from, genevetest.IPv4, genevetest.UDP(pod, remotePod, []byte("x")))
	if got := f.deliver(message(genevetest.Geneve(nodeVNI, 0x6558, frame))); len(got) != 1 {
		f.Fatalf("%d packets came out, want 1", len(got))
	}
}

// neighbour checks which address is known for the node.
func (f *fixture) neighbour(want [6]byte) {
	f.Helper()
	s, _ := f.e.TunnelStats(toNode)
	if want == [6]byte{} {
		if s.MAC != nil {
			f.Errorf("neighbour %v, want none", s.MAC)
		}
	} else if !bytes.Equal(s.MAC, want[:]) {
		f.Errorf("neighbour %v, want % x", s.MAC, want)
	}
}

// asked checks that the gateway has sent the node exactly one ARP request.
func (f *fixture) asked() {
	f.Helper()
	want := genevetest.Geneve(nodeVNI, 0x6558, genevetest.Frame(broadcastMAC, us, genevetest.ARP,
		arpMessage(1, us, gatewayInner, [6]byte{}, nodeInner)))
	if got, _ := f.datagrams(f.node); len(got) != 1 || !bytes.Equal(got[0], want) {
		f.Errorf("sent % x, want the request % x", got, want)
	}
}

func TestARPAnswers(t *testing.T) {
	otherNodeIP := netip.MustParseAddr("172.18.0.2") // Linux takes any address of the node with arp_announce 0
	tests := []struct {
		name     string
		to       [6]byte
		senderIP netip.Addr
		learnt   bool
	}{
		{"broadcast", broadcastMAC, nodeInner, true},
		{"unicast probe", us, nodeInner, true},
		{"from another address of the node", broadcastMAC, otherNodeIP, false},
		{"duplicate address detection", broadcastMAC, netip.IPv4Unspecified(), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			before := f.e.Drops()
			f.arpFrom(tt.to, 1, nodeMAC, tt.senderIP, gatewayInner)
			want := genevetest.Geneve(nodeVNI, 0x6558, genevetest.Frame(nodeMAC, us, genevetest.ARP,
				arpMessage(2, us, gatewayInner, nodeMAC, tt.senderIP)))
			if got, _ := f.datagrams(f.node); len(got) != 1 || !bytes.Equal(got[0], want) {
				t.Errorf("answer % x, want % x", got, want)
			}
			if tt.learnt {
				f.neighbour(nodeMAC)
			} else {
				f.neighbour([6]byte{})
			}
			f.drops(before, nil)
			if s := f.e.Stats(); s.ARPReceived != 1 || s.ARPSent != 1 {
				t.Errorf("%d received and %d sent, want 1 and 1", s.ARPReceived, s.ARPSent)
			}
		})
	}
}

func TestARPOverVXLAN(t *testing.T) {
	f := newFixture(t)
	us := toGateway(vxlanVNI)
	request := genevetest.Frame(broadcastMAC, nodeMAC, genevetest.ARP,
		append(arpMessage(1, nodeMAC, nodeInner, [6]byte{}, gatewayInner), make([]byte, 18)...))
	f.deliver(message(genevetest.VXLAN(vxlanVNI, request)))
	want := genevetest.VXLAN(vxlanVNI, genevetest.Frame(nodeMAC, us, genevetest.ARP, arpMessage(2, us, gatewayInner,
		nodeMAC, nodeInner)))
	if got, _ := f.datagrams(f.node); !bytes.Equal(got[0], want) {
		t.Errorf("answer % x, want % x", got[0], want)
	}
}

func TestARPRateLimit(t *testing.T) {
	f := newFixture(t)
	before := f.e.Drops()
	for range maxAnswers + 5 {
		f.arpFrom(us, 1, nodeMAC, nodeInner, gatewayInner)
	}
	f.drops(before, map[Reason]uint64{ARPRate: 5})
	f.advance(time.Second)
	f.arpFrom(us, 1, nodeMAC, nodeInner, gatewayInner)
	if s := f.e.Stats(); s.ARPSent != maxAnswers+1 {
		t.Errorf("%d answers, want %d", s.ARPSent, maxAnswers+1)
	}
}

// TestLearning lists the frames that set and change the neighbour's address.
func TestLearning(t *testing.T) {
	t.Run("the last frame counts while ARP has told nothing", func(t *testing.T) {
		f := newFixture(t)
		f.neighbour([6]byte{})
		f.ipFrom(nodeMAC)
		f.neighbour(nodeMAC)
		f.ipFrom(station)
		f.neighbour(station)
		f.silent(f.node)
	})
	t.Run("ARP overrides frames, and the next ARP overrides it", func(t *testing.T) {
		f := newFixture(t)
		f.ipFrom(station)
		f.arpFrom(us, 2, nodeMAC, nodeInner, gatewayInner)
		f.neighbour(nodeMAC)
		f.arpFrom(broadcastMAC, 2, station, nodeInner, nodeInner) // gratuitous reply
		f.neighbour(station)
		f.silent(f.node)
	})
	t.Run("a second station does not divert the tunnel", func(t *testing.T) {
		f := newFixture(t)
		f.resolve()
		for range 5 {
			f.ipFrom(station)
			f.neighbour(nodeMAC)
			f.asked() // once a second
			f.ipFrom(station)
			f.silent(f.node)
			f.arpFrom(us, 2, nodeMAC, nodeInner, gatewayInner)
			f.advance(time.Second)
		}
	})
	t.Run("a node that answers no ARP keeps its address while it talks", func(t *testing.T) {
		f := newFixture(t)
		f.resolve()
		for range 6 {
			f.ipFrom(nodeMAC)
			f.ipFrom(station)
			f.neighbour(nodeMAC)
			f.advance(time.Second)
		}
	})
	t.Run("a new link takes over when the old address is silent", func(t *testing.T) {
		f := newFixture(t)
		f.resolve()
		for range maxUnanswered {
			f.ipFrom(station)
			f.neighbour(nodeMAC)
			f.asked()
			f.advance(time.Second)
		}
		f.ipFrom(station)
		f.neighbour(station)
	})
	t.Run("ARP of another address tells nothing", func(t *testing.T) {
		f := newFixture(t)
		f.arpFrom(us, 2, station, node2Inner, gatewayInner)
		f.neighbour([6]byte{})
	})
	t.Run("a request for somebody else tells the sender's address", func(t *testing.T) {
		f := newFixture(t)
		before := f.e.Drops()
		f.arpFrom(broadcastMAC, 1, nodeMAC, nodeInner, node2Inner)
		f.neighbour(nodeMAC)
		f.drops(before, map[Reason]uint64{OtherARP: 1})
		f.silent(f.node)
	})
}

// TestHold sends before the neighbour is known: packets wait, in order, and leave before later
// ones.
func TestHold(t *testing.T) {
	f := newFixture(t)
	var sent [][]byte
	for i := range maxHeldPerTunnel {
		sent = append(sent, genevetest.UDP(pod, remotePod, payload(i, 10+i)))
		if i%2 == 1 {
			sent[i] = genevetest.UDP(pod6, remotePod6, payload(i, 10+i))
		}
		if r := f.s.Send(toNode, sent[i]); r != Accepted {
			t.Fatalf("packet %d: %v", i, r)
		}
	}
	f.s.Flush()
	f.asked()
	before := f.e.Drops()
	if r := f.s.Send(toNode, sent[0]); r != HoldFull {
		t.Errorf("packet %d: %v, want hold-full", maxHeldPerTunnel, r)
	}
	f.drops(before, map[Reason]uint64{HoldFull: 1})
	if s := f.e.Stats(); s.Held != maxHeldPerTunnel {
		t.Errorf("%d held, want %d", s.Held, maxHeldPerTunnel)
	}
	if r := f.s.Send(toIP, sent[0]); r != Accepted { // another tunnel does not wait
		t.Error(r)
	}
	f.s.Flush()
	f.datagrams(f.node)
	f.arpFrom(us, 2, nodeMAC, nodeInner, gatewayInner)
	last := genevetest.UDP(pod, remotePod, []byte("last"))
	f.s.Send(toNode, last)
	f.s.Flush()
	for i, packet := range append(sent, last) {
		etherType := uint16(genevetest.IPv4)
		if packet[0]>>4 == 6 {
			etherType = genevetest.IPv6
		}
		want := genevetest.Geneve(nodeVNI, 0x6558, genevetest.Frame(nodeMAC, us, etherType, packet))
		if got, _ := f.datagrams(f.node); len(got) != 1 || !bytes.Equal(got[0], want) {
			t.Fatalf("datagram %d: % x, want % x", i, got, want)
		}
	}
	if s, _ := f.e.TunnelStats(toNode); s.SentPackets != maxHeldPerTunnel+1 || s.Held != 0 {
		t.Errorf("%d sent, %d held; want %d, 0", s.SentPackets, s.Held, maxHeldPerTunnel+1)
	}
}

// TestHoldExpires asks each second and lets go after holdTime.
func TestHoldExpires(t *testing.T) {
	f := newFixture(t)
	before := f.e.Drops()
	packet := genevetest.UDP(pod, remotePod, []byte("x"))
	f.s.Send(toNode, packet)
	f.s.Send(toNode, packet)
	f.s.Send(toNode2, packet)
	f.asked()
	f.datagrams(f.node2)
	for range 2 {
		f.e.neighbours.tick() // the timer's work, which does nothing before the clock has moved
		f.silent(f.node)
		f.advance(time.Second)
		f.e.neighbours.tick()
		f.asked()
		f.datagrams(f.node2)
	}
	f.drops(before, nil)
	f.advance(time.Second)
	f.e.neighbours.tick()
	f.drops(before, map[Reason]uint64{Unresolved: 3})
	if s := f.e.Stats(); s.Held != 0 {
		t.Errorf("%d held, want 0", s.Held)
	}
	f.silent(f.node)
	// The next packet starts anew.
	f.advance(time.Second)
	f.s.Send(toNode, packet)
	f.asked()
	f.arpFrom(us, 2, nodeMAC, nodeInner, gatewayInner)
	if got, _ := f.datagrams(f.node); len(got) != 1 {
		t.Errorf("%d datagrams, want the packet held", len(got))
	}
}

// TestHoldEnds removes tunnels and closes the endpoint while packets wait.
func TestHoldEnds(t *testing.T) {
	f := newFixture(t)
	before := f.e.Drops()
	packet := genevetest.UDP(pod, remotePod, []byte("x"))
	f.s.Send(toNode, packet)
	f.s.Send(toVXLAN, packet)
	f.s.Send(toVXLAN, packet)
	gone := f.e.table.Load().byID(toNode)
	need.NoError(t, f.e.Apply(fixtureTunnels()[1:]))
	f.drops(before, map[Reason]uint64{UnknownTunnel: 1})
	// A Sender that has still found the tunnel can hold nothing more.
	if r, to := f.e.neighbours.hold(gone, packet); r != UnknownTunnel || to != 0 {
		t.Errorf("hold on a removed tunnel: %v, %v", r, to)
	}
	if r := f.s.Send(toNode, packet); r != UnknownTunnel {
		t.Errorf("Send to a removed tunnel: %v", r)
	}
	f.e.Close()
	f.drops(before, map[Reason]uint64{UnknownTunnel: 2, Unresolved: 2})
	if s := f.e.Stats(); s.Held != 0 {
		t.Errorf("%d held, want 0", s.Held)
	}
}

// manyTunnels applies so many tunnels to neighbours that never answer, with IDs from 0.
func (f *fixture) manyTunnels(count int) {
	f.Helper()
	var tunnels []Tunnel
	for i := range count {
		tunnels = append(tunnels, Tunnel{ID: uint16(i), VNI: VNI(i), Remote: nodeOuter, Local: Pair{V4: gatewayInner},
			Peer: Pair{V4: nodeInner}})
	}
	if err := f.e.Apply(tunnels); err != nil {
		f.Fatal(err)
	}
}

// waits returns how many packets wait for a neighbour.
func (f *fixture) waits(id uint16) int {
	s, _ := f.e.TunnelStats(id)
	return s.Held
}

// TestHoldCaps fills the room for all tunnels together with packets of one size; then each tunnel
// has an equal part.
func TestHoldCaps(t *testing.T) {
	const tunnels = 30
	for _, tt := range []struct{ size, want int }{{20, maxHeldBytes / minHeldBytes},
		{40000, maxHeldBytes / (40000 + maxHeader)}} {
		f := newFixture(t)
		f.manyTunnels(tunnels)
		before := f.e.Drops()
		packet := genevetest.IP(pod.Addr(), remotePod.Addr(), 17, 0, make([]byte, tt.size-20))
		for i := range tunnels * maxHeldPerTunnel { // one tunnel after the other
			if r := f.s.Send(uint16(i/maxHeldPerTunnel), packet); r != Accepted && r != HoldFull {
				t.Fatal(r)
			}
		}
		if held := f.e.Stats().Held; held < tt.want-tunnels || held > tt.want {
			t.Errorf("%d packets of %d bytes held, want %d", held, tt.size, tt.want)
		}
		f.drops(before, map[Reason]uint64{HoldFull: uint64(tunnels*maxHeldPerTunnel - f.e.Stats().Held)})
		for id := range uint16(tunnels) {
			if held, share := f.waits(id), tt.want/tunnels; held < share || held > share+share/2+2 {
				t.Errorf("%d packets of %d bytes wait for neighbour %d, an equal part is %d", held, tt.size, id, share)
			}
		}
	}
}

// TestHoldShares: one tunnel alone may use all room that one tunnel may have. Many tunnels whose
// neighbours never answer do not keep room from one more, whatever the order and the sizes of their
// packets.
func TestHoldShares(t *testing.T) {
	small := genevetest.UDP(pod, remotePod, []byte("x"))
	large := genevetest.IP(pod.Addr(), remotePod.Addr(), 17, 0, make([]byte, 60000))
	for _, tt := range []struct {
		name   string
		dead   int
		packet []byte
		want   int // packets of the innocent that wait
	}{
		{"alone", 0, nil, maxHeldPerTunnel},
		{"16 that hold all they may", 16, small, 60},
		{"100 of small packets", 100, small, 10},
		{"1023 of small packets", 1023, small, 1},
		{"one of large packets", 1, large, maxHeldPerTunnel},
		{"40 of large packets", 40, large, 24},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			f.manyTunnels(tt.dead + 1)
			innocent := uint16(tt.dead)
			for id := range innocent {
				for range maxHeldPerTunnel {
					f.s.Send(id, tt.packet)
				}
			}
			for i := range tt.want {
				if r := f.s.Send(innocent, small); r != Accepted {
					t.Fatalf("packet %d of the innocent: %v", i, r)
				}
			}
			for range maxHeldPerTunnel { // they go on
				for id := range innocent {
					f.s.Send(id, tt.packet)
				}
			}
			if held := f.waits(innocent); held != tt.want {
				t.Errorf("%d packets of the innocent wait, want %d", held, tt.want)
			}
			n := &f.e.neighbours
			held, bytes := 0, 0
			for _, w := range n.waiting {
				held += len(w.neighbour.held)
				for _, h := range w.neighbour.held {
					bytes += h.room()
				}
			}
			if held != n.held || bytes != n.shares.Used() || bytes > maxHeldBytes {
				t.Errorf("%d packets in %d bytes; counted %d in %d", held, bytes, n.held, n.shares.Used())
			}
		})
	}
}

// TestRefresh asks for a neighbour that is sent to and silent.
func TestRefresh(t *testing.T) {
	f := newFixture(t)
	f.resolve()
	packet := genevetest.UDP(pod, remotePod, []byte("x"))
	send := func() {
		f.s.Send(toNode, packet)
		f.s.Flush()
	}
	f.advance(reachableTime)
	send()
	f.datagrams(f.node)
	f.silent(f.node)
	f.advance(time.Second)
	send()
	f.asked() // before the packet, which goes to the address known
	f.datagrams(f.node)
	send()
	f.datagrams(f.node)
	f.silent(f.node)
	f.ipFrom(nodeMAC)
	f.advance(time.Second)
	send()
	f.datagrams(f.node)
	f.silent(f.node)
}

// TestMovedGateway: a node asks a gateway that has moved at once, without a packet, and while
// packets wait it asks again soon, because that gateway may learn of the node a moment later. Once
// the gateway is heard, or is away for long, it is asked once a second.
func TestMovedGateway(t *testing.T) {
	f := newFixture(t)
	f.know()
	tunnels := fixtureTunnels()
	tunnels[0].VNI++ // as Remote would: the fixture has one socket for each
	tunnels[0].Encap = Geneve
	need.NoError(t, f.e.Apply(tunnels[:1]))
	counted := func() (n int) {
		f.e.Presences(func(p Presence) {
			if p.ID == toNode {
				n = p.Asked
			}
		})
		return n
	}
	sent := uint64(0)
	requests := func() (n int) {
		before := sent
		sent = f.e.Stats().ARPSent
		return int(sent - before)
	}
	requests()
	f.e.AskNew()
	if n := requests(); n != 1 || counted() != 1 {
		t.Fatalf("%d requests at once, %d counted, want 1", n, counted())
	}
	f.e.AskNew()
	f.s.Send(toNode, genevetest.UDP(pod, remotePod, []byte("x")))
	f.s.Flush()
	asked := requests()
	for range 8 {
		f.advance(holdTick)
		f.e.neighbours.tick()
	}
	asked += requests()
	if asked != 8 || counted() != 1 {
		t.Errorf("%d requests in the next %v, %d counted; want 8 and 1", asked, 8*holdTick, counted())
	}
	for range 100 {
		f.advance(holdTick)
		f.s.Send(toNode, genevetest.UDP(pod, remotePod, []byte("x")))
		f.s.Flush()
		f.e.neighbours.tick()
	}
	requests()
	for range 20 {
		f.advance(holdTick)
		f.e.neighbours.tick()
	}
	if n := requests(); n > 3 {
		t.Errorf("%d requests in 2 s to a gateway that has been away for 10 s, want at most 3", n)
	}
}

// TestDoubt: after a flush was delayed, silent neighbours must answer before more is sent to them;
// others need not.
func TestDoubt(t *testing.T) {
	f := newFixture(t)
	f.know()
	packet := genevetest.UDP(pod, remotePod, []byte("x"))
	flush := func(takes time.Duration) {
		f.s.Send(toNode, packet)
		f.s.Send(toNode2, packet)
		f.advance(takes)
		f.s.Flush()
		f.datagrams(f.node)
		f.datagrams(f.node2)
	}
	doubted := func(want uint64) {
		t.Helper()
		if s := f.e.Stats(); s.Doubted != want {
			t.Errorf("%d doubted, want %d", s.Doubted, want)
		}
	}
	f.advance(time.Minute)
	flush(stallTime - 1) // asks for both, which are silent
	f.datagrams(f.node)
	f.datagrams(f.node2)
	doubted(0)
	f.ipFrom(nodeMAC)
	flush(stallTime)
	f.neighbour(nodeMAC)
	doubted(2) // node2, and the VXLAN tunnel
	f.s.Send(toNode2, packet)
	f.s.Flush()
	f.silent(f.node2) // it waits; the request has just been sent
	if f.waits(toNode2) != 1 {
		t.Error("a packet is sent to a neighbour that is doubted")
	}
	frame := genevetest.Frame(toGateway(node2VNI), nodeMAC, genevetest.IPv4, genevetest.UDP(pod, remotePod,
		[]byte("x")))
	m := message(genevetest.Geneve(node2VNI, 0x6558, frame))
	m.Source = netip.AddrPortFrom(node2Outer, 40000)
	f.deliver(m)
	if got, _ := f.datagrams(f.node2); len(got) != 1 || f.waits(toNode2) != 0 {
		t.Error("the packet still waits for a neighbour that is back")
	}
}

// TestAside: with Aside, requests to an end that was not heard come each from another port, and all
// else from the tunnels' own. A gateway that takes another one's place asks like this although it
// knows that end's MAC address.
func TestAside(t *testing.T) {
	f := newFixture(t)
	f.e.neighbours.open = func() (udp.Conn, error) {
		return udp.Listen("udp4", netip.AddrPortFrom(gatewayOuter, 0), udp.Options{})
	}
	own := f.e.LocalAddr().Port()
	// from returns the ports of what has come to the node.
	from := func() (ports []uint16) {
		t.Helper()
		const marker = "marker"
		f.e.socket.NewSender().Send([]udp.Train{{Destination: f.node.LocalAddr(), Parts: [][]byte{[]byte(marker)}}})
		m := []udp.Message{{Buffer: make([]byte, udp.BufferSize)}}
		for {
			n, err := f.node.Receive(m)
			if need.NoError(t, err); n == 0 {
				continue
			}
			last := strings.HasSuffix(string(m[0].Data), marker)
			if !last || len(m[0].Data) > len(marker) {
				ports = append(ports, m[0].Source.Port())
			}
			if last {
				return ports
			}
		}
	}
	seen := map[uint16]bool{own: true}
	asks := func(what string) {
		t.Helper()
		ports := from()
		if len(ports) == 0 {
			t.Errorf("%s: nobody is asked", what)
		}
		for _, p := range ports {
			if p == own {
				t.Errorf("%s: asked from the tunnels' own port %d", what, p)
			}
			seen[p] = true
		}
	}
	f.e.AskNew()
	asks("at first")
	before := len(seen)
	f.advance(askInterval)
	f.e.AskAll(func() {})
	if asks("again"); len(seen) == before {
		t.Error("the second request comes from the port of the first one")
	}
	send := func() {
		f.s.Send(toNode, genevetest.UDP(pod, remotePod, []byte("x")))
		f.s.Flush()
	}
	f.know()
	from()
	send()
	f.advance(askInterval)
	f.e.neighbours.confirm(f.e.table.Load().byID(toNode), f.e.now())
	if ports := from(); len(ports) == 0 || slices.ContainsFunc(ports, func(p uint16) bool { return p != own }) {
		t.Errorf("a packet and a request to an end that was heard come from the ports %d, want %d", ports, own)
	}
	f.e.Greet()
	send()
	asks("in the place of another gateway")
	f.arpFrom(us, 2, nodeMAC, nodeInner, gatewayInner)
	if ports := from(); len(ports) == 0 || slices.ContainsFunc(ports, func(p uint16) bool { return p != own }) {
		t.Errorf("the packet that waited comes from the ports %d, want %d", ports, own)
	}
}
