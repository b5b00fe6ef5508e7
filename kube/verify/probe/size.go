package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	minSize   = 68                     // that every link carries (RFC 791, Section 3.2)
	sizeTries = 3                      // of a packet, and of the search
	sizeWait  = 300 * time.Millisecond // for an answer, or ICMP
)

// size finds the largest packet that passes unfragmented, which should have mtu bytes, and what
// happens to a larger one.
func (t *Task) size(ctx context.Context, address string, mtu int) *Size {
	of := ipv4
	dialer := net.Dialer{Control: func(network, _ string, c syscall.RawConn) (err error) {
		if network == "udp6" {
			of = ipv6
		}
		control := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), of.level, of.discover, of.do)
		})
		return errors.Join(control, err)
	}}
	conn, err := dialer.DialContext(ctx, "udp", address)
	if err != nil {
		return &Size{}
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	p := &sizer{t, conn.(*net.UDPConn), of}
	s := &Size{Own: p.own()}
	find(p, s, mtu)
	return s
}

// A prober reports what happens to one packet, and the path's MTU if the network has reported it.
type prober interface {
	try(size int) Above
	told() int
}

// A family is how the kernel is told to fragment nothing, and asked for the path's MTU.
type family struct {
	headers                  int // without options, and UDP's
	level, discover, do, mtu int
}

var (
	ipv4 = family{20 + 8, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO, unix.IP_MTU}
	ipv6 = family{40 + 8, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO, unix.IPV6_MTU}
)

type sizer struct {
	*Task
	conn *net.UDPConn
	family
}

// find searches again if a larger packet passes after all: on a busy machine, packets are lost by
// chance, and answers come late.
func find(p prober, s *Size, mtu int) {
	for range sizeTries {
		if search(p, s, mtu) || s.Above != Passed {
			return
		}
	}
}

// search needs only a few packets if all is well; otherwise it bisects. It reports whether the
// packet that should pass does.
func search(p prober, s *Size, mtu int) bool {
	most := mtu
	if s.Own > 0 {
		most = min(mtu, s.Own)
	}
	first := p.try(most)
	if first == Refused { // the path's MTU is smaller, and the network reports it
		s.Told = p.told()
		if s.Told >= minSize && s.Told < most {
			most = s.Told
			first = p.try(most)
		}
	}
	if first != Passed {
		low, high := minSize-1, most // low passes or was not tried, high does not pass
		for high-low > 1 {
			middle := (low + high) / 2
			if p.try(middle) == Passed {
				low = middle
			} else {
				high = middle
			}
		}
		if low < minSize {
			return false
		}
		most = low
	}
	s.Largest = most
	s.Above = p.try(most + 1)
	if s.Above == Refused {
		s.Told = p.told()
	}
	return first == Passed
}

// own returns the MTU of the interface with the socket's address; 0: unknown.
func (p *sizer) own() int {
	local, ok := p.conn.LocalAddr().(*net.UDPAddr)
	if !ok {
		return 0
	}
	all, err := net.Interfaces()
	if err != nil {
		return 0
	}
	for _, i := range all {
		addresses, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addresses {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(local.IP) {
				return i.MTU
			}
		}
	}
	return 0
}

// told returns the path's MTU that the kernel knows.
func (p *sizer) told() (mtu int) {
	c, err := p.conn.SyscallConn()
	if err != nil {
		return 0
	}
	c.Control(func(fd uintptr) {
		if mtu, err = unix.GetsockoptInt(int(fd), p.level, p.mtu); err != nil {
			mtu = 0
		}
	})
	return mtu
}

// try sends a packet of a size until it is answered or refused, a few times.
func (p *sizer) try(size int) Above {
	b, number := make([]byte, 1<<16), rand.Uint32() // answers to all tries count
	for range sizeTries {
		if _, err := p.conn.Write(p.datagram(number, size-p.headers)); errors.Is(err, unix.EMSGSIZE) {
			return Refused
		}
		p.conn.SetReadDeadline(time.Now().Add(sizeWait))
		for {
			n, err := p.conn.Read(b)
			if errors.Is(err, unix.EMSGSIZE) {
				return Refused
			}
			if err != nil {
				break
			}
			if isDatagram(b[:n], p.Token, '!') && n == max(size-p.headers, minDatagram) &&
				binary.BigEndian.Uint32(b[tokenBytes+1:]) == number {
				return Passed
			}
		}
	}
	return Vanished
}
