package services

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// nextHops returns the routers of this node. A route to one through the device would have a kernel with a strict rp_filter believe nothing
// that the router says, not even ARP, and cut the node off.
func nextHops() (map[netip.Addr]bool, error) {
	hops := map[netip.Addr]bool{}
	note := func(gateway net.IP) {
		if a, ok := netip.AddrFromSlice(gateway); ok {
			hops[a.Unmap()] = true
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := listed(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("services: list this node's routes: %w", err)
		}
		for i := range list {
			note(list[i].Gw)
			for _, hop := range list[i].MultiPath {
				note(hop.Gw)
			}
		}
	}
	return hops, nil
}

// oneHost returns the address that a destination consists of.
func oneHost(to *net.IPNet) (netip.Addr, bool) {
	a, _ := netip.AddrFromSlice(to.IP)
	ones, bits := to.Mask.Size()
	return a.Unmap(), ones == bits
}

// A TakenError names what this node has another route to, or by: addresses of Services, and CIDRs of serviceCIDRs.
type TakenError struct {
	Addresses []netip.Addr
	Prefixes  []netip.Prefix
}

func (e *TakenError) note(to *net.IPNet) {
	a, one := oneHost(to)
	if !one {
		ones, _ := to.Mask.Size()
		e.Prefixes = append(e.Prefixes, netip.PrefixFrom(a, ones))
		return
	}
	e.Addresses = append(e.Addresses, a)
}

func (e *TakenError) Error() string {
	var all []string
	for _, p := range e.Prefixes {
		all = append(all, p.String())
	}
	for _, a := range e.Addresses {
		all = append(all, a.String())
	}
	return fmt.Sprintf("services: this node has another route to %s, or by it; remove it or leave the address out", strings.Join(all, ", "))
}
