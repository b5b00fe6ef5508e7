package rtnl

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Way is a link, and what this node reaches through it by routes of the main table.
type Way struct {
	Link     string
	Index    int                   // of the link
	Gateways []netip.Addr          // on the link, at most one of each family
	To       []netip.Prefix        // by the gateway of their family
	Protocol netlink.RouteProtocol // of the routes, which shows who has made them
	// Taken returns why a route must not be made beside the others of this node; nil if it may.
	Taken func(want *netlink.Route, table []netlink.Route) error
	// Begun: the routes were there. Otherwise the table says so by the route to the first gateway.
	Begun bool
}

// Routes returns the routes to the gateways, and then those to the prefixes.
func (w *Way) Routes() (all []netlink.Route) {
	for _, g := range w.Gateways {
		all = append(all, netlink.Route{LinkIndex: w.Index, Scope: netlink.SCOPE_LINK,
			Dst: IPNet(netip.PrefixFrom(g, g.BitLen())), Protocol: w.Protocol, Table: unix.RT_TABLE_MAIN})
	}
	for _, p := range w.To {
		for _, g := range w.Gateways {
			if g.Is4() == p.Addr().Is4() {
				all = append(all, netlink.Route{LinkIndex: w.Index, Dst: IPNet(p), Gw: g.AsSlice(),
					Flags: int(netlink.FLAG_ONLINK), Protocol: w.Protocol, Table: unix.RT_TABLE_MAIN})
			}
		}
	}
	return all
}

// Keep makes the routes that the table lacks. It returns all that are there now, the new ones among
// them, and why others are not: a Way without routes gets none if one of them is Taken, and a Way
// that has Begun keeps what it has, and gets the rest.
func (w *Way) Keep(table []netlink.Route) (have, made []netlink.Route, errs []error) {
	want := w.Routes()
	free := slices.DeleteFunc(slices.Clone(want), func(r netlink.Route) bool {
		why := w.Taken(&r, table)
		if why != nil {
			errs = append(errs, why)
		}
		return why != nil && !HasRoute(table, &r)
	})
	if len(errs) > 0 && !w.Begun && !HasRoute(table, &want[0]) {
		return nil, nil, errs
	}
	for _, r := range free {
		if !HasRoute(table, &r) {
			if err := netlink.RouteReplace(&r); err != nil {
				errs = append(errs, fmt.Errorf("add a route to %s through %s: %w", r.Dst, w.Link, err))
				continue
			}
			made = append(made, r)
		}
		have = append(have, r)
	}
	return have, made, errs
}

// Prune removes the routes of a table that are mine, except those to keep.
func Prune(table, keep []netlink.Route, mine func(*netlink.Route) bool, remove func(*netlink.Route) error) (err error) {
	for _, r := range table {
		if !mine(&r) || HasRoute(keep, &r) {
			continue
		}
		if e := remove(&r); e != nil && !errors.Is(e, unix.ESRCH) {
			err = errors.Join(err, fmt.Errorf(
				"remove the route to %s, which is no longer wanted: %w; remove it with: ip route del %s", r.Dst, e,
				Describe(&r)))
		}
	}
	return err
}

// HasRoute reports whether a table has a route of the same protocol.
func HasRoute(table []netlink.Route, r *netlink.Route) bool {
	return slices.ContainsFunc(table, func(have netlink.Route) bool {
		return have.Protocol == r.Protocol && have.LinkIndex == r.LinkIndex && have.Gw.Equal(r.Gw) &&
			have.Dst.String() == r.Dst.String()
	})
}

// MainTable returns the routes of the main table.
func MainTable(family int) ([]netlink.Route, error) {
	table, err := List(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("routes: read the kernel's: %w", err)
	}
	return table, nil
}

// IPNet returns p as the netlink package takes it.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// PrefixOf returns the destination of a route; of a default route it may be invalid.
func PrefixOf(r *netlink.Route) netip.Prefix {
	if r.Dst == nil {
		return netip.Prefix{}
	}
	to, _ := netip.AddrFromSlice(r.Dst.IP)
	ones, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(to.Unmap(), ones)
}

// Describe formats a route with a destination as ip route does.
func Describe(r *netlink.Route) string {
	text := r.Dst.String()
	if r.Gw != nil {
		text += " via " + r.Gw.String()
	}
	if l, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
		text += " dev " + l.Attrs().Name
	}
	return text
}
