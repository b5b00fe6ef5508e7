package services

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// pulseName is what the device is called that ends with this process; the kernel numbers it.
const (
	pulsePrefix = "culvert-vip"
	pulseName   = pulsePrefix + "%d"
)

// A pulse is a TUN device that is there as long as this process is, where the other one outlives it. The kernel answers ARP for addresses that
// have a route by it, and no longer when that has gone. Rules, which name protocols, lead packets for such an address to the other device; a
// question of ARP has no protocol. Packets of protocols that no rule names come to the pulse, and the kernel drops them.
type pulse struct{ descriptor, index int }

func openPulse() (*pulse, error) {
	fd, name, err := openTUN(pulseName, unix.IFF_TUN|unix.IFF_NO_PI)
	if err != nil {
		return nil, deviceError(pulsePrefix, err)
	}
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("services: bring up %s: %w", name, err)
	}
	return &pulse{fd, link.Attrs().Index}, nil
}

// beats sees that the device is there, as it may be removed by others.
func (s *steering) beats() error {
	if s.pulse != nil {
		link, err := netlink.LinkByIndex(s.pulse.index)
		if err == nil && link.Attrs().Flags&net.FlagUp == 0 {
			err = netlink.LinkSetUp(link)
		}
		if !errors.As(err, new(netlink.LinkNotFoundError)) {
			return err
		}
		s.stopPulse()
	}
	var err error
	s.pulse, err = openPulse()
	return err
}

// stopPulse removes the device, with its routes.
func (s *steering) stopPulse() {
	if s.pulse != nil {
		unix.Close(s.pulse.descriptor)
		s.pulse = nil
	}
}
