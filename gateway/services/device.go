package services

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"
)

// deviceGroup marks a device that outlives its process.
const deviceGroup = 0x63756c76 // "culv"

// isKept reports whether a link is a device that an earlier run has left to this one.
func isKept(l netlink.Link) bool {
	_, ok := l.(*netlink.Tuntap)
	return ok && l.Attrs().Group == deviceGroup
}

// keepDevice says whether a device outlives this process. The group comes first, so that no crash leaves a device without it.
func keepDevice(device tun.Device, name string, stays bool) error {
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

func setPersist(device tun.Device, stays bool) error {
	conn, err := device.File().SyscallConn()
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
