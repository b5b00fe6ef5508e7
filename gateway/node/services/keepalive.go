package services

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
)

// keepaliveName is the name pattern of the non-persistent device; the kernel fills in the number.
const (
	keepalivePrefix = "culvert-vip"
	keepaliveName   = keepalivePrefix + "%d"
)

// A keepaliveDevice is a TUN device that exists as long as this process, while the other device may
// survive it. The kernel answers ARP for addresses with a route by this device, and stops when the
// route disappears. ARP requests have no protocol, so rules that match protocols send only packets
// for such an address to the other device. Packets of protocols without a rule reach this device,
// and the kernel drops them.
type keepaliveDevice struct{ descriptor, index int }

// keepaliveDeviceOf adopts another process's device by its descriptor.
func keepaliveDeviceOf(fd int) (*keepaliveDevice, error) {
	var link netlink.Link
	request, err := unix.NewIfreq("")
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.TUNGETIFF, request)
	}
	if err == nil {
		link, err = netlink.LinkByName(request.Name())
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("services: find the %s of the process before: %w", keepalivePrefix, err)
	}
	return &keepaliveDevice{fd, link.Attrs().Index}, nil
}

func openKeepalive() (*keepaliveDevice, error) {
	fd, name, err := rtnl.OpenTUN(keepaliveName, 0)
	if err != nil {
		return nil, deviceError(keepalivePrefix, err)
	}
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("services: bring up %s: %w", name, err)
	}
	return &keepaliveDevice{fd, link.Attrs().Index}, nil
}

// ensureKeepalive makes sure that the device exists, because others may remove it.
func (s *steering) ensureKeepalive() error {
	if s.keepalive != nil {
		link, err := netlink.LinkByIndex(s.keepalive.index)
		if err == nil && link.Attrs().Flags&net.FlagUp == 0 {
			err = netlink.LinkSetUp(link)
		}
		if !errors.As(err, new(netlink.LinkNotFoundError)) {
			return err
		}
		s.stopKeepalive()
	}
	var err error
	s.keepalive, err = openKeepalive()
	return err
}

// stopKeepalive removes the device, with its routes.
func (s *steering) stopKeepalive() {
	if s.keepalive != nil {
		unix.Close(s.keepalive.descriptor)
		s.keepalive = nil
	}
}
