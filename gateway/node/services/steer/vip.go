package steer

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
)

// vipName is the name pattern of the non-persistent device; the kernel fills in the number.
const (
	VIPPrefix = "culvert-vip"
	vipName   = VIPPrefix + "%d"
)

// A VIP is a TUN device that exists as long as this process, while the other device may
// survive it. The kernel answers ARP for addresses with a route by this device, and stops when the
// route disappears. ARP requests have no protocol, so rules that match protocols send only packets
// for such an address to the other device. Packets of protocols without a rule reach this device,
// and the kernel drops them.
type VIP struct{ descriptor, index int }

// VIP returns the device; nil: there is none.
func (s *Steering) VIP() *VIP { return s.vip }

// Duplicate returns a new descriptor, for another process.
func (v *VIP) Duplicate() (int, error) {
	return unix.FcntlInt(uintptr(v.descriptor), unix.F_DUPFD_CLOEXEC, 0)
}

// AdoptVIP adopts another process's device by its descriptor.
func AdoptVIP(fd int) (*VIP, error) {
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
		return nil, fmt.Errorf("services: find the %s of the process before: %w", VIPPrefix, err)
	}
	return &VIP{fd, link.Attrs().Index}, nil
}

func openVIP() (*VIP, error) {
	fd, name, err := rtnl.OpenTUN(vipName, 0)
	if err != nil {
		return nil, fmt.Errorf("services: %w", err)
	}
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("services: bring up %s: %w", name, err)
	}
	return &VIP{fd, link.Attrs().Index}, nil
}

// ensureVIP makes sure that the device exists, because others may remove it.
func (s *Steering) ensureVIP() error {
	if s.vip != nil {
		link, err := netlink.LinkByIndex(s.vip.index)
		if err == nil && link.Attrs().Flags&net.FlagUp == 0 {
			err = netlink.LinkSetUp(link)
		}
		if !errors.As(err, new(netlink.LinkNotFoundError)) {
			return err
		}
		s.CloseVIP()
	}
	var err error
	s.vip, err = openVIP()
	return err
}

// CloseVIP removes the device, with its routes.
func (s *Steering) CloseVIP() {
	if s.vip != nil {
		unix.Close(s.vip.descriptor)
		s.vip = nil
	}
}
