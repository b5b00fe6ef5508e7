package rtnl

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

func TestMain(m *testing.M) { need.TestsInNamespace(m) }

// TestPersistentDevice: while nobody has a persistent device open, no other user can attach to it,
// and this process can. It gives a device without an owner, as older versions made them, its owner.
func TestPersistentDevice(t *testing.T) {
	need.Namespace(t)
	const name = "culvert-own"
	for _, before := range []func(fd int) error{
		func(fd int) error { return persist(fd, true) },
		func(fd int) error { return unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1) },
		func(fd int) error { return persist(fd, true) },
	} {
		fd, _, err := OpenTUN(name, unix.IFF_VNET_HDR)
		need.Kernel(t, "tun", err)
		need.NoError(t, before(fd))
		unix.Close(fd)
		fd, _, err = OpenTUN(name, unix.IFF_VNET_HDR)
		need.NoError(t, err)
		if err := need.TakeTUN(t, name); err == nil {
			t.Error("another user attaches to a device that is open")
		}
		need.NoError(t, persist(fd, true))
		unix.Close(fd)
		if err := need.TakeTUN(t, name); !errors.Is(err, unix.EPERM) {
			t.Errorf("another user attaches to a device that nobody has open: %v", err)
		}
	}
	fd, _, err := OpenTUN(name, unix.IFF_VNET_HDR)
	need.NoError(t, err)
	need.NoError(t, unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 0))
	unix.Close(fd)
}

// TestQueue: the first three packets of 400 connections wait for a device's reader. A kept device
// with the kernel's queue gets the longer one. A still longer queue stays, and without
// CAP_NET_ADMIN the queue stays as it is.
func TestQueue(t *testing.T) {
	need.Namespace(t)
	const name, packets = "culvert-queue", 3 * 400
	open := func() (fd int, link netlink.Link) {
		fd, _, err := OpenTUN(name, 0)
		need.Kernel(t, "tun", err)
		link, err = netlink.LinkByName(name)
		need.NoError(t, err)
		return fd, link
	}
	length := func() int {
		link, err := netlink.LinkByName(name)
		need.NoError(t, err)
		return link.Attrs().TxQLen
	}
	fd, link := open()
	need.NoError(t, persist(fd, true))
	defer func() { netlink.LinkDel(link) }()
	network := &net.IPNet{IP: net.IPv4(192, 0, 2, 1), Mask: net.CIDRMask(24, 32)}
	need.NoError(t, netlink.AddrAdd(link, &netlink.Addr{IPNet: network}))
	need.NoError(t, netlink.LinkSetUp(link))
	conn, err := net.Dial("udp", "192.0.2.2:9")
	need.NoError(t, err)
	defer conn.Close()
	for range packets {
		_, err := conn.Write([]byte("x"))
		need.NoError(t, err)
	}
	link, err = netlink.LinkByName(name)
	need.NoError(t, err)
	if lost := link.Attrs().Statistics.TxDropped; lost > 0 {
		t.Errorf("%d of %d packets lost", lost, packets)
	}
	for _, c := range []struct{ before, after int }{{500, queueLength}, {3 * queueLength, 3 * queueLength}} {
		unix.Close(fd)
		need.NoError(t, netlink.LinkSetTxQLen(link, c.before))
		if fd, link = open(); length() != c.after {
			t.Errorf("queue %d -> %d, want %d", c.before, length(), c.after)
		}
	}
	need.NoError(t, netlink.LinkSetTxQLen(link, 500))
	unix.Close(fd)
	need.WithoutCapabilities(t, func() { fd, link = open() })
	if length() != 500 {
		t.Errorf("without CAP_NET_ADMIN: queue 500 -> %d", length())
	}
	unix.Close(fd)
}

// TestHolder names the process that holds a device, a port or a name.
func TestHolder(t *testing.T) {
	if os.Getenv("CULVERT_HOLD") != "" {
		io.Copy(io.Discard, os.Stdin)
		return
	}
	need.Namespace(t)
	const name = "culvert-held"
	device, _, err := OpenTUN(name, 0)
	need.Kernel(t, "tun", err)
	port, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	need.NoError(t, err)
	need.NoError(t, unix.Bind(port, &unix.SockaddrInet4{Port: 6091}))
	abstract, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	need.NoError(t, err)
	need.NoError(t, unix.Bind(abstract, &unix.SockaddrUnix{Name: "@" + name}))
	cmd := need.Self("-test.run=^TestHolder$")
	cmd.Env = append(os.Environ(), "CULVERT_HOLD=1")
	user := os.Getuid()
	if user == 0 && need.As(65533, func() error { return nil }) == nil {
		user = 65533
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}}
	}
	for _, fd := range []int{device, port, abstract} {
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(fd), ""))
	}
	stop, err := cmd.StdinPipe()
	need.NoError(t, err)
	need.NoError(t, cmd.Start())
	for _, f := range cmd.ExtraFiles {
		f.Close()
	}
	want := fmt.Sprintf("exe, process %d of user %d", cmd.Process.Pid, user)
	if _, _, err := OpenTUN(name, 0); !errors.Is(err, unix.EBUSY) || !strings.Contains(fmt.Sprint(err),
		name+" is held by "+want) {
		t.Errorf("device: %v, want %s", err, want)
	}
	if got := ListenerAt(unix.IPPROTO_UDP, netip.AddrPortFrom(netip.IPv6Unspecified(), 6091)); got != want {
		t.Errorf("port: %s, want %s", got, want)
	}
	if got := NameHolder(name); got != want {
		t.Errorf("name: %s, want %s", got, want)
	}
	stop.Close()
	need.NoError(t, cmd.Wait())
	for _, got := range []string{TUNHolder(name), NameHolder(name)} {
		if !strings.HasPrefix(got, "a process that this one may not see; as root") {
			t.Errorf("nobody: %s", got)
		}
	}
}
