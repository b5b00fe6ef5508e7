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

// startFlood floods until the test ends, or calls end. Other clients have some flows already.
func startFlood(t *testing.T, s *Server, rate, others int) (f *flooder, end func()) {
	f = &flooder{s: s}
	f.others.Store(int64(others))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		f.run(t, rate, stop)
	}()
	end = sync.OnceFunc(func() {
		close(stop)
		<-stopped
	})
	t.Cleanup(end)
	return f, end
}

// await waits until the flood has had an effect.
func (f *flooder) await(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); !is(); <-tick.C {
		if time.Since(began) > 3*patience {
			t.Fatalf("the flood does not %s: %d datagrams", what, f.sent.Load())
		}
	}
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

// localClients makes all addresses of 198.18.0.0/16 local.
func localClients(t *testing.T) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	need.NoError(t, err)
	clients := netip.MustParsePrefix("198.18.0.1/16")
	at := &netlink.Addr{IPNet: &net.IPNet{IP: clients.Addr().AsSlice(), Mask: net.CIDRMask(16, 32)}}
	need.NoError(t, netlink.AddrReplace(lo, at))
	t.Cleanup(func() { netlink.AddrDel(lo, at) })
}

// tellSources makes an endpoint tell those who ask which source it sees, and no others.
func tellSources(t *testing.T) {
	t.Helper()
	endpoint, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(endpointA[0]), Port: 8080})
	need.NoError(t, err)
	t.Cleanup(func() { endpoint.Close() })
	go func() {
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
}

// A seenFlow is a client's, whose source the endpoint has seen.
type seenFlow struct {
	net.Conn
	seen string // "" if it was not served
}

// requireSame returns an error unless the endpoint still sees the same source.
func (f *seenFlow) requireSame() error {
	who, err := insist(f, "?")
	if err == nil && who != f.seen {
		err = fmt.Errorf("it came from %s, and comes from %s", f.seen, who)
	}
	return err
}

// holdStreams opens flows that s takes for streams.
func holdStreams(t *testing.T, s *Server, n int) []seenFlow {
	t.Helper()
	held := make([]seenFlow, n)
	for i := range held {
		var err error
		held[i].Conn, err = dial(t, "udp", stranger[0])
		need.NoError(t, err)
		held[i].seen, _, err = ask(held[i], "?")
		need.NoError(t, err)
	}
	if got := streaming(s, stranger[0]); got != n {
		t.Fatalf("%d streams", got)
	}
	return held
}

// Beside a flood of forged clients, which nobody answers, streams keep their flows, and new clients
// are served and keep theirs, from an address of their own or from one that has streams.
func TestForgedUDP(t *testing.T) {
	needHosts(t)
	localClients(t)
	tellSources(t)
	const rate, places, streams, each = 5000, 2048, 100, 50 // forged datagrams for each new client
	newcomers := 300
	if testing.Short() {
		newcomers /= 5
	}
	s := serving(t, config(unix.IPPROTO_UDP, nil, endpointA), func(_ *idleTimes, most *int) { *most = places })
	held := holdStreams(t, s, streams)
	began := time.Now()
	flood, end := startFlood(t, s, rate, streams)
	flood.await(t, "fill the table", func() bool {
		return s.stats.evicted[waiting].Load() > 0 ||
			s.stats.refusedOf(unix.IPPROTO_UDP).of(nat.ReasonTableFull).Load() > 0
	})
	first := flood.sent.Load()
	came := make([]seenFlow, newcomers)
	var all sync.WaitGroup
	for i := range came {
		flood.await(t, "go on", func() bool { return flood.sent.Load() >= first+int64(each*i) })
		flood.others.Add(1)
		from := stranger[0]
		if i%2 == 0 {
			from = fmt.Sprintf("198.18.%d.%d", 1+i/256, i%256)
		}
		var err error
		came[i].Conn, err = dial(t, "udp", from)
		need.NoError(t, err)
		all.Go(func() { came[i].seen, _ = insist(came[i], "?") })
		if err := held[i%streams].requireSame(); err != nil {
			t.Errorf("stream %d: %v", i%streams, err)
		}
	}
	all.Wait()
	served, stayed := 0, 0
	for i := range came {
		if came[i].seen == "" {
			continue
		}
		served++
		if came[i].requireSame() == nil {
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
