package node

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/carry"
	"culvert/gateway/node/rtnl"
)

// kept returns the kind of a link left by an earlier run that c can continue with, or "". The
// properties that a link cannot change must match; the others may differ.
func kept(c *Config) Mode {
	found, err := netlink.LinkByName(c.Interface)
	if !c.KeepLinks || err != nil || found.Attrs().Group != linkGroup {
		return ""
	}
	var kind Mode
	switch l := found.(type) {
	case *netlink.Geneve:
		// The kernel does not change a remote address to the other family.
		if remote, _ := netip.AddrFromSlice(l.Remote); l.ID == c.VNI && l.Dport == c.Port &&
			remote.Is4() == c.Underlay.Is4() {
			kind = Geneve
		}
	case *netlink.Vxlan:
		if own, _ := netip.AddrFromSlice(l.SrcAddr); l.VxlanId == int(c.VNI) && l.Port == int(c.Port) &&
			own.Unmap() == c.Underlay {
			kind = VXLAN
		}
	case *netlink.Tuntap:
		kind = TUN
	}
	if c.Mode != Auto && c.Mode != kind {
		return ""
	}
	return kind
}

// takeLink continues with the link that kept has found.
func takeLink(c *Config, kind Mode, remote netip.Addr) (link, error) {
	if kind == TUN {
		return openTUN(c, remote) // the kernel returns the existing device of that name
	}
	found, err := netlink.LinkByName(c.Interface)
	if err != nil {
		return nil, fmt.Errorf("node: take %s: %w", c.Interface, err)
	}
	l := newKernelLink(c, kind, found.Attrs().Index)
	l.keep()
	if err := l.setRemote(remote); err != nil {
		return nil, err
	}
	if err := netlink.LinkSetMTU(found, c.MTU); err != nil {
		return nil, fmt.Errorf("mtu: set %d of %s: %w", c.MTU, c.Interface, err)
	}
	if err := l.start(); err != nil {
		return nil, linkError(c, kind, err)
	}
	return l, nil
}

// keep implements link.
func (l *kernelLink) keep() error {
	l.kept = true
	return nil
}

// keep implements link. The group is set first, so that a crash leaves no device without it.
func (l *tunLink) keep() error {
	made, err := netlink.LinkByName(l.config.Interface)
	if err == nil {
		err = netlink.LinkSetGroup(made, linkGroup)
	}
	if err == nil {
		err = carry.Persist(l.device)
	}
	if err != nil {
		return fmt.Errorf("keepLinks: keep %s: %w", l.config.Interface, err)
	}
	return nil
}

// removeOthers removes addresses of a link and routes through it that its configuration does not
// have. The kernel's own routes come and go with addresses.
func (c *Config) removeOthers(l netlink.Link, table, routes []netlink.Route) error {
	mine := func(r *netlink.Route) bool {
		return r.LinkIndex == l.Attrs().Index && r.Protocol == unix.RTPROT_BOOT
	}
	errs := []error{rtnl.Prune(table, routes, mine, netlink.RouteDel)}
	had, err := rtnl.List(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
	errs = append(errs, err)
	for _, a := range had {
		wanted := slices.ContainsFunc(c.addresses(), func(w netlink.Addr) bool {
			return a.IPNet.String() == w.IPNet.String()
		})
		if !wanted && a.Scope == unix.RT_SCOPE_UNIVERSE {
			errs = append(errs, netlink.AddrDel(l, &a))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("keepLinks: tidy %s: %w", l.Attrs().Name, err)
	}
	return nil
}
