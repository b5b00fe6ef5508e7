package node

import (
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"culvert/integration/need"
)

func TestMain(m *testing.M) { need.TestsInNamespace(m) }

// needNamespace skips the test where TestMain could not make a namespace.
func needNamespace(t *testing.T) {
	t.Helper()
	need.Namespace(t)
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
	need.NoError(t, netlink.LinkDel(l))
}

func up(t *testing.T, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	need.NoError(t, err)
	need.NoError(t, netlink.LinkSetUp(l))
	return l
}
