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

// FindLink returns the link with a name; nil if there is none.
func FindLink(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for %s: %w", name, err)
	}
	return l, nil
}

// RemoveLink removes a link, which may be gone.
func RemoveLink(l netlink.Link) error {
	name := l.Attrs().Name
	switch err := netlink.LinkDel(l); {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("removing %s needs CAP_NET_ADMIN in this network namespace; run culvert node as root: %w",
			name, err)
	case err != nil && !errors.Is(err, unix.ENODEV):
		return fmt.Errorf("remove %s: %w; remove it with: ip link del %s", name, err, name)
	}
	return nil
}

// Adapt brings a link up, with an MTU and these addresses, and takes others from it.
func Adapt(l netlink.Link, mtu int, addresses []netip.Addr) error {
	a := l.Attrs()
	if a.MTU != mtu {
		if err := netlink.LinkSetMTU(l, mtu); err != nil {
			return fmt.Errorf("mtu: set %d of %s: %w", mtu, a.Name, err)
		}
	}
	if a.Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(l); err != nil {
			return fmt.Errorf("interface: bring up %s: %w", a.Name, err)
		}
	}
	have, err := List(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("address: list those of %s: %w", a.Name, err)
	}
	missing := slices.Clone(addresses)
	others := slices.DeleteFunc(have, func(h netlink.Addr) bool {
		ip, _ := netip.AddrFromSlice(h.IP)
		missing = slices.DeleteFunc(missing, func(a netip.Addr) bool { return a == ip.Unmap() })
		return h.Scope != unix.RT_SCOPE_UNIVERSE || slices.Contains(addresses, ip.Unmap())
	})
	// Routes may use a new address as their source before a former one goes.
	fault := AddAddresses(l, missing)
	if fault != nil && !errors.Is(fault, ErrNoIPv6) {
		return fault
	}
	for _, h := range others {
		if err := netlink.AddrDel(l, &h); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("address: take %s from %s: %w", h.IP, a.Name, err)
		}
	}
	return fault
}

// ErrNoIPv6 means that a link cannot have addresses of IPv6. It has those of IPv4.
var ErrNoIPv6 = errors.New("IPv6 is turned off on this node")

// AddAddresses gives a link addresses, which it may have.
func AddAddresses(l netlink.Link, addresses []netip.Addr) error {
	for _, ip := range addresses {
		a := &netlink.Addr{IPNet: IPNet(netip.PrefixFrom(ip, ip.BitLen())), Scope: unix.RT_SCOPE_UNIVERSE}
		if ip.Is6() {
			// no duplicate detection, so that the address works at once: a tunnel has only two
			// hosts, of known addresses
			a.Flags = unix.IFA_F_NODAD
		}
		err := netlink.AddrAdd(l, a)
		switch {
		case ip.Is6() && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EOPNOTSUPP)):
			return fmt.Errorf("address: %w, so %s cannot have %s; turn it on (net.ipv6.conf.default.disable_ipv6) or leave IPv6 out here: %w",
				ErrNoIPv6, l.Attrs().Name, ip, err)
		case err != nil && !errors.Is(err, unix.EEXIST):
			return fmt.Errorf("address: give %s to %s: %w", ip, l.Attrs().Name, err)
		}
	}
	return nil
}

// SentBy returns the device by which this machine sends to an address, nil if that has just gone,
// and whether the address is the machine's own.
func SentBy(to netip.Addr) (device netlink.Link, own bool, err error) {
	routes, err := netlink.RouteGet(to.AsSlice())
	if err == nil && len(routes) == 0 {
		err = unix.ENETUNREACH
	}
	if err != nil {
		return nil, false, err
	}
	device, _ = netlink.LinkByIndex(routes[0].LinkIndex)
	return device, routes[0].Type == unix.RTN_LOCAL, nil
}

// Overhead is the size in bytes of the headers around an inner packet: IPv4 or IPv6, UDP, Geneve or
// VXLAN, Ethernet.
func Overhead(outer netip.Addr) int {
	if outer.Is6() {
		return 40 + 8 + 8 + 14
	}
	return 20 + 8 + 8 + 14
}
