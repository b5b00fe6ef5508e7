package node

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
	"culvert/integration/need"
)

// testConfig is a node whose underlay is the veth link ul0, made here.
func testConfig(t *testing.T, mode Mode) *Config {
	t.Helper()
	return testConfigOf(t, mode, goodFile)
}

func testConfigOf(t *testing.T, mode Mode, file string) *Config {
	t.Helper()
	veth := netlink.NewVeth(netlink.NewLinkAttrs())
	veth.Name, veth.PeerName = "ul0", "ul1"
	need.NoError(t, netlink.LinkAdd(veth))
	t.Cleanup(func() {
		if err := netlink.LinkDel(veth); err != nil {
			t.Error(err)
		}
	})
	up(t, "ul1")
	need.NoError(t, netlink.AddrAdd(up(t, "ul0"), &netlink.Addr{IPNet: rtnl.IPNet(netip.MustParsePrefix("172.18.0.2/24"))}))
	c, err := parseConfig([]byte(strings.Replace(file, "auto", string(mode), 1)))
	need.NoError(t, err)
	return c
}

// start runs a node until the returned function is called, which returns what
// Run returned.
func start(t *testing.T, c *Config) (stop func() error) {
	t.Helper()
	n, err := New(t.Context(), c, quiet())
	need.NoError(t, err)
	return run(t, n)
}

func run(t *testing.T, n *Node) (stop func() error) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	return func() error {
		cancel()
		return <-done
	}
}

func quiet() *logrus.Logger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

func routesOf(t *testing.T, name string, family int) []netlink.Route {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		return nil
	}
	routes, err := rtnl.List(func() ([]netlink.Route, error) { return netlink.RouteList(l, family) })
	if err != nil && !errors.Is(err, unix.ENODEV) {
		t.Fatal(err)
	}
	return routes
}

// requireNothingLeft fails if the interface or one of the routes exists.
func requireNothingLeft(t *testing.T, c *Config) {
	t.Helper()
	if l, err := netlink.LinkByName(c.Interface); err == nil {
		t.Errorf("%s is still there: a %s link", c.Interface, l.Type())
	}
	all, err := rtnl.List(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, 0)
	})
	need.NoError(t, err)
	for _, r := range all {
		for _, p := range c.Routes {
			if r.Dst != nil && r.Dst.String() == p.String() {
				t.Errorf("route %v is still there", r)
			}
		}
	}
}

// remoteOf returns VNI, remote address and port of a kernel link.
func remoteOf(t *testing.T, name string) (vni int, remote string, port int) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	need.NoError(t, err)
	switch l := l.(type) {
	case *netlink.Vxlan:
		if l.Learning {
			t.Error("the link learns addresses from packets")
		}
		return l.VxlanId, l.Group.String(), l.Port
	case *netlink.Geneve:
		return int(l.ID), l.Remote.String(), int(l.Dport)
	}
	t.Fatalf("%s is a %s link", name, l.Type())
	return
}

func TestKernelLink(t *testing.T) {
	for _, mode := range []Mode{VXLAN, Geneve} {
		t.Run(string(mode), func(t *testing.T) {
			needKind(t, mode)
			c := testConfigOf(t, mode, dual.Replace(goodFile))
			c.MTU, c.VNI, c.Port = 1290, 70001, 6097
			stop := start(t, c)

			if vni, remote, port := remoteOf(t, c.Interface); vni != 70001 || remote != "172.18.0.9" || port != 6097 {
				t.Errorf("VNI %d, remote %s, port %d", vni, remote, port)
			}
			l, err := netlink.LinkByName(c.Interface)
			need.NoError(t, err)
			if l.Attrs().MTU != 1290 || l.Attrs().Flags&net.FlagUp == 0 {
				t.Errorf("mtu %d, flags %v", l.Attrs().MTU, l.Attrs().Flags)
			}
			features, err := Features(c.Interface)
			need.NoError(t, err)
			if slices.Contains(features, FeatureUDPSegmentation) || !slices.Contains(features, "tx-tcp-segmentation") {
				t.Error("features:", features)
			}
			addresses, err := rtnl.List(func() ([]netlink.Addr, error) {
				return netlink.AddrList(l, netlink.FAMILY_V4)
			})
			if err != nil || len(addresses) != 1 || addresses[0].IPNet.String() != "10.80.0.2/32" {
				t.Error("addresses:", addresses, err)
			}
			addresses, err = rtnl.List(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_V6) })
			if err != nil || !slices.ContainsFunc(addresses, func(a netlink.Addr) bool {
				return a.IPNet.String() == "fd80::2/128" && a.Flags&unix.IFA_F_TENTATIVE == 0
			}) {
				t.Error("IPv6 addresses:", addresses, err)
			}
			for family, want := range map[int][]string{
				netlink.FAMILY_V4: {"10.61.0.0/16 via 10.80.0.4", "10.71.0.0/16 via 10.80.0.4",
					"10.80.0.4/32 via <nil>"},
				netlink.FAMILY_V6: {"fd00:61::/48 via fd80::4", "fd80::2/128 via <nil>", "fd80::4/128 via <nil>"},
			} {
				var routes []string
				for _, r := range routesOf(t, c.Interface, family) {
					if !r.Dst.IP.IsLinkLocalUnicast() {
						routes = append(routes, r.Dst.String()+" via "+r.Gw.String())
					}
				}
				if !slices.Equal(routes, want) {
					t.Errorf("routes %q, want %q", routes, want)
				}
			}

			if err := stop(); err != nil {
				t.Error("Run returned", err)
			}
			requireNothingLeft(t, c)
		})
	}
}

// TestKernelLinkRemovedByOthers: a node whose link is gone ends, and says so, where no packet
// would.
func TestKernelLinkRemovedByOthers(t *testing.T) {
	needKind(t, VXLAN)
	c := testConfig(t, VXLAN)
	c.KeepLinks = true
	log, said := test.NewNullLogger()
	n, err := New(t.Context(), c, log)
	need.NoError(t, err)
	l, err := netlink.LinkByName(c.Interface)
	need.NoError(t, err)
	need.NoError(t, netlink.LinkDel(l))
	if err := n.Run(t.Context()); err == nil || !strings.Contains(err.Error(),
		"node: "+c.Interface+" was removed by somebody else") {
		t.Errorf("Run returned %v", err)
	}
	if last := said.LastEntry().Message; last != "link is removed" {
		t.Errorf("the log ends with %q", last)
	}
	requireNothingLeft(t, c)
}

func TestSetRemote(t *testing.T) {
	for _, mode := range []Mode{VXLAN, Geneve} {
		t.Run(string(mode), func(t *testing.T) {
			needKind(t, mode)
			c := testConfig(t, mode)
			l, err := openKernel(c, mode, netip.MustParseAddr("172.18.0.9"))
			need.NoError(t, err)
			if err := l.setRemote(netip.MustParseAddr("172.18.0.77")); err != nil {
				t.Error(err)
			}
			if vni, remote, port := remoteOf(t, c.Interface); vni != 1 || remote != "172.18.0.77" || port != 6091 {
				t.Errorf("VNI %d, remote %s, port %d", vni, remote, port)
			}
			if err := l.close(); err != nil {
				t.Error(err)
			}
			requireNothingLeft(t, c)
		})
	}
}

func TestAutoTakesWhatThereIs(t *testing.T) {
	needKind(t, VXLAN)
	c := testConfig(t, Auto)
	stop := start(t, c)
	defer stop()
	l, err := netlink.LinkByName(c.Interface)
	need.NoError(t, err)
	if l.Type() != "geneve" && l.Type() != "vxlan" {
		t.Errorf("made a %s link", l.Type())
	}
}

func TestLeftoverIsReplaced(t *testing.T) {
	needKind(t, VXLAN)
	c := testConfig(t, VXLAN)
	dead, err := openKernel(c, VXLAN, netip.MustParseAddr("172.18.0.66"))
	need.NoError(t, err)
	stop := start(t, c)
	l, err := netlink.LinkByName(c.Interface)
	need.NoError(t, err)
	if l.Attrs().Index == dead.(*kernelLink).index {
		t.Error("the link of the dead run is in use")
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	requireNothingLeft(t, c)
}

func TestSecondNodeIsRefused(t *testing.T) {
	needKind(t, VXLAN)
	c := testConfig(t, VXLAN)
	stop := start(t, c)
	_, err := New(t.Context(), c, quiet())
	if err == nil || !strings.Contains(err.Error(), "belongs to a culvert node that is running") {
		t.Error("second New:", err)
	}
	if _, remote, _ := remoteOf(t, c.Interface); remote != "172.18.0.9" {
		t.Error("the first node's link now goes to", remote)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestRefusalsLeaveNothing tries causes of failure that a user can remove: each gets one line that
// names it.
func TestRefusalsLeaveNothing(t *testing.T) {
	needKind(t, VXLAN)
	t.Run("port in use", func(t *testing.T) {
		c := testConfig(t, VXLAN)
		s, err := net.ListenUDP("udp4", &net.UDPAddr{Port: int(c.Port)})
		need.NoError(t, err)
		defer s.Close()
		requireRefusal(t, c, "port: UDP port 6091 is in use")
		requireNothingLeft(t, c)
	})
	t.Run("VNI in use", func(t *testing.T) {
		c := testConfig(t, VXLAN)
		other := *c
		other.Interface = "culvert1"
		l, err := openKernel(&other, VXLAN, netip.MustParseAddr("172.18.0.9"))
		need.NoError(t, err)
		defer l.close()
		requireRefusal(t, c, "vni: this node has another vxlan link with VNI 1")
		requireNothingLeft(t, c)
	})
	t.Run("route taken", func(t *testing.T) {
		c := testConfig(t, VXLAN)
		ul, err := netlink.LinkByName("ul0")
		need.NoError(t, err)
		taken := &netlink.Route{LinkIndex: ul.Attrs().Index, Dst: rtnl.IPNet(c.Routes[1])}
		need.NoError(t, netlink.RouteAdd(taken))
		requireRefusal(t, c, "routes: this node has another route to 10.71.0.0/16")
		if err := netlink.RouteDel(taken); err != nil {
			t.Error("the other route is gone:", err)
		}
		requireNothingLeft(t, c)
	})
	t.Run("foreign link", func(t *testing.T) {
		c := testConfig(t, VXLAN)
		attrs := netlink.NewLinkAttrs()
		attrs.Name = c.Interface
		foreign := &netlink.Bridge{LinkAttrs: attrs}
		need.NoError(t, netlink.LinkAdd(foreign))
		requireRefusal(t, c, "interface: culvert0 exists and is a bridge link that culvert did not make")
		if err := netlink.LinkDel(foreign); err != nil {
			t.Error("the foreign link is gone:", err)
		}
	})
	t.Run("gateway has no address", func(t *testing.T) {
		c := testConfig(t, VXLAN)
		c.Gateway = "gateway.invalid"
		requireRefusal(t, c, "gateway.underlay: ")
		requireNothingLeft(t, c)
	})
	t.Run("no privilege", func(t *testing.T) {
		c := testConfig(t, VXLAN)
		need.WithoutCapabilities(t, func() {
			requireRefusal(t, c, "needs CAP_NET_ADMIN")
		})
		requireNothingLeft(t, c)
	})
}

func requireRefusal(t *testing.T, c *Config, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := New(ctx, c, quiet())
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("New returned %v, want one line with %q", err, want)
	}
}
