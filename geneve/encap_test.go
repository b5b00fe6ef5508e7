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

// openTunnel is a tunnel to nodeOuter whose encapsulation is open.
var openTunnel = Tunnel{ID: 5, VNI: 8, Remote: nodeOuter, Local: Pair{V4: gatewayInner}, Peer: Pair{V4: nodeInner}}

// openEncap returns what makes datagrams of the open tunnel's node, in one encapsulation.
func openEncap(e Encap) func(etherType uint16, payload []byte) []byte {
	return func(etherType uint16, payload []byte) []byte {
		return onOpen(e, genevetest.Frame(MAC(openTunnel.VNI, Gateway), nodeMAC, etherType, payload))
	}
}

func onOpen(e Encap, frame []byte) []byte {
	if e == VXLAN {
		return genevetest.VXLAN(uint32(openTunnel.VNI), frame)
	}
	return genevetest.Geneve(uint32(openTunnel.VNI), 0x6558, frame)
}

// newOpen is a fixture that has the open tunnel, with the given encapsulation in its configuration.
func newOpen(t *testing.T, configured Encap) *fixture {
	t.Helper()
	f := newFixture(t)
	tunnel := openTunnel
	tunnel.Encap = configured
	need.NoError(t, f.e.Apply([]Tunnel{tunnel}))
	return f
}

// speaks checks what the node is known to speak, and that it is told once.
func (f *fixture) speaks(want, was Encap) {
	f.Helper()
	if s, _ := f.e.TunnelStats(openTunnel.ID); s.Encap != want {
		f.Errorf("the node speaks %v, want %v", s.Encap, want)
	}
	var tell []EncapChange
	if want != was {
		tell = []EncapChange{{Tunnel: openTunnel.ID, Is: want, Was: was}}
	}
	if got := f.e.EncapChanges(); !slices.Equal(got, tell) {
		f.Errorf("told %v, want %v", got, tell)
	}
	if again := f.e.EncapChanges(); len(again) > 0 {
		f.Errorf("told again: %v", again)
	}
}

// asks sends a packet and checks in which encapsulations the gateway asks for the node; the packet
// itself is taken away where it leaves.
func (f *fixture) asks(leaves bool, want ...Encap) {
	f.Helper()
	f.s.Send(openTunnel.ID, genevetest.UDP(remotePod, pod, []byte("question")))
	f.s.Flush()
	us := MAC(openTunnel.VNI, Gateway)
	for _, e := range want {
		request := onOpen(e, genevetest.Frame(broadcastMAC, us, genevetest.ARP, arpMessage(1, us, gatewayInner,
			[6]byte{}, nodeInner)))
		if got, _ := f.datagrams(f.node); len(got) != 1 || !bytes.Equal(got[0], request) {
			f.Errorf("sent % x, want the request in %v", got, e)
		}
	}
	if leaves {
		f.datagrams(f.node)
	}
	f.silent(f.node)
}

// leavesIn sends a packet and checks that it leaves in one encapsulation.
func (f *fixture) leavesIn(e Encap) {
	f.Helper()
	packet := genevetest.UDP(remotePod, pod, []byte("answer"))
	f.s.Send(openTunnel.ID, packet)
	f.s.Flush()
	want := onOpen(e, genevetest.Frame(nodeMAC, MAC(openTunnel.VNI, Gateway), genevetest.IPv4, packet))
	if got, _ := f.datagrams(f.node); len(got) != 1 || !bytes.Equal(got[0], want) {
		f.Errorf("sent % x, want % x", got, want)
	}
}

func TestEncapOf(t *testing.T) {
	for _, tt := range []struct {
		name   string
		header []byte
		want   Encap
	}{
		{"Geneve", []byte{0, 0, 0x65, 0x58}, Geneve},
		{"Geneve with IPv4", []byte{0, 0, 0x08, 0}, Geneve},
		{"Geneve with IPv6", []byte{0, 0, 0x86, 0xdd}, Geneve},
		{"Geneve with 32 bytes of options, which set the I flag's bit", []byte{8, 0, 0x65, 0x58}, Geneve},
		{"Geneve, control and critical", []byte{63, 0xc0, 0x65, 0x58}, Geneve},
		{"VXLAN", []byte{8, 0, 0, 0}, VXLAN},
		{"VXLAN with a group policy", []byte{0x88, 0x08, 0, 7}, VXLAN},
		{"VXLAN with a group policy like a protocol type", []byte{0x88, 0, 0x65, 0x58}, VXLAN},
		{"VXLAN with all reserved bits", []byte{0xff, 0xff, 0xff, 0xff}, VXLAN},
		{"VXLAN without the I flag", []byte{0, 0, 0, 0}, Auto},
		{"Geneve of another version", []byte{0x40, 0, 0x65, 0x58}, Auto},
		{"Geneve with MPLS", []byte{0, 0, 0x88, 0x47}, Auto},
	} {
		if got := encapOf(append(tt.header, 0, 0, 8, 0)); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestEncapFound: the first valid frame of a node decides the encapsulation, and everything to the
// node uses it from then on.
func TestEncapFound(t *testing.T) {
	packet := genevetest.UDP(pod, remotePod, []byte("x"))
	request := arpMessage(1, nodeMAC, nodeInner, [6]byte{}, gatewayInner)
	us := MAC(openTunnel.VNI, Gateway)
	for _, e := range []Encap{Geneve, VXLAN} {
		for name, frame := range map[string][]byte{
			"packet":      genevetest.Frame(us, nodeMAC, genevetest.IPv4, packet),
			"ARP request": genevetest.Frame(broadcastMAC, nodeMAC, genevetest.ARP, request),
			"ARP reply": genevetest.Frame(us, nodeMAC, genevetest.ARP, arpMessage(2, nodeMAC, nodeInner, us,
				gatewayInner)),
			"announcement": genevetest.Frame(broadcastMAC, nodeMAC, genevetest.ARP, arpMessage(1, nodeMAC, nodeInner,
				[6]byte{}, nodeInner)),
		} {
			t.Run(e.String()+"/"+name, func(t *testing.T) {
				f := newOpen(t, Auto)
				f.speaks(Auto, Auto)
				before := f.e.Drops()
				f.asks(false, Geneve, VXLAN)
				f.deliver(message(onOpen(e, frame)))
				f.speaks(e, Auto)
				// What has waited leaves, and a request is answered, in kind.
				waited := onOpen(e, genevetest.Frame(nodeMAC, us, genevetest.IPv4, genevetest.UDP(remotePod, pod,
					[]byte("question"))))
				if got, _ := f.datagrams(f.node); !bytes.Equal(got[0], waited) {
					t.Errorf("sent % x, want % x", got[0], waited)
				}
				if name == "ARP request" {
					reply := onOpen(e, genevetest.Frame(nodeMAC, us, genevetest.ARP, arpMessage(2, us, gatewayInner,
						nodeMAC, nodeInner)))
					if got, _ := f.datagrams(f.node); !bytes.Equal(got[0], reply) {
						t.Errorf("answered % x, want % x", got[0], reply)
					}
				}
				f.leavesIn(e)
				f.advance(reachableTime + time.Second)
				f.asks(true, e)
				f.drops(before, nil)
			})
		}
	}
}

// TestEncapAnswersOthers: a node may ask from another of its addresses. The answer has the
// encapsulation of the request, which decides nothing else.
func TestEncapAnswersOthers(t *testing.T) {
	for _, e := range []Encap{Geneve, VXLAN} {
		f := newOpen(t, Auto)
		us, underlay := MAC(openTunnel.VNI, Gateway), netip.MustParseAddr("172.18.0.2")
		f.deliver(message(onOpen(e, genevetest.Frame(broadcastMAC, nodeMAC, genevetest.ARP,
			arpMessage(1, nodeMAC, underlay, [6]byte{}, gatewayInner)))))
		want := onOpen(e, genevetest.Frame(nodeMAC, us, genevetest.ARP, arpMessage(2, us, gatewayInner,
			nodeMAC, underlay)))
		if got, _ := f.datagrams(f.node); !bytes.Equal(got[0], want) {
			t.Errorf("answered % x, want % x", got[0], want)
		}
		f.speaks(Auto, Auto)
	}
}

// TestEncapStands: the other encapsulation is dropped while the node is heard, and for 60 s after
// that; then it takes over.
func TestEncapStands(t *testing.T) {
	packet := genevetest.UDP(pod, remotePod, []byte("x"))
	for _, tt := range []struct{ is, other Encap }{{Geneve, VXLAN}, {VXLAN, Geneve}} {
		t.Run(tt.is.String(), func(t *testing.T) {
			f := newOpen(t, Auto)
			from := func(e Encap, accepted bool) {
				t.Helper()
				before, want := f.e.Drops(), map[Reason]uint64{WrongEncap: 1}
				if accepted {
					want = nil
				}
				if got := f.deliver(message(openEncap(e)(genevetest.IPv4, packet))); (len(got) == 1) != accepted {
					t.Errorf("%d packets in %v came out", len(got), e)
				}
				f.drops(before, want)
			}
			f.deliver(message(openEncap(tt.is)(genevetest.ARP, arpMessage(2, nodeMAC, nodeInner, [6]byte{},
				gatewayInner))))
			f.speaks(tt.is, Auto)
			for range 3 { // it is heard within 60 s, again and again
				f.advance(encapSilence - time.Second)
				from(tt.other, false)
				from(tt.is, true)
				from(tt.other, false)
			}
			f.speaks(tt.is, tt.is)
			f.advance(encapSilence - time.Second)
			f.asks(true, tt.is)
			from(tt.other, false)
			f.advance(time.Second)
			f.asks(true, Geneve, VXLAN)
			from(tt.other, true)
			f.speaks(tt.other, tt.is)
			from(tt.is, false)
			f.leavesIn(tt.other)
			if s, _ := f.e.TunnelStats(openTunnel.ID); s.EncapChanges != 1 {
				t.Errorf("%d changes counted, want 1", s.EncapChanges)
			}
		})
	}
}

// TestEncapPinned: a configured encapsulation is kept, however long the node is silent.
func TestEncapPinned(t *testing.T) {
	packet := genevetest.UDP(pod, remotePod, []byte("x"))
	for _, tt := range []struct{ is, other Encap }{{Geneve, VXLAN}, {VXLAN, Geneve}} {
		f := newOpen(t, tt.is)
		before := f.e.Drops()
		for range 3 {
			f.asks(false, tt.is)
			f.deliver(message(openEncap(tt.other)(genevetest.IPv4, packet)))
			f.advance(time.Hour)
		}
		f.drops(before, map[Reason]uint64{WrongEncap: 3})
		f.speaks(tt.is, tt.is)
	}
}

// TestEncapOfIP: a tunnel without Ethernet uses Geneve, configured or not.
func TestEncapOfIP(t *testing.T) {
	f := newFixture(t)
	before := f.e.Drops()
	f.deliver(message(genevetest.VXLAN(ipVNI, genevetest.Frame(us, nodeMAC, genevetest.IPv4,
		genevetest.UDP(pod, remotePod, []byte("x"))))))
	f.drops(before, map[Reason]uint64{WrongEncap: 1})
	if s, _ := f.e.TunnelStats(toIP); s.Encap != Geneve {
		t.Errorf("speaks %v", s.Encap)
	}
}

// TestEncapForgeries: an invalid frame, or one that is not the node's, does not decide the
// encapsulation, neither at first nor after a minute of silence.
func TestEncapForgeries(t *testing.T) {
	packet := genevetest.UDP(pod, remotePod, payload(1, 100))
	us := MAC(openTunnel.VNI, Gateway)
	geneve, vxlan := openEncap(Geneve), openEncap(VXLAN)
	change := func(b []byte, at int, value ...byte) []byte {
		b = bytes.Clone(b)
		copy(b[at:], value)
		return b
	}
	onVXLAN := func(to, from [6]byte, etherType uint16, b []byte) []byte {
		return onOpen(VXLAN, genevetest.Frame(to, from, etherType, b))
	}
	good := vxlan(genevetest.IPv4, packet)
	for _, tt := range []struct {
		name    string
		data    []byte
		source  netip.Addr
		segment int
		want    Reason
	}{
		{"from a stranger", good, netip.MustParseAddr("127.0.0.9"), 0, UnknownNode},
		{"with another VNI", change(good, 6, 99), nodeOuter, 0, UnknownNode},
		{"cut short", good[:60], nodeOuter, 0, BadLength},
		{"header alone", good[:8], nodeOuter, 0, Truncated},
		{"no IP inside", vxlan(genevetest.IPv4, payload(1, 40)), nodeOuter, 0, BadLength},
		{"IPX inside", vxlan(0x8137, packet), nodeOuter, 0, UnknownEtherType},
		{"to another station", onVXLAN([6]byte{2, 9}, nodeMAC, genevetest.IPv4, packet), nodeOuter, 0, OtherMAC},
		{"broadcast", onVXLAN(broadcastMAC, nodeMAC, genevetest.IPv4, packet), nodeOuter, 0, Multicast},
		{"in our name", onVXLAN(us, us, genevetest.IPv4, packet), nodeOuter, 0, BadMAC},
		{"ARP that claims our address", vxlan(genevetest.ARP, arpMessage(2, nodeMAC, gatewayInner, us, gatewayInner)),
			nodeOuter, 0, BadARP},
		{"ARP of another address", vxlan(genevetest.ARP, arpMessage(2, nodeMAC, node2Inner, us, gatewayInner)),
			nodeOuter, 0, OtherARP},
		{"half an ARP message", vxlan(genevetest.ARP, arpMessage(1, nodeMAC, nodeInner, us, gatewayInner)[:27]),
			nodeOuter, 0, BadARP},
		{"a train of both encapsulations", join(good, geneve(genevetest.IPv4, packet)), nodeOuter, len(good), BadTrain},
		{"neither", change(good, 0, 0), nodeOuter, 0, UnknownProtocol},
		{"Geneve, control", change(geneve(genevetest.IPv4, packet), 1, 0x80), nodeOuter, 0, ControlPacket},
		{"Geneve, critical option", change(geneve(genevetest.IPv4, packet), 0, 1, 0x40, 0x65, 0x58, 0, 0, 8, 0, 0, 1,
			0x80, 0), nodeOuter, 0, CriticalOption},
		{"Geneve, options that do not add up", change(geneve(genevetest.IPv4, packet), 0, 1, 0, 0x65, 0x58, 0, 0, 8, 0,
			0, 1, 0, 9), nodeOuter, 0, BadOptions},
		{"Geneve without Ethernet", genevetest.Geneve(8, genevetest.IPv4, packet), nodeOuter, 0, WrongInner},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, known := range []bool{false, true} {
				f := newOpen(t, Auto)
				is := Auto
				if known {
					is = Geneve
					f.deliver(message(geneve(genevetest.IPv4, packet)))
					f.speaks(Geneve, Auto)
					f.advance(encapSilence)
				}
				before := f.e.Drops()
				m := udp.Message{Data: bytes.Clone(tt.data), Source: netip.AddrPortFrom(tt.source, 40000),
					SegmentSize: tt.segment}
				if got := f.deliver(m); len(got) != 0 {
					t.Errorf("%d packets came out", len(got))
				}
				want := map[Reason]uint64{tt.want: 1}
				if tt.segment > 0 {
					want[tt.want] = 2
				}
				f.drops(before, want)
				f.speaks(is, is)
				f.asks(known, Geneve, VXLAN)
			}
		})
	}
}

// TestEncapDoubted: a neighbour that is forgotten because it was silent keeps its encapsulation.
func TestEncapDoubted(t *testing.T) {
	f := newOpen(t, Auto)
	f.deliver(message(openEncap(VXLAN)(genevetest.IPv4, genevetest.UDP(pod, remotePod, []byte("x")))))
	f.speaks(VXLAN, Auto)
	f.advance(10 * time.Second)
	f.e.neighbours.doubt(f.e.now())
	if s, _ := f.e.TunnelStats(openTunnel.ID); s.MAC != nil {
		t.Fatalf("neighbour %v, want none", s.MAC)
	}
	f.asks(false, VXLAN)
	f.speaks(VXLAN, VXLAN)
}

// TestEncapReconfigured: a changed tunnel forgets what it has learnt; its counters stay.
func TestEncapReconfigured(t *testing.T) {
	f := newOpen(t, Auto)
	vxlan := openEncap(VXLAN)(genevetest.IPv4, genevetest.UDP(pod, remotePod, []byte("x")))
	f.deliver(message(vxlan))
	f.speaks(VXLAN, Auto)
	for _, tt := range []struct {
		configured Encap
		want       Reason
	}{{Geneve, WrongEncap}, {VXLAN, Accepted}, {Auto, Accepted}} {
		tunnel, before := openTunnel, f.e.Drops()
		tunnel.Encap = tt.configured
		need.NoError(t, f.e.Apply([]Tunnel{tunnel}))
		f.deliver(message(bytes.Clone(vxlan)))
		want := map[Reason]uint64{}
		if tt.want != Accepted {
			want[tt.want] = 1
		}
		f.drops(before, want)
	}
	f.speaks(VXLAN, Auto)
}
