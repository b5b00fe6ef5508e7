package lifecycle

import (
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"culvert/geneve"
	"culvert/geneve/udp"
	"culvert/integration/need"
)

// TestLentZeroChecksums: the nodes' socket, which can be handed over, accepts datagrams without
// checksums over IPv6, as package geneve asks; that of WireGuard does not.
func TestLentZeroChecksums(t *testing.T) {
	life := New(Options{}, nil)
	endpoint, err := geneve.Listen(geneve.Options{Listen: netip.AddrPortFrom(netip.IPv6Loopback(), 0),
		UDP: life.Lend("geneve", udp.Options{})})
	need.Kernel(t, "ipv6", err)
	t.Cleanup(func() { endpoint.Close() })
	other, err := udp.Open("udp6", netip.AddrPortFrom(netip.IPv6Loopback(), 0), life.Lend("wireguard", udp.Options{}))
	need.NoError(t, err)
	t.Cleanup(func() { other.Close() })
	for i, want := range []int{1, 0} {
		raw, err := life.lent[i].socket.SyscallConn()
		need.NoError(t, err)
		got := -1
		if e := raw.Control(func(fd uintptr) {
			got, err = unix.GetsockoptInt(int(fd), unix.SOL_UDP,
				unix.UDP_NO_CHECK6_RX)
		}); e != nil || err != nil {
			t.Fatal(e, os.NewSyscallError("getsockopt", err))
		}
		if got != want {
			t.Errorf("%s: UDP_NO_CHECK6_RX is %d, want %d", life.lent[i].name, got, want)
		}
	}
}
