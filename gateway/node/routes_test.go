package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
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

// awaitRoutes waits for at most 5 s until all routes of c lead through its link, and those to the
// gateway.
func awaitRoutes(t *testing.T, c *Config) {
	t.Helper()
	l, err := netlink.LinkByName(c.Interface)
	need.NoError(t, err)
	routes := c.way(l.Attrs().Index).Routes()
	need.Eventually(t, 5*time.Second, "the routes are there", func() error {
		table, err := rtnl.MainTable(netlink.FAMILY_ALL)
		for _, r := range routes {
			if err == nil && (!rtnl.HasRoute(table, &r) || instead(&r, table) != "") {
				err = fmt.Errorf("%v is missing", r)
			}
		}
		return err
	})
}

// TestRoutesComeBack: a node restores its routes when another program removes them, says so, and
// leaves other routes alone.
func TestRoutesComeBack(t *testing.T) {
	needKind(t, VXLAN)
	c := testConfigOf(t, VXLAN, dual.Replace(goodFile))
	log, said := test.NewNullLogger()
	n, err := New(t.Context(), c, log)
	need.NoError(t, err)
	stop := run(t, n)
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
		requireNothingLeft(t, c)
	}()
	says := func(what, why string) {
		t.Helper()
		need.Eventually(t, 10*time.Second, what+": "+why, func() error {
			var lines []string
			for _, e := range said.AllEntries() {
				got, _ := e.Data["error"].(string)
				if e.Level == logrus.WarnLevel && e.Message == what && got == why {
					return nil
				}
				lines = append(lines, e.Message+": "+got)
			}
			return fmt.Errorf("the log has %q", lines)
		})
	}
	need.BreakNetlink(t, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	l, err := netlink.LinkByName(c.Interface)
	need.NoError(t, err)
	for _, r := range c.way(l.Attrs().Index).Routes() {
		if err := netlink.RouteDel(&r); err != nil {
			t.Fatal(r, err)
		}
	}
	awaitRoutes(t, c)
	says("another program removed routes of this node: they are restored", "")

	// With IPv6 the address disappears too.
	need.NoError(t, netlink.LinkSetDown(l))
	says("routes of this node do not lead to the gateway",
		"interface: somebody has taken culvert0 down, and its routes are gone; ip link set culvert0 up")
	need.NoError(t, netlink.LinkSetUp(l))
	awaitRoutes(t, c)
	if have, err := netlink.AddrList(l, netlink.FAMILY_V6); err != nil || !strings.Contains(describeAddresses(have),
		c.Address.V6.String()) {
		t.Errorf("addresses %v, %v; want %s back", have, err, c.Address.V6)
	}

	other := &netlink.Route{Dst: rtnl.IPNet(netip.MustParsePrefix("10.61.0.0/16")), Gw: net.IPv4(172, 18, 0, 7)}
	need.NoError(t, netlink.RouteReplace(other))
	says("routes of this node do not lead to the gateway",
		"routes: this node has another route to 10.61.0.0/16 via 172.18.0.7 dev ul0; remove it or leave it out here: ip route del 10.61.0.0/16 via 172.18.0.7 dev ul0")
	need.NoError(t, netlink.RouteDel(other))
	awaitRoutes(t, c)
	without := *other
	without.Gw, without.LinkIndex, without.Scope = nil, l.Attrs().Index, netlink.SCOPE_LINK
	// the kernel then sends ARP requests for each pod into the tunnel
	if err := netlink.RouteReplace(&without); err != nil {
		t.Fatal(err)
	}
	awaitRoutes(t, c)
}

func describeAddresses(all []netlink.Addr) string {
	var s strings.Builder
	for _, a := range all {
		s.WriteString(a.IP.String() + " ")
	}
	return s.String()
}

// TestCheckRoutes: --check compares the file with the kernel, with and without a running node.
func TestCheckRoutes(t *testing.T) {
	needKind(t, VXLAN)
	c := testConfig(t, VXLAN)
	check := func(want int, lines ...string) {
		t.Helper()
		present, warnings, err := c.CheckRoutes()
		if err != nil || present != want || strings.Join(warnings, "\n") != strings.Join(lines, "\n") {
			t.Errorf("%d in the kernel, %q, %v; want %d, %q", present, warnings, err, want, lines)
		}
	}
	check(-1)
	other := &netlink.Route{Dst: rtnl.IPNet(c.Routes[0]), Gw: net.IPv4(172, 18, 0, 7)}
	need.NoError(t, netlink.RouteAdd(other))
	inTheWay := "routes[0]: the kernel has another route, 10.61.0.0/16 via 172.18.0.7 dev ul0; remove it or leave this one out: ip route del 10.61.0.0/16 via 172.18.0.7 dev ul0"
	check(-1, inTheWay)
	need.NoError(t, netlink.RouteDel(other))
	c.KeepLinks = true
	need.NoError(t, start(t, c)())
	l, err := netlink.LinkByName(c.Interface)
	need.NoError(t, err)
	defer netlink.LinkDel(l)
	check(2)
	need.NoError(t, netlink.RouteDel(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: rtnl.IPNet(c.Routes[1])}))
	check(1,
		"routes[1]: the kernel has no route to 10.71.0.0/16; a running culvert node puts it back within 5 s, so start it")
	need.NoError(t, netlink.RouteReplace(other))
	check(0, inTheWay,
		"routes[1]: the kernel has no route to 10.71.0.0/16; a running culvert node puts it back within 5 s, so start it")
	need.NoError(t, netlink.RouteDel(other))
}

// TestRunning: the device of a running node in tun mode is recognised as culvert's.
func TestRunning(t *testing.T) {
	needTUN(t)
	c := testConfig(t, TUN)
	if c.running() {
		t.Error("running before it was started")
	}
	stop := start(t, c)
	if present, warnings, err := c.CheckRoutes(); !c.running() || present != 2 || warnings != nil || err != nil {
		t.Errorf("running %v; %d in the kernel, %q, %v", c.running(), present, warnings, err)
	}
	if again, err := parseConfig([]byte(strings.Replace(goodFile, "auto", "tun", 1))); err != nil ||
		strings.Contains(strings.Join(again.Warnings, ""), "did not make") {
		t.Error(again.Warnings, err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestRepairTells: a program that keeps removing routes causes one line a minute, and each new
// fault another.
func TestRepairTells(t *testing.T) {
	log, said := test.NewNullLogger()
	var r repair
	at := time.Unix(0, 0).Add(time.Hour)
	fault := errors.New("routes: in the way")
	for _, step := range []struct {
		after time.Duration
		back  []string
		fault error
		lines int
	}{
		{0, []string{"10.61.0.0/16"}, nil, 1},
		{time.Second, []string{"10.61.0.0/16"}, fault, 1},
		{time.Second, nil, fault, 0},
		{time.Second, nil, nil, 0},
		{time.Second, nil, fault, 1},
		{routesLogPause, []string{"10.61.0.0/16"}, fault, 1},
	} {
		at = at.Add(step.after)
		before := len(said.AllEntries())
		r.log(log, at, step.back, step.fault)
		if got := len(said.AllEntries()) - before; got != step.lines {
			t.Errorf("%v: %d lines, want %d", at, got, step.lines)
		}
	}
	if e := said.LastEntry(); e.Data["changes"] != 1 || e.Data["routes"] != "10.61.0.0/16" {
		t.Errorf("%v; want one change before", e.Data)
	}
}
