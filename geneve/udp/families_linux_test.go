package udp

import (
	"bytes"
	"context"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// TestBothFamilies has one socket talk with two others, of a family each: trains, their type of
// service, and addresses as they are written.
func TestBothFamilies(t *testing.T) {
	both := listenBoth(t)
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
				got := bytes.Join(receive(t, way.to, 4, func(m Message) {
					if m.TOS != 0xb9 || m.Source != way.source {
						t.Errorf("%v got type of service %#x from %v, want 0xb9 from %v", way.to.LocalAddr(), m.TOS,
							m.Source, way.source)
					}
					if way.to.Stats().GRO && m.SegmentSize != 100 {
						t.Errorf("%v got segments of %d bytes, want 100", way.to.LocalAddr(), m.SegmentSize)
					}
				}), nil)
				if !bytes.Equal(got, payload(1, 350)) {
					t.Errorf("%v got %d bytes, lost or changed", way.to.LocalAddr(), len(got))
				}
			}
		})
	}
}

// TestZeroChecksums sends a datagram over IPv6 without a checksum: a socket that has not asked for
// such datagrams never receives it.
func TestZeroChecksums(t *testing.T) {
	loopback := families[1].loopback
	from, err := Listen("udp6", netip.AddrPortFrom(loopback, 0), Options{NoGSO: true})
	need.Kernel(t, "ipv6", err)
	defer from.Close()
	for _, accepts := range []bool{true, false} {
		to := listen(t, "udp6", loopback, Options{ZeroChecksums: accepts})
		sendWith := func(zero int, payload byte) {
			if err := from.raw.Control(func(fd uintptr) {
				need.Kernel(t, "ipv6", unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_NO_CHECK6_TX, zero))
			}); err != nil {
				t.Fatal(err)
			}
			send(t, from, to.LocalAddr(), []byte{payload})
		}
		sendWith(1, 'z')
		sendWith(0, 's')
		want := map[bool]string{true: "zs", false: "s"}[accepts]
		if got := bytes.Join(receive(t, to, len(want)), nil); string(got) != want {
			t.Errorf("with ZeroChecksums %v the socket got %q, want %q", accepts, got, want)
		}
	}
}

// TestAnswersFromTheAddressAsked: a host with several addresses answers from the one that was
// asked, in trains and single datagrams. If the kernel refuses to send from it, the kernel chooses
// the address.
func TestAnswersFromTheAddressAsked(t *testing.T) {
	asked, asker := netip.MustParseAddr("127.0.0.2"), families[0].loopback
	for _, network := range []string{"udp4", "udp"} {
		t.Run(network, func(t *testing.T) {
			here := listen(t, network, netip.Addr{}, Options{})
			there := listen(t, "udp4", asker, Options{})
			send(t, there, netip.AddrPortFrom(asked, here.LocalAddr().Port()), []byte{1})
			m := messages(1)
			if _, err := here.Receive(m); err != nil || m[0].Destination != asked {
				t.Fatalf("%v came to %v, %v; want %v", m[0].Source, m[0].Destination, err, asked)
			}
			for _, tt := range []struct {
				from, want netip.Addr
				kept       bool
			}{{asked, asked, true}, {netip.Addr{}, asker, false}, {netip.MustParseAddr("203.0.113.1"), asker, false}} {
				trains := []Train{
					{Destination: there.LocalAddr(), Source: tt.from, Parts: [][]byte{payload(1, 10)}, TOS: 3},
					{Destination: there.LocalAddr(), Source: tt.from, SegmentSize: 10,
						Parts: [][]byte{payload(2, 35)}, TOS: 3},
				}
				if n, err := here.NewSender().Send(trains); n != 5 || err != nil {
					t.Fatalf("from %v: %d of 5 datagrams, %v", tt.from, n, err)
				}
				if trains[0].Source.IsValid() != tt.kept || trains[1].Source.IsValid() != tt.kept {
					t.Errorf("from %v: left to the kernel %v, want %v", tt.from, !trains[0].Source.IsValid(), !tt.kept)
				}
				receive(t, there, 5, func(m Message) {
					if m.Source.Addr() != tt.want || m.TOS != 3 {
						t.Errorf("from %v: %v with type of service %d, want %v with 3", tt.from, m.Source,
							m.TOS, tt.want)
					}
				})
			}
		})
	}
}

// TestOffloadOfOneFamily: where the kernel cannot send trains of one family, those of the other
// still leave as one.
func TestOffloadOfOneFamily(t *testing.T) {
	both := listenBoth(t)
	need.Offloads(t, both.Stats().GSO)
	s := both.NewSender().(*sender)
	send, refuse := s.call, true
	s.call = func(fd uintptr) bool {
		if refuse {
			s.n, s.errno, refuse = 0, unix.EIO, false
			return true
		}
		return send(fd)
	}
	for i, fam := range families {
		to := listen(t, fam.network, fam.loopback, Options{})
		train := []Train{{Destination: to.LocalAddr(), SegmentSize: 10, Parts: [][]byte{payload(1, 30)}}}
		if n, err := s.Send(train); n != 3 || err != nil {
			t.Fatalf("%s: %d of 3 datagrams, %v", fam.network, n, err)
		}
		if messages := []int{3, 1}[i]; len(s.headers) != messages || train[0].Single != (messages > 1) ||
			both.GSO(fam.loopback) != (messages == 1) {
			t.Errorf("%s: %d messages, single %v, GSO %v; want %d", fam.network, len(s.headers), train[0].Single,
				both.GSO(fam.loopback), messages)
		}
	}
	if st := both.Stats(); !st.GSO || st.RefusedTrains != 1 {
		t.Errorf("GSO %v, %d trains refused; want it on, and 1", st.GSO, st.RefusedTrains)
	}
}

// TestOffloadEndsWhilePlanned: when one sender learns that there is no GSO, messages that another
// one has prepared still leave whole.
func TestOffloadEndsWhilePlanned(t *testing.T) {
	loopback := families[0].loopback
	socket := listen(t, "udp4", loopback, Options{})
	need.Offloads(t, socket.GSO(loopback))
	trains := make([]Train, maxMessages)
	for i := range trains {
		trains[i] = Train{Destination: socket.LocalAddr(), SegmentSize: 10, Parts: [][]byte{payload(1, 40)}}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var other sync.WaitGroup
	defer other.Wait()
	defer cancel()
	other.Go(func() {
		for on := false; ctx.Err() == nil; on = !on {
			socket.gso[0].Store(on)
		}
	})
	s := socket.NewSender().(*sender)
	for range 20_000 {
		planned := s.plan(trains)
		datagrams := 0
		for _, l := range s.sent {
			datagrams += l.datagrams
		}
		if datagrams != 4*planned || len(s.headers) > maxMessages {
			t.Fatalf("%d datagrams of %d trains in %d messages", datagrams, planned, len(s.headers))
		}
	}
}
