package rtnl

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// OpenTUN makes a TUN device, or opens the one with this name, and returns its name. If another
// process has it open, the error is EBUSY and names that process.
func OpenTUN(name string, flags uint16) (fd int, called string, err error) {
	fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, "", fmt.Errorf("/dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | flags)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EBUSY) {
			err = fmt.Errorf("%s is held by %s (%w)", name, TUNHolder(name), err)
		}
		return -1, "", err
	}
	if err := lengthen(request.Name()); err != nil {
		unix.Close(fd)
		return -1, "", err
	}
	return fd, request.Name(), nil
}

// queueLength is how many packets wait at least for a device's reader: more than the SYNs,
// acknowledgements and requests of 400 connections that start at once. The kernel's default is 500.
const queueLength = 2000

// lengthen gives a device a queue of queueLength, unless it has a longer one. The owner of a kept
// device may open it without CAP_NET_ADMIN, and then the queue stays as it is.
func lengthen(name string) error {
	link, err := netlink.LinkByName(name)
	if err == nil && link.Attrs().TxQLen < queueLength {
		err = netlink.LinkSetTxQLen(link, queueLength)
	}
	if err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("set the queue length of %s: %w", name, err)
	}
	return nil
}

// PersistTUN lets an open TUN device outlive this process.
func PersistTUN(fd int) error {
	// The owner is set first: whoever may open /dev/net/tun may attach to a device that has no
	// owner and that nobody has open. With an owner, only the owner and processes with
	// CAP_NET_ADMIN may.
	if err := unix.IoctlSetInt(fd, unix.TUNSETOWNER, os.Geteuid()); err != nil {
		return os.NewSyscallError("TUNSETOWNER", err)
	}
	return os.NewSyscallError("TUNSETPERSIST", unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1))
}
