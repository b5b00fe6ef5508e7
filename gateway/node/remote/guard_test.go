package remote

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/integration/fresh"
	"culvert/integration/need"
)

// A space is another network namespace, behind a device of this one.
type space struct {
	t  *testing.T
	do chan func()
}

// newSpace makes a namespace whose device eth0 leads to device here of this namespace. Each end has
// the addresses given.
func newSpace(t *testing.T, here string, ours, theirs []string) *space {
	t.Helper()
	s := &space{t, make(chan func())}
	ready := make(chan error)
	var tid int
	go func() {
		runtime.LockOSThread() // never unlocked: the thread and its namespace end with the goroutine
		tid = unix.Gettid()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = fresh.Network()
		}
		ready <- err
		for fn := range s.do {
			fn()
		}
	}()
	need.NoError(t, <-ready)
	t.Cleanup(func() { close(s.do) })
	veth := netlink.NewVeth(netlink.NewLinkAttrs())
	veth.Name, veth.PeerName = here, "eth0"
	need.NoError(t, netlink.LinkAdd(veth))
	t.Cleanup(func() { netlink.LinkDel(veth) })
	peer, err := netlink.LinkByName("eth0")
	need.NoError(t, err)
	ns, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", tid))
	need.NoError(t, err)
	defer ns.Close()
	need.NoError(t, netlink.LinkSetNsFd(peer, int(ns.Fd())))
	address := func(l netlink.Link, all []string) {
		for _, a := range all {
			parsed, err := netlink.ParseAddr(a)
			need.NoError(t, err)
			parsed.Flags = unix.IFA_F_NODAD
			need.NoError(t, netlink.AddrAdd(l, parsed))
		}
		need.NoError(t, netlink.LinkSetUp(l))
	}
	address(veth, ours)
	s.run(func() {
		end, err := netlink.LinkByName("eth0")
		need.NoError(t, err)
		address(end, theirs)
		for _, a := range ours {
			via, _ := netlink.ParseAddr(a)
			need.NoError(t, netlink.RouteAdd(&netlink.Route{Gw: via.IP, LinkIndex: end.Attrs().Index}))
		}
	})
	return s
}

// run calls fn in the namespace. A failure there ends the goroutine of the namespace, and so the
// test.
func (s *space) run(fn func()) {
	s.t.Helper()
	done, failed := make(chan struct{}), true
	s.do <- func() { defer close(done); fn(); failed = false }
	if <-done; failed {
		s.t.FailNow()
	}
}

// receive returns the sources of datagrams that reach a port here.
func receive(t *testing.T, at string) chan netip.AddrPort {
	t.Helper()
	conn, err := net.ListenPacket("udp", at)
	need.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	got := make(chan netip.AddrPort, 1000)
	go func() {
		b := make([]byte, 100)
		for {
			_, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			a := from.(*net.UDPAddr).AddrPort()
			got <- netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
		}
	}()
	return got
}

// send sends a datagram from any address.
func send(t *testing.T, from, to string) {
	t.Helper()
	source, err := net.ResolveUDPAddr("udp", from)
	need.NoError(t, err)
	destination, err := net.ResolveUDPAddr("udp", to)
	need.NoError(t, err)
	anySource := net.ListenConfig{}
	anySource.Control = func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1)
			unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
		})
	}
	conn, err := anySource.ListenPacket(t.Context(), "udp", source.String())
	need.NoError(t, err)
	defer conn.Close()
	_, err = conn.WriteTo([]byte("x"), destination)
	need.NoError(t, err)
}

// expect waits for a datagram from an address. A datagram from another one is a fault.
func expect(t *testing.T, what string, got chan netip.AddrPort, from string) {
	t.Helper()
	select {
	case a := <-got:
		if a.Addr().String() != from {
			t.Errorf("%s: from %s, want %s", what, a, from)
		}
	case <-time.After(10 * time.Second):
		t.Errorf("%s: nothing arrives", what)
	}
}

// TestGuard: a pod whose packets the node masquerades cannot act as its node at a gateway, and a
// pod that forges a gateway's source cannot act as the gateway, neither at this node nor at another
// one. Everything else of the pod passes, and so do packets of the node and of the gateway.
func TestGuard(t *testing.T) {
	needNAT(t)
	need.Programs(t, "nft", "nft")
	lo, err := netlink.LinkByName("lo")
	need.NoError(t, err)
	need.NoError(t, netlink.LinkSetUp(lo))
	for _, g := range []guarded{
		{name: "IPv4", family: "ip", pods: "10.244.1.1/24", pod: "10.244.1.2", node: "172.18.0.2",
			here: "172.18.0.2/24", gateway: "172.18.0.9", others: "172.19.0.1/24", other: "172.19.0.3", all: "0.0.0.0"},
		{name: "IPv6", family: "ip6", pods: "fd44::1/64", pod: "fd44::2", node: "fd18::2",
			here: "fd18::2/64", gateway: "fd18::9", others: "fd19::1/64", other: "fd19::3", all: "::"},
	} {
		t.Run(g.name, func(t *testing.T) {
			g.build(t)
			g.unguarded()
			k := run(t, func(k *Keeper) {
				k.told, k.list = true, func() ([]netlink.Route, error) { return nil, nil }
			})
			dropped := g.guards(k)
			g.gatewayMoves(k)
			g.gatewayIsHere(k)
			k.Drops(func(reason string, packets uint64) {
				if packets < dropped[reason] {
					t.Errorf("%s falls from %d to %d", reason, dropped[reason], packets)
				}
			})
			g.guardsNothing(k)
		})
	}
}

// guarded is a node with a pod, beside a gateway's machine and another one.
type guarded struct {
	name, family                                       string
	pods, pod, node, here, gateway, others, other, all string // addresses

	*testing.T
	podHost, gatewayHost, otherHost          *space
	atGateway, atGatewayOther, atOther, atMe chan netip.AddrPort // who sends to port 6091, or 6092
}

func at(address string, port int) string {
	return netip.AddrPortFrom(netip.MustParseAddr(address), uint16(port)).String()
}

// build makes the hosts. This node masquerades its pod's packets towards the gateway, as a CNI
// plugin does.
func (g *guarded) build(t *testing.T) {
	t.Helper()
	g.T = t
	bits := g.here[strings.Index(g.here, "/"):]
	podBits := g.pods[strings.Index(g.pods, "/"):]
	g.podHost = newSpace(t, "pod0", []string{g.pods}, []string{g.pod + podBits})
	g.gatewayHost = newSpace(t, "ul0", []string{g.here}, []string{g.gateway + bits})
	g.otherHost = newSpace(t, "ul1", []string{g.others}, []string{g.other + bits})
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		need.NoError(t, os.WriteFile("/proc/sys/"+name, []byte("1"), 0))
	}
	for _, name := range []string{"all", "pod0", "ul0", "ul1"} {
		os.WriteFile("/proc/sys/net/ipv4/conf/"+name+"/rp_filter", []byte("0"), 0)
	}
	uplink, err := netlink.LinkByName("ul0")
	need.NoError(t, err)
	need.NoError(t, netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(g.gateway), LinkIndex: uplink.Attrs().Index}))
	cni := fmt.Sprintf("table %[1]s cni { chain post { type nat hook postrouting priority 100; "+
		"%[1]s saddr %[2]s oif ul0 masquerade; }; }", g.family, g.pod)
	if out, err := need.Command(t, "nft", cni).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { need.Command(t, "nft", "delete table "+g.family+" cni").Run() })
	g.gatewayHost.run(func() {
		g.atGateway, g.atGatewayOther = receive(t, at(g.gateway, 6091)), receive(t, at(g.gateway, 6092))
	})
	g.otherHost.run(func() { g.atOther = receive(t, at(g.other, 6091)) })
	g.atMe = receive(t, at(g.all, 6091))
}

// asNode sends what the node masquerades.
func (g *guarded) asNode() {
	g.Helper()
	g.podHost.run(func() { send(g.T, at(g.pod, 0), at(g.gateway, 6091)) })
}

// asGateway sends from the gateway's address.
func (g *guarded) asGateway(to string) {
	g.Helper()
	g.podHost.run(func() { send(g.T, at(g.gateway, 0), at(to, 6091)) })
}

// well sends what must pass, and so tells when what was sent before has arrived or not.
func (g *guarded) well() {
	g.Helper()
	g.podHost.run(func() { send(g.T, at(g.pod, 0), at(g.gateway, 6092)) })
	expect(g.T, "the pod to another port of the gateway", g.atGatewayOther, g.node)
	g.podHost.run(func() { send(g.T, at(g.pod, 0), at(g.other, 6091)) })
	expect(g.T, "the pod to port 6091 of another host", g.atOther, g.pod)
	send(g.T, at(g.node, 0), at(g.gateway, 6091))
	expect(g.T, "the node to the gateway", g.atGateway, g.node)
	g.gatewayHost.run(func() { send(g.T, at(g.gateway, 0), at(g.node, 6091)) })
	expect(g.T, "the gateway to the node", g.atMe, g.gateway)
	g.podHost.run(func() { send(g.T, at(g.pod, 0), at(g.node, 6091)) })
	expect(g.T, "the pod to the node", g.atMe, g.pod)
}

// unguarded: without the guard, the pod acts as its node and as the gateway.
func (g *guarded) unguarded() {
	g.Helper()
	g.asNode()
	expect(g.T, "without the guard, the pod as its node", g.atGateway, g.node)
	g.asGateway(g.node)
	expect(g.T, "without the guard, the pod as the gateway", g.atMe, g.gateway)
	g.asGateway(g.other)
	expect(g.T, "without the guard, the pod as the gateway at another node", g.atOther, g.gateway)
}

// guards: with the guard, it acts as neither. It returns how many packets were dropped.
func (g *guarded) guards(k *following) (dropped map[string]uint64) {
	g.Helper()
	k.Protect([]Tunnel{{netip.MustParseAddr(g.gateway), 6091, ""}})
	eventually(g.T, "guard", func() error {
		if all, fault := k.Guarded(); len(all) != 1 || fault != "" {
			return fmt.Errorf("%v, %q", all, fault)
		}
		return nil
	})
	for range 3 {
		g.asNode()
		g.asGateway(g.node)
		g.asGateway(g.other)
		g.well()
	}
	dropped = map[string]uint64{}
	k.Drops(func(reason string, packets uint64) { dropped[reason] = packets })
	if dropped[dropMasqueraded] != 3 || dropped[dropForged] != 6 {
		g.Errorf("dropped %v", dropped)
	}
	return dropped
}

// gatewayMoves: the former gateway is nobody's, and the pod may send there.
func (g *guarded) gatewayMoves(k *following) {
	g.Helper()
	k.Protect([]Tunnel{{netip.MustParseAddr(g.other), 6091, ""}})
	eventually(g.T, "the pod as the node of nobody's gateway", func() error {
		g.asNode()
		select {
		case <-g.atGateway:
			return nil
		case <-time.After(50 * time.Millisecond):
			return fmt.Errorf("nothing arrives")
		}
	})
}

// gatewayIsHere: a gateway's pod is here, and the other machine is a node. What that sends after a
// masqueraded packet of the pod has another port.
func (g *guarded) gatewayIsHere(k *following) {
	g.Helper()
	k.Protect([]Tunnel{{netip.MustParseAddr(g.pod), 6091, ""}})
	eventually(g.T, "guard of a pod here", func() error {
		if all, fault := k.Guarded(); len(all) != 1 || !strings.Contains(fmt.Sprint(all), g.pod) || fault != "" {
			return fmt.Errorf("%v, %q", all, fault)
		}
		return nil
	})
	var atPod chan netip.AddrPort
	g.podHost.run(func() {
		send(g.T, at(g.pod, 6091), at(g.gateway, 7000))
		atPod = receive(g.T, at(g.pod, 6091))
	})
	g.gatewayHost.run(func() { send(g.T, at(g.gateway, 7000), at(g.pod, 6091)) })
	expect(g.T, "another node to the gateway's pod", atPod, g.gateway)
}

// guardsNothing: without a gateway there is no table.
func (g *guarded) guardsNothing(k *following) {
	g.Helper()
	k.Protect(nil)
	eventually(g.T, "no table", func() error {
		for i := range families {
			if rules, there, err := families[i].read(); there || err != nil {
				return fmt.Errorf("%v %v", rules, err)
			}
		}
		return nil
	})
}
