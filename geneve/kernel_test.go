package geneve

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"culvert/geneve/genevetest"
	"culvert/geneve/udp"
	"culvert/integration/fresh"
	"culvert/integration/need"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The tests of this file run against a kernel VXLAN link in a namespace of their own:
//
//	namespace "node"                                        namespace "gateway"
//	sockets ─ cvx0 (VXLAN 7, 10.80.0.2) ─ veth 192.0.2.2 ═══ veth 192.0.2.1 ─ Endpoint
//
// They need root and VXLAN.

const kernelPort = 6091

var (
	gatewayVeth = netip.MustParseAddr("192.0.2.1")
	nodeVeth    = netip.MustParseAddr("192.0.2.2")
)

// inside runs f on a thread in the given namespace.
func inside(t *testing.T, ns netns.NsHandle, f func()) {
	t.Helper()
	runtime.LockOSThread() // stays locked if the way back fails, so that the thread dies with its goroutine
	home, err := netns.Get()
	need.NoError(t, err)
	defer home.Close()
	need.NoError(t, netns.Set(ns))
	defer func() {
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
	}()
	f()
}

// newNamespace returns an empty network namespace.
func newNamespace(t *testing.T) netns.NsHandle {
	t.Helper()
	runtime.LockOSThread()
	home, err := netns.Get()
	need.NoError(t, err)
	defer home.Close()
	ns, err := netns.New()
	if err != nil {
		runtime.UnlockOSThread()
		need.Kernel(t, "root", err)
	}
	need.NoError(t, fresh.Network())
	need.NoError(t, netns.Set(home))
	runtime.UnlockOSThread()
	t.Cleanup(func() { ns.Close() })
	return ns
}

// kernelNode makes the two namespaces and returns the node's, and an endpoint in the gateway's.
func kernelNode(t *testing.T, o udp.Options) (node netns.NsHandle, e *Endpoint) {
	t.Helper()
	node, gateway := newNamespace(t), newNamespace(t)
	check := func(err error) {
		t.Helper()
		need.NoError(t, err)
	}
	nodeLinks, err := netlink.NewHandleAt(node)
	check(err)
	defer nodeLinks.Close()
	gatewayLinks, err := netlink.NewHandleAt(gateway)
	check(err)
	defer gatewayLinks.Close()
	up := func(h *netlink.Handle, name, addr string) netlink.Link {
		t.Helper()
		link, err := h.LinkByName(name)
		check(err)
		a, err := netlink.ParseAddr(addr)
		check(err)
		check(h.AddrAdd(link, a))
		check(h.LinkSetUp(link))
		return link
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "cvnode0", MTU: 1500}, PeerName: "cvgw0",
		PeerNamespace: netlink.NsFd(gateway)}
	check(nodeLinks.LinkAdd(veth))
	up(nodeLinks, "cvnode0", "192.0.2.2/24")
	up(gatewayLinks, "cvgw0", "192.0.2.1/24")
	vxlan := &netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: "cvx0", MTU: 1340}, VxlanId: vxlanVNI, Group: gatewayVeth.AsSlice(),
		SrcAddr: nodeVeth.AsSlice(), Port: kernelPort,
	}
	if err := nodeLinks.LinkAdd(vxlan); err != nil {
		need.Kernel(t, "vxlan", err)
	}
	link := up(nodeLinks, "cvx0", "10.80.0.2/32")
	_, remote, _ := net.ParseCIDR("10.61.0.0/16")
	check(nodeLinks.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: &net.IPNet{IP: gatewayInner.AsSlice(),
		Mask: net.CIDRMask(32, 32)}, Scope: netlink.SCOPE_LINK}))
	check(nodeLinks.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: remote, Gw: gatewayInner.AsSlice()}))
	inside(t, gateway, func() {
		e, err = Listen(Options{Listen: netip.AddrPortFrom(gatewayVeth, kernelPort), UDP: o})
	})
	check(err)
	check(e.Apply([]Tunnel{{ID: 1, VNI: vxlanVNI, Remote: nodeVeth, Encap: VXLAN, Local: Pair{V4: gatewayInner},
		Peer: Pair{V4: nodeInner}}}))
	return node, e
}

// TestKernelInnerTrain has a pod send a UDP train with UDP_SEGMENT in which a datagram of the
// tunnel stands wherever a naive receiver would cut. With UDP_GRO it comes as one, without the
// kernel cuts it; the forged packet never comes out.
func TestKernelInnerTrain(t *testing.T) {
	for _, o := range []udp.Options{{}, {NoGRO: true}} {
		node, e := kernelNode(t, o)
		at := make(chan Packet, 256)
		run(t, e, at)
		const segment = 1200
		const headers = maxHeader + 20 + 8
		forgedIP := genevetest.UDP(netip.MustParseAddrPort("10.0.9.9:1"), remotePod, []byte("forged"))
		forged := genevetest.VXLAN(vxlanVNI, genevetest.Frame(toGateway(vxlanVNI), nodeMAC, genevetest.IPv4, forgedIP))
		body := payload(1, 20*segment+300)
		for cut := segment; cut-headers+len(forged) <= len(body); cut += segment {
			copy(body[cut-headers:], forged)
		}
		inside(t, node, func() {
			c, err := net.Dial("udp4", remotePod.String())
			need.NoError(t, err)
			defer c.Close()
			raw, err := c.(*net.UDPConn).SyscallConn()
			need.NoError(t, err)
			raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, segment) })
			if err != nil {
				need.Kernel(t, "udp-offloads", err)
			}
			if _, err := c.Write(body); err != nil {
				t.Fatal(err)
			}
		})
		var got []byte
		messages := 0
		for len(got) < len(body) {
			p := <-at
			ip := p.Data
			if src := netip.AddrFrom4([4]byte(ip[12:])); src != nodeInner {
				t.Fatalf("NoGRO %v: a packet from %v came out", o.NoGRO, src)
			}
			got = append(got, ip[28:]...)
			messages++
			if !o.NoGRO && p.SegmentSize != segment {
				t.Errorf("segment size %d, want %d", p.SegmentSize, segment)
			}
		}
		if !bytes.Equal(got, body) {
			t.Errorf("NoGRO %v: the payload has changed", o.NoGRO)
		}
		if want := map[bool]int{false: 1, true: 21}[o.NoGRO]; messages != want {
			t.Errorf("NoGRO %v: %d packets, want %d", o.NoGRO, messages, want)
		}
		for r, n := range e.Drops() {
			if Reason(r) != NeighbourDiscovery && n != 0 { // what the link says when it comes up
				t.Errorf("NoGRO %v: %v: %d drops", o.NoGRO, Reason(r), n)
			}
		}
	}
}

// TestKernelDeadNodes: nodes that are gone do not block sending to the others, although the kernel
// queues packets for their underlay addresses. The send buffer is as large as most machines grant.
func TestKernelDeadNodes(t *testing.T) {
	const wmemMax, dead, want = 212992, 4, 20000
	_, e := kernelNode(t, udp.Options{SendBuffer: wmemMax})
	tunnels := []Tunnel{e.table.Load().byID(1).Tunnel}
	for i := range dead {
		gone := tunnels[0]
		gone.ID += uint16(i + 1)
		gone.Remote = netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)})
		tunnels = append(tunnels, gone)
	}
	need.NoError(t, e.Apply(tunnels))
	for _, tunnel := range tunnels { // all were there a moment ago
		n := &e.table.Load().byID(tunnel.ID).neighbour
		n.store(newSpeaker(VXLAN, parseMAC(nodeMAC[:])))
		n.lastHeard.Store(int64(e.now() - 5*time.Second))
	}
	run(t, e, make(chan Packet, 1))
	s, packet := e.NewSender(), ipPacket(1, 1300)
	deadline := time.Now().Add(30 * time.Second)
	var stats TunnelStats
	for stats.SentPackets < want && time.Now().Before(deadline) {
		for id := range uint16(dead + 1) {
			s.Send(id+1, packet)
		}
		s.Flush()
		stats, _ = e.TunnelStats(1)
	}
	if stats.SentPackets < want {
		t.Errorf("%d packets sent to a node beside %d that are gone, want %d", stats.SentPackets, dead, want)
	}
	if n := e.Stats().Doubted; n < dead {
		t.Errorf("%d neighbours doubted, want %d", n, dead)
	}
}

// TestKernelTrains sends trains to the kernel's link: they arrive as separate datagrams.
func TestKernelTrains(t *testing.T) {
	node, e := kernelNode(t, udp.Options{})
	run(t, e, make(chan Packet, 256))
	var conn *net.UDPConn
	inside(t, node, func() {
		var err error
		conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: nodeInner.AsSlice(), Port: 5353})
		need.NoError(t, err)
	})
	defer conn.Close()
	conn.SetReadBuffer(4 << 20)
	conn.SetReadDeadline(time.Now().Add(genevetest.Timeout))
	s := e.NewSender()
	buffer := make([]byte, 2048)
	for _, size := range []int{1312, 1, 700} {
		const count = 100
		for i := range count {
			if r := s.Send(1, genevetest.UDP(remotePod, netip.AddrPortFrom(nodeInner, 5353),
				payload(i, size))); r != Accepted {
				t.Fatal(r)
			}
			if i == 0 {
				s.Flush()
				conn.ReadFromUDPAddrPort(buffer) // the neighbour is known from here on
			}
		}
		s.Flush()
		for i := 1; i < count; i++ {
			n, from, err := conn.ReadFromUDPAddrPort(buffer)
			if err != nil {
				t.Fatalf("datagram %d of size %d: %v", i, size, err)
			}
			if from != remotePod || !bytes.Equal(buffer[:n], payload(i, size)) {
				t.Fatalf("datagram %d of size %d: %d bytes from %v, not what was sent", i, size, n, from)
			}
		}
	}
	if st := e.Stats(); st.Socket.SendDrops != [len(st.Socket.SendDrops)]uint64{} || st.Socket.RefusedTrains != 0 {
		t.Errorf("socket: %+v", st.Socket)
	}
}

// TestKernelProbe has the kernel's link answer the probes of trains, and learn nothing from them.
func TestKernelProbe(t *testing.T) {
	node, e := kernelNode(t, udp.Options{})
	needOffloads(t, e.socket)
	var clock atomic.Int64
	e.now = func() time.Duration { return time.Duration(clock.Load()) }
	run(t, e, make(chan Packet, 256))
	tunnel := e.table.Load().byID(1)
	s := e.NewSender()
	answered := func(messages uint64) {
		t.Helper()
		for deadline := time.Now().Add(genevetest.Timeout); e.Stats().ARPReceived < messages; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatalf("%d ARP messages from the kernel, want %d", e.Stats().ARPReceived, messages)
			}
		}
	}
	if r := s.Send(1, genevetest.UDP(remotePod, netip.AddrPortFrom(nodeInner, 5353), payload(1, 100))); r != Accepted {
		t.Fatal(r)
	}
	answered(1) // the neighbour
	const rounds = 5
	for i := range rounds {
		tunnel.sentTrains.Add(1)
		before := e.Stats()
		if changes := e.ProbeTrains(); len(changes) > 0 {
			t.Fatalf("%+v", changes)
		}
		if sent := e.Stats().ARPSent - before.ARPSent; sent != uint64(udp.NumProbes) {
			t.Fatalf("round %d: %d probes sent, want %d", i, sent, udp.NumProbes)
		}
		answered(before.ARPReceived + uint64(udp.NumProbes))
		clock.Add(int64(2 * time.Second))
	}
	if st, _ := e.TunnelStats(1); !st.Train || st.LostTrains != 0 {
		t.Errorf("%+v", st)
	}
	links, err := netlink.NewHandleAt(node)
	need.NoError(t, err)
	defer links.Close()
	link, err := links.LinkByName("cvx0")
	need.NoError(t, err)
	neighbours, err := links.NeighList(link.Attrs().Index, netlink.FAMILY_V4)
	need.NoError(t, err)
	for _, n := range neighbours {
		if us := toGateway(vxlanVNI); n.IP.IsUnspecified() || len(n.HardwareAddr) > 0 &&
			!bytes.Equal(n.HardwareAddr, us[:]) {
			t.Errorf("the kernel has learnt %v is at %v", n.IP, n.HardwareAddr)
		}
	}
}

// TestKernelSuperFrames lets a kernel TCP connection send as fast as it can: super-frames with
// unfinished checksums come out whole.
func TestKernelSuperFrames(t *testing.T) {
	node, e := kernelNode(t, udp.Options{})
	want := payload(1, 8<<20)

	var sink tcpSink
	done := make(chan struct{})
	go func() {
		defer close(done)
		sink.run(t, e, len(want))
	}()
	t.Cleanup(func() {
		e.Close()
		<-done
	})
	inside(t, node, func() {
		c, err := net.DialTimeout("tcp4", remotePod.String(), genevetest.Timeout)
		need.NoError(t, err)
		defer c.Close()
		if _, err := c.Write(want); err != nil {
			t.Fatal(err)
		}
		<-done
	})
	if !bytes.Equal(sink.stream, want) {
		t.Error("the stream has changed")
	}
	if sink.largest < 20000 || sink.unfinished == 0 {
		t.Errorf("largest packet %d bytes, %d with unfinished checksums: no super-frames", sink.largest,
			sink.unfinished)
	}
}

// tcpSink is the other end of a TCP connection.
type tcpSink struct {
	next       uint32            // sequence number expected
	early      map[uint32][]byte // by sequence number: veth reorders what two CPUs send
	stream     []byte
	largest    int // packet received, in bytes
	unfinished int // packets whose checksum is the pseudo-header's sum
}

// take puts the payload at its place in the stream.
func (k *tcpSink) take(seq uint32, body []byte) {
	k.early[seq] = bytes.Clone(body)
	for progress := true; progress; {
		progress = false
		for seq, body := range k.early {
			skip := int32(k.next - seq)
			if skip < 0 {
				continue
			}
			delete(k.early, seq)
			if body = body[min(int(skip), len(body)):]; len(body) > 0 {
				k.stream = append(k.stream, body...)
				k.next += uint32(len(body))
				progress = true
			}
		}
	}
}

// run answers the SYN and acknowledges all until size bytes have come.
func (k *tcpSink) run(t *testing.T, e *Endpoint, size int) {
	r, s := e.NewReceiver(), e.NewSender()
	k.early = map[uint32][]byte{}
	for {
		p, ok := r.Next()
		if !ok {
			s.Flush()
			if len(k.stream) >= size {
				return
			}
			if err := r.Fill(); err != nil {
				t.Error(err)
				return
			}
			continue
		}
		ip := p.Data
		tcp := ip[20:]
		seq, flags, body := binary.BigEndian.Uint32(tcp[4:]), tcp[13], tcp[int(tcp[12]>>4)*4:]
		pseudo := slices.Concat(ip[12:20], []byte{0, 6}, binary.BigEndian.AppendUint16(nil, uint16(len(tcp))))
		if sum := genevetest.Sum(pseudo); binary.BigEndian.Uint16(tcp[16:]) == sum {
			k.unfinished++
		}
		k.largest = max(k.largest, len(ip))
		answer := slices.Concat(tcp[2:4], tcp[:2], []byte{0, 0, 3, 0xe8, 0, 0, 0, 0, 0x50, 0x10, 0xff,
			0xff, 0, 0, 0, 0})
		const syn, ack = 2, 16
		switch {
		case flags&syn != 0:
			k.next = seq + 1
			answer[12], answer[13] = 0x70, syn|ack
			answer = append(answer, 2, 4, 0x05, 0x14, 1, 3, 3, 4) // MSS 1300, window scale 4
		case len(body) == 0:
			continue
		default:
			k.take(seq, body)
			binary.BigEndian.PutUint32(answer[4:], 1001)
		}
		binary.BigEndian.PutUint32(answer[8:], k.next)
		pseudo = slices.Concat(ip[12:20], []byte{0, 6, 0, byte(len(answer))})
		binary.BigEndian.PutUint16(answer[16:], ^genevetest.Sum(append(pseudo, answer...)))
		s.Send(p.Tunnel, genevetest.IP(netip.AddrFrom4([4]byte(ip[16:])), netip.AddrFrom4([4]byte(ip[12:])),
			6, 0, answer))
	}
}

// deliver makes the way to an IPv6 address of a link. A kernel makes it some time after link and
// address are up, one before the other, and a socket that is connected before keeps what it finds.
func deliver(t *testing.T, links *netlink.Handle, link netlink.Link, a netip.Addr) {
	t.Helper()
	way := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(128, 128)},
		Type:  unix.RTN_LOCAL,
		Table: unix.RT_TABLE_LOCAL}
	if err := links.RouteReplace(way); err != nil {
		t.Fatalf("the way to %v: %v", a, err)
	}
}

// TestKernelSourceOfAnswers: what a gateway with several addresses sends to a node comes from the
// one that the node sends to. A kernel link takes nothing from another address than its remote;
// here, a connected socket stands for it.
func TestKernelSourceOfAnswers(t *testing.T) {
	const nodePort = kernelPort + 1000
	for _, family := range []struct{ name, asked, node string }{{"IPv4", "192.0.2.2", "192.0.2.3"},
		{"IPv6", "2001:db8::2", "2001:db8::3"}} {
		t.Run(family.name, func(t *testing.T) {
			asked, node := netip.MustParseAddr(family.asked), netip.MustParseAddr(family.node)
			ns := newNamespace(t)
			links, err := netlink.NewHandleAt(ns)
			need.NoError(t, err)
			defer links.Close()
			lo, err := links.LinkByName("lo")
			need.NoError(t, err)
			for _, a := range []netip.Addr{node, asked} {
				at := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())},
					Flags: unix.IFA_F_NODAD}
				if err := links.AddrAdd(lo, at); err != nil {
					need.Kernel(t, map[bool]string{true: "ipv6", false: "ipv4"}[a.Is6()], err)
				}
			}
			need.NoError(t, links.LinkSetUp(lo))
			for _, a := range []netip.Addr{node, asked} {
				if a.Is6() {
					deliver(t, links, lo, a)
				}
			}
			var e *Endpoint
			var link *net.UDPConn
			inside(t, ns, func() {
				if e, err = Listen(Options{Listen: netip.AddrPortFrom(netip.Addr{}, kernelPort),
					RemotePort: nodePort}); err != nil {
					t.Fatal(err)
				}
				link, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(node, nodePort)),
					net.UDPAddrFromAddrPort(netip.AddrPortFrom(asked, kernelPort)))
				need.NoError(t, err)
			})
			defer link.Close()
			need.NoError(t, e.Apply([]Tunnel{{ID: 1, VNI: 7, Remote: node, Inner: IP}}))
			at := make(chan Packet, 1)
			run(t, e, at)
			ip := genevetest.UDP(netip.MustParseAddrPort("10.61.0.9:1"), remotePod, []byte("there"))
			if _, err := link.Write(genevetest.Geneve(7, genevetest.IPv4, ip)); err != nil {
				t.Fatal(err)
			}
			<-at
			s := e.NewSender()
			if r := s.Send(1, ip); r != Accepted {
				t.Fatal(r)
			}
			need.NoError(t, s.Flush())
			link.SetReadDeadline(time.Now().Add(genevetest.Timeout))
			b := make([]byte, 2048)
			if n, err := link.Read(b); err != nil || !bytes.HasSuffix(b[:n], []byte("there")) {
				t.Fatalf("%d bytes, %v", n, err)
			}
		})
	}
}
