package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// families are the two kinds of socket, with the loopback address that each test uses.
var families = []struct {
	network  string
	loopback netip.Addr
}{
	{"udp4", netip.MustParseAddr("127.0.0.1")},
	{"udp6", netip.MustParseAddr("::1")},
}

func forEachFamily(t *testing.T, f func(t *testing.T, listen func(Options) *Socket)) {
	for _, fam := range families {
		t.Run(fam.network, func(t *testing.T) {
			probe, err := net.ListenPacket(fam.network, netip.AddrPortFrom(fam.loopback, 0).String())
			need.Kernel(t, strings.Replace(fam.network, "udp", "ipv", 1), err)
			probe.Close()
			f(t, func(o Options) *Socket { return listen(t, fam.network, fam.loopback, o) })
		})
	}
}

func listen(tb testing.TB, network string, addr netip.Addr, o Options) *Socket {
	tb.Helper()
	s, err := Listen(network, netip.AddrPortFrom(addr, 0), o)
	if addr.Is6() && errors.Is(err, unix.EADDRNOTAVAIL) {
		need.Kernel(tb, "ipv6", err)
	}
	need.NoError(tb, err)
	tb.Cleanup(func() { s.Close() })
	return s
}

// listenBoth returns a socket of both families.
func listenBoth(t *testing.T) *Socket {
	t.Helper()
	s := listen(t, "udp", netip.Addr{}, Options{})
	if !s.is6 {
		need.Kernel(t, "ipv6", errors.New("a socket of all families is of IPv4"))
	}
	return s
}

// send sends one datagram.
func send(t *testing.T, from *Socket, to netip.AddrPort, payload []byte) {
	t.Helper()
	if _, err := from.NewSender().Send([]Train{{Destination: to, Parts: [][]byte{payload}}}); err != nil {
		t.Fatal(err)
	}
}

func messages(n int) []Message {
	m := make([]Message, n)
	for i := range m {
		m[i].Buffer = make([]byte, BufferSize)
	}
	return m
}

func TestTruncated(t *testing.T) {
	from, to := listen(t, "udp4", families[0].loopback, Options{NoGRO: true}), listen(t, "udp4", families[0].loopback,
		Options{NoGRO: true})
	sizes := []int{100, 101, 99}
	for _, size := range sizes {
		send(t, from, to.LocalAddr(), payload(1, size))
	}
	m := make([]Message, 3)
	for i := range m {
		m[i].Buffer = make([]byte, 100)
	}
	n, err := to.Receive(m)
	if n != 3 || err != nil {
		t.Fatalf("Receive = %d, %v; want 3", n, err)
	}
	if len(m[0].Data) != 100 || len(m[1].Data) != 0 || len(m[2].Data) != 99 || to.Stats().Truncated != 1 {
		t.Errorf("lengths %d %d %d, %d truncated; want 100 0 99, 1", len(m[0].Data), len(m[1].Data), len(m[2].Data),
			to.Stats().Truncated)
	}
}

// TestOverflows fills a small receive buffer and checks that every datagram is either received or
// counted.
func TestOverflows(t *testing.T) {
	from, to := listen(t, "udp4", families[0].loopback, Options{}), listen(t, "udp4", families[0].loopback,
		Options{ReceiveBuffer: 4096, NoGRO: true})
	const flood = 500
	one := payload(1, 1000)
	for range flood {
		send(t, from, to.LocalAddr(), one)
	}
	m := messages(flood)
	got, err := to.Receive(m)
	need.NoError(t, err)
	if got == flood {
		t.Fatal("the flood fitted into the buffer")
	}
	// The kernel reports its counter with the next datagram that it queues.
	send(t, from, to.LocalAddr(), one)
	if n, err := to.Receive(m); n != 1 || err != nil {
		t.Fatalf("Receive = %d, %v; want 1", n, err)
	}
	if lost := to.Stats().Overflows; lost != uint64(flood-got) {
		t.Errorf("sent %d, received %d, overflows %d", flood, got, lost)
	}
}

func TestBuffersGranted(t *testing.T) {
	s := listen(t, "udp4", families[0].loopback, Options{ReceiveBuffer: 65536, SendBuffer: 131072})
	if st := s.Stats(); st.ReceiveBuffer != 65536 || st.SendBuffer != 131072 {
		t.Errorf("granted %d and %d bytes, want 65536 and 131072", st.ReceiveBuffer, st.SendBuffer)
	}
}

func TestListenErrors(t *testing.T) {
	s := listen(t, "udp4", families[0].loopback, Options{})
	if _, err := Listen("udp4", s.LocalAddr(), Options{}); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("second Listen on %v: %v, want EADDRINUSE", s.LocalAddr(), err)
	}
	var unknown net.UnknownNetworkError
	if _, err := Listen("tcp", netip.AddrPort{}, Options{}); !errors.As(err, &unknown) {
		t.Errorf("Listen tcp: %v, want UnknownNetworkError", err)
	}
	unspecified, err := Listen("udp4", netip.AddrPort{}, Options{})
	need.NoError(t, err)
	defer unspecified.Close()
	if a := unspecified.LocalAddr(); a.Addr() != netip.IPv4Unspecified() || a.Port() == 0 {
		t.Errorf("listening on %v", a)
	}
}

func TestClose(t *testing.T) {
	s := listen(t, "udp4", families[0].loopback, Options{})
	result := make(chan error)
	go func() {
		_, err := s.Receive(messages(1))
		result <- err
	}()
	s.Close()
	if err := <-result; err != net.ErrClosed {
		t.Errorf("Receive during Close: %v, want net.ErrClosed", err)
	}
	if _, err := s.Receive(messages(1)); err != net.ErrClosed {
		t.Errorf("Receive after Close: %v, want net.ErrClosed", err)
	}
	if _, err := s.NewSender().Send([]Train{{Destination: s.LocalAddr(), Parts: [][]byte{{1}}}}); err != net.ErrClosed {
		t.Errorf("Send after Close: %v, want net.ErrClosed", err)
	}
}

func TestWakeIsSticky(t *testing.T) {
	s := listen(t, "udp4", families[0].loopback, Options{})
	for range 3 {
		s.Wake()
		s.Wake()
		if n, err := s.Receive(messages(1)); n != 0 || err != ErrWoken {
			t.Fatalf("Receive after Wake = %d, %v; want ErrWoken", n, err)
		}
		send(t, s, s.LocalAddr(), []byte{1})
		if n, err := s.Receive(messages(1)); n != 1 || err != nil {
			t.Fatalf("Receive after ErrWoken = %d, %v; want 1", n, err)
		}
	}
}

// TestNoLostWake follows the protocol of the package comment with several producers and no traffic:
// a lost wake-up is a test that never ends.
func TestNoLostWake(t *testing.T) {
	s := listen(t, "udp4", families[0].loopback, Options{})
	const producers, each = 4, 2000
	queue := make(chan int, producers*each)
	var wg sync.WaitGroup
	for p := range producers {
		wg.Go(func() {
			for i := range each {
				queue <- p*each + i
				s.Wake()
			}
		})
	}
	m, seen := messages(1), 0
	for seen < producers*each {
		if _, err := s.Receive(m); err != ErrWoken {
			t.Fatal(err)
		}
		for len(queue) > 0 {
			<-queue
			seen++
		}
	}
	wg.Wait()
}

// TestPoll has one P, which never looks at the network by itself while a goroutine is ready to run.
func TestPoll(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	forEachFamily(t, func(t *testing.T, listen func(Options) *Socket) {
		from, to := listen(Options{}), listen(Options{})
		to.Poll() // nobody receives
		if to.woken.Load() {
			t.Fatal("Poll is remembered, like Wake")
		}
		got := make(chan int, 1)
		go func() {
			m := messages(2)
			for {
				n, err := to.Receive(m)
				if err != ErrWoken {
					got <- n
					return
				}
			}
		}()
		for !to.rx.blocked.Load() {
			runtime.Gosched()
		}
		send(t, from, to.LocalAddr(), []byte{1})
		to.Poll()
		for range 3 { // the receiver's turn comes at the first or, had it been about to block, the second
			runtime.Gosched()
		}
		select {
		case n := <-got:
			if n != 1 {
				t.Errorf("Receive = %d, want 1", n)
			}
		default:
			t.Error("the receiver has not run after Poll")
		}
	})
}

func TestConcurrentSenders(t *testing.T) {
	from, to := listen(t, "udp4", families[0].loopback, Options{}), listen(t, "udp4", families[0].loopback, Options{})
	const senders, each = 4, 50
	var wg sync.WaitGroup
	for g := range senders {
		wg.Go(func() {
			sender := from.NewSender()
			for i := range each {
				d := fmt.Appendf(nil, "%d %03d", g, i)
				if n, err := sender.Send([]Train{{Destination: to.LocalAddr(), SegmentSize: len(d),
					Parts: [][]byte{d, d}}}); n != 2 || err != nil {
					t.Errorf("Send = %d, %v", n, err)
				}
			}
		})
	}
	got := receive(t, to, 2*senders*each)
	wg.Wait()
	last := map[byte]string{}
	for _, d := range got {
		if g := d[0]; string(d) < last[g] {
			t.Fatalf("sender %c: %q after %q", g, d, last[g])
		}
		last[d[0]] = string(d)
	}
}

func TestNoAllocations(t *testing.T) {
	forEachFamily(t, func(t *testing.T, listen func(Options) *Socket) {
		from, to := listen(Options{}), listen(Options{})
		sender, m := from.NewSender(), messages(4)
		single, train := payload(1, 1300), payload(2, 10*1372+9)
		trains := []Train{
			{Destination: to.LocalAddr(), Parts: [][]byte{single}, TOS: 1},
			{Destination: to.LocalAddr(), SegmentSize: 1372, Parts: [][]byte{train}},
			{Destination: to.LocalAddr(), SegmentSize: 1372, Parts: [][]byte{train}, Single: true},
			{Destination: netip.AddrPortFrom(to.LocalAddr().Addr(), 0), Parts: [][]byte{single}}, // refused
		}
		const want = 1300 + 2*(10*1372+9)
		if n := testing.AllocsPerRun(100, func() {
			if n, err := sender.Send(trains); n != 23 || err != unix.EINVAL {
				t.Fatalf("Send = %d, %v", n, err)
			}
			for got := 0; got < want; {
				n, err := to.Receive(m)
				need.NoError(t, err)
				for i := range m[:n] {
					got += len(m[i].Data)
				}
			}
		}); n != 0 {
			t.Errorf("%v allocations per Send and Receive, want 0", n)
		}
	})
}

// BenchmarkLoopback moves datagrams of 1372 bytes through a loopback socket pair, send and receive
// in one goroutine.
func BenchmarkLoopback(b *testing.B) {
	for _, bb := range []struct {
		name string
		o    Options
	}{{"train", Options{}}, {"single", Options{NoGSO: true, NoGRO: true}}} {
		b.Run(bb.name, func(b *testing.B) {
			from, to := listen(b, "udp4", families[0].loopback, bb.o), listen(b, "udp4", families[0].loopback, bb.o)
			const datagrams = 47
			sender, m := from.NewSender(), messages(8)
			trains := []Train{{Destination: to.LocalAddr(), SegmentSize: 1372,
				Parts: [][]byte{payload(1, datagrams*1372)}}}
			b.ReportAllocs()
			b.SetBytes(1372)
			for i := 0; i < b.N; i += datagrams {
				if n, err := sender.Send(trains); n != datagrams || err != nil {
					b.Fatal(n, err)
				}
				for got := 0; got < datagrams*1372; {
					n, err := to.Receive(m)
					need.NoError(b, err)
					for i := range m[:n] {
						got += len(m[i].Data)
					}
				}
			}
			b.ReportMetric(float64(from.Stats().SendCalls+to.Stats().ReceiveCalls)/float64(b.N), "calls/packet")
		})
	}
}

// TestBufferWhereForceIsIgnored: a kernel that accepts SO_SNDBUFFORCE and does nothing, as gVisor
// does, grants what the plain option asks for. SO_TIMESTAMP is such an option of Linux: a set of
// any number succeeds, and changes no buffer.
func TestBufferWhereForceIsIgnored(t *testing.T) {
	s := listen(t, "udp4", families[0].loopback, Options{SendBuffer: 65536})
	const size = 98304
	s.raw.Control(func(fd uintptr) {
		if got := setBuffer(int(fd), unix.SO_SNDBUF, unix.SO_TIMESTAMP, size); got != size {
			t.Errorf("granted %d bytes, want %d", got, size)
		}
	})
}

// TestReceiveBufferOfPayloads: where the kernel counts no memory, the receive buffer holds few
// datagrams, however many are asked for.
func TestReceiveBufferOfPayloads(t *testing.T) {
	s := listen(t, "udp4", families[0].loopback, Options{})
	most := min(bareReceiveBuffer, 2*s.Stats().ReceiveBuffer) // of what this system grants
	for _, tt := range []struct {
		counts     bool
		size, want int
	}{{true, 128 << 10, 128 << 10}, {false, 128 << 10, 128 << 10}, {false, 64 << 20, most}, {false, 0, most}} {
		s.raw.Control(func(fd uintptr) {
			got := setReceiveBuffer(int(fd), tt.size, tt.counts)
			value, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
			if tt.counts {
				value /= 2
			}
			if got != tt.want || value != got {
				t.Errorf("memory counted %v, %d bytes asked for: granted %d, and SO_RCVBUF says %d (%v); want %d",
					tt.counts, tt.size, got, value, err, tt.want)
			}
		})
	}
}

// TestBufferBeyondTheMaximum: with CAP_NET_ADMIN, SO_SNDBUFFORCE gives more than net.core.wmem_max;
// without, what is granted is told.
func TestBufferBeyondTheMaximum(t *testing.T) {
	const size = 64 << 20
	s := listen(t, "udp4", families[0].loopback, Options{SendBuffer: size})
	var forced error
	s.raw.Control(func(fd uintptr) { forced = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size) })
	if got := s.Stats().SendBuffer; (got == size) != (forced == nil) || got > size || got <= 0 {
		t.Errorf("granted %d bytes of %d, where force gives %v", got, size, forced)
	}
}

// elsewhere is a raw connection whose descriptor is another one's.
type elsewhere struct {
	syscall.RawConn
	fd uintptr
}

func (e elsewhere) Control(f func(fd uintptr)) error {
	f(e.fd)
	return nil
}

// TestOverflowsUnknown: where the kernel knows no SO_MEMINFO, the count of overflows is unknown and
// not 0. A pipe is such a kernel.
func TestOverflowsUnknown(t *testing.T) {
	s := listen(t, "udp4", families[0].loopback, Options{})
	if st := s.Stats(); st.Overflows != 0 || !st.OverflowsKnown {
		t.Errorf("%d overflows, known %v; want 0, true", st.Overflows, st.OverflowsKnown)
	}
	r, w, err := os.Pipe()
	need.NoError(t, err)
	defer r.Close()
	defer w.Close()
	s.raw = elsewhere{s.raw, r.Fd()}
	if st := s.Stats(); st.OverflowsKnown {
		t.Errorf("%d overflows of a pipe are known", st.Overflows)
	}
}

// TestSetMark: the kernel marks what the socket sends, which a closed one refuses.
func TestSetMark(t *testing.T) {
	s := listen(t, "udp4", netip.MustParseAddr("127.0.0.1"), Options{})
	err := s.SetMark(0x63)
	if errors.Is(err, unix.EPERM) {
		need.Kernel(t, "net-admin", err)
	}
	need.NoError(t, err)
	var mark int
	need.NoError(t, s.raw.Control(func(fd uintptr) {
		mark, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK)
	}))
	if err != nil || mark != 0x63 {
		t.Errorf("mark %#x, %v", mark, err)
	}
	s.Close()
	if err := s.SetMark(1); err == nil || !strings.HasPrefix(err.Error(), "udp: set mark: ") {
		t.Errorf("after Close: %v", err)
	}
}

// TestScope: a zone is the number or the name of a link; any other stands for none.
func TestScope(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	need.NoError(t, err)
	for zone, want := range map[string]uint32{"7": 7, "lo": uint32(lo.Index), "no link": 0, "4294967296": 0} {
		if got := scope(zone); got != want {
			t.Errorf("%q: %d, want %d", zone, got, want)
		}
	}
}
