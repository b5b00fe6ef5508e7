package udp

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// receiver is the state of the one goroutine that calls Receive: the headers for recvmmsg and its
// result.
type receiver struct {
	headers  []unix.Mmsghdr
	iovecs   []unix.Iovec
	names    []sockaddr
	controls []control

	call  func(fd uintptr) bool // stored to avoid a closure per call
	used  int                   // headers offered to the kernel
	n     int                   // result: messages received
	errno unix.Errno            // result when n is 0

	blocked atomic.Bool // Receive has found nothing, and waits

	zoneIndex uint32 // last scope of a link-local source, and its name
	zoneName  string
}

func (r *receiver) init(s *Socket) {
	r.call = func(fd uintptr) bool {
		s.stats.receiveCalls.Add(1)
		r.n, r.errno = recvmmsg(fd, r.headers[:r.used])
		if r.errno != unix.EAGAIN {
			return true
		}
		r.blocked.Store(true)
		return false // wait until the socket is readable
	}
}

// offer prepares one header per message.
func (r *receiver) offer(messages []Message) {
	if n := len(messages); n > len(r.headers) {
		r.headers = make([]unix.Mmsghdr, n)
		r.iovecs = make([]unix.Iovec, n)
		r.names = make([]sockaddr, n)
		r.controls = make([]control, n)
		for i := range r.headers {
			h := &r.headers[i].Hdr
			h.Name = (*byte)(unsafe.Pointer(&r.names[i]))
			h.Iov = &r.iovecs[i]
			h.SetIovlen(1)
			h.Control = &r.controls[i].data[0]
		}
	}
	r.used = len(messages)
	for i := range messages {
		m, h := &messages[i], &r.headers[i].Hdr
		r.iovecs[i].Base = unsafe.SliceData(m.Buffer)
		r.iovecs[i].SetLen(len(m.Buffer))
		h.Namelen = unix.SizeofSockaddrInet6
		h.SetControllen(controlSize)
		h.Flags = 0
	}
}

// Receive blocks until at least one message has arrived and fills messages from the front; n says
// how many. Each message needs a Buffer; its other fields are set. A message that did not fit its
// Buffer has no Data and is counted (Stats.Truncated).
//
// The error is ErrWoken after Wake and net.ErrClosed after Close; any other is an unexpected errno
// of recvmmsg, after which the caller may try again, but not at once.
func (s *Socket) Receive(messages []Message) (n int, err error) {
	r := &s.rx
	r.offer(messages)
	for {
		err := s.raw.Read(r.call)
		if r.blocked.Load() {
			r.blocked.Store(false)
		}
		if err != nil {
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded):
				s.answerWake()
				return 0, ErrWoken
			case errors.Is(err, net.ErrClosed):
				return 0, net.ErrClosed
			}
			return 0, err
		}
		switch r.errno {
		case 0:
			s.accept(messages[:r.n])
			return r.n, nil
		case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ENETDOWN,
			unix.ENOPROTOOPT, unix.EPROTO,
			unix.EMSGSIZE, unix.ETIMEDOUT:
			// An ICMP error for something sent earlier. Reading it has cleared it, so this loop
			// does not spin.
			s.stats.receiveErrors.Add(1)
		default:
			return 0, os.NewSyscallError("recvmmsg", r.errno)
		}
	}
}

// accept turns what the kernel wrote into messages.
func (s *Socket) accept(messages []Message) {
	r := &s.rx
	var bytes, truncated uint64
	for i := range messages {
		m, h := &messages[i], &r.headers[i]
		m.Data, m.SegmentSize, m.TOS = m.Buffer[:min(int(h.Len), len(m.Buffer))], 0, 0
		m.Source, m.Destination = r.source(i), netip.Addr{}
		for rest := r.controls[i].data[:min(uint64(h.Hdr.Controllen), controlSize)]; len(rest) > 0; {
			var level, kind int32
			var data []byte
			level, kind, data, rest = next(rest)
			switch {
			case level == unix.SOL_UDP && kind == unix.UDP_GRO:
				m.SegmentSize = int(number(data))
			case level == unix.SOL_IP && kind == unix.IP_TOS, level == unix.SOL_IPV6 && kind == unix.IPV6_TCLASS:
				m.TOS = uint8(number(data))
			case kind == unix.IP_PKTINFO, kind == unix.IPV6_PKTINFO:
				m.Destination = ourAddress(level, kind, data)
			}
		}
		bytes += uint64(len(m.Data))
		if h.Hdr.Flags&unix.MSG_TRUNC != 0 {
			m.Data = nil
			truncated++
		}
	}
	s.stats.receivedMessages.Add(uint64(len(messages)))
	s.stats.receivedBytes.Add(bytes)
	if truncated > 0 {
		s.stats.truncated.Add(truncated)
	}
}

// source returns the address in names[i].
func (r *receiver) source(i int) netip.AddrPort {
	name := &r.names[i]
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&name.Port))[:])
	if name.Family == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(name)).Addr), port)
	}
	addr := netip.AddrFrom16(name.Addr).Unmap()
	if name.Scope_id != 0 {
		if name.Scope_id != r.zoneIndex {
			r.zoneIndex, r.zoneName = name.Scope_id, strconv.FormatUint(uint64(name.Scope_id), 10)
		}
		addr = addr.WithZone(r.zoneName)
	}
	return netip.AddrPortFrom(addr, port)
}
