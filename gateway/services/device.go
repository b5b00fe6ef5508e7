package services

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// deviceGroup marks a device that outlives its process.
const deviceGroup = 0x63756c76 // "culv"

// dummyAddress (RFC 7600, Section 4.8: the IPv4 dummy address) is what the device has as its own, for nobody to use. From a device without an
// address the kernel takes no ICMP error in this node's name, whatever rp_filter is: it looks for routes back to this node by its ports, of
// which an ICMP error has none, and finds the node itself.
var dummyAddress = netip.AddrFrom4([4]byte{192, 0, 0, 8})

func addressDevice(l netlink.Link) error {
	a := &netlink.Addr{IPNet: ipNet(host(dummyAddress)), Scope: unix.RT_SCOPE_HOST}
	if err := netlink.AddrReplace(l, a); err != nil {
		return fmt.Errorf("services: give %s the address %s: %w", l.Attrs().Name, dummyAddress, err)
	}
	return nil
}

// createDevice makes a TUN device, or goes on with one that was kept. What the node's network leaves to network cards, it leaves to whoever
// reads from the device: segmentation and checksums.
func createDevice(name string) (*os.File, error) {
	fd, _, err := openTUN(name, unix.IFF_TUN|unix.IFF_NO_PI|unix.IFF_VNET_HDR)
	if err != nil {
		return nil, err
	}
	const segments, trains = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN, unix.TUN_F_USO4 | unix.TUN_F_USO6
	if unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, segments|trains) != nil { // Linux before 6.2 has no trains
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, segments)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "/dev/net/tun"), nil
}

// openTUN makes a device, or opens one, and returns its name.
func openTUN(name string, flags uint16) (fd int, called string, err error) {
	fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fd, "", fmt.Errorf("/dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(flags)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		unix.Close(fd)
		return fd, "", err
	}
	return fd, request.Name(), nil
}

// isKept reports whether a link is a device that an earlier run has left to this one.
func isKept(l netlink.Link) bool {
	_, ok := l.(*netlink.Tuntap)
	return ok && l.Attrs().Group == deviceGroup
}

// keepDevice says whether a device outlives this process. The group comes first, so that no crash leaves a device without it.
func keepDevice(device *os.File, name string, stays bool) error {
	link, err := netlink.LinkByName(name)
	if err == nil && stays {
		err = netlink.LinkSetGroup(link, deviceGroup)
	}
	if err == nil {
		err = setPersist(device, stays)
	}
	if err == nil && !stays {
		err = netlink.LinkSetGroup(link, 0)
	}
	if err != nil {
		return fmt.Errorf("services.state: keep %s: %w", name, err)
	}
	return nil
}

func setPersist(device *os.File, stays bool) error {
	conn, err := device.SyscallConn()
	if err != nil {
		return err
	}
	value := 0
	if stays {
		value = 1
	}
	controlErr := conn.Control(func(fd uintptr) { err = unix.IoctlSetInt(int(fd), unix.TUNSETPERSIST, value) })
	return errors.Join(err, controlErr)
}

const (
	inetConf    = 1  // IFLA_INET_CONF
	rpFilter    = 8  // IPV4_DEVCONF_RP_FILTER
	acceptLocal = 23 // IPV4_DEVCONF_ACCEPT_LOCAL
)

// openDevice lets the kernel take from a device what has an address of this node as source, and what would leave by another one: the engine
// answers in the node's name and in that of its backends. A container may not write to /proc/sys, so that it is done by netlink.
func openDevice(name string) error {
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
