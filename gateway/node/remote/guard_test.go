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
	for _, tt := range []struct{ name, family, pods, pod, node, here, gateway, others, other, all string }{
		{"IPv4", "ip", "10.244.1.1/24", "10.244.1.2", "172.18.0.2", "172.18.0.2/24", "172.18.0.9", "172.19.0.1/24",
			"172.19.0.3", "0.0.0.0"},
		{"IPv6", "ip6", "fd44::1/64", "fd44::2", "fd18::2", "fd18::2/64", "fd18::9", "fd19::1/64", "fd19::3", "::"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bits := tt.here[strings.Index(tt.here, "/"):]
			podBits := tt.pods[strings.Index(tt.pods, "/"):]
			pod := newSpace(t, "pod0", []string{tt.pods}, []string{tt.pod + podBits})
			far := newSpace(t, "ul0", []string{tt.here}, []string{tt.gateway + bits})
			third := newSpace(t, "ul1", []string{tt.others}, []string{tt.other + bits})
			for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
				need.NoError(t, os.WriteFile("/proc/sys/"+name, []byte("1"), 0))
			}
			for _, name := range []string{"all", "pod0", "ul0", "ul1"} {
				os.WriteFile("/proc/sys/net/ipv4/conf/"+name+"/rp_filter", []byte("0"), 0)
			}
			uplink, err := netlink.LinkByName("ul0")
			need.NoError(t, err)
			need.NoError(t, netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(tt.gateway),
				LinkIndex: uplink.Attrs().Index}))
			cni := fmt.Sprintf("table %[1]s cni { chain post { type nat hook postrouting priority 100; %[1]s saddr %[2]s oif ul0 masquerade; }; }", tt.family, tt.pod)
			if out, err := need.Command(t, "nft", cni).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			t.Cleanup(func() { need.Command(t, "nft", "delete table "+tt.family+" cni").Run() })
			at := func(a string, port int) string {
				return netip.AddrPortFrom(netip.MustParseAddr(a), uint16(port)).String()
			}
			var gateway, gatewayOther, other chan netip.AddrPort
			far.run(func() {
				gateway, gatewayOther = receive(t, at(tt.gateway, 6091)), receive(t, at(tt.gateway, 6092))
			})
			third.run(func() { other = receive(t, at(tt.other, 6091)) })
			node := receive(t, at(tt.all, 6091))
			// well sends what must pass, and so tells when what was sent before has arrived or not.
			well := func() {
				t.Helper()
				pod.run(func() { send(t, at(tt.pod, 0), at(tt.gateway, 6092)) })
				expect(t, "the pod to another port of the gateway", gatewayOther, tt.node)
				pod.run(func() { send(t, at(tt.pod, 0), at(tt.other, 6091)) })
				expect(t, "the pod to port 6091 of another host", other, tt.pod)
				send(t, at(tt.node, 0), at(tt.gateway, 6091))
				expect(t, "the node to the gateway", gateway, tt.node)
				far.run(func() { send(t, at(tt.gateway, 0), at(tt.node, 6091)) })
				expect(t, "the gateway to the node", node, tt.gateway)
				pod.run(func() { send(t, at(tt.pod, 0), at(tt.node, 6091)) })
				expect(t, "the pod to the node", node, tt.pod)
			}
			asNode := func() { pod.run(func() { send(t, at(tt.pod, 0), at(tt.gateway, 6091)) }) }
			asGateway := func(to string) { pod.run(func() { send(t, at(tt.gateway, 0), at(to, 6091)) }) }
			asNode()
			expect(t, "without the guard, the pod as its node", gateway, tt.node)
			asGateway(tt.node)
			expect(t, "without the guard, the pod as the gateway", node, tt.gateway)
			asGateway(tt.other)
			expect(t, "without the guard, the pod as the gateway at another node", other, tt.gateway)

			k := run(t, func(k *Keeper) {
				k.told, k.list = true, func() ([]netlink.Route, error) { return nil, nil }
			})
			k.Protect([]Tunnel{{netip.MustParseAddr(tt.gateway), 6091, ""}})
			eventually(t, "guard", func() error {
				if all, fault := k.Guarded(); len(all) != 1 || fault != "" {
					return fmt.Errorf("%v, %q", all, fault)
				}
				return nil
			})
			for range 3 {
				asNode()
				asGateway(tt.node)
				asGateway(tt.other)
				well()
			}
			dropped := map[string]uint64{}
			k.Drops(func(reason string, packets uint64) { dropped[reason] = packets })
			if dropped[dropMasqueraded] != 3 || dropped[dropForged] != 6 {
				t.Errorf("dropped %v", dropped)
			}
			k.Protect([]Tunnel{{netip.MustParseAddr(tt.other), 6091, ""}}) // the gateway has moved
			eventually(t, "the pod as the node of nobody's gateway", func() error {
				asNode()
				select {
				case <-gateway:
					return nil
				case <-time.After(50 * time.Millisecond):
					return fmt.Errorf("nothing arrives")
				}
			})
			// A gateway's pod is here, and the other machine is a node. What that sends after a
			// masqueraded packet of the pod has another port.
			k.Protect([]Tunnel{{netip.MustParseAddr(tt.pod), 6091, ""}})
			eventually(t, "guard of a pod here", func() error {
				if all, fault := k.Guarded(); len(all) != 1 || !strings.Contains(fmt.Sprint(all), tt.pod) ||
					fault != "" {
					return fmt.Errorf("%v, %q", all, fault)
				}
				return nil
			})
			var here chan netip.AddrPort
			pod.run(func() {
				send(t, at(tt.pod, 6091), at(tt.gateway, 7000))
				here = receive(t, at(tt.pod, 6091))
			})
			far.run(func() { send(t, at(tt.gateway, 7000), at(tt.pod, 6091)) })
			expect(t, "another node to the gateway's pod", here, tt.gateway)
			k.Drops(func(reason string, packets uint64) {
				if packets < dropped[reason] {
					t.Errorf("%s falls from %d to %d", reason, dropped[reason], packets)
				}
			})
			k.Protect(nil)
			eventually(t, "no table", func() error {
				for i := range families {
					if rules, there, err := families[i].read(); there || err != nil {
						return fmt.Errorf("%v %v", rules, err)
					}
				}
				return nil
			})
		})
	}
}
