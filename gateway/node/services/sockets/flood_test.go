package sockets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/integration/need"
	"culvert/nat"
)

// forged returns a datagram from a forged source, which nobody answers.
func forged(n uint32, to netip.AddrPort) []byte {
	const text = "flood"
	b := make([]byte, 28, 28+len(text)) // checksums: the kernel fills in IPv4's (raw(7)), UDP's is absent (RFC 768)
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint32(b[12:], 100<<24|64<<16+n%(1<<22)) // 100.64.0.0/10
	copy(b[16:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(b[20:], 4000)
	binary.BigEndian.PutUint16(b[22:], to.Port())
	binary.BigEndian.PutUint16(b[24:], uint16(8+len(text)))
	return append(b, text...)
}

// A flooder sends forged datagrams to the node port of s, at a rate or as fast as s takes them. At
// most inFlight of them are unaccounted for, so that the socket's buffer has room for those of
// others.
type flooder struct {
	s      *Server
	sent   atomic.Int64
	others atomic.Int64 // flows of other clients
}

const inFlight = 128

// taken returns how many first datagrams s has taken, of all clients.
func (f *flooder) taken() int64 {
	n := f.s.stats.createdOf(unix.IPPROTO_UDP).Load()
	for _, reason := range refusals {
		n += f.s.stats.refusedOf(unix.IPPROTO_UDP).of(reason).Load()
	}
	return int64(n)
}

// run floods until it is told to stop.
func (f *flooder) run(t *testing.T, rate int, stop <-chan struct{}) {
	to := netip.AddrPortFrom(netip.MustParseAddr(nodeAt[0]), 30080)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		t.Error(err)
		return
	}
	defer unix.Close(fd)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for began, sent := time.Now(), int64(0); ; {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		due := min(int64(time.Since(began)*time.Duration(rate)/time.Second), f.taken()-f.others.Load()+inFlight)
		for ; sent < due; sent++ {
			if err := unix.Sendto(fd, forged(uint32(sent), to), 0,
				&unix.SockaddrInet4{Addr: to.Addr().As4()}); err != nil {
				t.Error(err)
				return
			}
			f.sent.Store(sent + 1)
		}
	}
}

// insist asks repeatedly if the node may have had no room for the client, as resolvers do.
func insist(c net.Conn, text string) (who string, err error) {
	for range 4 {
		c.SetDeadline(time.Now().Add(patience / 4))
		if who, _, err = ask(c, text); !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	return who, err
}

// Beside a flood of forged clients, which nobody answers, streams keep their flows, and new clients
// are served and keep theirs, from an address of their own or from one that has streams.
func TestForgedUDP(t *testing.T) {
	needHosts(t)
	lo, err := netlink.LinkByName("lo")
	need.NoError(t, err)
	clients := netip.MustParsePrefix("198.18.0.1/16") // all these addresses are local
	at := &netlink.Addr{IPNet: &net.IPNet{IP: clients.Addr().AsSlice(), Mask: net.CIDRMask(16, 32)}}
	need.NoError(t, netlink.AddrReplace(lo, at))
	t.Cleanup(func() { netlink.AddrDel(lo, at) })
	endpoint, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(endpointA[0]), Port: 8080})
	need.NoError(t, err)
	defer endpoint.Close()
	go func() { // tells clients which source it sees
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
	const rate, places, streams, each = 5000, 2048, 100, 50 // forged datagrams for each new client
	newcomers := 300
	if testing.Short() {
		newcomers /= 5
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

	flood, stop, stopped := &flooder{s: s}, make(chan struct{}), make(chan struct{})
	flood.others.Store(streams)
	go func() {
		defer close(stopped)
		flood.run(t, rate, stop)
	}()
	end := sync.OnceFunc(func() {
		close(stop)
		<-stopped
	})
	defer end()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	await := func(what string, is func() bool) {
		t.Helper()
		for began := time.Now(); !is(); <-tick.C {
			if time.Since(began) > 3*patience {
				t.Fatalf("the flood does not %s: %d datagrams", what, flood.sent.Load())
			}
		}
	}
	began := time.Now()
	await("fill the table", func() bool {
		return s.stats.evicted[waiting].Load() > 0 ||
			s.stats.refusedOf(unix.IPPROTO_UDP).of(nat.ReasonTableFull).Load() > 0
	})
	first := flood.sent.Load()
	came, as := make([]net.Conn, newcomers), make([]string, newcomers)
	var all sync.WaitGroup
	for i := range newcomers {
		await("go on", func() bool { return flood.sent.Load() >= first+int64(each*i) })
		flood.others.Add(1)
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
	end()
	t.Logf("%d forged in %v, %d of %d newcomers served, %d went on, %d made room", flood.sent.Load(), time.Since(began),
		served, newcomers, stayed, s.stats.evicted[waiting].Load())
	if served < newcomers*95/100 || stayed < served*95/100 {
		t.Errorf("%d of %d newcomers were served, %d went on", served, newcomers, stayed)
	}
}
