package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/integration/fresh"
	"culvert/integration/need"
)

// TestProbesPathMTU: each socket, one that was adopted too, ignores learnt path MTUs of each family
// that it has.
func TestProbesPathMTU(t *testing.T) {
	for _, network := range []string{"udp4", "udp6", "udp"} {
		s, err := Listen(network, netip.AddrPort{}, Options{})
		need.Kernel(t, "ipv6", err)
		defer s.Close()
		// Whoever had it before may have left it otherwise.
		s.raw.Control(func(fd uintptr) {
			unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_WANT)
		})
		file, err := s.conn.File()
		need.NoError(t, err)
		defer file.Close()
		adopted, err := Adopt(file, Options{})
		need.NoError(t, err)
		defer adopted.Close()
		adopted.raw.Control(func(fd uintptr) {
			if how, err := unix.GetsockoptInt(int(fd), unix.SOL_IP, unix.IP_MTU_DISCOVER); err != nil ||
				how != unix.IP_PMTUDISC_PROBE {
				t.Errorf("%s: IP_MTU_DISCOVER %d, %v", network, how, err)
			}
			if how, err := unix.GetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER); s.is6 &&
				(err != nil || how != unix.IPV6_PMTUDISC_PROBE) {
				t.Errorf("%s: IPV6_MTU_DISCOVER %d, %v", network, how, err)
			}
		})
	}
}

// inNamespace runs f on a thread of a network namespace of its own, which goes with it.
func inNamespace(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends
		err := unix.Unshare(unix.CLONE_NEWNET)
		defer func() { done <- err }()
		if err == nil {
			err = fresh.Network()
		}
		if err == nil {
			f()
		}
	}()
	need.Kernel(t, "namespace", <-done)
}

// TestForgedPathMTU: an ICMP error that quotes the addresses of a tunnel, and wrong ports, changes
// nothing: datagrams and trains go on whole. What is larger than the device's own MTU is refused
// and counted as too-big, and the rest of its batch is sent.
func TestForgedPathMTU(t *testing.T) {
	need.Kernel(t, "root", rootOnly())
	for _, fam := range []struct {
		network, near, far string
		mtu                uint32
	}{{"udp4", "192.0.2.1/24", "192.0.2.2", 552}, {"udp6", "2001:db8::1/64", "2001:db8::2", 1280}} {
		t.Run(fam.network, func(t *testing.T) {
			inNamespace(t, func() {
				near, far := netip.MustParsePrefix(fam.near), netip.MustParseAddr(fam.far)
				narrowLink(t, near, far, 1500)
				s, err := Listen(fam.network, netip.AddrPortFrom(near.Addr(), 0), Options{})
				if err != nil {
					t.Error(err)
					return
				}
				defer s.Close()
				forgeTooBig(t, s.LocalAddr(), far, fam.mtu)
				to := netip.AddrPortFrom(far, 51840)
				single := func(size int) Train { return Train{Destination: to, Parts: [][]byte{payload(1, size)}} }
				train := func(size, n int) Train {
					return Train{Destination: to, SegmentSize: size, Parts: [][]byte{payload(2, size*n)}}
				}
				trains := []Train{single(1400), train(1400, 4), single(1460), train(1460, 3), single(1400)}
				want, tooBig := []int{1, 4, 0, 0, 1}, uint64(4)
				if !near.Addr().Is6() { // 1500 - 28
					trains = append(trains, single(1472), single(1473))
					want, tooBig = append([]int{1, 4, 1, 3, 1}, 1, 0), 1
				}
				before := fragmentsMade(t)
				_, err = s.NewSender().Send(trains)
				if !errors.Is(err, unix.EMSGSIZE) {
					t.Errorf("%v, want EMSGSIZE", err)
				}
				for i := range trains {
					if trains[i].Sent != want[i] {
						t.Errorf("train %d: %d datagrams sent, want %d", i, trains[i].Sent, want[i])
					}
				}
				if n := s.Stats().SendDrops[TooBig]; n != tooBig {
					t.Errorf("%d counted as too-big, want %d", n, tooBig)
				}
				if s.Stats().GSO && (trains[1].Single || s.Stats().RefusedTrains > 1) {
					t.Errorf("single %t, %d trains refused", trains[1].Single, s.Stats().RefusedTrains)
				}
				if n := fragmentsMade(t) - before; n != 0 {
					t.Errorf("%d outer fragments", n)
				}
			})
		})
	}
}

func rootOnly() error {
	if os.Geteuid() != 0 {
		return errors.New("needs root")
	}
	return nil
}

// narrowLink makes a device with an address and a neighbour that hears everything and says nothing.
func narrowLink(t *testing.T, near netip.Prefix, far netip.Addr, mtu int) {
	link := netlink.NewVeth(netlink.NewLinkAttrs())
	link.Name, link.MTU, link.PeerName, link.PeerMTU = "narrow", mtu, "far", uint32(mtu)
	err := setUp("lo") // by which the forged message comes
	if err == nil {
		err = netlink.LinkAdd(link)
	}
	if err == nil {
		err = errors.Join(netlink.LinkSetUp(link), setUp("far"))
	}
	if err == nil {
		address, _ := netlink.ParseAddr(near.String())
		address.Flags = unix.IFA_F_NODAD
		err = netlink.AddrAdd(link, address)
	}
	if err == nil {
		err = netlink.NeighAdd(&netlink.Neigh{LinkIndex: link.Index, IP: far.AsSlice(), HardwareAddr: []byte{2, 0, 0, 0,
			0, 1}, State: netlink.NUD_PERMANENT})
	}
	if err != nil {
		t.Error(err)
	}
}

func setUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// forgeTooBig has the kernel believe that the path from a socket to an address has an MTU, by an
// ICMP error about a packet that was never sent. It sees for itself that the kernel does.
func forgeTooBig(t *testing.T, socket netip.AddrPort, to netip.Addr, mtu uint32) {
	t.Helper()
	from, family, protocol := socket.Addr(), unix.AF_INET, unix.IPPROTO_ICMP
	quoted := make([]byte, 28)
	message := append([]byte{3, 4, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, quoted...)
	quoted = message[8:]
	ports := quoted[20:]
	if from.Is6() {
		family, protocol = unix.AF_INET6, unix.IPPROTO_ICMPV6
		message = binary.BigEndian.AppendUint32([]byte{2, 0, 0, 0}, mtu)
		message = append(message, make([]byte, 48)...)
		quoted = message[8:]
		quoted[0], quoted[5], quoted[6], quoted[7] = 0x60, 8, unix.IPPROTO_UDP, 64
		copy(quoted[8:], from.AsSlice())
		copy(quoted[24:], to.AsSlice())
		ports = quoted[40:]
	} else {
		quoted[0], quoted[3], quoted[8], quoted[9] = 0x45, 28, 64, unix.IPPROTO_UDP
		copy(quoted[12:], from.AsSlice())
		copy(quoted[16:], to.AsSlice())
	}
	binary.BigEndian.PutUint16(ports, socket.Port())
	binary.BigEndian.PutUint16(ports[2:], 1) // which nobody uses
	binary.BigEndian.PutUint16(ports[4:], 8)
	if !from.Is6() { // the kernel fills in that of ICMPv6
		sum := uint32(0)
		for i := 0; i < len(message); i += 2 {
			sum += uint32(message[i])<<8 | uint32(message[i+1])
		}
		sum = sum&0xffff + sum>>16
		binary.BigEndian.PutUint16(message[2:], ^uint16(sum+sum>>16))
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW, protocol)
	if err != nil {
		t.Error(err)
		return
	}
	defer unix.Close(fd)
	var at unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte(from.AsSlice()[:4])}
	if from.Is6() {
		at = &unix.SockaddrInet6{Addr: from.As16()}
	}
	// It believes nothing of a link that is not up for IPv6 yet.
	var routes []netlink.Route
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		if err := unix.Sendto(fd, message, 0, at); err != nil {
			t.Error(err)
			return
		}
		if routes, err = netlink.RouteGet(to.AsSlice()); err == nil && len(routes) == 1 && routes[0].MTU == int(mtu) {
			return
		}
	}
	t.Errorf("the kernel has learnt %+v, %v; want MTU %d", routes, err, mtu)
}

// fragmentsMade counts the fragments that this thread's namespace has made of packets.
func fragmentsMade(t *testing.T) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/thread-self/net/snmp6")
	if err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(string(text)) {
		var value int
		fmt.Sscanf(line, "Ip6FragCreates %d", &value)
		n += value
	}
	text, err = os.ReadFile("/proc/thread-self/net/snmp")
	if err != nil {
		t.Error(err)
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		for i, name := range names {
			if name == "FragCreates" && fields[0] == "Ip:" {
				var value int
				fmt.Sscan(fields[i], &value)
				n += value
			}
		}
		names = fields
	}
	return n
}
