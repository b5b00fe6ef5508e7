package steer

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
)

// deviceGroup marks a device that survives its process.
const deviceGroup = 0x63756c76 // "culv"

// DummyAddress (RFC 7600, Section 4.8: the IPv4 dummy address) is the device's own address, which
// nobody uses. From a device without an address the kernel accepts no ICMP error in this node's
// name, whatever rp_filter is: it looks for a route back to this node by port, which an ICMP error
// lacks, and finds the node itself.
var DummyAddress = netip.AddrFrom4([4]byte{192, 0, 0, 8})

func addressDevice(l netlink.Link) error {
	a := &netlink.Addr{IPNet: rtnl.IPNet(Host(DummyAddress)), Scope: unix.RT_SCOPE_HOST}
	if err := netlink.AddrReplace(l, a); err != nil {
		return fmt.Errorf("services: give %s the address %s: %w", l.Attrs().Name, DummyAddress, err)
	}
	return nil
}

// createDevice makes a TUN device, or continues with one that was kept. The device's reader does
// the segmentation and checksums that the node's network leaves to network cards.
func createDevice(name string) (*os.File, error) {
	fd, _, err := rtnl.OpenTUN(name, unix.IFF_VNET_HDR)
	if err != nil {
		return nil, fmt.Errorf("services.interface: %w", err)
	}
	const segments, trains = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN,
		unix.TUN_F_USO4 | unix.TUN_F_USO6
	if unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, segments|trains) != nil { // Linux before 6.2 has no trains
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, segments)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("services: set the offloads of %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), "/dev/net/tun"), nil
}

// isKept reports whether a link is a device that an earlier run left for this one.
func isKept(l netlink.Link) bool {
	_, ok := l.(*netlink.Tuntap)
	return ok && l.Attrs().Group == deviceGroup
}

// KeepDevice sets whether a device survives this process.
func KeepDevice(device *os.File, name string, stays bool) error {
	if err := rtnl.KeepTUN(device, name, deviceGroup, stays); err != nil {
		return fmt.Errorf("services.state: keep %s: %w", name, err)
	}
	return nil
}

const (
	inetConf    = 1  // IFLA_INET_CONF
	rpFilter    = 8  // IPV4_DEVCONF_RP_FILTER
	acceptLocal = 23 // IPV4_DEVCONF_ACCEPT_LOCAL
)

// acceptOwn makes the kernel accept packets from a device whose source is one of this node's
// addresses, or whose reply route differs: the engine answers in the name of the node and of its
// backends. A container may not write to /proc/sys, so netlink is used.
func acceptOwn(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("services: find %s: %w", name, err)
	}
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(link.Attrs().Index)
	families := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	settings := families.AddRtAttr(unix.AF_INET, nil).AddRtAttr(inetConf, nil)
	settings.AddRtAttr(acceptLocal, nl.Uint32Attr(1))
	settings.AddRtAttr(rpFilter, nl.Uint32Attr(2))
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	request.AddData(message)
	request.AddData(families)
	if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("services: set accept_local and rp_filter of %s: %w", name, err)
	}
	return nil
}

// MakeDevice makes the device, or continues with one that was kept.
func MakeDevice(name string) (device *os.File, kept bool, err error) {
	if link, err := netlink.LinkByName(name); err == nil {
		if kept = isKept(link); !kept {
			return nil, false, inUse(name)
		}
	}
	device, err = createDevice(name)
	return device, kept, err
}

// SetUp makes the device ready for packets. It returns its index.
func SetUp(name string, mtu int, v4 bool) (index int, err error) {
	if err := acceptOwn(name); err != nil {
		return 0, err
	}
	made, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetMTU(made, mtu)
	}
	if err == nil {
		err = netlink.LinkSetUp(made)
	}
	if err != nil {
		return 0, fmt.Errorf("services: bring up %s: %w", name, err)
	}
	if v4 {
		err = addressDevice(made)
	}
	return made.Attrs().Index, err
}

func inUse(name string) error {
	return fmt.Errorf("services.interface: %s exists; stop the culvert node that it belongs to, or choose another name",
		name)
}
