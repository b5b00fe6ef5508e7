package rtnl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// OpenTUN makes a TUN device, or opens the one with this name, and returns its name. The error says
// what is missing or, if another process has the device open, which one.
func OpenTUN(name string, flags uint16) (fd int, called string, err error) {
	fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, "", explain(name, err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | flags)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err == nil {
		err = lengthen(request.Name())
	}
	if err != nil {
		unix.Close(fd)
		return -1, "", explain(name, err)
	}
	return fd, request.Name(), nil
}

// explain adds what is missing to the error of a TUN device.
func explain(name string, err error) error {
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%s is held by %s (%w); stop it", name, TUNHolder(name), err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV):
		return fmt.Errorf("this machine has no TUN devices (/dev/net/tun: %w); load the module tun", err)
	case errors.Is(err, fs.ErrPermission): // also EPERM of TUNSETIFF
		return fmt.Errorf("making %s needs /dev/net/tun and CAP_NET_ADMIN; run culvert node as root: %w", name, err)
	}
	return fmt.Errorf("make TUN device %s: %w", name, err)
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

// KeepTUN sets whether an open TUN device outlives this process. The group of one that does shows
// who has made it, and is set first, so that a crash leaves no device without it.
func KeepTUN(device *os.File, name string, group int, stays bool) error {
	link, err := netlink.LinkByName(name)
	if err == nil && stays {
		err = netlink.LinkSetGroup(link, group)
	}
	var conn syscall.RawConn
	if err == nil {
		conn, err = device.SyscallConn()
	}
	if err == nil {
		controlErr := conn.Control(func(fd uintptr) { err = persist(int(fd), stays) })
		err = errors.Join(err, controlErr)
	}
	if err == nil && !stays {
		err = netlink.LinkSetGroup(link, 0)
	}
	return err
}

func persist(fd int, stays bool) error {
	if !stays {
		return os.NewSyscallError("TUNSETPERSIST", unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 0))
	}
	// The owner is set first: whoever may open /dev/net/tun may attach to a device that has no
	// owner and that nobody has open. With an owner, only the owner and processes with
	// CAP_NET_ADMIN may.
	if err := unix.IoctlSetInt(fd, unix.TUNSETOWNER, os.Geteuid()); err != nil {
		return os.NewSyscallError("TUNSETOWNER", err)
	}
	return os.NewSyscallError("TUNSETPERSIST", unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1))
}
