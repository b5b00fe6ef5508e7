package udp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Socket is an unconnected UDP socket. See the package comment for which goroutine may call which
// method.
type Socket struct {
	conn  *net.UDPConn
	raw   syscall.RawConn
	local netip.AddrPort
	is6   bool // false: IPv4 alone

	gro                       bool
	gso                       [2]atomic.Bool // towards IPv4 and IPv6
	receiveBuffer, sendBuffer int

	woken atomic.Bool // a Wake was called that no Receive has answered yet
	rx    receiver
	stats counters
}

// counters are the atomics behind Stats, written once per batch.
type counters struct {
	receiveCalls, receivedMessages, receivedBytes atomic.Uint64
	truncated, receiveErrors                      atomic.Uint64
	sendCalls, sentDatagrams, sentBytes           atomic.Uint64
	refusedTrains                                 atomic.Uint64
	sendDrops                                     [numReasons]atomic.Uint64
}

// Listen opens a socket: network is "udp4", "udp6" or "udp", which is both families if the machine
// has IPv6. An invalid or unspecified address listens on all addresses, port 0 chooses a free one.
// Errors are those of net.ListenConfig, or wrap the errno of a socket option.
func Listen(network string, addr netip.AddrPort, o Options) (*Socket, error) {
	if network != "udp4" && network != "udp6" && network != "udp" {
		return nil, fmt.Errorf("udp: listen: %w", net.UnknownNetworkError(network))
	}
	at := addr.String()
	if !addr.Addr().IsValid() {
		at = fmt.Sprintf(":%d", addr.Port()) // package net knows what the machine has
	}
	var lc net.ListenConfig
	pc, err := lc.ListenPacket(context.Background(), network, at)
	if err != nil {
		return nil, fmt.Errorf("udp: %w", err)
	}
	return newSocket(pc.(*net.UDPConn), o)
}

func newSocket(conn *net.UDPConn, o Options) (*Socket, error) {
	s := &Socket{conn: conn, local: conn.LocalAddr().(*net.UDPAddr).AddrPort()}
	s.local = netip.AddrPortFrom(s.local.Addr().Unmap(), s.local.Port())
	s.is6 = s.local.Addr().Is6()
	if err := s.configure(o); err != nil {
		s.conn.Close()
		return nil, fmt.Errorf("udp: listen on %v: %w", s.local, err)
	}
	s.rx.init(s)
	return s, nil
}

// configure sets the socket options and probes the offloads.
func (s *Socket) configure(o Options) (err error) {
	if s.raw, err = s.conn.SyscallConn(); err != nil {
		return err
	}
	control := func(fd uintptr) {
		fdInt := int(fd)
		_, counts := memoryDrops(fd)
		s.receiveBuffer = setReceiveBuffer(fdInt, o.ReceiveBuffer, counts)
		s.sendBuffer = setBuffer(fdInt, unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, o.SendBuffer)
		// package net sets it; a tunnel has one other end
		unix.SetsockoptInt(fdInt, unix.SOL_SOCKET, unix.SO_BROADCAST, 0)
		// The kernel learns path MTUs from ICMP messages, which anybody can forge by quoting just
		// two addresses. So the sockets ignore the learnt values, and their owners probe instead
		// (RFC 8899). Packets keep DF, so that no router fragments a probe, and packets above the
		// device's own MTU get EMSGSIZE. A kernel without the options, such as gVisor's, learns
		// nothing for UDP.
		// of IPv4, if the socket has both
		unix.SetsockoptInt(fdInt, unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
		if s.is6 {
			unix.SetsockoptInt(fdInt, unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE)
			err = os.NewSyscallError("setsockopt IPV6_RECVTCLASS", unix.SetsockoptInt(fdInt, unix.SOL_IPV6,
				unix.IPV6_RECVTCLASS, 1))
			unix.SetsockoptInt(fdInt, unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1) // also of IPv4
			unix.SetsockoptInt(fdInt, unix.SOL_IP, unix.IP_RECVTOS, 1)         // of IPv4, if the socket has both
			if o.ZeroChecksums {
				unix.SetsockoptInt(fdInt, unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1)
			}
		} else {
			err = os.NewSyscallError("setsockopt IP_RECVTOS", unix.SetsockoptInt(fdInt, unix.SOL_IP,
				unix.IP_RECVTOS, 1))
			unix.SetsockoptInt(fdInt, unix.SOL_IP, unix.IP_PKTINFO, 1)
		}
		if !o.NoGRO && unix.SetsockoptInt(fdInt, unix.SOL_UDP, unix.UDP_GRO, 1) == nil {
			// Kernels before 5.12 cannot report the option, and merge trains that they should not:
			// leave it off there.
			on, e := unix.GetsockoptInt(fdInt, unix.SOL_UDP, unix.UDP_GRO)
			s.gro = e == nil && on == 1
			if !s.gro {
				unix.SetsockoptInt(fdInt, unix.SOL_UDP, unix.UDP_GRO, 0)
			}
		}
		if !o.NoGSO {
			_, e := unix.GetsockoptInt(fdInt, unix.SOL_UDP, unix.UDP_SEGMENT)
			alone, _ := unix.GetsockoptInt(fdInt, unix.SOL_IPV6, unix.IPV6_V6ONLY) // of IPv4, an error and 0
			s.gso[0].Store(e == nil && alone == 0)
			s.gso[1].Store(e == nil && s.is6)
		}
	}
	if e := s.raw.Control(control); e != nil {
		return e
	}
	return err
}

// setBuffer asks for a socket buffer of size bytes and returns what was granted. The kernel caps a
// plain request at the system's maximum; force is for processes with CAP_NET_ADMIN. Success of
// force proves nothing: gVisor accepts and ignores it.
func setBuffer(fd, option, force, size int) int {
	if size <= 0 {
		size = DefaultSocketBuffer
	}
	granted := 0
	for _, wish := range []int{option, force} {
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, wish, size)
		n, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option)
		if granted = n / 2; granted >= size { // socket(7): the kernel doubles the value to allow for its bookkeeping
			break
		}
	}
	return granted
}

// bareReceiveBuffer is the size in bytes of a receive buffer whose kernel counts only payloads.
// Under floods of small datagrams gVisor's kernel was seen to need 117 MiB with twice as much on
// two busy CPUs, and 83 MiB with this.
const bareReceiveBuffer = 1 << 19

// setReceiveBuffer asks for a receive buffer of size bytes and returns what was granted. A kernel
// that counts memory counts everything that a datagram occupies. gVisor's counts payloads, up to
// twice the requested size, and keeps the rest in its heap: a flood of small datagrams would need
// more there than the control group allows, and stall for many seconds.
func setReceiveBuffer(fd, size int, counts bool) int {
	if counts {
		return setBuffer(fd, unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, size)
	}
	if size <= 0 || size > bareReceiveBuffer {
		size = bareReceiveBuffer
	}
	return 2 * setBuffer(fd, unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, size/2)
}

// LocalAddr returns the address and port that the socket is bound to.
func (s *Socket) LocalAddr() netip.AddrPort { return s.local }

// SetMark sets the firewall mark (SO_MARK) of packets that the socket sends. It needs CAP_NET_ADMIN
// or CAP_NET_RAW.
func (s *Socket) SetMark(mark uint32) error {
	var err error
	if e := s.raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark))
	}); e != nil {
		return fmt.Errorf("udp: set mark: %w", e)
	}
	if err != nil {
		return fmt.Errorf("udp: set mark: %w", err)
	}
	return nil
}

// Wake makes a blocked Receive, or else the next one, return ErrWoken. It never blocks.
func (s *Socket) Wake() {
	if s.woken.Swap(true) {
		return // the receiver has not answered the previous Wake yet, and will check its queue after it has
	}
	s.conn.SetReadDeadline(time.Unix(1, 0))
}

// Poll makes a blocked Receive check the socket again, and return ErrWoken if there is nothing. A
// goroutine that keeps a P busy calls it now and then for the other direction: Go's scheduler polls
// the network only when a P has nothing else to run, and as a last resort every 10 ms. Any
// goroutine may call it; a Receive that is not blocked ignores it.
func (s *Socket) Poll() {
	if s.rx.blocked.Load() {
		s.Wake()
	}
}

// answerWake undoes Wake. The order matters: a Wake between the two statements does nothing, but
// the caller's following check of its queue covers it. In the other order a deadline could be
// cleared that nobody would set again.
func (s *Socket) answerWake() {
	s.conn.SetReadDeadline(time.Time{})
	s.woken.Store(false)
}

// GSO reports whether trains to an address are sent with UDP_SEGMENT: a device may support it for
// one family only.
func (s *Socket) GSO(to netip.Addr) bool { return s.gso[familyOf(to)].Load() }

// familyOf returns 0 for IPv4, 1 for IPv6.
func familyOf(a netip.Addr) int {
	if a.Unmap().Is6() {
		return 1
	}
	return 0
}

// Close closes the socket. Receive and Send return net.ErrClosed, including blocked calls.
func (s *Socket) Close() error { return s.conn.Close() }

// Stats returns the counters. They are read one by one, not at one instant.
func (s *Socket) Stats() Stats {
	c := &s.stats
	overflows, known := s.overflows()
	st := Stats{
		ReceiveCalls: c.receiveCalls.Load(), ReceivedMessages: c.receivedMessages.Load(),
		ReceivedBytes: c.receivedBytes.Load(),
		Overflows:     overflows, OverflowsKnown: known, Truncated: c.truncated.Load(),
		ReceiveErrors: c.receiveErrors.Load(),
		SendCalls:     c.sendCalls.Load(), SentDatagrams: c.sentDatagrams.Load(), SentBytes: c.sentBytes.Load(),
		RefusedTrains: c.refusedTrains.Load(), Waits: s.waits(),
		GRO: s.gro, GSO: s.gso[0].Load() || s.gso[1].Load(), ReceiveBuffer: s.receiveBuffer, SendBuffer: s.sendBuffer,
	}
	for i := range st.SendDrops {
		st.SendDrops[i] = c.sendDrops[i].Load()
	}
	return st
}

// waits asks the kernel whether a message can be received. A message without payload does not
// count.
func (s *Socket) waits() (waits bool) {
	s.raw.Control(func(fd uintptr) {
		n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ) // udp(7): FIONREAD
		waits = err == nil && n > 0
	})
	return waits
}

// overflows asks the kernel how many datagrams it has dropped because the receive buffer was full.
// This is unknown after Close, and always under gVisor.
//
// SO_RXQ_OVFL would report it with each message, but kernels with hardened usercopy (Debian's 6.1)
// have a bug there: the count is copied from the packet buffer of a TCP segment that arrived in a
// tunnel, which is in a slab that must not be copied from, and recvmmsg never returns.
func (s *Socket) overflows() (n uint64, known bool) {
	s.raw.Control(func(fd uintptr) { n, known = memoryDrops(fd) })
	return n, known
}

// memoryDrops reads the overflows from a socket's memory statistics, if the kernel has these.
func memoryDrops(fd uintptr) (n uint64, known bool) {
	const drops = 8 // SK_MEMINFO_DROPS, linux/sock_diag.h
	var info [drops + 1]uint32
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	return uint64(info[drops]), errno == 0 && size == uint32(unsafe.Sizeof(info))
}
