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

// knocker finds out what the kernel knows of addresses that do not answer. The sockets of
// the tunnels are not told of ICMP errors, since anybody could forge those: a socket of
// its own sends an empty datagram there and waits for one. What it finds goes into
// sentences and nowhere else.
type knocker struct {
	deaf  bool // the gateway's network is not the kernel's
	doors map[netip.AddrPort]*door
}

type door struct {
	conn *net.UDPConn // nil: the kernel sent nothing
	at   time.Duration
	is   health.Knock
	used bool
}

// How far apart datagrams are: a machine that has much to refuse does not say so to each;
// and a peer that gets them is not to call them noise.
const (
	nodeKnocks = time.Second
	peerKnocks = 15 * time.Second
)

// knock returns what is known of the one at to. It does not block.
func (k *knocker) knock(to netip.AddrPort, now, interval time.Duration) health.Knock {
	if k.deaf {
		return health.KnockSilent
	}
	if k.doors == nil {
		k.doors = make(map[netip.AddrPort]*door)
	}
	d := k.doors[to]
	if d == nil {
		d = &door{at: now - interval}
		k.doors[to] = d
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

// tidy forgets those at whose doors nobody has knocked since it was called last.
func (k *knocker) tidy() {
	for to, d := range k.doors {
		if !d.used {
			d.close()
			delete(k.doors, to)
		}
		d.used = false
	}
}

func (k *knocker) close() {
	for _, d := range k.doors {
		d.close()
	}
	clear(k.doors)
}

func (d *door) close() {
	if d.conn != nil {
		d.conn.Close()
		d.conn = nil
	}
}

func (d *door) send(to netip.AddrPort) (err error) {
	if d.conn != nil {
		_, err = d.conn.Write(nil)
		return err
	}
	if d.conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)); err != nil {
		d.conn = nil
		return err
	}
	d.control(func(fd int) {
		// Without it, what a connected socket learns is "port unreachable" only. A kernel
		// that does not have it tells less.
		if to.Addr().Is4() {
			unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_RECVERR, 1)
		} else {
			unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_RECVERR, 1)
		}
	})
	_, err = d.conn.Write(nil)
	return err
}

// pending returns the error that has come in for what was sent.
func (d *door) pending() (err error) {
	if d.conn != nil {
		d.control(func(fd int) {
			if n, e := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); e == nil && n != 0 {
				err = syscall.Errno(n)
			}
		})
	}
	return err
}

func (d *door) control(f func(fd int)) {
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
