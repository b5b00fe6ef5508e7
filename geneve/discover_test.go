package geneve

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"culvert/geneve/genevetest"
	"culvert/geneve/udp"
	"culvert/integration/need"
)

var (
	gatewayInner6 = netip.MustParseAddr("fd80::4")
	nodeInner6    = netip.MustParseAddr("fd80::2")
	node2Inner6   = netip.MustParseAddr("fd80::3")
	nodeLink      = netip.MustParseAddr("fe80::6eff:fe0a:5000") // an address of the node's link
	nodeGroup     = netip.MustParseAddr("ff02::1:ff00:2")
	gatewayGroup  = netip.MustParseAddr("ff02::1:ff00:4")

	routerSolicitation = genevetest.Discovery(nodeLink, netip.MustParseAddr("ff02::2"),
		[]byte{133, 0, 0, 0, 0, 0, 0, 0})
)

// Flags of an advertisement.
const (
	byRouter      = 0x80
	whenSolicited = 0x40
	overriding    = 0x20
)

// tunnel6 is the fixture's tunnel to nodeOuter with IPv6 alone; dual has IPv4 too.
func tunnel6(dual bool) Tunnel {
	t := Tunnel{ID: toNode, VNI: nodeVNI, Remote: nodeOuter, Encap: Geneve, Local: Pair{V6: gatewayInner6},
		Peer: Pair{V6: nodeInner6}}
	if dual {
		t.Local.V4, t.Peer.V4 = gatewayInner, nodeInner
	}
	return t
}

// newFixture6 is a fixture with that tunnel alone.
func newFixture6(t *testing.T, dual bool) *fixture {
	t.Helper()
	f := newFixture(t)
	need.NoError(t, f.e.Apply([]Tunnel{tunnel6(dual)}))
	return f
}

// inFrame returns the datagram of a frame from the node.
func inFrame(to, from [6]byte, ip []byte) []byte {
	return genevetest.Geneve(nodeVNI, 0x6558, genevetest.Frame(to, from, genevetest.IPv6, ip))
}

// discovery delivers a message of neighbour discovery in a frame from the given station.
func (f *fixture) discovery(to, from [6]byte, ip []byte) {
	f.Helper()
	if got := f.deliver(message(inFrame(to, from, ip))); len(got) > 0 {
		f.Fatalf("neighbour discovery came out as %d packets", len(got))
	}
}

// advertised delivers the node's answer to a solicitation.
func (f *fixture) advertised() {
	f.Helper()
	f.discovery(us, nodeMAC, genevetest.Advertise(nodeInner6, gatewayInner6, whenSolicited|overriding, nodeMAC))
}

// solicited checks that the gateway has sent exactly one solicitation for the node's address.
func (f *fixture) solicited() {
	f.Helper()
	want := inFrame(genevetest.GroupMAC(nodeGroup), us, genevetest.Solicit(gatewayInner6, nodeInner6, us, true))
	if got, _ := f.datagrams(f.node); len(got) != 1 || !bytes.Equal(got[0], want) {
		f.Errorf("sent % x, want the solicitation % x", got, want)
	}
}

// TestNDAnswers: a solicitation for our address is answered as RFC 4861, Section 7.2.4, says, and
// the peer's MAC address is learnt from it.
func TestNDAnswers(t *testing.T) {
	none := [6]byte{}
	ours := genevetest.GroupMAC(gatewayGroup)
	const usual = byRouter | whenSolicited | overriding
	for _, tt := range []struct {
		name         string
		to           [6]byte
		solicitation []byte
		answerTo     [6]byte
		answer       []byte
		learnt, told bool
	}{
		{"to the group", ours, genevetest.Solicit(nodeInner6, gatewayInner6, nodeMAC, true), nodeMAC,
			genevetest.Advertise(gatewayInner6, nodeInner6, usual, us), true, false},
		{"unreachability detection", us, genevetest.Solicit(nodeInner6, gatewayInner6, none, false), nodeMAC,
			genevetest.Advertise(gatewayInner6, nodeInner6, usual, us), true, false},
		{"from the link's own address", ours, genevetest.Solicit(nodeLink, gatewayInner6, nodeMAC, true), nodeMAC,
			genevetest.Advertise(gatewayInner6, nodeLink, usual, us), false, false},
		{"from another address of the node", ours, genevetest.Solicit(node2Inner6, gatewayInner6, nodeMAC, true),
			nodeMAC, genevetest.Advertise(gatewayInner6, node2Inner6, usual, us), false, true},
		{"duplicate address detection", ours, genevetest.Solicit(netip.IPv6Unspecified(), gatewayInner6, none, true),
			[6]byte{0x33, 0x33, 0, 0, 0, 1}, genevetest.Advertise(gatewayInner6, netip.MustParseAddr("ff02::1"),
				byRouter|overriding, us), false, false},
	} {
		for _, dual := range []bool{false, true} {
			t.Run(tt.name, func(t *testing.T) {
				f := newFixture6(t, dual)
				before := f.e.Drops()
				f.discovery(tt.to, nodeMAC, tt.solicitation)
				want := inFrame(tt.answerTo, us, tt.answer)
				if got, _ := f.datagrams(f.node); len(got) != 1 || !bytes.Equal(got[0], want) {
					t.Errorf("answer % x, want % x", got, want)
				}
				if tt.learnt {
					f.neighbour(nodeMAC)
				} else {
					f.neighbour(none)
				}
				f.drops(before, nil)
				if s := f.e.Stats(); s.NDReceived != 1 || s.NDSent != 1 || s.ARPSent != 0 {
					t.Errorf("%d received and %d sent, want 1 and 1", s.NDReceived, s.NDSent)
				}
				told := false
				f.e.Signs(func(s *Sign) { told = s.Reason == Accepted && s.Sender == node2Inner6 })
				if told != tt.told {
					t.Errorf("a sign of another sender: %v, want %v", told, tt.told)
				}
			})
		}
	}
}

// TestNDRefuses lists the messages that are dropped, each with its reason. None is answered, and no
// MAC address is learnt from them.
func TestNDRefuses(t *testing.T) {
	none, ours := [6]byte{}, genevetest.GroupMAC(gatewayGroup)
	group := func(a string) [6]byte { return genevetest.GroupMAC(netip.MustParseAddr(a)) }
	solicit := func(change func(body []byte) []byte) []byte {
		return genevetest.Discovery(nodeInner6, gatewayInner6,
			change(bytes.Clone(genevetest.Solicit(nodeInner6, gatewayInner6, nodeMAC, false)[40:])))
	}
	with := func(at int, value byte) []byte { // of the packet, behind its checksum
		b := genevetest.Solicit(nodeInner6, gatewayInner6, nodeMAC, false)
		b[at] = value
		return b
	}
	for _, tt := range []struct {
		name string
		to   [6]byte
		ip   []byte
		want Reason
	}{
		{"forwarded by a router", us, with(7, 254), BadND},
		{"wrong checksum", us, with(42, 0xaa), BadND},
		{"code", us, solicit(func(b []byte) []byte { b[1], b[2], b[3] = 1, 0, 0; return b }), BadND},
		{"target is a group", us, solicit(func(b []byte) []byte { b[2], b[3], b[8] = 0, 0, 0xff; return b }), BadND},
		{"option of no length", us, solicit(func(b []byte) []byte { b[2], b[3], b[25] = 0, 0, 0; return b }), BadND},
		{"option that is too long", us, solicit(func(b []byte) []byte { b[2], b[3], b[25] = 0, 0, 2; return b }),
			BadND},
		{"half an option", us, solicit(func(b []byte) []byte { b[2], b[3] = 0, 0; return b[:25] }), BadND},
		{"no target", us, solicit(func(b []byte) []byte { b[2], b[3] = 0, 0; return b[:23] }), BadND},
		{"address of 14 bytes", us, solicit(func(b []byte) []byte {
			b[2], b[3], b[25] = 0, 0,
				2
			return append(b, make([]byte, 8)...)
		}), BadND},
		{"another MAC address inside", us, genevetest.Solicit(nodeInner6, gatewayInner6, station, false), BadND},
		{"from our own address", us, genevetest.Solicit(gatewayInner6, gatewayInner6, nodeMAC, false), BadND},
		{"from a group", us, genevetest.Solicit(nodeGroup, gatewayInner6, nodeMAC, false), BadND},
		{"frame to another group than the packet", group("ff02::1"), genevetest.Solicit(nodeInner6, gatewayInner6,
			nodeMAC, true), BadND},
		{"frame to a group, packet to us", ours, genevetest.Solicit(nodeInner6, gatewayInner6, nodeMAC, false), BadND},
		{"duplicate address detection with a MAC address", ours, genevetest.Solicit(netip.IPv6Unspecified(),
			gatewayInner6, nodeMAC, true), BadND},
		{"duplicate address detection to us alone", us, genevetest.Solicit(netip.IPv6Unspecified(), gatewayInner6, none,
			false), BadND},
		{"another station has our address", group("ff02::1"), genevetest.Advertise(gatewayInner6,
			netip.MustParseAddr("ff02::1"), overriding, nodeMAC), BadND},
		{"solicited answer to all", group("ff02::1"), genevetest.Advertise(nodeInner6, netip.MustParseAddr("ff02::1"),
			whenSolicited|overriding, nodeMAC), BadND},
		{"to another station", station, genevetest.Solicit(node2Inner6, gatewayInner6, nodeMAC, false), OtherMAC},
		{"a route without gateway", group("ff02::1:ff00:9"), genevetest.Solicit(nodeLink, remotePod6.Addr(), nodeMAC,
			true), OtherND},
		{"answer of somebody else", us, genevetest.Advertise(node2Inner6, gatewayInner6, whenSolicited|overriding,
			nodeMAC), OtherND},
		{"the link looks for others with its address", genevetest.GroupMAC(nodeGroup),
			genevetest.Solicit(netip.IPv6Unspecified(), nodeInner6, none, true), NeighbourDiscovery},
		{"the link looks for others with its own", group("ff02::1:ff0a:5000"),
			genevetest.Solicit(netip.IPv6Unspecified(), nodeLink, none, true), NeighbourDiscovery},
		{"router solicitation", group("ff02::2"), routerSolicitation, NeighbourDiscovery},
		{"redirect", us, genevetest.Discovery(nodeLink, gatewayInner6, slices.Concat([]byte{137}, make([]byte, 39))),
			NeighbourDiscovery},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture6(t, false)
			before := f.e.Drops()
			f.discovery(tt.to, nodeMAC, tt.ip)
			f.drops(before, map[Reason]uint64{tt.want: 1})
			f.neighbour(none)
			f.silent(f.node)
			if s := f.e.Stats(); s.NDReceived != 0 {
				t.Errorf("%d counted as received", s.NDReceived)
			}
		})
	}
}

// TestNDWithoutIPv6: a tunnel without IPv6 addresses has no IPv6 neighbours.
func TestNDWithoutIPv6(t *testing.T) {
	f := newFixture(t)
	before := f.e.Drops()
	f.discovery(genevetest.GroupMAC(gatewayGroup), nodeMAC, genevetest.Solicit(nodeInner6, gatewayInner6,
		nodeMAC, true))
	f.drops(before, map[Reason]uint64{NeighbourDiscovery: 1})
	f.silent(f.node)
}

func TestNDRateLimit(t *testing.T) {
	f := newFixture6(t, true)
	before := f.e.Drops()
	for range maxAnswers {
		f.discovery(us, nodeMAC, genevetest.Solicit(nodeInner6, gatewayInner6, nodeMAC, false))
	}
	f.discovery(us, nodeMAC, genevetest.Solicit(nodeInner6, gatewayInner6, nodeMAC, false))
	f.arpFrom(us, 1, nodeMAC, nodeInner, gatewayInner) // the answers of both are counted together
	f.drops(before, map[Reason]uint64{NDRate: 1, ARPRate: 1})
	f.advance(time.Second)
	f.discovery(us, nodeMAC, genevetest.Solicit(nodeInner6, gatewayInner6, nodeMAC, false))
	if s := f.e.Stats(); s.NDSent != maxAnswers+1 {
		t.Errorf("%d answers, want %d", s.NDSent, maxAnswers+1)
	}
}

// TestNDLearning lists the messages that set and change the neighbour's address.
func TestNDLearning(t *testing.T) {
	allNodes := netip.MustParseAddr("ff02::1")
	toAll := genevetest.GroupMAC(allNodes)
	f := newFixture6(t, false)
	f.ipFrom(station)
	f.neighbour(station) // nothing else has told
	f.advertised()
	f.neighbour(nodeMAC)
	f.discovery(toAll, station, genevetest.Advertise(nodeInner6, allNodes, 0, station))
	f.neighbour(nodeMAC) // without the Override flag it makes us ask
	f.solicited()
	f.discovery(us, nodeMAC, genevetest.Advertise(nodeInner6, gatewayInner6, whenSolicited, [6]byte{}))
	f.neighbour(nodeMAC)
	f.discovery(toAll, station, genevetest.Advertise(nodeInner6, allNodes, overriding, station))
	f.neighbour(station) // a link that was made anew
	f.silent(f.node)
	f.discovery(genevetest.GroupMAC(gatewayGroup), nodeMAC, genevetest.Solicit(nodeInner6, gatewayInner6,
		nodeMAC, true))
	f.neighbour(nodeMAC)
	f.datagrams(f.node) // the answer
	for range maxUnanswered {
		f.advance(time.Second)
		f.ipFrom(station)
		f.neighbour(nodeMAC)
		f.solicited()
	}
	f.advance(time.Second)
	f.ipFrom(station)
	f.neighbour(station) // the old one has neither answered nor spoken
}

// TestNDResolves: packets wait until the node has answered, and are dropped when it does not. A
// dual tunnel's node is asked by ARP.
func TestNDResolves(t *testing.T) {
	packet := genevetest.UDP(pod6, remotePod6, []byte("x"))
	t.Run("answered", func(t *testing.T) {
		f := newFixture6(t, false)
		f.s.Send(toNode, packet)
		f.solicited()
		f.advance(3 * time.Millisecond)
		f.advertised()
		if got, _ := f.datagrams(f.node); len(got) != 1 || !bytes.Equal(got[0], inFrame(nodeMAC, us, packet)) {
			t.Errorf("% x sent, want the packet", got)
		}
		f.e.Presences(func(p Presence) {
			if !p.Answered || p.Asked != 0 || p.RTT != 3*time.Millisecond || p.Requests != 1 || p.Lost != 0 {
				t.Errorf("%+v, want one request answered after 3 ms", p)
			}
		})
	})
	t.Run("not answered", func(t *testing.T) {
		f := newFixture6(t, false)
		before := f.e.Drops()
		f.s.Send(toNode, packet)
		for range 3 {
			f.solicited()
			f.advance(time.Second)
			f.e.neighbours.tick()
		}
		f.drops(before, map[Reason]uint64{Unresolved: 1})
		f.silent(f.node)
	})
	t.Run("unreachable", func(t *testing.T) {
		f := newFixture6(t, false)
		f.advertised()
		f.advance(reachableTime + time.Second)
		f.s.Send(toNode, packet)
		f.solicited()
	})
	t.Run("both encapsulations", func(t *testing.T) {
		f := newFixture(t)
		tunnel := tunnel6(false)
		tunnel.Encap = Auto
		need.NoError(t, f.e.Apply([]Tunnel{tunnel}))
		f.s.Send(toNode, packet)
		f.solicited()
		frame := genevetest.Frame(genevetest.GroupMAC(nodeGroup), us, genevetest.IPv6, genevetest.Solicit(gatewayInner6,
			nodeInner6, us, true))
		if got, _ := f.datagrams(f.node); len(got) != 1 || !bytes.Equal(got[0], genevetest.VXLAN(nodeVNI, frame)) {
			t.Errorf("sent % x, want the solicitation in VXLAN", got)
		}
	})
	t.Run("dual", func(t *testing.T) {
		f := newFixture6(t, true)
		f.s.Send(toNode, packet)
		f.asked()
		f.arpFrom(us, 2, nodeMAC, nodeInner, gatewayInner)
		if got, _ := f.datagrams(f.node); len(got) != 1 || !bytes.Equal(got[0], inFrame(nodeMAC, us, packet)) {
			t.Errorf("% x sent, want the packet", got)
		}
	})
}

// TestNDProbes: without IPv4, neighbour solicitations probe whether trains arrive and how large
// packets may be. Their senders' addresses are not taken for ours.
func TestNDProbes(t *testing.T) {
	f := newFixture6(t, false)
	needOffloads(t, f.node)
	f.advertised()
	before := f.e.Drops()
	// of the probes' MAC addresses
	links := []string{"fe80::463:76ff:fe00:5", "fe80::863:76ff:fe00:5", "fe80::c63:76ff:fe00:5"}
	answer := func(p udp.Probe) {
		f.discovery(probeMACs(nodeVNI)[p], nodeMAC, genevetest.Advertise(nodeInner6, netip.MustParseAddr(links[p]),
			whenSolicited, [6]byte{}))
	}
	if n := f.train(); n != 1 {
		t.Fatalf("three packets in %d messages, want one train", n)
	}
	for range 3 {
		f.expect()
		var want [][]byte
		for p, from := range probeMACs(nodeVNI) {
			want = append(want, inFrame(nodeMAC, from, genevetest.Solicit(netip.MustParseAddr(links[p]), nodeInner6,
				from, false)))
		}
		for _, want := range [][][]byte{want[:1], want[1:]} {
			if got, _ := f.datagrams(f.node); !slices.EqualFunc(got, want, bytes.Equal) {
				t.Fatalf("probes\n% x\nwant\n% x", got, want)
			}
		}
		answer(udp.ProbeSingle)
	}
	f.expect(TrainChange{Tunnel: toNode})
	f.neighbour(nodeMAC)

	f.e.AskLarge(toNode, 7, 1340)
	got, _ := f.datagrams(f.node)
	if len(got) != 1 || len(got[0]) != maxHeader+1340 {
		t.Fatalf("large probe % x, want %d bytes", got, maxHeader+1340)
	}
	asker := [6]byte(got[0][8+6:])
	f.discovery(asker, nodeMAC, genevetest.Advertise(nodeInner6, netip.AddrFrom16([16]byte(got[0][maxHeader+8:])),
		whenSolicited, [6]byte{}))
	if answers := f.e.LargeAnswers(toNode); answers != 1<<7 {
		t.Errorf("answers %b, want number 7", answers)
	}
	f.drops(before, nil)
	// A kernel looks later whether the senders of the probes are still there.
	f.discovery(probeMACs(nodeVNI)[1], nodeMAC, genevetest.Solicit(nodeLink, netip.MustParseAddr(links[1]),
		nodeMAC, false))
	f.drops(before, map[Reason]uint64{NeighbourDiscovery: 1})
	f.silent(f.node)
}

// TestNDAnyLength: a message cut short anywhere is refused, and no byte behind it is read.
func TestNDAnyLength(t *testing.T) {
	for _, ip := range [][]byte{
		genevetest.Solicit(nodeInner6, gatewayInner6, nodeMAC, false), genevetest.Advertise(nodeInner6, gatewayInner6,
			whenSolicited, nodeMAC),
	} {
		if m, ok := parseND(append(bytes.Clone(ip), 1, 2, 3)); !ok || m.link != parseMAC(nodeMAC[:]) { // padding
			t.Errorf("% x: %+v, %v", ip, m, ok)
		}
		for n := ipv6Len + 1; n < len(ip); n++ {
			if _, ok := parseND(ip[:n:n]); ok {
				t.Errorf("the first %d of %d bytes are accepted", n, len(ip))
			}
		}
	}
}

// FuzzND reads arbitrary packets, with a checksum that is right so that more of them get far: what
// is accepted reads back the same when it is written.
func FuzzND(f *testing.F) {
	f.Add(genevetest.Solicit(nodeInner6, gatewayInner6, nodeMAC, true))
	f.Add(genevetest.Solicit(netip.IPv6Unspecified(), gatewayInner6, [6]byte{}, true))
	f.Add(genevetest.Advertise(nodeInner6, gatewayInner6, whenSolicited|overriding, nodeMAC))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) <= ipv6Len {
			return
		}
		b = bytes.Clone(b)
		if n := ipLength(b, etherTypeIPv6); n >= ipv6Len+4 {
			b[42], b[43] = 0, 0
			binary.BigEndian.PutUint16(b[42:], checksumICMPv6(b[:n]))
		}
		m, ok := parseND(b)
		if !ok || m.link == 0 || m.kind != ndSolicitation && m.kind != ndAdvertisement {
			return
		}
		var again [ndPacketLen]byte
		if m.put(again[:]); m.kind == ndSolicitation {
			m.flags = 0 // reserved there
			m.put(again[:])
		}
		if read, ok := parseND(again[:]); !ok || read != m {
			t.Errorf("%+v reads back as %+v, %v", m, read, ok)
		}
	})
}

// TestNDAllocs: answers to solicitations, and what is dropped, cost no allocation.
func TestNDAllocs(t *testing.T) {
	f := newFixture6(t, true)
	for name, ip := range map[string][]byte{
		"answered": genevetest.Solicit(nodeInner6, gatewayInner6, nodeMAC, false),
		"learnt":   genevetest.Advertise(nodeInner6, gatewayInner6, whenSolicited|overriding, nodeMAC),
		"bad":      genevetest.Solicit(nodeInner6, gatewayInner6, station, false),
		"other": genevetest.Solicit(nodeInner6,
			node2Inner6, nodeMAC, false),
	} {
		m := message(inFrame(us, nodeMAC, ip))
		f.r.feed(m)
		if n := testing.AllocsPerRun(100, func() {
			f.advance(time.Second)
			f.r.feed(m)
		}); n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}
