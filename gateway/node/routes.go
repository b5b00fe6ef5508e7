package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
)

const (
	routesPoll     = 4 * time.Second // between two checks of the kernel's routes if it reports no change
	routesLogPause = time.Minute     // between two log lines about routes that somebody removes again and again
)

// way returns the routes through the link with an index.
func (c *Config) way(index int) *rtnl.Way {
	return &rtnl.Way{Link: c.Interface, Index: index, Gateways: c.GatewayAddress.All(), To: c.Routes,
		Protocol: unix.RTPROT_BOOT,
		Taken: func(want *netlink.Route, table []netlink.Route) error {
			if other := instead(want, table); other != "" {
				return fmt.Errorf("this node has another route to %s; remove it or leave it out here: ip route del %s",
					other, other)
			}
			return nil
		}}
}

// instead returns the route of another link that packets to a route's destination take, in the
// format of ip route; "" if there is none.
func instead(want *netlink.Route, table []netlink.Route) string {
	var best *netlink.Route
	for i := range table {
		r := &table[i]
		if r.Dst.String() == want.Dst.String() && (best == nil || r.Priority < best.Priority) {
			best = r
		}
	}
	if best == nil || best.LinkIndex == want.LinkIndex {
		return ""
	}
	return rtnl.Describe(best)
}

// configure gives the link the node's internal addresses, routes to the gateway's addresses, and
// the routes through it, and removes others from a kept link. The kernel's own routes come and go
// with addresses.
func (c *Config) configure() error {
	l, err := netlink.LinkByName(c.Interface)
	if err != nil {
		return fmt.Errorf("node: configure %s: %w", c.Interface, err)
	}
	if err := rtnl.Adapt(l, c.MTU, c.Address.All()); err != nil {
		return err
	}
	table, err := rtnl.MainTable(netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	have, _, errs := c.way(l.Attrs().Index).Keep(table)
	if len(errs) > 0 {
		return fmt.Errorf("routes: %w", errs[0])
	}
	return rtnl.Prune(table, have, func(r *netlink.Route) bool {
		return r.LinkIndex == l.Attrs().Index && r.Protocol == unix.RTPROT_BOOT
	}, netlink.RouteDel)
}

// CheckRoutes compares the file's routes with the kernel's. It returns how many lead through the
// link, and a warning about each other one. If there is no link, present is -1 and the warnings are
// about conflicting routes.
func (c *Config) CheckRoutes() (present int, warnings []string, err error) {
	index := -1
	if l, err := netlink.LinkByName(c.Interface); err == nil && (l.Attrs().Group == linkGroup || c.running()) {
		index = l.Attrs().Index
	}
	table, err := rtnl.MainTable(netlink.FAMILY_ALL)
	if err != nil {
		return 0, nil, err
	}
	routes := c.way(index).Routes()
	for i, r := range routes[len(routes)-len(c.Routes):] {
		switch other := instead(&r, table); {
		case other != "":
			warnings = append(warnings,
				fmt.Sprintf(
					"routes[%d]: the kernel has another route, %s; remove it or leave this one out: ip route del %s", i,
					other, other))
		case rtnl.HasRoute(table, &r):
			present++
		case index >= 0:
			warnings = append(warnings,
				fmt.Sprintf("routes[%d]: the kernel has no route to %s; a running culvert node puts it back within 5 s, so start it", i, r.Dst))
		}
	}
	if index < 0 {
		return -1, warnings, nil
	}
	return present, warnings, nil
}

// running reports whether a culvert node in this network namespace owns the interface: it holds the
// socket of lock.
func (c *Config) running() bool {
	conn, err := net.Dial("unixgram", "@"+lockPrefix+c.Interface)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// keepRoutes restores the link's routes that others remove, until ctx is done. It runs when the
// kernel reports a change, and every routesPoll, because the kernel reports none when a link goes
// down.
func (n *Node) keepRoutes(ctx context.Context) {
	var r repair
	loop := rtnl.NewLoop(n.config.routed, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	loop.Run(ctx, routesPoll, func() (mended bool) {
		back, fault := n.restoreRoutes()
		if ctx.Err() == nil {
			r.log(n.log, time.Now(), back, fault)
		}
		return len(back) > 0
	})
}

// routed reports whether a message is about a route to one of the prefixes of c, or to the
// gateway's internal address.
func (c *Config) routed(m syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofRtMsg {
		return false
	}
	attributes, err := nl.ParseRouteAttr(m.Data[unix.SizeofRtMsg:])
	if err != nil {
		return false
	}
	const dstLen = 1 // of struct rtmsg
	for _, a := range attributes {
		if a.Attr.Type == unix.RTA_DST {
			ip, _ := netip.AddrFromSlice(a.Value)
			p := netip.PrefixFrom(ip, int(m.Data[dstLen]))
			return slices.Contains(c.Routes, p) || p.IsSingleIP() && ip == of(c.GatewayAddress, ip)
		}
	}
	return false
}

// restoreRoutes restores the routes that the kernel has lost, and returns them. fault, for the log,
// is why others could not be restored.
func (n *Node) restoreRoutes() (back []string, fault error) {
	c := n.config
	l, err := netlink.LinkByName(c.Interface)
	if err != nil {
		return nil, nil // the link is being removed
	}
	if l.Attrs().Flags&net.FlagUp == 0 {
		return nil, fmt.Errorf("interface: somebody has taken %s down, and its routes are gone; ip link set %s up",
			c.Interface, c.Interface)
	}
	table, err := rtnl.MainTable(netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	fault = rtnl.AddAddresses(l, c.Address.All()) // IPv6 addresses disappear when a link goes down
	w := c.way(l.Attrs().Index)
	w.Begun = true
	_, made, errs := w.Keep(table)
	for _, r := range made {
		back = append(back, r.Dst.String())
	}
	for _, err := range errs {
		fault = errors.Join(fault, fmt.Errorf("routes: %w", err))
	}
	return back, fault
}

// repair is what was logged about repairs.
type repair struct {
	fault  string
	told   time.Time
	before int // routes restored since then and not logged
}

// log writes a line about restored routes, at most one in routesLogPause, and one about a fault
// when it changes.
func (r *repair) log(log logrus.FieldLogger, now time.Time, back []string, fault error) {
	if len(back) > 0 && now.Sub(r.told) < routesLogPause {
		r.before += len(back)
	} else if len(back) > 0 {
		entry := log.WithField("routes", strings.Join(back, " "))
		if r.before > 0 {
			entry = entry.WithField("changes", r.before)
		}
		entry.Warn("another program removed routes of this node: they are restored")
		r.told, r.before = now, 0
	}
	text := ""
	if fault != nil {
		text = strings.ReplaceAll(fault.Error(), "\n", "; ")
	}
	if text != r.fault && text != "" {
		log.WithField("error", text).Warn("routes of this node do not lead to the gateway")
	}
	r.fault = text
}
