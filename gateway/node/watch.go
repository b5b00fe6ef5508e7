package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// answer is what a look at the gateway has brought.
type answer uint8

const (
	untold answer = iota // nothing was asked, or it is too early to say
	no
	yes
)

// verdict is what is said about the gateway.
type verdict uint8

const (
	unseen  verdict = iota
	answers         // packets of all sizes come back
	short           // small packets come back, but none of mtu bytes
	silent          // nothing comes back
)

const (
	patience      = 3               // looks without an answer before that is said
	causePatience = 4 * time.Second // more than the kernel takes to find that nobody has an address
)

// pace is how often a node looks at the gateway.
type pace struct {
	look    time.Duration // while something is being found out
	settled time.Duration // while the gateway answers
	cause   time.Duration // between two looks for the cause of its silence
}

var usualPace = pace{look: time.Second, settled: 10 * time.Second, cause: 10 * time.Second}

// sight makes verdicts of looks.
type sight struct {
	verdict       verdict
	silent, short int // looks in a row without any answer, without one of mtu bytes
}

// take adds a look: whether anything has come back, and whether a packet of mtu bytes
// has.
func (s *sight) take(small, whole answer) (changed bool) {
	count := func(n *int, a answer) {
		switch a {
		case yes:
			*n = 0
		case no:
			*n++
		}
	}
	count(&s.silent, small)
	count(&s.short, whole)
	was := s.verdict
	switch {
	case s.silent >= patience:
		s.verdict = silent
	case small != yes:
	case whole == yes:
		s.verdict = answers
	case s.short >= patience:
		s.verdict = short
	}
	return s.verdict != was
}

// settled reports whether there is nothing to find out.
func (s *sight) settled() bool { return s.verdict == answers && s.silent == 0 && s.short == 0 }

// watch looks whether the gateway answers, and says so when that changes.
func (n *Node) watch(ctx context.Context) {
	var s sight
	var said string // the cause of the gateway's silence
	var saidAt time.Time
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		changed := s.take(n.link.look())
		remote := *n.remote.Load()
		entry := n.log.WithField("remote", remote)
		switch {
		case changed && s.verdict == answers:
			entry.Info("the gateway answers")
		case changed && s.verdict == short:
			entry.WithFields(logrus.Fields{"bytes": n.config.MTU, "remedy": fmt.Sprintf(
				"let the way to it carry %d bytes, and write the same mtu and address at both ends", n.config.MTU+n.config.overhead())}).
				Warn("the gateway answers, but packets of mtu bytes do not come back")
		case s.verdict == silent && (changed || time.Since(saidAt) >= n.pace.cause):
			cause, remedy := n.silence(ctx, remote)
			if ctx.Err() != nil {
				return
			}
			if changed || cause != said {
				entry.WithFields(logrus.Fields{"error": cause, "remedy": remedy}).Warn("the gateway does not answer")
			}
			said, saidAt = cause, time.Now()
		}
		if s.settled() {
			next.Reset(n.pace.settled)
		} else {
			next.Reset(n.pace.look)
		}
	}
}

// silence finds out why the gateway at remote does not answer, as far as that can be told
// from here.
func (n *Node) silence(ctx context.Context, remote netip.Addr) (cause, remedy string) {
	c, speaks := n.config, n.link.mode()
	if speaks == TUN {
		speaks = Geneve
	}
	say := func(path, format string, args ...any) {
		if cause == "" && path != "mtu" { // small packets pass all the same
			cause, remedy, _ = strings.Cut(path+": "+fmt.Sprintf(format, args...), "; ")
		}
	}
	c.ownAddresses(say)
	c.wayTo(remote, say)
	if cause != "" {
		return cause, remedy
	}
	at := netip.AddrPortFrom(remote, c.Port)
	switch err := c.knock(ctx, at); {
	case errors.Is(err, unix.ECONNREFUSED):
		return fmt.Sprintf("UDP port %d is closed at %s", c.Port, remote),
			"start culvert gateway there, with that geneve.listenPort, or let the port in"
	case errors.Is(err, unix.EHOSTUNREACH):
		return fmt.Sprintf("nobody is at %s", remote), "mend gateway.underlay, or start that machine"
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Sprintf("sending to %s is refused: %v", at, errors.Unwrap(err)),
			"let UDP pass there in this machine's firewall and routes"
	}
	return fmt.Sprintf("nothing comes back from %s", at),
		fmt.Sprintf("see that it runs, that UDP %d is open both ways, and that its file has gatewayAddress %s, and for this node vni %d, underlay %s, address %s, encap auto or %s",
			c.Port, written(c.GatewayAddress), c.VNI, c.Underlay, written(c.Address), speaks)
}

// knock sends an empty datagram to the gateway's port and returns the error that comes
// back, if any: the kernel tells a connected socket what ICMP says. A gateway that runs
// drops it.
func (c *Config) knock(ctx context.Context, at netip.AddrPort) error {
	dialer := net.Dialer{
		LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.Underlay, 0)),
		Control: func(_, _ string, conn syscall.RawConn) (err error) {
			// Without it, a host that nobody answers for is no error.
			level, option := unix.IPPROTO_IP, unix.IP_RECVERR
			if at.Addr().Is6() {
				level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
			}
			controlErr := conn.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) })
			return errors.Join(err, controlErr)
		},
	}
	conn, err := dialer.DialContext(ctx, "udp", at.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Write(nil); err != nil {
		return err
	}
	conn.SetReadDeadline(time.Now().Add(causePatience))
	_, err = conn.Read(make([]byte, 1))
	return err
}
