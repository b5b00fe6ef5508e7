package udp

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// TestBothFamilies has one socket talk with two others, of a family each: trains, their type of service, and addresses as they are
// written.
func TestBothFamilies(t *testing.T) {
	both, err := Listen("udp", netip.AddrPort{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer both.Close()
	if !both.is6 {
		need.Kernel(t, "ipv6", errors.New("a socket of all families is of IPv4"))
	}
	for _, fam := range families {
		t.Run(fam.network, func(t *testing.T) {
			other := listen(t, fam.network, fam.loopback, Options{})
			here := netip.AddrPortFrom(fam.loopback, both.LocalAddr().Port())
			train := func(to netip.AddrPort) []Train {
				return []Train{{Destination: to, SegmentSize: 100, Parts: [][]byte{payload(1, 350)}, TOS: 0xb9}}
			}
			for _, way := range []struct {
				from, to *Socket
				address  netip.AddrPort
				source   netip.AddrPort
			}{{other, both, here, other.LocalAddr()}, {both, other, other.LocalAddr(), here}} {
				if n, err := way.from.NewSender().Send(train(way.address)); n != 4 || err != nil {
					t.Fatalf("%v took %d of 4 datagrams, %v", way.from.LocalAddr(), n, err)
				}
				var got []byte
				for len(got) < 350 {
					m := messages(4)
					n, err := way.to.Receive(m)
					if err != nil {
						t.Fatal(err)
					}
					for _, m := range m[:n] {
						got = append(got, m.Data...)
						if m.TOS != 0xb9 || m.Source != way.source {
							t.Errorf("%v got type of service %#x from %v, want 0xb9 from %v", way.to.LocalAddr(), m.TOS, m.Source, way.source)
						}
						if way.to.Stats().GRO && m.SegmentSize != 100 {
							t.Errorf("%v got segments of %d bytes, want 100", way.to.LocalAddr(), m.SegmentSize)
						}
					}
				}
				if !bytes.Equal(got, payload(1, 350)) {
					t.Errorf("%v got %d bytes, lost or changed", way.to.LocalAddr(), len(got))
				}
			}
		})
	}
}

// TestZeroChecksums sends a datagram over IPv6 without a checksum: who has not asked for such never sees it.
func TestZeroChecksums(t *testing.T) {
	loopback := families[1].loopback
	from, err := Listen("udp6", netip.AddrPortFrom(loopback, 0), Options{NoGSO: true})
	need.Kernel(t, "ipv6", err)
	defer from.Close()
	for _, accepts := range []bool{true, false} {
		to := listen(t, "udp6", loopback, Options{ZeroChecksums: accepts})
		send := func(zero int, payload byte) {
			if err := from.raw.Control(func(fd uintptr) {
				need.Kernel(t, "ipv6", unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_NO_CHECK6_TX, zero))
			}); err != nil {
				t.Fatal(err)
			}
			if _, err := from.NewSender().Send([]Train{{Destination: to.LocalAddr(), Parts: [][]byte{{payload}}}}); err != nil {
				t.Fatal(err)
			}
		}
		send(1, 'z')
		send(0, 's')
		var got []byte
		for !slices.Contains(got, 's') {
			m := messages(2)
			n, err := to.Receive(m)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range m[:n] {
				got = append(got, m.Data...)
			}
		}
		if want := map[bool]string{true: "zs", false: "s"}[accepts]; string(got) != want {
			t.Errorf("with ZeroChecksums %v the socket got %q, want %q", accepts, got, want)
		}
	}
}
