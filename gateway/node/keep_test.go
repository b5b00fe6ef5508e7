package node

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
	"culvert/integration/need"
)

// losses records every link and route that the kernel removes, until the end of the test.
type losses struct {
	links  chan netlink.LinkUpdate
	routes chan netlink.RouteUpdate
}

func watchLosses(t *testing.T) *losses {
	t.Helper()
	w := &losses{make(chan netlink.LinkUpdate, 256), make(chan netlink.RouteUpdate, 256)}
	need.NoError(t, netlink.LinkSubscribe(w.links, t.Context().Done()))
	need.NoError(t, netlink.RouteSubscribe(w.routes, t.Context().Done()))
	return w
}

// of returns the link, if it was removed, and the prefixes of removed routes through it. It removes
// a link and a route of its own: once the kernel has reported those, it has reported everything
// before.
func (w *losses) of(t *testing.T, index int) (lost []string) {
	t.Helper()
	mark := netlink.NewVeth(netlink.NewLinkAttrs())
	mark.Name, mark.PeerName = "mark0", "mark1"
	need.NoError(t, netlink.LinkAdd(mark))
	route := &netlink.Route{LinkIndex: up(t, "mark0").Attrs().Index, Dst: rtnl.IPNet(netip.MustParsePrefix("192.0.2.0/24"))}
	need.NoError(t, netlink.RouteAdd(route))
	need.NoError(t, netlink.RouteDel(route))
	need.NoError(t, netlink.LinkDel(mark))
	deadline := time.After(10 * time.Second)
	for links, routes := true, true; links || routes; {
		select {
		case u := <-w.links:
			if u.Header.Type != unix.RTM_DELLINK {
				continue
			}
			links = links && u.Attrs().Name != "mark0"
			if int(u.Index) == index {
				lost = append(lost, u.Attrs().Name)
			}
		case u := <-w.routes:
			if u.Type != unix.RTM_DELROUTE {
				continue
			}
			routes = routes && u.Dst.String() != route.Dst.String()
			if u.LinkIndex == index {
				lost = append(lost, u.Dst.String())
			}
		case <-deadline:
			t.Fatal("the kernel does not tell what it removes")
		}
	}
	return lost
}

func indexOf(t *testing.T, name string) int {
	t.Helper()
	l, err := netlink.LinkByName(name)
	need.NoError(t, err)
	return l.Attrs().Index
}

// routesTo returns the destinations of the IPv4 routes through a link.
func routesTo(t *testing.T, name string) (to []string) {
	for _, r := range routesOf(t, name, netlink.FAMILY_V4) {
		to = append(to, r.Dst.String())
	}
	slices.Sort(to)
	return to
}

func TestKeptLinkOutlivesItsNode(t *testing.T) {
	for _, mode := range []Mode{VXLAN, Geneve, TUN} {
		t.Run(string(mode), func(t *testing.T) {
			if mode == TUN {
				needTUN(t)
			} else {
				needKind(t, mode)
			}
			c := testConfigOf(t, mode, dual.Replace(goodFile))
			c.KeepLinks = true
			stop := start(t, c)
			index, routes := indexOf(t, c.Interface), routesTo(t, c.Interface)
			w := watchLosses(t)
			for range 2 {
				if err := stop(); err != nil {
					t.Fatal("Run returned", err)
				}
				if now := indexOf(t, c.Interface); now != index {
					t.Fatalf("link %d is there, want %d", now, index)
				}
				stop = start(t, c)
			}
			if lost := w.of(t, index); len(lost) > 0 {
				t.Errorf("lost over two restarts: %q", lost)
			}
			if now := routesTo(t, c.Interface); !slices.Equal(now, routes) {
				t.Errorf("routes %q, were %q", now, routes)
			}

			// Another configuration, in place.
			need.NoError(t, stop())
			c.Routes = []netip.Prefix{c.Routes[0], netip.MustParsePrefix("10.99.0.0/16")}
			c.MTU, c.Gateway = 1300, "172.18.0.77"
			c.Address.V4, c.GatewayAddress.V4 = netip.MustParseAddr("10.80.0.22"), netip.MustParseAddr("10.80.0.44")
			stop = start(t, c)
			l, err := netlink.LinkByName(c.Interface)
			need.NoError(t, err)
			if l.Attrs().Index != index || l.Attrs().MTU != 1300 {
				t.Errorf("link %d with mtu %d, want %d with 1300", l.Attrs().Index, l.Attrs().MTU, index)
			}
			if want, now := []string{"10.61.0.0/16", "10.80.0.44/32", "10.99.0.0/16"},
				routesTo(t, c.Interface); !slices.Equal(now, want) {
				t.Errorf("routes %q, want %q", now, want)
			}
			for _, r := range routesOf(t, c.Interface, netlink.FAMILY_V4) {
				if r.Gw != nil && r.Gw.String() != "10.80.0.44" {
					t.Errorf("%s goes by %s", r.Dst, r.Gw)
				}
			}
			addresses, err := rtnl.List(func() ([]netlink.Addr, error) {
				return netlink.AddrList(l, netlink.FAMILY_V4)
			})
			if err != nil || len(addresses) != 1 || addresses[0].IPNet.String() != "10.80.0.22/32" {
				t.Error("addresses:", addresses, err)
			}
			if mode != TUN {
				if _, remote, _ := remoteOf(t, c.Interface); remote != "172.18.0.77" {
					t.Error("the link goes to", remote)
				}
			}
			need.NoError(t, stop())

			// A configuration that cannot use the link makes another.
			c.VNI++
			stop = start(t, c)
			if now := indexOf(t, c.Interface); now == index && mode != TUN {
				t.Error("the link of another VNI is in use")
			}
			need.NoError(t, stop())

			// One without keepLinks removes everything.
			c.KeepLinks = false
			stop = start(t, c)
			need.NoError(t, stop())
			requireNothingLeft(t, c)
		})
	}
}

// TestKeptTUNCarriesPackets: the next process reads what the node routes into the kept device.
func TestKeptTUNCarriesPackets(t *testing.T) {
	needTUN(t)
	c := testConfig(t, TUN)
	c.KeepLinks = true
	go sendBack(gatewayEnd(t, c, "172.18.0.9"), nil)
	for range 2 {
		stop := start(t, c)
		talk(t, "10.61.1.5")
		if err := stop(); err != nil {
			t.Fatal("Run returned", err)
		}
		need.OwnTUN(t, c.Interface)
	}
	if err := netlink.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: indexOf(t,
		c.Interface)}}); err != nil {
		t.Error("ip link del does not remove it:", err)
	}
	requireNothingLeft(t, c)
}

// TestRefusalSparesKeptLink: a node that cannot start leaves a kept link and its routes alone.
func TestRefusalSparesKeptLink(t *testing.T) {
	needKind(t, VXLAN)
	c := testConfig(t, VXLAN)
	c.KeepLinks = true
	stop := start(t, c)
	need.NoError(t, stop())
	index := indexOf(t, c.Interface)
	taken := &netlink.Route{LinkIndex: indexOf(t, "ul0"), Dst: rtnl.IPNet(netip.MustParsePrefix("10.98.0.0/16"))}
	need.NoError(t, netlink.RouteAdd(taken))
	routes := c.Routes
	c.Routes = append(slices.Clone(routes), netip.MustParsePrefix("10.98.0.0/16"))
	requireRefusal(t, c, "routes: this node has another route to 10.98.0.0/16")
	if now := indexOf(t, c.Interface); now != index {
		t.Errorf("link %d is there, want %d", now, index)
	}
	c.Routes, c.KeepLinks = routes, false
	need.NoError(t, start(t, c)())
	requireNothingLeft(t, c)
}

// TestKeptLinkOfOtherUnderlay moves a node to an underlay of the other family. A kernel link keeps
// the family with which it was made, so it must be replaced.
func TestKeptLinkOfOtherUnderlay(t *testing.T) {
	for _, mode := range []Mode{VXLAN, Geneve} {
		t.Run(string(mode), func(t *testing.T) {
			needKind(t, mode)
			c := testConfig(t, mode)
			c.KeepLinks = true
			need.NoError(t, start(t, c)())
			address := &netlink.Addr{IPNet: rtnl.IPNet(netip.MustParsePrefix("fd18::2/64")), Flags: unix.IFA_F_NODAD}
			need.NoError(t, netlink.AddrAdd(up(t, "ul0"), address))
			c.Underlay, c.Gateway, c.KeepLinks = netip.MustParseAddr("fd18::2"), "fd18::9", true
			stop := start(t, c)
			if _, remote, _ := remoteOf(t, c.Interface); remote != "fd18::9" {
				t.Error("the link goes to", remote)
			}
			need.NoError(t, stop())
			c.KeepLinks = false
			need.NoError(t, start(t, c)())
			requireNothingLeft(t, c)
		})
	}
}
