package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"culvert/gateway/node"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/step"
)

// MTUs of the labs with different ones.
const (
	largeMTU = 1340
	smallMTU = 1280

	tcpOptions = 12 // bytes of options in each segment: timestamps
)

// ipHeader is the size in bytes of an IP header without options.
func ipHeader(a netip.Addr) int {
	if a.Is6() {
		return 40
	}
	return 20
}

// udpOverhead and tcpOverhead are the bytes of headers without options before a payload.
func udpOverhead(a netip.Addr) int { return ipHeader(a) + 8 }
func tcpOverhead(a netip.Addr) int { return ipHeader(a) + 20 }

// UnequalMTU is a lab in which only milan's gateway has the small MTU, so that it must report
// too-big packets to its own nodes and, through the tunnel, to rome's pods. No gateway clamps the
// MSS.
func UnequalMTU(mode node.Mode, offloads bool) Options {
	large := ClusterOptions{MTU: largeMTU, NodeMTU: largeMTU, PodMTU: largeMTU, MSSClamp: "off"}
	small := large
	small.MTU = smallMTU
	return Options{Mode: mode, Offloads: offloads, Rome: large, Milan: small}
}

// mtuChecks are the promises of a lab with unequal MTUs.
func mtuChecks(l *Lab) []Check { return append(l.ofFamilies(l.sizeChecks), l.logCheck()) }

// sizeChecks are the checks of one family. A pod remembers the learnt path MTU, and reflects it in
// the MSS it sends, so each pair of pods is used for one thing.
func (l *Lab) sizeChecks(p *plan.Plan) []Check {
	far, own := l.pairOf(p, "rome/pod1", "milan/pod1"), l.pairOf(p, "milan/pod2", "rome/pod2")
	farTCP, ownTCP := l.pairOf(p, "rome/pod1", "milan/pod2"), l.pairOf(p, "milan/pod1", "rome/pod2")
	milan := &p[1]
	bulk := l.amount(streamBytes)
	// A gateway that gets super-frames cuts them to its own MTU, and need not notify the pod.
	superFrames := l.options.Offloads && l.options.Mode != node.TUN
	tooBig := func(e *ends, from netip.Addr) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) { return e.checkTooBig(ctx, from) }
	}
	fragments := []Check{{"fragments", far.path(), far.checkFragments}, {"fragments", own.path(), own.checkFragments}}
	checks := []Check{far.firstContact()}
	if !p.Is6() {
		checks = append(checks, fragments...)
	}
	checks = append(checks, []Check{
		{"too big, own mtu", own.path(), tooBig(own, milan.Internal)},
		{"too big, far mtu", far.path(), tooBig(far, milan.Seen(milan.UnknownSource()))},
		{"tcp over own mtu", ownTCP.path(), func(ctx context.Context) (string, error) {
			return ownTCP.checkSegments(ctx, bulk, superFrames)
		}},
		{"tcp over far mtu", farTCP.path(), func(ctx context.Context) (string, error) {
			return farTCP.checkSegments(ctx, bulk, false)
		}},
	}...)
	if p.Is6() { // routers do not fragment (RFC 8200, Section 5), so pods must have learnt what fits
		checks = append(checks, fragments...)
	}
	return checks
}

// checkFragments echoes datagrams that may and must be fragmented.
func (e *ends) checkFragments(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	server, conn := step.Must2(e.dialEcho(ctx))
	defer server.close()
	defer conn.Close()
	if !e.target.Is6() { // with routers that fragment
		step.Try(setMTUDiscovery(conn, unix.IP_PMTUDISC_DONT))
	}
	overhead := udpOverhead(e.target)
	sizes := []int{smallMTU - overhead, smallMTU - overhead + 1, largeMTU - overhead, 5000}
	for _, size := range sizes {
		err := echoUDP(conn, size, uint64(size))
		// With IPv6, each end may have to learn the path MTU from a lost datagram.
		for tries := 0; e.target.Is6() && err != nil && tries < 2; tries++ {
			err = echoUDP(conn, size, uint64(size))
		}
		if err != nil {
			return "", err
		}
	}
	if sources := server.close(); len(sources) != 1 || sources[e.wantSource] < len(sizes) || !e.target.Is6() &&
		sources[e.wantSource] > len(sizes) {
		return "", fmt.Errorf("%s saw datagrams from %v, want %d from %s", e.to.Name, sources, len(sizes), e.wantSource)
	}
	return fmt.Sprintf("datagrams of %v bytes", sizes), nil
}

// checkTooBig sends a datagram that is too big and must not be fragmented, and requires the ICMP
// error from the right sender, with the right MTU and quotation. The pod's kernel must accept it,
// and a datagram of that size must then pass.
func (e *ends) checkTooBig(ctx context.Context, wantFrom netip.Addr) (_ string, err error) {
	defer step.Catch(&err)
	server, conn := step.Must2(e.dialEcho(ctx))
	defer server.close()
	defer conn.Close()
	p := step.Must(newPinger(e.from))
	defer p.close()
	step.Try(setMTUDiscovery(conn, unix.IP_PMTUDISC_DO))
	began := time.Now()
	if _, err := conn.Write(make([]byte, largeMTU-udpOverhead(e.target))); err != nil {
		return "", fmt.Errorf("send a packet of %d bytes: %w", largeMTU, err)
	}
	a, err := p.tooBig(began.Add(replyTimeout))
	if err != nil {
		return "", fmt.Errorf("after a packet of %d bytes: %w", largeMTU, err)
	}
	if a.from != wantFrom || a.mtu != smallMTU {
		return "", fmt.Errorf("too-big message from %s with MTU %d, want %s with %d", a.from, a.mtu, wantFrom, smallMTU)
	}
	if a.quote.Source != e.from.Address || a.quote.Destination != e.target {
		return "", fmt.Errorf("too-big message quotes a packet from %s to %s, want what was sent: from %s to %s",
			a.quote.Source, a.quote.Destination, e.from.Address, e.target)
	}
	// The raw socket gets the message before the kernel's own ICMP code.
	step.Try(step.Await(ctx, replyTimeout, step.Poll, func() error {
		mtu, err := pathMTU(conn)
		if err == nil && mtu != smallMTU {
			err = fmt.Errorf("%s believes in a path MTU of %d, want %d", e.from.Name, mtu, smallMTU)
		}
		return err
	}))
	if err := echoUDP(conn, smallMTU-udpOverhead(e.target), 0); err != nil && !errors.Is(err, unix.EMSGSIZE) {
		return "", err
	} else if err != nil { // the error of the first datagram, reported once
		step.Try(echoUDP(conn, smallMTU-udpOverhead(e.target), 0))
	}
	return fmt.Sprintf("%d for %d from %s", smallMTU, largeMTU, a.from), nil
}

// tooBig waits for a fragmentation-needed message.
func (p *pinger) tooBig(deadline time.Time) (*answer, error) {
	for {
		a, err := p.read(deadline)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, fmt.Errorf("no too-big message in %v", replyTimeout)
		}
		if err != nil {
			return nil, err
		}
		if a.quote != nil && a.mtu != 0 {
			return a, nil
		}
	}
}

// checkSegments sends a TCP stream whose segments are too big at first, as super-frames if the
// links make them, and requires all of it to arrive. The pod must have reduced its segments, unless
// it may have kept them.
func (e *ends) checkSegments(ctx context.Context, bulk int64, mayKeep bool) (_ string, err error) {
	defer step.Catch(&err)
	began := time.Now()
	near := step.Must(e.stream(ctx, bulk, 0))
	overhead := tcpOverhead(e.target) + tcpOptions
	first, last := largeMTU-overhead, smallMTU-overhead
	if near.firstMSS != first || near.lastMSS != last && !(mayKeep && near.lastMSS == first) {
		return "", fmt.Errorf("segments of %d bytes at first and %d at last, want %d and %d", near.firstMSS,
			near.lastMSS, first, last)
	}
	rate := float64(bulk) * 8 / time.Since(began).Seconds() / 1e9
	return fmt.Sprintf("%.2f Gbit/s, segments %d, then %d", rate, near.firstMSS, near.lastMSS), nil
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
