package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/lab/step"
)

// MTUs of the labs with different ones.
const (
	LargeMTU = 1340
	SmallMTU = 1280

	tcpOptions = 12 // bytes of options in each segment: timestamps
)

// IPHeader is the size in bytes of an IP header without options.
func IPHeader(a netip.Addr) int {
	if a.Is6() {
		return 40
	}
	return 20
}

// udpOverhead and tcpOverhead are the bytes of headers without options before a payload.
func udpOverhead(a netip.Addr) int { return IPHeader(a) + 8 }

func tcpOverhead(a netip.Addr) int { return IPHeader(a) + 20 }

// CheckFragments echoes datagrams that may and must be fragmented.
func (e *Ends) CheckFragments(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	server, conn := step.Must2(e.dialEcho(ctx))
	defer server.Close()
	defer conn.Close()
	if !e.Target.Is6() { // with routers that fragment
		step.Try(setMTUDiscovery(conn, unix.IP_PMTUDISC_DONT))
	}
	overhead := udpOverhead(e.Target)
	sizes := []int{SmallMTU - overhead, SmallMTU - overhead + 1, LargeMTU - overhead, 5000}
	for _, size := range sizes {
		err := echoUDP(conn, size, uint64(size))
		// With IPv6, each end may have to learn the path MTU from a lost datagram.
		for tries := 0; e.Target.Is6() && err != nil && tries < 2; tries++ {
			err = echoUDP(conn, size, uint64(size))
		}
		if err != nil {
			return "", err
		}
	}
	if sources := server.Close(); len(sources) != 1 || sources[e.WantSource] < len(sizes) || !e.Target.Is6() &&
		sources[e.WantSource] > len(sizes) {
		return "", fmt.Errorf("%s saw datagrams from %v, want %d from %s", e.To.Name, sources, len(sizes), e.WantSource)
	}
	return fmt.Sprintf("datagrams of %v bytes", sizes), nil
}

// CheckTooBig sends a datagram that is too big and must not be fragmented, and requires the ICMP
// error from the right sender, with the right MTU and quotation. The pod's kernel must accept it,
// and a datagram of that size must then pass.
func (e *Ends) CheckTooBig(ctx context.Context, wantFrom netip.Addr) (_ string, err error) {
	defer step.Catch(&err)
	server, conn := step.Must2(e.dialEcho(ctx))
	defer server.Close()
	defer conn.Close()
	p := step.Must(NewPinger(e.From))
	defer p.Close()
	step.Try(setMTUDiscovery(conn, unix.IP_PMTUDISC_DO))
	began := time.Now()
	if _, err := conn.Write(make([]byte, LargeMTU-udpOverhead(e.Target))); err != nil {
		return "", fmt.Errorf("send a packet of %d bytes: %w", LargeMTU, err)
	}
	a, err := p.tooBig(began.Add(ReplyTimeout))
	if err != nil {
		return "", fmt.Errorf("after a packet of %d bytes: %w", LargeMTU, err)
	}
	if a.From != wantFrom || a.mtu != SmallMTU {
		return "", fmt.Errorf("too-big message from %s with MTU %d, want %s with %d", a.From, a.mtu, wantFrom, SmallMTU)
	}
	if a.Quote.Source != e.From.Address || a.Quote.Destination != e.Target {
		return "", fmt.Errorf("too-big message quotes a packet from %s to %s, want what was sent: from %s to %s",
			a.Quote.Source, a.Quote.Destination, e.From.Address, e.Target)
	}
	// The raw socket gets the message before the kernel's own ICMP code.
	step.Try(step.Await(ctx, ReplyTimeout, step.Poll, func() error {
		mtu, err := pathMTU(conn)
		if err == nil && mtu != SmallMTU {
			err = fmt.Errorf("%s believes in a path MTU of %d, want %d", e.From.Name, mtu, SmallMTU)
		}
		return err
	}))
	if err := echoUDP(conn, SmallMTU-udpOverhead(e.Target), 0); err != nil && !errors.Is(err, unix.EMSGSIZE) {
		return "", err
	} else if err != nil { // the error of the first datagram, reported once
		step.Try(echoUDP(conn, SmallMTU-udpOverhead(e.Target), 0))
	}
	return fmt.Sprintf("%d for %d from %s", SmallMTU, LargeMTU, a.From), nil
}

// tooBig waits for a fragmentation-needed message.
func (p *Pinger) tooBig(deadline time.Time) (*Answer, error) {
	for {
		a, err := p.Read(deadline)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, fmt.Errorf("no too-big message in %v", ReplyTimeout)
		}
		if err != nil {
			return nil, err
		}
		if a.Quote != nil && a.mtu != 0 {
			return a, nil
		}
	}
}

// CheckSegments sends a TCP stream whose segments are too big at first, as super-frames if the
// links make them, and requires all of it to arrive. The pod must have reduced its segments, unless
// it may have kept them.
func (e *Ends) CheckSegments(ctx context.Context, bulk int64, mayKeep bool) (_ string, err error) {
	defer step.Catch(&err)
	began := time.Now()
	near := step.Must(e.Stream(ctx, bulk, 0))
	overhead := tcpOverhead(e.Target) + tcpOptions
	first, last := LargeMTU-overhead, SmallMTU-overhead
	if near.FirstMSS != first || near.LastMSS != last && !(mayKeep && near.LastMSS == first) {
		return "", fmt.Errorf("segments of %d bytes at first and %d at last, want %d and %d", near.FirstMSS,
			near.LastMSS, first, last)
	}
	rate := float64(bulk) * 8 / time.Since(began).Seconds() / 1e9
	return fmt.Sprintf("%.2f Gbit/s, segments %d, then %d", rate, near.FirstMSS, near.LastMSS), nil
}

// setMTUDiscovery sets IP_MTU_DISCOVER, see ip(7), or IPV6_MTU_DISCOVER, which has the same values.
func setMTUDiscovery(conn *net.UDPConn, how int) error {
	return setOption(conn, unix.IP_MTU_DISCOVER, unix.IPV6_MTU_DISCOVER, how)
}

// pathMTU returns the kernel's path MTU for a connected socket.
func pathMTU(conn *net.UDPConn) (mtu int, err error) {
	level, option := ofFamily(conn, unix.IP_MTU, unix.IPV6_MTU)
	err = control(conn, func(fd int) (err error) {
		mtu, err = unix.GetsockoptInt(fd, level, option)
		return err
	})
	return mtu, err
}

// setOption sets a socket option whose name depends on the family.
func setOption(conn *net.UDPConn, four, six, value int) error {
	level, option := ofFamily(conn, four, six)
	return control(conn, func(fd int) error { return unix.SetsockoptInt(fd, level, option, value) })
}

// ofFamily returns the level and the name of an option for the family of the socket.
func ofFamily(conn *net.UDPConn, four, six int) (level, option int) {
	if conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Is6() {
		return unix.IPPROTO_IPV6, six
	}
	return unix.IPPROTO_IP, four
}

func control(conn *net.UDPConn, fn func(fd int) error) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) { err = fn(int(fd)) }); e != nil {
		return e
	}
	return err
}
