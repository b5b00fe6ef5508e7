package geneve

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
	"time"

	"culvert/geneve/genevetest"
	"culvert/geneve/udp"
	"culvert/integration/need"
)

// probeMACs are the senders of the probes to a VNI, in the order in which they are sent.
func probeMACs(vni VNI) (macs [udp.NumProbes][6]byte) {
	for i := range macs {
		macs[i] = toGateway(vni)
		macs[i][0] = byte(0x06 + 4*i) // locally administered, no group
	}
	return macs
}

// probed checks that exactly one round of probes has been sent to the node: a datagram alone, then
// a train of two.
func (f *fixture) probed() {
	f.Helper()
	var want [][]byte
	for _, from := range probeMACs(nodeVNI) {
		want = append(want, genevetest.Geneve(nodeVNI, 0x6558,
			genevetest.Frame(nodeMAC, from, genevetest.ARP, arpMessage(1, from, netip.IPv4Unspecified(), [6]byte{},
				nodeInner))))
	}
	for _, want := range [][][]byte{want[:1], want[1:]} {
		got, _ := f.datagrams(f.node)
		if !slices.EqualFunc(got, want, bytes.Equal) {
			f.Fatalf("probes\n% x\nwant\n% x", got, want)
		}
	}
	f.silent(f.node)
}

// answer delivers the node's answers to the given probes.
func (f *fixture) answer(probes ...udp.Probe) {
	f.Helper()
	for _, p := range probes {
		to := probeMACs(nodeVNI)[p]
		f.deliver(message(genevetest.Geneve(nodeVNI, 0x6558,
			genevetest.Frame(to, nodeMAC, genevetest.ARP, arpMessage(2, nodeMAC, nodeInner, to,
				netip.IPv4Unspecified())))))
	}
}

// train sends three packets to the node and returns in how many messages they arrive.
func (f *fixture) train() (messages int) {
	f.Helper()
	for i := range 3 {
		if r := f.s.Send(toNode, ipPacket(i, 500)); r != Accepted {
			f.Fatal(r)
		}
	}
	f.s.Flush()
	for got := 0; got < 3; messages++ {
		datagrams, _ := f.datagrams(f.node)
		got += len(datagrams)
	}
	return messages
}

// expect calls ProbeTrains a second later and checks what has changed.
func (f *fixture) expect(want ...TrainChange) {
	f.Helper()
	f.advance(time.Second)
	if got := f.e.ProbeTrains(); !slices.Equal(got, want) {
		f.Fatalf("changes %+v, want %+v", got, want)
	}
}

// needOffloads skips the test on kernels without trains.
func needOffloads(t *testing.T, s udp.Conn) {
	t.Helper()
	st := s.Stats()
	need.Offloads(t, st.GSO && st.GRO)
}

// TestProbeTrains has a node that loses trains, is repaired, and spoils them in the end.
func TestProbeTrains(t *testing.T) {
	f := newFixture(t)
	needOffloads(t, f.node)
	f.resolve()
	before := f.e.Drops()
	f.expect()
	f.silent(f.node) // no trains, no probes
	if n := f.train(); n != 1 {
		t.Fatalf("three packets in %d messages, want one train", n)
	}
	for range 3 {
		f.expect()
		f.probed()
		f.answer(udp.ProbeSingle)
	}
	f.expect(TrainChange{Tunnel: toNode})
	if n := f.train(); n != 3 {
		t.Errorf("three packets in %d messages, want one each", n)
	}
	if s, _ := f.e.TunnelStats(toNode); s.Train || s.LostTrains != 1 || s.RefusedTrains != 0 {
		t.Errorf("%+v", s)
	}
	if s, _ := f.e.TunnelStats(toNode2); !s.Train || s.LostTrains != 0 {
		t.Errorf("the other node: %+v", s)
	}
	for range 58 {
		f.expect()
	}
	f.silent(f.node)
	f.expect()
	f.probed() // again after a minute, trains or not
	f.answer(udp.ProbeSingle, udp.ProbeFirst, udp.ProbeSecond)
	f.expect(TrainChange{Tunnel: toNode, On: true})
	if s, _ := f.e.TunnelStats(toNode); !s.Train {
		t.Errorf("%+v", s)
	}
	if n := f.train(); n != 1 {
		t.Errorf("three packets in %d messages, want one train", n)
	}
	for range 3 {
		f.expect()
		f.probed()
		f.answer(udp.ProbeSecond, udp.ProbeSingle) // the first has been spoilt
	}
	f.expect(TrainChange{Tunnel: toNode})
	f.drops(before, nil)
	f.neighbour(nodeMAC) // an answer is the node's own word
}

// TestProbeTrainsNot lists the cases in which no probe is sent, or answers prove nothing.
func TestProbeTrainsNot(t *testing.T) {
	single := func(f *fixture) { // a packet alone is no train
		f.s.Send(toNode, ipPacket(1, 500))
		f.s.Flush()
		f.datagrams(f.node)
	}
	for _, tt := range []struct {
		name string
		do   func(f *fixture)
	}{
		{"single packets", single},
		{"tunnel that carries IP", func(f *fixture) {
			for range 3 {
				f.s.Send(toIP, ipPacket(1, 500))
			}
			f.s.Flush()
			f.datagrams(f.node)
		}},
		{"tunnel removed", func(f *fixture) {
			f.train()
			if err := f.e.Apply(fixtureTunnels()[1:]); err != nil {
				f.Fatal(err)
			}
		}},
		{"train refused by our kernel", func(f *fixture) {
			f.train()
			f.e.table.Load().byID(toNode).singleUntil.Store(int64(time.Hour))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			needOffloads(t, f.node)
			f.resolve()
			tt.do(f)
			for range 10 {
				f.expect()
			}
			f.silent(f.node)
		})
	}
	t.Run("node that answers nothing", func(t *testing.T) {
		f := newFixture(t)
		needOffloads(t, f.node)
		f.resolve()
		for range 10 {
			f.train()
			f.expect()
			f.probed()
			f.expect()
			f.silent(f.node)
		}
	})
}

// TestProbeAnswers delivers frames that look like answers and are none.
func TestProbeAnswers(t *testing.T) {
	marker := probeMACs(nodeVNI)
	for _, tt := range []struct {
		name  string
		frame []byte
		want  Reason
	}{
		{"from another address", genevetest.Frame(marker[1], nodeMAC, genevetest.ARP, arpMessage(2, nodeMAC, node2Inner,
			marker[1], netip.IPv4Unspecified())), OtherARP},
		{"a request", genevetest.Frame(marker[1], nodeMAC, genevetest.ARP, arpMessage(1, nodeMAC, nodeInner, [6]byte{},
			gatewayInner)), OtherMAC},
		{"another sender inside", genevetest.Frame(marker[1], nodeMAC, genevetest.ARP, arpMessage(2, station, nodeInner,
			marker[1], netip.IPv4Unspecified())), BadARP},
		{"a packet", genevetest.Frame(marker[1], nodeMAC, genevetest.IPv4, ipPacket(1, 100)), OtherMAC},
		{"another MAC address", genevetest.Frame([6]byte{0x06, us[1], us[2], us[3], us[4], us[5] ^ 1}, nodeMAC,
			genevetest.ARP, arpMessage(2, nodeMAC, nodeInner, marker[1], netip.IPv4Unspecified())), OtherMAC},
		{"of another VNI", genevetest.Frame(probeMACs(node2VNI)[1], nodeMAC, genevetest.ARP,
			arpMessage(2, nodeMAC, nodeInner, marker[1], netip.IPv4Unspecified())), OtherMAC},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			needOffloads(t, f.node)
			f.resolve()
			before := f.e.Drops()
			f.train()
			for range 3 {
				f.expect()
				f.probed()
				f.answer(udp.ProbeSingle, udp.ProbeSecond)
				f.deliver(message(genevetest.Geneve(nodeVNI, 0x6558, tt.frame)))
			}
			f.expect(TrainChange{Tunnel: toNode})
			f.drops(before, map[Reason]uint64{tt.want: 3})
		})
	}
}

// TestProbeTrainsAllocs: looking costs nothing, nor do the probes and their answers.
func TestProbeTrainsAllocs(t *testing.T) {
	f := newFixture(t)
	needOffloads(t, f.node)
	f.resolve()
	sent := &f.e.table.Load().byID(toNode).sentTrains
	if n := testing.AllocsPerRun(100, func() {
		sent.Add(1)
		f.advance(2 * time.Second)
		f.e.ProbeTrains()
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// TestProbeNode runs the probes between two endpoints, the far one as culvert node has it, and
// against genevetest.Node, which loses trains.
func TestProbeNode(t *testing.T) {
	var clock time.Duration // moved while nobody reads it: no packet is under way
	listen := func(o Options) *Endpoint {
		e, err := Listen(o)
		need.NoError(t, err)
		return e
	}
	node := listen(Options{Listen: netip.AddrPortFrom(nodeOuter, 0)})
	gateway := listen(Options{Listen: netip.AddrPortFrom(gatewayOuter, 0), RemotePort: node.LocalAddr().Port(),
		Now: func() time.Duration { return clock }})
	t.Cleanup(func() { gateway.Close() })
	needOffloads(t, gateway.socket)
	node.remotePort = gateway.LocalAddr().Port()
	tunnel := Tunnel{ID: 2, VNI: 300, Remote: nodeOuter, Encap: Geneve, Local: Pair{V4: gatewayInner},
		Peer: Pair{V4: nodeInner}}
	need.NoError(t, gateway.Apply([]Tunnel{tunnel}))
	need.NoError(t, node.Apply([]Tunnel{{VNI: 300, Remote: gatewayOuter, Local: Pair{V4: nodeInner},
		Peer: Pair{V4: gatewayInner}, Role: Node}}))
	atNode := make(chan Packet, 200)
	run(t, node, atNode)
	rounds := func(received func(), arrive bool, want ...TrainChange) {
		t.Helper()
		clock += time.Minute
		if got := probeRounds(t, gateway, &clock, received, arrive); !slices.Equal(got, want) {
			t.Errorf("trains arrive: %v: changes %+v, want %+v", arrive, got, want)
		}
	}
	rounds(func() { <-atNode }, true)
	if drops := node.Drops(); drops != [NumReasons]uint64{} {
		t.Errorf("node: drops %v", drops)
	}
	node.Close()

	double := genevetest.NewNode(t, genevetest.NodeConfig{Listen: netip.AddrPortFrom(nodeOuter,
		node.LocalAddr().Port()), Gateway: gateway.LocalAddr(),
		VNI: 300, Address: nodeInner, GatewayAddress: gatewayInner, MAC: MAC(300, Node)})
	received := func() { double.Receive() }
	rounds(received, true)
	double.LoseTrains(true)
	rounds(received, false, TrainChange{Tunnel: 2})
	rounds(received, false)
	double.LoseTrains(false)
	rounds(received, true, TrainChange{Tunnel: 2, On: true})
}

// probeRounds has gateway probe its tunnel 2 for some seconds, and returns what changes. arrive
// tells whether the node answers the train's probes too. received waits for a packet at the node:
// what was sent before it has then been answered.
func probeRounds(t *testing.T, gateway *Endpoint, clock *time.Duration, received func(),
	arrive bool) (changes []TrainChange) {
	t.Helper()
	tunnel := gateway.table.Load().byID(2)
	r, s := gateway.NewReceiver(), gateway.NewSender()
	until := func(done func() bool) {
		t.Helper()
		for !done() {
			need.NoError(t, r.Fill())
			if p, ok := r.Next(); ok {
				t.Fatalf("packet % x", p.Data)
			}
		}
	}
	send := func() {
		t.Helper()
		if r := s.Send(2, ipPacket(1, 500)); r != Accepted {
			t.Fatal(r)
		}
		s.Flush()
	}
	first := gateway.Stats().ARPReceived + 1 // the neighbour is unknown, or has been silent for long
	send()
	until(func() bool { return gateway.Stats().ARPReceived == first })
	received()
	answers := uint64(1)
	if arrive {
		answers = uint64(udp.NumProbes)
	}
	for range 5 {
		tunnel.sentTrains.Add(1)
		before := gateway.Stats()
		changes = append(changes, gateway.ProbeTrains()...)
		if after := gateway.Stats(); after.ARPSent > before.ARPSent {
			send()
			received()
			until(func() bool { return gateway.Stats().ARPReceived == before.ARPReceived+answers })
		}
		*clock += time.Second
	}
	return changes
}

// TestAskLarge: a large probe fills the tunnel like a packet, its answer is known by its number,
// and train probes are not disturbed.
func TestAskLarge(t *testing.T) {
	f := newFixture(t)
	f.e.AskLarge(toNode, 0, 1340)
	f.silent(f.node) // nobody knows its MAC address
	f.resolve()
	for _, ask := range []struct {
		id     uint16
		number uint8
		size   int
	}{{99, 0, 1340}, {toNode, NumLargeProbes, 1340}, {toNode, 0, udp.MaxPayload}} {
		f.e.AskLarge(ask.id, ask.number, ask.size)
	}
	f.silent(f.node)
	for _, number := range []uint8{0, 5, NumLargeProbes - 1} {
		f.e.AskLarge(toNode, number, 1340)
		from := toGateway(nodeVNI)
		from[0] = byte(0x02 + 4*(4+number))
		want := append(genevetest.Geneve(nodeVNI, 0x6558,
			genevetest.Frame(nodeMAC, from, genevetest.ARP, arpMessage(1, from, netip.IPv4Unspecified(), [6]byte{},
				nodeInner))), make([]byte, 1340-arpLen)...)
		if got, _ := f.datagrams(f.node); len(got) != 1 || !bytes.Equal(got[0], want) {
			t.Fatalf("probe %d\n% x\nwant\n% x", number, got, want)
		}
		if answers := f.e.LargeAnswers(toNode); answers != 0 {
			t.Fatalf("answers %b before there are any", answers)
		}
		f.deliver(message(genevetest.Geneve(nodeVNI, 0x6558,
			genevetest.Frame(from, nodeMAC, genevetest.ARP, arpMessage(2, nodeMAC, nodeInner, from,
				netip.IPv4Unspecified())))))
		if answers := f.e.LargeAnswers(toNode); answers != 1<<number {
			t.Errorf("answers %b to probe %d", answers, number)
		}
	}
	if answers := f.e.LargeAnswers(toNode2) | f.e.LargeAnswers(99); answers != 0 {
		t.Errorf("others have answered: %b", answers)
	}
}
