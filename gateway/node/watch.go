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

	"culvert/gateway/node/rtnl"
)

// answer is the result of one probe of the gateway.
type answer uint8

const (
	untold answer = iota // nothing was asked, or it is too early to say
	no
	yes
)

// verdict is the state of the gateway as logged.
type verdict uint8

const (
	unseen  verdict = iota
	answers         // packets of all sizes come back
	short           // small packets come back, but none of mtu bytes
	silent          // nothing comes back
)

const (
	patience      = 3               // probes without an answer before that is logged
	causePatience = 4 * time.Second // longer than the kernel needs to find that nobody has an address
)

// pace is how often a node probes the gateway.
type pace struct {
	look    time.Duration // while the state is changing
	settled time.Duration // while the gateway answers
	cause   time.Duration // between two searches for the cause of its silence
}

var usualPace = pace{look: time.Second, settled: 10 * time.Second, cause: 10 * time.Second}

// observer turns probes into verdicts.
type observer struct {
	verdict       verdict
	silent, short int // probes in a row without any answer, and without one of mtu bytes
}

// take adds a probe: whether anything came back, and whether a packet of mtu bytes did.
func (s *observer) take(small, whole answer) (changed bool) {
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

// settled reports whether the state is known and good.
func (s *observer) settled() bool { return s.verdict == answers && s.silent == 0 && s.short == 0 }

// watch checks whether the gateway answers, and logs changes.
func (n *Node) watch(ctx context.Context) {
	var s observer
	var said string // the logged cause of the gateway's silence
	var saidAt time.Time
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		changed := s.take(n.link.probe())
		remote := *n.remote.Load()
		entry := n.log.WithField("remote", remote)
		switch {
		case changed && s.verdict == answers:
			entry.Info("the gateway answers")
		case changed && s.verdict == short:
			entry.WithFields(logrus.Fields{"bytes": n.config.MTU, "remedy": fmt.Sprintf(
				"let the way to it carry %d bytes, and write the same mtu and address at both ends",
				n.config.MTU+rtnl.Overhead(n.config.Underlay))}).
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

// silence finds out why the gateway at remote is silent, as far as this node can tell.
func (n *Node) silence(ctx context.Context, remote netip.Addr) (cause, remedy string) {
	c, speaks := n.config, n.link.mode()
	if speaks == TUN {
		speaks = Geneve
	}
	say := func(path, format string, args ...any) {
		if cause == "" && path != "mtu" { // small packets pass anyway
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
		return fmt.Sprintf("nobody is at %s", remote), "correct gateway.underlay, or start that machine"
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Sprintf("sending to %s is refused: %v", at, errors.Unwrap(err)),
			"let UDP pass there in this machine's firewall and routes"
	}
	return fmt.Sprintf("nothing comes back from %s", at),
		fmt.Sprintf("see that it runs, that UDP %d is open both ways, and that its file has gatewayAddress %s, and for this node vni %d, underlay %s, address %s, encap auto or %s",
			c.Port, written(c.GatewayAddress), c.VNI, c.Underlay, written(c.Address), speaks)
}

// knock sends an empty datagram to the gateway's port and returns the resulting error, if any: the
// kernel reports ICMP errors to a connected socket. A running gateway drops the datagram.
func (c *Config) knock(ctx context.Context, at netip.AddrPort) error {
	dialer := net.Dialer{
		LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.Underlay, 0)),
		Control: func(_, _ string, conn syscall.RawConn) (err error) {
			// Without it, an unreachable host is no error.
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
