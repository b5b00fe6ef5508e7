package node

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

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

// keep implements link.
func (l *tunLink) keep() error {
	if err := rtnl.KeepTUN(l.device.File(), l.config.Interface, linkGroup, true); err != nil {
		return fmt.Errorf("keepLinks: keep %s: %w", l.config.Interface, err)
	}
	return nil
}
