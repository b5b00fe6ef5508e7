package rtnl

import "github.com/vishvananda/netlink"

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
