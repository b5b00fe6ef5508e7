package sockets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/nat"
)

// forged is a datagram that nobody answers, of a source that it does not come from.
func forged(n uint32, to netip.AddrPort) []byte {
	const text = "flood"
	b := make([]byte, 28, 28+len(text)) // checksums: of IPv4 the kernel's (raw(7)), of UDP none (RFC 768)
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint32(b[12:], 100<<24|64<<16+n%(1<<22)) // 100.64.0.0/10
	copy(b[16:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(b[20:], 4000)
	binary.BigEndian.PutUint16(b[22:], to.Port())
	binary.BigEndian.PutUint16(b[24:], uint16(8+len(text)))
	return append(b, text...)
}

// flood sends forged datagrams, rate a second, until it is told to stop, and returns how many.
func flood(t *testing.T, rate int, stop <-chan struct{}) int {
	to := netip.AddrPortFrom(netip.MustParseAddr(nodeAt[0]), 30080)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer unix.Close(fd)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	sent := 0
	for began := time.Now(); ; {
		select {
		case <-stop:
			return sent
		case <-tick.C:
		}
		for due := int(time.Since(began) * time.Duration(rate) / time.Second); sent < due; sent++ {
			if err := unix.Sendto(fd, forged(uint32(sent), to), 0, &unix.SockaddrInet4{Addr: to.Addr().As4()}); err != nil {
				t.Error(err)
				return sent
			}
		}
	}
}

// insist asks, and again where a full receive buffer of the node may have lost the question, as resolvers do.
func insist(c net.Conn, text string) (who string, err error) {
	for range 4 {
		c.SetDeadline(time.Now().Add(300 * time.Millisecond))
		if who, _, err = ask(c, text); !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	return who, err
}

// Beside a flood of forged clients, which nobody answers, streams keep their flows, and who comes meanwhile is served and goes on, from an
// address of its own as from one that has streams.
func TestForgedUDP(t *testing.T) {
	needHosts(t)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	clients := netip.MustParsePrefix("198.18.0.1/16") // all of it is this host's
	at := &netlink.Addr{IPNet: &net.IPNet{IP: clients.Addr().AsSlice(), Mask: net.CIDRMask(16, 32)}}
	if err := netlink.AddrReplace(lo, at); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netlink.AddrDel(lo, at) })
	endpoint, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(endpointA[0]), Port: 8080})
	if err != nil {
		t.Fatal(err)
	}
	defer endpoint.Close()
	go func() { // tells clients whom it sees
		for b := make([]byte, maxDatagram); ; {
			n, from, err := endpoint.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			if string(b[:n]) == "?" {
				endpoint.WriteToUDPAddrPort([]byte(from.String()+" "), from)
			}
		}
	}()
	const places, streams, newcomers, pace = 2048, 100, 300, 10 * time.Millisecond
	rate := 5000
	if testing.Short() {
		rate /= 5
	}
	s := serving(t, config(unix.IPPROTO_UDP, nil, endpointA), func(_ *idleTimes, most *int) { *most = places })
	held, seen := make([]net.Conn, streams), make([]string, streams)
	for i := range held {
		if held[i], err = dial(t, "udp", stranger[0]); err != nil {
			t.Fatal(err)
		}
		if seen[i], _, err = ask(held[i], "?"); err != nil {
			t.Fatal(err)
		}
	}
	if n := streaming(s, stranger[0]); n != streams {
		t.Fatalf("%d streams", n)
	}

	stop, sent := make(chan struct{}), make(chan int)
	go func() { sent <- flood(t, rate, stop) }()
	tick := time.NewTicker(pace)
	defer tick.Stop()
	full := func() bool {
		return s.stats.evicted[waiting].Load() > 0 || s.stats.refused[unix.IPPROTO_UDP][nat.ReasonTableFull].Load() > 0
	}
	began := time.Now()
	for !full() {
		if time.Since(began) > patience {
			t.Fatal("the flood does not fill the table")
		}
		<-tick.C
	}
	came, as := make([]net.Conn, newcomers), make([]string, newcomers)
	var all sync.WaitGroup
	for i := range newcomers {
		<-tick.C
		from := stranger[0]
		if i%2 == 0 {
			from = fmt.Sprintf("198.18.%d.%d", 1+i/256, i%256)
		}
		if came[i], err = dial(t, "udp", from); err != nil {
			t.Fatal(err)
		}
		all.Go(func() { as[i], _ = insist(came[i], "?") })
		if who, err := insist(held[i%streams], "?"); err != nil || who != seen[i%streams] {
			t.Errorf("stream %d, which came from %s, comes from %s: %v", i%streams, seen[i%streams], who, err)
		}
	}
	all.Wait()
	served, stayed := 0, 0
	for i, c := range came {
		if as[i] == "" {
			continue
		}
		served++
		if who, err := insist(c, "?"); err == nil && who == as[i] {
			stayed++
		}
	}
	close(stop)
	took := time.Since(began)
	n := <-sent
	t.Logf("%d forged in %v, %d of %d newcomers served, %d went on, %d made room", n, took, served, newcomers, stayed, s.stats.evicted[waiting].Load())
	if n < int(took/time.Second)*rate*9/10 {
		t.Errorf("%d forged datagrams in %v are no flood", n, took)
	}
	if served < newcomers*95/100 || stayed < served*95/100 {
		t.Errorf("%d of %d newcomers were served, %d went on", served, newcomers, stayed)
	}
}
