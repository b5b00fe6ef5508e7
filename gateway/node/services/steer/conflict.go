package steer

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
)

// Conflicts returns a ConflictError for new routes of p that conflict with another route of this
// node, or with its routers. It changes nothing, so an address that stays taken causes no changes
// however often it is tried.
func (s *Steering) Conflicts(p *Plan) error {
	there := map[string]bool{}
	for i := range s.routes {
		if r := &s.routes[i]; r.Table == unix.RT_TABLE_MAIN {
			there[r.Dst.String()] = true
		}
	}
	var all ConflictError
	var hops map[netip.Addr]bool
	var others map[string]bool
	for _, to := range slices.Concat(p.Routes, p.Answered) {
		dst := rtnl.IPNet(to)
		if there[dst.String()] || !slices.Contains(s.families, familyOf(to)) {
			continue
		}
		if hops == nil {
			var err error
			if hops, others, err = otherRoutes(); err != nil {
				return err
			}
		}
		if a, one := oneHost(dst); one && hops[a] || others[dst.String()] {
			all.add(dst, p.Spare)
		}
	}
	return all.orNil()
}

// nextHops returns the routers of this node. With a route to a router through the device, a kernel
// with a strict rp_filter would reject everything from the router, even ARP, and cut the node off.
func nextHops() (map[netip.Addr]bool, error) {
	hops, _, err := otherRoutes()
	return hops, err
}

// otherRoutes returns the routers of this node, and the destinations in the main table for which
// the kernel accepts no second route with the default priority.
func otherRoutes() (hops map[netip.Addr]bool, others map[string]bool, err error) {
	hops, others = map[netip.Addr]bool{}, map[string]bool{}
	add := func(gateway net.IP) {
		if a, ok := netip.AddrFromSlice(gateway); ok {
			hops[a.Unmap()] = true
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := rtnl.List(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, nil, fmt.Errorf("services: list this node's routes: %w", err)
		}
		for i := range list {
			if r := &list[i]; r.Table == unix.RT_TABLE_MAIN && r.Dst != nil &&
				(r.Priority == 0 || family == unix.AF_INET6 && r.Priority == 1024) {
				others[r.Dst.String()] = true
			}
			add(list[i].Gw)
			for _, hop := range list[i].MultiPath {
				add(hop.Gw)
			}
		}
	}
	return hops, others, nil
}

// oneHost returns the address of a destination that is a single host.
func oneHost(to *net.IPNet) (netip.Addr, bool) {
	a, _ := netip.AddrFromSlice(to.IP)
	ones, bits := to.Mask.Size()
	return a.Unmap(), ones == bits
}

// A ConflictError lists destinations for which this node has another route, or which are its
// routers: addresses of Services, and CIDRs of serviceCIDRs.
type ConflictError struct {
	Addresses []netip.Addr
	Prefixes  []netip.Prefix
}

// add adds a destination that is not in spare.
func (e *ConflictError) add(to *net.IPNet, spare map[netip.Prefix]bool) {
	a, one := oneHost(to)
	if one && spare[Host(a)] {
		return
	}
	if !one {
		ones, _ := to.Mask.Size()
		e.Prefixes = append(e.Prefixes, netip.PrefixFrom(a, ones))
		return
	}
	e.Addresses = append(e.Addresses, a)
}

// orNil returns e, or nil if it lists nothing.
func (e *ConflictError) orNil() error {
	if len(e.Addresses)+len(e.Prefixes) == 0 {
		return nil
	}
	return e
}

func (e *ConflictError) Error() string {
	var all []string
	for _, p := range e.Prefixes {
		all = append(all, p.String())
	}
	for _, a := range e.Addresses {
		all = append(all, a.String())
	}
	return fmt.Sprintf("services: this node has another route to %s, or by it; remove it or leave the address out",
		strings.Join(all, ", "))
}
