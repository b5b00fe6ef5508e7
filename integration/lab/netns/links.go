package netns

import (
	"fmt"
	"math"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node"
)

// LinkEnd is one end of a veth pair.
type LinkEnd struct {
	Host   *Host
	Name   string
	Bridge string // of which it becomes a port, or ""
}

// UnderlayFeatures are the features for super-frames: without them a link carries ordinary frames
// with complete checksums, like a cable between machines.
var UnderlayFeatures = []string{
	"tx-checksum-ip-generic", "tx-scatter-gather", "tx-scatter-gather-fraglist", "tx-tcp-segmentation",
	"tx-tcp-ecn-segmentation",
	"tx-tcp-mangleid-segmentation", "tx-tcp6-segmentation", "tx-generic-segmentation", "tx-udp_tnl-segmentation",
	"tx-udp_tnl-csum-segmentation", node.FeatureUDPSegmentation, "rx-gro",
}

// Connect joins two hosts by a veth pair.
func Connect(a, b LinkEnd, mtu int, offloads bool) error {
	err := a.Host.Do(func() error {
		veth := netlink.NewVeth(netlink.NewLinkAttrs())
		veth.Name, veth.MTU = a.Name, mtu
		veth.PeerName, veth.PeerMTU, veth.PeerNamespace = b.Name, uint32(mtu), netlink.NsFd(b.Host.ns.Fd())
		return netlink.LinkAdd(veth)
	})
	if err != nil {
		return fmt.Errorf("link %s to %s: %w", a.Host.Name, b.Host.Name, err)
	}
	for _, end := range []LinkEnd{a, b} {
		if err := end.Host.Do(func() error { return end.raise(offloads) }); err != nil {
			return fmt.Errorf("%s: link %s: %w", end.Host.Name, end.Name, err)
		}
	}
	return nil
}

// SetMTU changes the MTU of a link of this thread's namespace.
func SetMTU(link string, mtu int) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return fmt.Errorf("link %s: %w", link, err)
	}
	return netlink.LinkSetMTU(l, mtu)
}

// raise finishes the end on a thread in its namespace.
func (e *LinkEnd) raise(offloads bool) error {
	l, err := netlink.LinkByName(e.Name)
	if err != nil {
		return err
	}
	if !offloads {
		if err := node.SetFeatures(e.Name, false, UnderlayFeatures...); err != nil {
			return err
		}
	}
	if e.Bridge != "" {
		bridge, err := netlink.LinkByName(e.Bridge)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(l, bridge); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(l)
}

// AddBridge makes a bridge on a thread in its namespace.
func AddBridge(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(bridge); err != nil {
		return err
	}
	return netlink.LinkSetUp(bridge)
}

// AddRoute adds a route in this thread's namespace. The gateway must be on one of its links.
func AddRoute(to netip.Prefix, via netip.Addr) error {
	if err := netlink.RouteAdd(&netlink.Route{Dst: IPNet(to), Gw: via.AsSlice()}); err != nil {
		return fmt.Errorf("route %s via %s: %w", to, via, err)
	}
	return nil
}

// IPNet is a prefix as package netlink has it.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// AddAddress adds an address to a link of this thread's namespace.
func AddAddress(link string, address netip.Prefix) error {
	return giveAddress(link, &netlink.Addr{IPNet: IPNet(address)})
}

// AddSecond adds an address that the host uses as a source only when told to.
func AddSecond(link string, address netip.Prefix) error {
	a := &netlink.Addr{IPNet: IPNet(address)}
	if address.Addr().Is6() {
		a.ValidLft, a.PreferedLft = math.MaxInt32, 0 // deprecated (RFC 6724, Section 5, rule 3)
	}
	return giveAddress(link, a)
}

func giveAddress(link string, a *netlink.Addr) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	if a.IP.To4() == nil {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := netlink.AddrAdd(l, a); err != nil {
		return fmt.Errorf("address %s: %w", a.IPNet, err)
	}
	return nil
}
