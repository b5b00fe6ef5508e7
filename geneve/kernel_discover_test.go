package geneve

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/geneve/genevetest"
	"culvert/geneve/udp"
	"culvert/integration/need"
)

// TestKernelDiscovery: a kernel's link without IPv4 and this package find each other, with nothing
// told beforehand: the kernel's packet comes out, ours goes in, the kernel thinks us reachable, and
// it answers the probes.
func TestKernelDiscovery(t *testing.T) {
	node, e := kernelNode(t, udp.Options{})
	tunnel := e.table.Load().byID(1).Tunnel
	tunnel.Local, tunnel.Peer = Pair{V6: gatewayInner6}, Pair{V6: nodeInner6}
	need.NoError(t, e.Apply([]Tunnel{tunnel}))
	at := make(chan Packet, 256)
	run(t, e, at)
	links, err := netlink.NewHandleAt(node)
	need.NoError(t, err)
	defer links.Close()
	link, err := links.LinkByName("cvx0")
	need.NoError(t, err)
	index := link.Attrs().Index
	host := func(a netip.Addr) *net.IPNet { return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(128, 128)} }
	_, remote, _ := net.ParseCIDR("fd00:61::/48")
	for _, err := range []error{
		links.AddrAdd(link, &netlink.Addr{IPNet: host(nodeInner6), Flags: unix.IFA_F_NODAD}),
		links.RouteAdd(&netlink.Route{LinkIndex: index, Dst: host(gatewayInner6), Scope: netlink.SCOPE_LINK}),
		links.RouteAdd(&netlink.Route{LinkIndex: index, Dst: remote, Gw: gatewayInner6.AsSlice()}),
	} {
		if err != nil {
			need.Kernel(t, "ipv6", err)
		}
	}
	deliver(t, links, link, nodeInner6)
	var conn *net.UDPConn
	inside(t, node, func() {
		if conn, err = net.DialUDP("udp6", nil, net.UDPAddrFromAddrPort(remotePod6)); err != nil {
			t.Fatal(err)
		}
	})
	defer conn.Close()
	if _, err := conn.Write([]byte("there")); err != nil {
		t.Fatal(err)
	}
	p := <-at
	if want := genevetest.UDP(netip.AddrPortFrom(nodeInner6, uint16(conn.LocalAddr().(*net.UDPAddr).Port)), remotePod6,
		[]byte("there")); !bytes.Equal(p.Data[6:40], want[6:40]) ||
		!bytes.HasSuffix(p.Data, []byte("there")) { // the flow label is the kernel's, and the checksum is not finished
		t.Fatalf("% x came out, want % x", p.Data, want)
	}
	// The node has a link of another MAC address from here on, so that we must ask.
	e.table.Load().byID(1).neighbour.store(newSpeaker(VXLAN, 0))
	s := e.NewSender()
	s.Send(1, genevetest.UDP(remotePod6, netip.AddrPortFrom(nodeInner6, uint16(conn.LocalAddr().(*net.UDPAddr).Port)),
		[]byte("back")))
	s.Flush()
	buffer := make([]byte, 100)
	conn.SetReadDeadline(time.Now().Add(genevetest.Timeout))
	if n, err := conn.Read(buffer); err != nil || string(buffer[:n]) != "back" {
		t.Fatalf("%q arrived at the node, %v", buffer[:n], err)
	}
	e.Presences(func(p Presence) {
		if !p.Answered || p.RTT == 0 {
			t.Errorf("%+v, want a request answered", p)
		}
	})
	neighbours, err := links.NeighList(index, unix.AF_INET6)
	need.NoError(t, err)
	reachable := false
	self := MAC(tunnel.VNI, Gateway)
	for _, n := range neighbours {
		reachable = reachable || n.IP.Equal(gatewayInner6.AsSlice()) && n.State == netlink.NUD_REACHABLE &&
			bytes.Equal(n.HardwareAddr, self[:])
	}
	if !reachable {
		t.Errorf("the kernel's neighbours %v, want us reachable", neighbours)
	}
	e.AskLarge(1, 3, 1340)
	need.Eventually(t, genevetest.Timeout, "the kernel answers a large probe", func() error {
		if e.LargeAnswers(1) == 0 {
			return errors.New("no answer")
		}
		return nil
	})
	for r, n := range e.Drops() {
		if Reason(r) != NeighbourDiscovery && n != 0 { // what the link says when it comes up
			t.Errorf("%v: %d drops", Reason(r), n)
		}
	}
}
