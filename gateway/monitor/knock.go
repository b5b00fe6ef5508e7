package monitor

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"culvert/gateway/health"
)

// knocker asks the kernel about addresses that do not answer. The tunnels' sockets ignore ICMP
// errors, because anybody could forge them. So a socket of the knocker sends an empty datagram to
// the address and waits for an error. Its results appear only in log lines and findings.
type knocker struct {
	deaf    bool // the gateway's network is not the kernel's
	sockets map[netip.AddrPort]*knockSocket
}

type knockSocket struct {
	conn *net.UDPConn // nil: the kernel sent nothing
	at   time.Duration
	is   health.Knock
	used bool
}

// Time between two datagrams to one address. Kernels limit the rate of ICMP errors, and a peer
// should not report the datagrams as noise.
const (
	nodeKnocks = time.Second
	peerKnocks = 15 * time.Second
)

// knock sends a datagram to to if one is due, and returns what the kernel has reported about that
// address. It does not block.
func (k *knocker) knock(to netip.AddrPort, now, interval time.Duration) health.Knock {
	if k.deaf {
		return health.KnockSilent
	}
	if k.sockets == nil {
		k.sockets = make(map[netip.AddrPort]*knockSocket)
	}
	d := k.sockets[to]
	if d == nil {
		d = &knockSocket{at: now - interval}
		k.sockets[to] = d
	}
	d.used = true
	if err := d.pending(); err != nil {
		d.is = knockOf(err)
	}
	if now-d.at >= interval {
		d.at = now
		if err := d.send(to); err != nil {
			d.is = knockOf(err)
		}
	}
	return d.is
}

// tidy closes the sockets that knock has not used since the last call of tidy.
func (k *knocker) tidy() {
	for to, d := range k.sockets {
		if !d.used {
			d.close()
			delete(k.sockets, to)
		}
		d.used = false
	}
}

func (k *knocker) close() {
	for _, d := range k.sockets {
		d.close()
	}
	clear(k.sockets)
}

func (d *knockSocket) close() {
	if d.conn != nil {
		d.conn.Close()
		d.conn = nil
	}
}

func (d *knockSocket) send(to netip.AddrPort) (err error) {
	if d.conn != nil {
		_, err = d.conn.Write(nil)
		return err
	}
	if d.conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)); err != nil {
		d.conn = nil
		return err
	}
	d.control(func(fd int) {
		// Without this option a connected socket learns only of "port unreachable". On a kernel
		// that lacks it, less is known.
		if to.Addr().Is4() {
			unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_RECVERR, 1)
		} else {
			unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_RECVERR, 1)
		}
	})
	_, err = d.conn.Write(nil)
	return err
}

// pending returns the ICMP error that arrived for an earlier datagram.
func (d *knockSocket) pending() (err error) {
	if d.conn != nil {
		d.control(func(fd int) {
			if n, e := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); e == nil && n != 0 {
				err = syscall.Errno(n)
			}
		})
	}
	return err
}

func (d *knockSocket) control(f func(fd int)) {
	if raw, err := d.conn.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}

func knockOf(err error) health.Knock {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return health.KnockRefused
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.EHOSTDOWN):
		return health.KnockNobody
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.ENETDOWN),
		errors.Is(err, syscall.EADDRNOTAVAIL): // no address of that family on this machine
		return health.KnockNoRoute
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return health.KnockForbidden
	}
	return health.KnockSilent
}
