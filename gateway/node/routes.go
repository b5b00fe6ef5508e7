package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
)

const (
	routesPoll     = 4 * time.Second        // between two checks of the kernel's routes if it reports no change
	routesPause    = 100 * time.Millisecond // to collect further changes after one
	routesLogPause = time.Minute            // between two log lines about routes that somebody removes again and again
)

// belongings returns the addresses of a link and the routes through it.
func (c *Config) belongings(index int) (addresses []netlink.Addr, routes []netlink.Route) {
	for _, e := range c.ends() {
		address := netlink.Addr{IPNet: ipNet(netip.PrefixFrom(e.own, e.own.BitLen())), Scope: unix.RT_SCOPE_UNIVERSE}
		if e.own.Is6() {
			// no duplicate detection, so that the address works at once: the tunnel has only two
			// hosts, of known addresses
			address.Flags = unix.IFA_F_NODAD
		}
		addresses = append(addresses, address)
		routes = append(routes, netlink.Route{LinkIndex: index, Scope: netlink.SCOPE_LINK,
			Dst: ipNet(netip.PrefixFrom(e.gateway, e.gateway.BitLen()))})
	}
	for _, p := range c.Routes {
		gateway := of(c.GatewayAddress, p.Addr())
		routes = append(routes, netlink.Route{LinkIndex: index, Dst: ipNet(p), Gw: gateway.AsSlice(),
			Flags: int(netlink.FLAG_ONLINK)})
	}
	return addresses, routes
}

// configure gives the link the node's internal addresses, routes to the gateway's addresses, and
// the routes through it, and removes others from a kept link.
func configure(c *Config) error {
	l, err := netlink.LinkByName(c.Interface)
	if err != nil {
		return fmt.Errorf("node: configure %s: %w", c.Interface, err)
	}
	addresses, routes := c.belongings(l.Attrs().Index)
	if err := c.addAddresses(l, addresses); err != nil {
		return err
	}
	for _, r := range routes {
		if err := c.addRoute(&r); err != nil {
			return err
		}
	}
	return removeOthers(l, addresses, routes)
}

// addAddresses adds the missing addresses to a link.
func (c *Config) addAddresses(l netlink.Link, addresses []netlink.Addr) error {
	for _, a := range addresses {
		err := netlink.AddrAdd(l, &a)
		switch {
		case a.IP.To4() == nil && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EOPNOTSUPP)):
			return fmt.Errorf("address: IPv6 is turned off on this node, so %s cannot have %s; turn it on (net.ipv6.conf.default.disable_ipv6) or leave IPv6 out here: %w",
				c.Interface, a.IP, err)
		case err != nil && !errors.Is(err, unix.EEXIST):
			return fmt.Errorf("address: give %s to %s: %w", a.IP, c.Interface, err)
		}
	}
	return nil
}

// addRoute adds a route, replacing one to the same prefix through the same link.
func (c *Config) addRoute(r *netlink.Route) error {
	err := netlink.RouteAdd(r)
	if errors.Is(err, unix.EEXIST) {
		var same []netlink.Route
		same, err = rtnl.List(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(netlink.FAMILY_ALL, r, netlink.RT_FILTER_OIF|netlink.RT_FILTER_DST)
		})
		if err == nil && len(same) == 0 {
			return fmt.Errorf("routes: this node has another route to %s; remove it or leave it out here: %w",
				r.Dst, unix.EEXIST)
		}
		if err == nil {
			err = netlink.RouteReplace(r)
		}
	}
	if err != nil {
		return fmt.Errorf("routes: add %s through %s: %w", r.Dst, c.Interface, err)
	}
	return nil
}

// lack is a configured route that packets do not take.
type lack struct {
	route netlink.Route
	other string // the route that they take instead, in the format of ip route; "" if there is none
	own   bool   // that other route leads through the same link
}

// lacking compares routes with the kernel's main table.
func lacking(routes []netlink.Route) (lacks []lack, err error) {
	table, err := rtnl.List(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, new(netlink.Route), 0)
	})
	if err != nil {
		return nil, fmt.Errorf("routes: read the kernel's: %w", err)
	}
	for _, want := range routes {
		var best *netlink.Route
		for i := range table {
			r := &table[i]
			if r.Dst != nil && r.Dst.String() == want.Dst.String() && (best == nil || r.Priority < best.Priority) {
				best = r
			}
		}
		switch {
		case best == nil:
			lacks = append(lacks, lack{route: want})
		case best.LinkIndex != want.LinkIndex || !best.Gw.Equal(want.Gw):
			lacks = append(lacks, lack{want, rtnl.Describe(best), best.LinkIndex == want.LinkIndex})
		}
	}
	return lacks, nil
}

// CheckRoutes compares the file's routes with the kernel's. It returns how many lead through the
// link, and a warning about each other one. If there is no link, present is -1 and the warnings are
// about conflicting routes.
func (c *Config) CheckRoutes() (present int, warnings []string, err error) {
	index := -1
	if l, err := netlink.LinkByName(c.Interface); err == nil && (l.Attrs().Group == linkGroup || c.running()) {
		index = l.Attrs().Index
	}
	_, routes := c.belongings(index)
	routes = routes[len(routes)-len(c.Routes):]
	lacks, err := lacking(routes)
	if err != nil {
		return 0, nil, err
	}
	for _, k := range lacks {
		i := slices.IndexFunc(routes, func(r netlink.Route) bool { return r.Dst.String() == k.route.Dst.String() })
		switch {
		case k.other != "":
			warnings = append(warnings,
				fmt.Sprintf(
					"routes[%d]: the kernel has another route, %s; remove it or leave this one out: ip route del %s", i,
					k.other, k.other))
		case index >= 0:
			warnings = append(warnings,
				fmt.Sprintf("routes[%d]: the kernel has no route to %s; a running culvert node puts it back within 5 s, so start it", i, k.route.Dst))
		}
	}
	if index < 0 {
		return -1, warnings, nil
	}
	return len(routes) - len(lacks), warnings, nil
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
	changed := make(chan struct{}, 1)
	tell := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	var hearing sync.WaitGroup
	defer hearing.Wait()
	hearing.Go(func() {
		groups := []uint{unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE}
		rtnl.Listen(ctx, groups, n.config.routed, tell, func(err error) {
			n.log.WithError(err).Debug("meanwhile, routes are compared every few seconds")
		})
	})
	timer := time.NewTimer(0) // for changes since New
	defer timer.Stop()
	var r repair
	var last time.Time
	settling := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			if !settling { // somebody may remove them again and again
				timer.Reset(max(routesPause, time.Until(last.Add(time.Second))))
			}
			settling = true
			continue
		case <-timer.C:
		}
		settling = false
		timer.Reset(routesPoll)
		back, fault := n.restoreRoutes()
		if len(back) > 0 {
			last = time.Now()
		}
		if ctx.Err() == nil {
			r.log(n.log, time.Now(), back, fault)
		}
	}
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
	addresses, routes := c.belongings(l.Attrs().Index)
	lacks, err := lacking(routes)
	if err != nil || len(lacks) == 0 {
		return nil, err
	}
	if l.Attrs().Flags&net.FlagUp == 0 {
		return nil, fmt.Errorf("interface: somebody has taken %s down, and its routes are gone; ip link set %s up",
			c.Interface, c.Interface)
	}
	errs := []error{c.addAddresses(l, addresses)} // IPv6 addresses disappear when a link goes down
	for _, k := range lacks {
		if k.other != "" && !k.own {
			errs = append(errs, fmt.Errorf(
				"routes: packets to %s take another route, %s; remove it or leave it out here: ip route del %s",
				k.route.Dst, k.other, k.other))
			continue
		}
		err := c.addRoute(&k.route)
		if err == nil {
			back = append(back, k.route.Dst.String())
		}
		errs = append(errs, err)
	}
	return back, errors.Join(errs...)
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
