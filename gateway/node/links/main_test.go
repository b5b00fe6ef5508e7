package links

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/geneve"
	"culvert/integration/fresh"
	"culvert/integration/need"
)

func TestMain(m *testing.M) { need.TestsInNamespace(m) }

const (
	port     = 6091
	patience = 20 * time.Second // for changes that must happen
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func ipNet(prefix string) *net.IPNet {
	p := netip.MustParsePrefix(prefix)
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	need.Eventually(t, patience, what, check)
}

// A far is a network namespace behind a veth link, with the gateways.
type far struct {
	t  *testing.T
	do chan func()
}

// newFar makes this node 172.18.0.2 and gives the far end the addresses of gateways.
func newFar(t *testing.T, gateways ...string) *far {
	t.Helper()
	need.Namespace(t)
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	need.Kernel(t, "tun", err)
	f.Close()
	x := &far{t: t, do: make(chan func())}
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
		for fn := range x.do {
			fn()
		}
	}()
	need.NoError(t, <-ready)
	t.Cleanup(func() { close(x.do) })
	veth := netlink.NewVeth(netlink.NewLinkAttrs())
	veth.Name, veth.PeerName = "ul0", "ul1"
	need.NoError(t, netlink.LinkAdd(veth))
	t.Cleanup(func() {
		netlink.LinkDel(veth)
		names, err := Remove()
		t.Logf("removed %q", names)
		need.NoError(t, err)
	})
	peer, err := netlink.LinkByName("ul1")
	need.NoError(t, err)
	ns, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", tid))
	need.NoError(t, err)
	defer ns.Close()
	need.NoError(t, netlink.LinkSetNsFd(peer, int(ns.Fd())))
	need.NoError(t, netlink.AddrAdd(veth, &netlink.Addr{IPNet: ipNet("172.18.0.2/24")}))
	need.NoError(t, netlink.LinkSetUp(veth))
	lo, err := netlink.LinkByName("lo")
	need.NoError(t, err)
	need.NoError(t, netlink.LinkSetUp(lo))
	x.run(func() error {
		there, err := netlink.LinkByName("ul1")
		if err != nil {
			return err
		}
		for _, g := range gateways {
			if err := netlink.AddrAdd(there, &netlink.Addr{IPNet: ipNet(g + "/24")}); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(there)
	})
	return x
}

// run calls fn in the far namespace.
func (x *far) run(fn func() error) {
	x.t.Helper()
	done := make(chan error)
	x.do <- func() { done <- fn() }
	need.NoError(x.t, <-done)
}

// A gateway is the far end of the tunnels to one underlay address. It returns every UDP datagram.
func (x *far) gateway(underlay string, links ...Link) *geneve.Endpoint {
	x.t.Helper()
	var e *geneve.Endpoint
	x.run(func() (err error) {
		e, err = geneve.Listen(geneve.Options{Listen: netip.AddrPortFrom(addr(underlay), port)})
		return err
	})
	x.t.Cleanup(func() { e.Close() })
	var tunnels []geneve.Tunnel
	for i, l := range links {
		tunnels = append(tunnels, geneve.Tunnel{ID: uint16(i + 1), VNI: l.VNI, Remote: addr("172.18.0.2"),
			Role:  geneve.Gateway,
			Local: l.Gateway, Peer: l.Address})
	}
	need.NoError(x.t, e.Apply(tunnels))
	go func() {
		receiver, sender := e.NewReceiver(), e.NewSender()
		for receiver.Fill() == nil {
			for p, ok := receiver.Next(); ok; p, ok = receiver.Next() {
				if p.Data[9] != unix.IPPROTO_UDP {
					continue
				}
				back := append([]byte(nil), p.Data...)
				copy(back[12:16], p.Data[16:20])
				copy(back[16:20], p.Data[12:16])
				sender.Send(p.Tunnel, back)
			}
			sender.Flush()
		}
	}()
	return e
}

// talk sends a datagram to an address behind a gateway, with equal source and destination ports,
// until it comes back.
func talk(t *testing.T, to string) {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{})
	need.NoError(t, err)
	defer conn.Close()
	at := netip.AddrPortFrom(addr(to), uint16(conn.LocalAddr().(*net.UDPAddr).Port))
	eventually(t, "a datagram to "+to, func() error {
		if _, err := conn.WriteToUDPAddrPort([]byte(to), at); err != nil {
			return err
		}
		conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		buffer := make([]byte, 100)
		n, from, err := conn.ReadFromUDPAddrPort(buffer)
		if err == nil && (from != at || string(buffer[:n]) != to) {
			err = fmt.Errorf("%q from %s", buffer[:n], from)
		}
		return err
	})
}

// route does the agent's work: it routes a prefix through a device, by name.
func route(t *testing.T, prefix, device string) *netlink.Route {
	t.Helper()
	d, err := netlink.LinkByName(device)
	need.NoError(t, err)
	r := &netlink.Route{LinkIndex: d.Attrs().Index, Dst: ipNet(prefix)}
	need.NoError(t, netlink.RouteAdd(r))
	return r
}

// A running is a Set that runs until stop is called.
type running struct {
	*Set
	stop func()
}

// start runs a Set as if the kernel had, or had no, Geneve links.
func start(t *testing.T, kernel bool) *running {
	t.Helper()
	return startAsIs(t, func(s *Set) { s.kernel = func() bool { return kernel } })
}

// carrying starts a Set that carries links to gateways at one address.
func carrying(t *testing.T, all ...Link) *running {
	t.Helper()
	newFar(t, "172.18.0.7").gateway("172.18.0.7", all...)
	s := start(t, false)
	s.Apply(all)
	s.is(t, slices.Repeat([]State{Carried}, len(all))...)
	return s
}

func startAsIs(t *testing.T, change ...func(*Set)) *running {
	t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	s := New(port, log)
	for _, c := range change {
		c(s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, nil) }()
	stopped := false
	r := &running{s, func() {
		if !stopped {
			stopped = true
			cancel()
			need.NoError(t, <-ended)
		}
	}}
	t.Cleanup(r.stop)
	return r
}

// is waits until the links are in these states.
func (r *running) is(t *testing.T, want ...State) []Status {
	t.Helper()
	var all []Status
	eventually(t, "states", func() error {
		all = r.Statuses()
		have := []State{}
		for _, s := range all {
			have = append(have, s.State)
		}
		if fmt.Sprint(have) != fmt.Sprint(want) {
			return fmt.Errorf("%v, want %v: %+v", have, want, all)
		}
		return nil
	})
	return all
}
