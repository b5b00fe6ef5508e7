package lab

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"culvert/gateway/node"
)

// linkEnd is one end of a veth pair.
type linkEnd struct {
	host   *Host
	name   string
	bridge string // of which it becomes a port, or ""
}

// underlayFeatures are the features for super-frames: without them a link carries ordinary frames
// with complete checksums, like a cable between machines.
var underlayFeatures = []string{
	"tx-checksum-ip-generic", "tx-scatter-gather", "tx-scatter-gather-fraglist", "tx-tcp-segmentation",
	"tx-tcp-ecn-segmentation",
	"tx-tcp-mangleid-segmentation", "tx-tcp6-segmentation", "tx-generic-segmentation", "tx-udp_tnl-segmentation",
	"tx-udp_tnl-csum-segmentation", node.FeatureUDPSegmentation, "rx-gro",
}

// connect joins two hosts by a veth pair.
func connect(a, b linkEnd, mtu int, offloads bool) error {
	err := a.host.Do(func() error {
		veth := netlink.NewVeth(netlink.NewLinkAttrs())
		veth.Name, veth.MTU = a.name, mtu
		veth.PeerName, veth.PeerMTU, veth.PeerNamespace = b.name, uint32(mtu), netlink.NsFd(b.host.ns.Fd())
		return netlink.LinkAdd(veth)
	})
	if err != nil {
		return fmt.Errorf("link %s to %s: %w", a.host.Name, b.host.Name, err)
	}
	for _, end := range []linkEnd{a, b} {
		if err := end.host.Do(func() error { return end.raise(offloads) }); err != nil {
			return fmt.Errorf("%s: link %s: %w", end.host.Name, end.name, err)
		}
	}
	return nil
}

// raise finishes the end on a thread in its namespace.
func (e *linkEnd) raise(offloads bool) error {
	l, err := netlink.LinkByName(e.name)
	if err != nil {
		return err
	}
	if !offloads {
		if err := node.SetFeatures(e.name, false, underlayFeatures...); err != nil {
			return err
		}
	}
	if e.bridge != "" {
		bridge, err := netlink.LinkByName(e.bridge)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(l, bridge); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(l)
}

// addBridge makes a bridge on a thread in its namespace.
func addBridge(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(bridge); err != nil {
		return err
	}
	return netlink.LinkSetUp(bridge)
}

// addRoute adds a route in this thread's namespace. The gateway must be on one of its links.
func addRoute(to netip.Prefix, via netip.Addr) error {
	if err := netlink.RouteAdd(&netlink.Route{Dst: ipNet(to), Gw: via.AsSlice()}); err != nil {
		return fmt.Errorf("route %s via %s: %w", to, via, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
