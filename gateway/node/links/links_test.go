package links

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/control"
	"culvert/gateway/node/rtnl"
	"culvert/geneve"
	"culvert/integration/need"
)

var (
	milan = Link{Name: "liqo.milan", VNI: 1, MTU: 1340, Remote: addr("172.18.0.7"), Address: geneve.PairOf(addr("10.80.0.2")),
		Gateway: geneve.PairOf(addr("10.80.0.3"))}
	// vienna has a gateway at the same address as milan's.
	vienna = Link{Name: "liqo.vienna", VNI: 3, MTU: 1300, Remote: addr("172.18.0.7"), Address: geneve.PairOf(addr("10.80.0.2")),
		Gateway: geneve.PairOf(addr("10.80.0.4"))}
)

// device returns a device that must exist.
func device(t *testing.T, name string) netlink.Link {
	t.Helper()
	d, err := netlink.LinkByName(name)
	need.NoError(t, err)
	return d
}

func gone(name string) error {
	if _, err := netlink.LinkByName(name); !errors.As(err, new(netlink.LinkNotFoundError)) {
		return fmt.Errorf("%s: %v", name, err)
	}
	return nil
}

// routed reports whether the kernel still has a route.
func routed(t *testing.T, r *netlink.Route) bool {
	t.Helper()
	found, err := rtnl.List(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: r.LinkIndex, Dst: r.Dst},
			netlink.RT_FILTER_OIF|netlink.RT_FILTER_DST)
	})
	need.NoError(t, err)
	return len(found) == 1
}

// requireRouted fails if the kernel has lost a route.
func requireRouted(t *testing.T, r *netlink.Route) {
	t.Helper()
	if !routed(t, r) {
		t.Errorf("the route to %s is gone", r.Dst)
	}
}

// TestTwoGatewaysAtOneAddress: two links to gateways at one address each carry what is routed
// through them.
func TestTwoGatewaysAtOneAddress(t *testing.T) {
	s := carrying(t, milan, vienna)
	route(t, "10.61.0.0/16", milan.Name)
	route(t, "10.62.0.0/16", vienna.Name)
	talk(t, "10.61.0.5")
	talk(t, "10.62.0.5")
	if mtu := device(t, vienna.Name).Attrs().MTU; mtu != 1300 {
		t.Errorf("MTU %d", mtu)
	}
	eventually(t, "counters", func() error {
		for _, st := range s.Statuses() {
			if st.ReceivedPackets == 0 || st.SentPackets == 0 || !st.Answers || st.RTT == 0 {
				return fmt.Errorf("%+v", st)
			}
		}
		return nil
	})
}

// TestIPv6Off: where IPv6 is turned off, a link of both families carries IPv4, and says what it
// lacks.
func TestIPv6Off(t *testing.T) {
	const off = "/proc/sys/net/ipv6/conf/default/disable_ipv6" // of this namespace
	was, err := os.ReadFile(off)
	need.NoError(t, err)
	need.NoError(t, os.WriteFile(off, []byte("1"), 0))
	t.Cleanup(func() { need.NoError(t, os.WriteFile(off, was, 0)) })
	both := milan
	both.Address.V6, both.Gateway.V6 = addr("fd80::2"), addr("fd80::3")
	s := carrying(t, both)
	route(t, "10.61.0.0/16", milan.Name)
	talk(t, "10.61.0.5")
	if st := s.Statuses()[0]; !strings.Contains(st.Warning,
		"IPv6 is turned off on this node, so liqo.milan cannot have fd80::2") {
		t.Errorf("%+v", st)
	}
}

// TestGatewayMoves: a new outer address leaves the device and other programs' routes and addresses
// on it unchanged.
func TestGatewayMoves(t *testing.T) {
	x := newFar(t, "172.18.0.7", "172.18.0.8")
	moved := milan
	moved.Remote = addr("172.18.0.8")
	x.gateway("172.18.0.7", milan)
	x.gateway("172.18.0.8", moved)
	s := start(t, false)
	s.Apply([]Link{milan})
	s.is(t, Carried)
	r := route(t, "10.61.0.0/16", milan.Name)
	talk(t, "10.61.0.5")
	s.Apply([]Link{moved})
	eventually(t, "the new address", func() error {
		if st := s.Statuses(); st[0].Link != moved {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	before := s.Statuses()[0].ReceivedPackets
	talk(t, "10.61.0.5")
	if st := s.Statuses()[0]; !routed(t, r) || st.ReceivedPackets == before ||
		device(t, milan.Name).Attrs().Index != r.LinkIndex {
		t.Errorf("route %v, %+v", routed(t, r), st)
	}
	if alias := device(t, milan.Name).Attrs().Alias; !strings.Contains(alias, "172.18.0.8") {
		t.Errorf("alias %q", alias)
	}
}

// TestMTUGrows: the MTU grows, by the resources, and by another program, whose packets then do not
// fit. The device and other programs' routes on it stay.
func TestMTUGrows(t *testing.T) {
	s := carrying(t, milan)
	r := route(t, "10.61.0.0/16", milan.Name)
	talk(t, "10.61.0.5")
	grown := milan
	grown.MTU = 1400
	s.Apply([]Link{grown})
	eventually(t, "the new MTU", func() error {
		if mtu := device(t, milan.Name).Attrs().MTU; mtu != grown.MTU {
			return fmt.Errorf("MTU %d", mtu)
		}
		return nil
	})
	conn, err := net.Dial("udp4", "10.61.0.5:9")
	need.NoError(t, err)
	defer conn.Close()
	need.NoError(t, netlink.LinkSetMTU(device(t, milan.Name), 9000))
	eventually(t, "the MTU is put back", func() error {
		conn.Write(make([]byte, 8000)) // refused once the old MTU is back
		if mtu := device(t, milan.Name).Attrs().MTU; mtu != grown.MTU {
			return fmt.Errorf("MTU %d", mtu)
		}
		return nil
	})
	talk(t, "10.61.0.5")
	requireRouted(t, r)
}

// TestNextProcess: a new process carries the links of an earlier one before it knows the desired
// links, keeps routes, and removes undesired links once it knows.
func TestNextProcess(t *testing.T) {
	first := carrying(t, milan, vienna)
	r := route(t, "10.61.0.0/16", milan.Name)
	talk(t, "10.61.0.5")
	first.stop()
	requireRouted(t, r)
	need.OwnTUN(t, milan.Name)
	second := start(t, false)
	second.is(t, Carried, Carried)
	talk(t, "10.61.0.5")
	second.Apply([]Link{milan})
	eventually(t, "no device", func() error { return gone(vienna.Name) })
	requireRouted(t, r)
	talk(t, "10.61.0.5")
	second.Apply(nil)
	eventually(t, "no device", func() error { return gone(milan.Name) })
}

// TestSuccessor: a Set that is to take the place of another one waits until that has ended, says
// so, and then carries the packets of its devices.
func TestSuccessor(t *testing.T) {
	first := carrying(t, milan)
	r := route(t, "10.61.0.0/16", milan.Name)
	next := startAsIs(t, func(s *Set) {
		s.patience = 0
		s.Succeed()
	})
	var n control.NodeStatus
	if next.Show(&n); len(n.Waiting) != 1 {
		t.Errorf("it waits for %q", n.Waiting)
	}
	requireRouted(t, r)
	talk(t, "10.61.0.5")
	first.stop()
	<-next.Held()
	requireRouted(t, r)
	talk(t, "10.61.0.5")
	n = control.NodeStatus{}
	if next.Show(&n); len(n.Waiting) != 0 {
		t.Errorf("it waits for %q", n.Waiting)
	}
}

// TestTwoSets: while one Set keeps the links of a network namespace, another one fails and changes
// nothing, and so does Remove.
func TestTwoSets(t *testing.T) {
	first := carrying(t, milan)
	r := route(t, "10.61.0.0/16", milan.Name)
	log := logrus.New()
	log.SetOutput(io.Discard)
	other := New(port+1, log)
	other.patience = 0
	other.Alone()
	other.Apply([]Link{vienna})
	if err := other.Run(t.Context(), nil); !errors.Is(err, ErrHeld) {
		t.Errorf("a second Set: %v", err)
	}
	if names, err := Remove(); !errors.Is(err, ErrHeld) || names != nil {
		t.Errorf("Remove: %q, %v", names, err)
	}
	if err := gone(vienna.Name); err != nil {
		t.Errorf("the second Set's link: %v", err)
	}
	requireRouted(t, r)
	talk(t, "10.61.0.5")
	first.stop()
	if names, err := Remove(); err != nil || !slices.Equal(names, []string{milan.Name}) {
		t.Errorf("Remove after its end: %q, %v", names, err)
	}
}

// TestDeviceStays: a device that cannot be removed is logged once, however often that is tried.
func TestDeviceStays(t *testing.T) {
	newFar(t, "172.18.0.7")
	log, hook := test.NewNullLogger()
	var tries atomic.Int32
	var allowed atomic.Bool
	s := startAsIs(t, func(s *Set) {
		s.log, s.kernel = log, func() bool { return false }
		s.remove = func(d netlink.Link) error {
			if tries.Add(1); !allowed.Load() {
				return fmt.Errorf("remove %s: %w", d.Attrs().Name, unix.EBUSY)
			}
			return rtnl.RemoveLink(d)
		}
	})
	s.Apply([]Link{milan})
	s.is(t, Carried)
	s.Apply(nil)
	eventually(t, "three tries", func() error {
		s.wakeUp()
		if n := tries.Load(); n < 3 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	allowed.Store(true)
	s.wakeUp()
	eventually(t, "no device", func() error { return gone(milan.Name) })
	s.stop()
	var logged []string
	for _, e := range hook.AllEntries() {
		if e.Level == logrus.WarnLevel {
			logged = append(logged, fmt.Sprint(e.Message, ": ", e.Data["error"]))
		}
	}
	want := []string{"devices that are no longer wanted stay; trying again: remove " + milan.Name +
		": device or resource busy"}
	if !slices.Equal(logged, want) {
		t.Errorf("%q, want %q", logged, want)
	}
}

// TestDeviceIsDeleted: if another program deletes a device, it comes back if it is still desired,
// and other links are unaffected.
func TestDeviceIsDeleted(t *testing.T) {
	s := carrying(t, milan, vienna)
	was := device(t, milan.Name)
	need.BreakNetlink(t, unix.RTNLGRP_LINK)
	need.NoError(t, netlink.LinkDel(was))
	s.is(t, Pending, Carried)
	route(t, "10.62.0.0/16", vienna.Name)
	talk(t, "10.62.0.5")
	s.is(t, Carried, Carried)
	if device(t, milan.Name).Attrs().Index == was.Attrs().Index {
		t.Error("the device was not deleted")
	}
	route(t, "10.61.0.0/16", milan.Name)
	talk(t, "10.61.0.5")
	// When a peering is deleted, its device may disappear first.
	need.NoError(t, netlink.LinkDel(device(t, milan.Name)))
	s.Apply([]Link{vienna})
	s.is(t, Carried)
	need.NoError(t, gone(milan.Name))
}

// TestNameIsTaken: a device of another program is left alone, and named.
func TestNameIsTaken(t *testing.T) {
	newFar(t, "172.18.0.7")
	foreign := netlink.NewVeth(netlink.NewLinkAttrs())
	foreign.Name, foreign.PeerName = milan.Name, "foreign"
	need.NoError(t, netlink.LinkAdd(foreign))
	t.Cleanup(func() { netlink.LinkDel(foreign) })
	s := start(t, false)
	s.Apply([]Link{milan, vienna})
	st := s.is(t, Refused, Carried)
	if err := st[0].Err.Error(); !strings.Contains(err,
		"interface: liqo.milan exists and is a veth link that culvert did not make") {
		t.Error(err)
	}
	s.stop()
	if names, err := Remove(); err != nil || len(names) != 1 || names[0] != vienna.Name {
		t.Errorf("removed %q, %v", names, err)
	}
	device(t, milan.Name)
}

// TestRefused: a fault of one link is reported for that link only.
func TestRefused(t *testing.T) {
	x := newFar(t, "172.18.0.7")
	x.gateway("172.18.0.7", milan)
	here, twice, tunnel, large := milan, milan, milan, vienna
	here.Name, here.VNI, here.Remote = "liqo.here", 7, addr("172.18.0.2")
	twice.VNI = 9
	tunnel.Name = "liqo.tunnel"
	large.MTU = 1460
	long := vienna
	long.Name = "liqo.longer-than-15"
	s := start(t, false)
	s.Apply([]Link{milan, here, twice, tunnel, large, long})
	st := s.is(t, Carried, Refused, Refused, Refused, Carried, Refused)
	for i, want := range []string{"", "172.18.0.2 is an address of this node",
		"interface: liqo.milan is the name of another link", "VNI"} {
		if i > 0 && !strings.Contains(st[i].Err.Error(), want) {
			t.Errorf("%s: %v, want %q", st[i].Link.Name, st[i].Err, want)
		}
	}
	if err := st[5].Err.Error(); !strings.Contains(err, "interface: ") {
		t.Error(err)
	}
	if w := st[4].Warning; !strings.Contains(w, "MTU 1460 needs 1510 bytes") || !strings.Contains(w, "1450 fits") {
		t.Error(w)
	}
	route(t, "10.61.0.0/16", milan.Name)
	talk(t, "10.61.0.5")
}

// TestExchangedTunnels: two links that exchange their tunnels end up with the new ones.
func TestExchangedTunnels(t *testing.T) {
	s := carrying(t, milan, vienna)
	r := route(t, "10.62.0.0/16", milan.Name)
	a, b := milan, vienna
	a.VNI, a.Gateway, b.VNI, b.Gateway = vienna.VNI, vienna.Gateway, milan.VNI, milan.Gateway
	s.Apply([]Link{a, b})
	eventually(t, "the exchange", func() error {
		st := s.Statuses()
		if len(st) != 2 || st[0].Link != a || st[1].Link != b || st[0].State != Carried || st[1].State != Carried {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	talk(t, "10.62.0.5")
	requireRouted(t, r)
}

// TestKernelHasGeneve: if the kernel has Geneve links, no device is made, and an existing one
// stays.
func TestKernelHasGeneve(t *testing.T) {
	x := newFar(t, "172.18.0.7")
	x.gateway("172.18.0.7", milan)
	with := start(t, true)
	with.Apply([]Link{milan})
	with.is(t, Kernel)
	need.NoError(t, gone(milan.Name))
	with.stop()
	without := start(t, false)
	without.Apply([]Link{milan})
	without.is(t, Carried)
	without.stop()
	loaded := start(t, true)
	loaded.Apply([]Link{milan})
	loaded.is(t, Carried)
	route(t, "10.61.0.0/16", milan.Name)
	talk(t, "10.61.0.5")
}

// TestProbe: the probe asks the kernel for a Geneve link, and leaves nothing behind. If the kernel
// has them, a Set leaves links to Liqo's agent.
func TestProbe(t *testing.T) {
	newFar(t, "172.18.0.7")
	liqos := &netlink.Geneve{LinkAttrs: netlink.LinkAttrs{Name: vienna.Name}, ID: uint32(vienna.VNI),
		Remote: vienna.Remote.AsSlice(), Dport: port}
	err := netlink.LinkAdd(liqos)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		t.Fatal(err)
	}
	has := err == nil
	t.Logf("the kernel has Geneve links: %t", has)
	if kernelHasGeneve() != has {
		t.Errorf("the kernel has Geneve links: %t", has)
	}
	need.NoError(t, gone("culvert-probe"))
	// What a killed process has left goes too.
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "culvert-probe"
	need.NoError(t, netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TUN}))
	kernelHasGeneve()
	need.NoError(t, gone("culvert-probe"))
	s := startAsIs(t)
	s.Apply([]Link{milan, vienna})
	if !has {
		s.is(t, Carried, Carried)
		return
	}
	s.is(t, Kernel, Kernel)
	need.NoError(t, gone(milan.Name))
	if d := device(t, vienna.Name); d.Type() != "geneve" || d.Attrs().MTU == vienna.MTU {
		t.Errorf("%+v", d)
	}
	need.NoError(t, netlink.LinkSetUp(liqos)) // it gets the port, because culvert carries nothing
	need.NoError(t, netlink.LinkDel(liqos))
}

// TestPortIsFree: without a link to carry, others may use the port, and a new link waits until they
// leave it.
func TestPortIsFree(t *testing.T) {
	x := newFar(t, "172.18.0.7")
	x.gateway("172.18.0.7", milan)
	s := start(t, false)
	s.Apply(nil)
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{Port: port})
	need.NoError(t, err)
	s.Apply([]Link{milan})
	if st := s.is(t, Refused); !strings.Contains(st[0].Err.Error(), "UDP port 6091 is in use") {
		t.Error(st[0].Err)
	}
	need.NoError(t, conn.Close())
	s.is(t, Carried)
	route(t, "10.61.0.0/16", milan.Name)
	talk(t, "10.61.0.5")
	s.Apply(nil)
	eventually(t, "the port is free", func() error {
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{Port: port})
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// TestAlias: a device's alias describes its Link, and aliases of other programs are not mistaken
// for one.
func TestAlias(t *testing.T) {
	dual, six, attrs := milan, vienna, netlink.NewLinkAttrs()
	dual.Address.V6, dual.Gateway.V6 = addr("fd80::2"), addr("fd80::3")
	six.Remote, six.Address, six.Gateway = addr("fd18::7"), geneve.PairOf(addr("fd80::2")), geneve.PairOf(addr("fd80::3"))
	for _, want := range []Link{milan, dual, six} {
		attrs.Name, attrs.MTU, attrs.Alias = want.Name, want.MTU, want.alias()
		if l, ok := fromDevice(&netlink.Tuntap{LinkAttrs: attrs}); !ok || l != want {
			t.Errorf("%+v, %v from %q", l, ok, attrs.Alias)
		}
	}
	for _, alias := range []string{"", "uplink", "culvert: VNI 16777216 to 10.80.0.3 at 172.18.0.7, here 10.80.0.2",
		"culvert: VNI -1 to 10.80.0.3 at 172.18.0.7, here 10.80.0.2",
		"culvert: VNI 1 to 10.80.0.3 at x, here 10.80.0.2",
		"culvert: VNI 1 to 10.80.0.3 at 224.0.0.1, here 10.80.0.2", "culvert: VNI 1 to 10.80.0.3"} {
		attrs.Alias = alias
		if l, ok := fromDevice(&netlink.Tuntap{LinkAttrs: attrs}); ok {
			t.Errorf("%q: %+v", alias, l)
		}
	}
}
