package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// The tests change links and routes, so TestMain runs them all in a child that
// has a network namespace of its own, as root or through a user namespace.
const insideEnv = "CULVERT_NODE_TEST_INSIDE"

func TestMain(m *testing.M) {
	if os.Getenv(insideEnv) != "" {
		os.Exit(m.Run())
	}
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.SysProcAttr = attr
	err := cmd.Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, "no network namespace for the tests:", err)
		os.Exit(m.Run())
	}
	err = cmd.Wait()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	os.Exit(0)
}

// needNamespace skips the test where TestMain could not make a namespace.
func needNamespace(t *testing.T) {
	t.Helper()
	if os.Getenv(insideEnv) == "" {
		need.Kernel(t, "namespace", errors.New("clone was refused, see the first line of the output"))
	}
	up(t, "lo")
}

// needTUN skips the test where this process may not open TUN devices.
func needTUN(t *testing.T) {
	t.Helper()
	needNamespace(t)
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	need.Kernel(t, "tun", err)
	f.Close()
}

// needKind skips the test where the kernel has no links of this kind.
func needKind(t *testing.T, kind Mode) {
	t.Helper()
	needNamespace(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "probe0"
	var l netlink.Link = &netlink.Vxlan{LinkAttrs: attrs, VxlanId: 9999, Port: 9999}
	if kind == Geneve {
		l = &netlink.Geneve{LinkAttrs: attrs, ID: 9999, Remote: []byte{192, 0, 2, 1}, Dport: 9999}
	}
	need.Kernel(t, string(kind), netlink.LinkAdd(l))
	if err := netlink.LinkDel(l); err != nil {
		t.Fatal(err)
	}
}

func up(t *testing.T, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		t.Fatal(err)
	}
	return l
}

// withoutCapabilities calls fn on a thread that has none, and gives them back.
func withoutCapabilities(t *testing.T, fn func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var was, none [2]unix.CapUserData
	if err := unix.Capget(&header, &was[0]); err != nil {
		t.Fatal(err)
	}
	none[0].Permitted, none[1].Permitted = was[0].Permitted, was[1].Permitted
	if err := unix.Capset(&header, &none[0]); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Capset(&header, &was[0]); err != nil {
			panic(err)
		}
	}()
	fn()
}
