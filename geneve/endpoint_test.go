package geneve

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"culvert/geneve/genevetest"
	"culvert/geneve/udp"
	"culvert/integration/need"
)

// Addresses of the tests: a gateway and two nodes on loopback, and what is inside.
var (
	gatewayOuter = netip.MustParseAddr("127.0.0.1")
	nodeOuter    = netip.MustParseAddr("127.0.0.2")
	node2Outer   = netip.MustParseAddr("127.0.0.3")
	gatewayInner = netip.MustParseAddr("10.80.0.4")
	nodeInner    = netip.MustParseAddr("10.80.0.2")
	node2Inner   = netip.MustParseAddr("10.80.0.3")
	nodeMAC      = [6]byte{0x02, 'n', 10, 80, 0, 2}
	pod          = netip.MustParseAddrPort("10.0.1.5:5353")
	remotePod    = netip.MustParseAddrPort("10.61.2.9:443")
	pod6         = netip.MustParseAddrPort("[fd00:1::5]:5353")
	remotePod6   = netip.MustParseAddrPort("[fd00:61::9]:443")
	broadcastMAC = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
)

// Tunnels of the fixture, by ID.
const (
	toNode   = 1  // Geneve with Ethernet to nodeOuter, VNI 5
	toVXLAN  = 3  // VXLAN to nodeOuter, VNI 7
	toIP     = 4  // Geneve with IP to nodeOuter, VNI 9
	toNode2  = 70 // Geneve with Ethernet to node2Outer, VNI 6
	nodeVNI  = 5
	vxlanVNI = 7
	ipVNI    = 9
	node2VNI = 6
)

func fixtureTunnels() []Tunnel {
	return []Tunnel{
		{ID: toNode, VNI: nodeVNI, Remote: nodeOuter, Encap: Geneve, Local: Pair{V4: gatewayInner},
			Peer: Pair{V4: nodeInner}},
		{ID: toVXLAN, VNI: vxlanVNI, Remote: nodeOuter, Encap: VXLAN, Local: Pair{V4: gatewayInner},
			Peer: Pair{V4: nodeInner}},
		{ID: toIP, VNI: ipVNI, Remote: nodeOuter, Inner: IP},
		{ID: toNode2, VNI: node2VNI, Remote: node2Outer, Encap: Geneve, Local: Pair{V4: gatewayInner},
			Peer: Pair{V4: node2Inner}},
	}
}

// fixture is a gateway's endpoint with a clock that only the test moves, and the sockets at the
// other ends of its tunnels.
type fixture struct {
	*testing.T
	e     *Endpoint
	r     *Receiver
	s     *Sender
	clock atomic.Int64
	node  *udp.Socket // nodeOuter
	node2 *udp.Socket // node2Outer
	m     []udp.Message
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t}
	var err error
	if f.node, err = udp.Listen("udp4", netip.AddrPortFrom(nodeOuter, 0), udp.Options{}); err != nil {
		t.Fatal(err)
	}
	if f.node2, err = udp.Listen("udp4", netip.AddrPortFrom(node2Outer, f.node.LocalAddr().Port()),
		udp.Options{}); err != nil {
		t.Fatal(err)
	}
	f.e, err = Listen(Options{
		Listen: netip.AddrPortFrom(gatewayOuter, 0), RemotePort: f.node.LocalAddr().Port(),
		Now: func() time.Duration { return time.Duration(f.clock.Load()) },
	})
	need.NoError(t, err)
	t.Cleanup(func() {
		f.e.Close()
		f.node.Close()
		f.node2.Close()
	})
	need.NoError(t, f.e.Apply(fixtureTunnels()))
	f.r, f.s = f.e.NewReceiver(), f.e.NewSender()
	f.m = make([]udp.Message, 1)
	f.m[0].Buffer = make([]byte, udp.BufferSize)
	return f
}

func (f *fixture) advance(d time.Duration) { f.clock.Add(int64(d)) }

// message makes what the socket would hand over for a datagram from nodeOuter.
func message(data []byte) udp.Message {
	return udp.Message{Data: data, Source: netip.AddrPortFrom(nodeOuter, 40000)}
}

// deliver passes messages to the Receiver as if Fill had received them, and returns the packets
// that come out, as copies.
func (f *fixture) deliver(messages ...udp.Message) (packets []Packet) {
	f.Helper()
	f.r.account()
	f.r.next, f.r.rest, f.r.now = 0, nil, f.e.now()
	f.r.received = copy(f.r.messages, messages)
	if f.r.received < len(messages) {
		f.Fatalf("%d messages at once", len(messages))
	}
	for {
		p, ok := f.r.Next()
		if !ok {
			return packets
		}
		p.Data = append([]byte(nil), p.Data...)
		packets = append(packets, p)
	}
}

// datagrams receives one message from the gateway and cuts it.
func (f *fixture) datagrams(s *udp.Socket) (datagrams [][]byte, tos uint8) {
	f.Helper()
	defer time.AfterFunc(genevetest.Timeout, func() { s.Close() }).Stop() // there is nothing to receive
	if n, err := s.Receive(f.m); n != 1 || err != nil {
		f.Fatalf("Receive = %d, %v", n, err)
	}
	rest, size := f.m[0].Data, f.m[0].SegmentSize
	if size == 0 {
		size = len(rest)
	}
	for len(rest) > 0 {
		n := min(size, len(rest))
		datagrams = append(datagrams, append([]byte(nil), rest[:n]...))
		rest = rest[n:]
	}
	return datagrams, f.m[0].TOS
}

// silent checks that the gateway has sent nothing to s that has not been read: what comes next is a
// datagram sent now.
func (f *fixture) silent(s *udp.Socket) {
	f.Helper()
	marker := []byte("marker")
	if _, err := f.e.socket.NewSender().Send([]udp.Train{{Destination: s.LocalAddr(), Parts: [][]byte{marker}}}); err !=
		nil {
		f.Fatal(err)
	}
	if got, _ := f.datagrams(s); string(got[0]) != string(marker) {
		f.Errorf("the gateway sent % x", got[0])
	}
}

// drops checks the drop counters against those since the last call.
func (f *fixture) drops(before [NumReasons]uint64, want map[Reason]uint64) {
	f.Helper()
	for r, after := range f.e.Drops() {
		if got := after - before[r]; got != want[Reason(r)] {
			f.Errorf("%v: %d drops, want %d", Reason(r), got, want[Reason(r)])
		}
	}
}

// toGateway returns the MAC address that a frame to the gateway carries.
func toGateway(vni VNI) [6]byte { return MAC(vni, Gateway) }

// arpMessage returns an ARP message.
func arpMessage(operation byte, sender [6]byte, senderIP netip.Addr, target [6]byte, targetIP netip.Addr) []byte {
	return join([]byte{0, 1, 0x08, 0x00, 6, 4, 0, operation}, sender[:], senderIP.AsSlice(), target[:],
		targetIP.AsSlice())
}

// resolve makes the node's MAC address known by an ARP announcement.
func (f *fixture) resolve() {
	f.Helper()
	announcement := genevetest.Frame(broadcastMAC, nodeMAC, genevetest.ARP, arpMessage(1, nodeMAC, nodeInner,
		[6]byte{}, nodeInner))
	if got := f.deliver(message(genevetest.Geneve(nodeVNI, 0x6558, announcement))); len(got) > 0 {
		f.Fatalf("ARP came out as %d packets", len(got))
	}
	if s, _ := f.e.TunnelStats(toNode); [6]byte(s.MAC) != nodeMAC {
		f.Fatalf("neighbour %v after an announcement of % x", s.MAC, nodeMAC)
	}
}

// payload returns size bytes that differ from place to place and by seed.
func payload(seed, size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed*31)
	}
	return b
}

func TestApply(t *testing.T) {
	f := newFixture(t)
	f.resolve()
	f.deliver(message(genevetest.Geneve(nodeVNI, 0x6558, genevetest.Frame(toGateway(nodeVNI), nodeMAC, genevetest.IPv4,
		genevetest.UDP(pod, remotePod, []byte("x"))))))
	known := func() bool {
		s, ok := f.e.TunnelStats(toNode)
		return ok && s.MAC != nil
	}
	counted := func() uint64 {
		s, _ := f.e.TunnelStats(toNode)
		return s.ReceivedPackets
	}
	f.refuseTrains(toNode)
	tunnels := fixtureTunnels()
	// The other tunnels change, this one does not.
	if err := f.e.Apply(tunnels[:2]); err != nil || !known() || counted() != 1 {
		t.Errorf("Apply: %v; neighbour known %v, %d packets counted; want true, 1", err, known(), counted())
	}
	if _, ok := f.e.TunnelStats(toNode2); ok {
		t.Error("removed tunnel still there")
	}
	// Another outer address may be another machine: its neighbour is unknown.
	tunnels[0].Remote = node2Outer
	if err := f.e.Apply(tunnels); err != nil || known() || counted() != 1 {
		t.Errorf("Apply: %v; neighbour known %v, %d packets counted; want false, 1", err, known(), counted())
	}
	if s, _ := f.e.TunnelStats(toNode); s.Train {
		t.Error("the kernel's refusal of trains forgotten")
	}
	before := f.e.Drops()
	if got := f.deliver(message(genevetest.Geneve(nodeVNI, 0x6558, nil))); len(got) != 0 {
		t.Error("packet from the former outer address accepted")
	}
	f.drops(before, map[Reason]uint64{UnknownNode: 1})
}

func TestApplyErrors(t *testing.T) {
	f := newFixture(t)
	good := Tunnel{ID: 9, VNI: 77, Remote: nodeOuter, Local: Pair{V4: gatewayInner}, Peer: Pair{V4: nodeInner}}
	with := func(change func(*Tunnel)) []Tunnel {
		other := good
		other.ID, other.VNI = 10, 78
		change(&other)
		return []Tunnel{good, other}
	}
	tests := map[string][]Tunnel{
		"VNI of 25 bits":       with(func(t *Tunnel) { t.VNI = MaxVNI + 1 }),
		"same ID":              with(func(t *Tunnel) { t.ID = 9 }),
		"same pair":            with(func(t *Tunnel) { t.VNI = 77 }),
		"same pair, mapped":    with(func(t *Tunnel) { t.VNI, t.Remote = 77, netip.AddrFrom16(nodeOuter.As16()) }),
		"no remote":            with(func(t *Tunnel) { t.Remote = netip.Addr{} }),
		"remote of IPv6":       with(func(t *Tunnel) { t.Remote = netip.IPv6Loopback() }),
		"encapsulation":        with(func(t *Tunnel) { t.Encap = 3 }),
		"inner":                with(func(t *Tunnel) { t.Inner = 2 }),
		"role":                 with(func(t *Tunnel) { t.Role = 2 }),
		"IP over VXLAN":        with(func(t *Tunnel) { t.Encap, t.Inner = VXLAN, IP }),
		"no peer":              with(func(t *Tunnel) { t.Peer = Pair{} }),
		"no local":             with(func(t *Tunnel) { t.Local = Pair{} }),
		"peer of IPv6":         with(func(t *Tunnel) { t.Peer.V4 = netip.IPv6Loopback() }),
		"same inner addresses": with(func(t *Tunnel) { t.Peer = t.Local }),
	}
	for name, tunnels := range tests {
		if err := f.e.Apply(tunnels); err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, ok := f.e.TunnelStats(9); ok {
			t.Fatalf("%s: applied in part", name)
		}
	}
	if _, ok := f.e.TunnelStats(toNode); !ok {
		t.Error("the tunnels from before are gone")
	}
	if err := f.e.Apply(with(func(t *Tunnel) { t.Remote = node2Outer; t.VNI = 77 })); err != nil {
		t.Errorf("the same VNI from two outer addresses: %v", err)
	}
}

func TestMAC(t *testing.T) {
	seen := map[[6]byte]bool{}
	for _, vni := range []VNI{0, 1, 0x010000, MaxVNI} {
		for _, role := range []Role{Gateway, Node} {
			m := MAC(vni, role)
			if m[0]&3 != 2 {
				t.Errorf("MAC(%d, %d) = % x: not a locally administered address of one station", vni, role, m)
			}
			if seen[m] {
				t.Errorf("MAC(%d, %d) = % x: not unique", vni, role, m)
			}
			seen[m] = true
			var b [6]byte
			parseMAC(m[:]).put(b[:])
			if b != m {
				t.Errorf("% x reads back as % x", m, b)
			}
		}
	}
}

// TestLocalAddress: the address of ours that the other end sends to is kept while that end is where
// it was. Elsewhere the kernel chooses: a gateway knows a node by the source of the node's route to
// it.
func TestLocalAddress(t *testing.T) {
	f, next := newFixture(t), newFixture(t)
	local := func(f *fixture) netip.Addr { return f.e.table.Load().byID(toNode).train(nil).Source }
	f.resolve()
	asked := netip.MustParseAddr("127.0.0.9")
	m := message(genevetest.Geneve(nodeVNI, 0x6558, genevetest.Frame(toGateway(nodeVNI), nodeMAC, genevetest.IPv4,
		genevetest.UDP(pod, remotePod, []byte("x")))))
	m.Destination = asked
	if got := f.deliver(m); len(got) != 1 || local(f) != asked {
		t.Fatalf("%d packets; sent from %v, want %v", len(got), local(f), asked)
	}
	for _, s := range f.e.Stations() {
		next.e.Meet(s)
	}
	if local(next) != asked {
		t.Errorf("the next endpoint sends from %v, want %v", local(next), asked)
	}
	tunnels := fixtureTunnels()
	tunnels[0].Encap = Auto
	if err := f.e.Apply(tunnels); err != nil || local(f) != asked {
		t.Errorf("%v; sent from %v after a change, want %v", err, local(f), asked)
	}
	tunnels[0].Role, tunnels[0].Remote = Node, node2Outer
	if err := f.e.Apply(tunnels); err != nil || local(f).IsValid() {
		t.Errorf("%v; sent from %v to a gateway elsewhere, want what the kernel chooses", err, local(f))
	}
}
