package udp

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sender is the Sender of a Socket. It owns message headers, no packets.
type sender struct {
	socket   *Socket
	headers  []unix.Mmsghdr
	names    []sockaddr
	controls []control
	iovecs   []unix.Iovec
	sent     []load  // content of each message
	gso      [2]bool // of the socket, as read when planning starts

	call  func(fd uintptr) bool // stored to avoid a closure per call
	from  int                   // first message not yet given to the kernel
	n     int                   // result: messages accepted from headers[from:]
	errno unix.Errno            // result when n is 0
}

// load describes one message: its train, or the train it is a part of, and its size.
type load struct {
	train, datagrams, bytes int
}

// NewSender implements Conn.
func (s *Socket) NewSender() Sender {
	t := &sender{socket: s}
	t.call = func(fd uintptr) bool {
		t.n, t.errno = sendmmsg(fd, t.headers[t.from:])
		return t.errno != unix.EAGAIN // false: the send buffer is full, wait until there is room
	}
	return t
}

// Send implements Sender.
func (s *sender) Send(trains []Train) (sent int, err error) {
	for i := range trains {
		trains[i].Sent = 0
	}
	for len(trains) > 0 {
		planned := s.plan(trains)
		done, n, e := s.flush(trains[:planned])
		sent += n
		if e != nil && err == nil {
			err = e
		}
		if e == net.ErrClosed {
			return sent, e
		}
		trains = trains[done:]
	}
	return sent, err
}

// plan builds the headers for as many trains as fit into one call, at least one, and returns their
// number.
func (s *sender) plan(trains []Train) int {
	// Count first: a slice that grew while being filled would leave pointers to its old array.
	// Another sender may find out meanwhile that a family has no GSO.
	for family := range s.gso {
		s.gso[family] = s.socket.gso[family].Load()
	}
	messages, iovecs, planned := 0, 0, 0
	for i := range trains {
		m, v := 1, len(trains[i].Parts)
		if _, datagrams := trains[i].size(); datagrams > 1 && !s.whole(&trains[i]) {
			m, v = datagrams, v+datagrams
		}
		if planned > 0 && messages+m > maxMessages {
			break
		}
		messages, iovecs, planned = messages+m, iovecs+v, planned+1
	}
	s.reserve(messages, iovecs)
	for i := range trains[:planned] {
		t := &trains[i]
		bytes, datagrams := t.size()
		if datagrams == 1 || s.whole(t) {
			s.add(t, load{i, datagrams, bytes}, t.Parts)
			continue
		}
		s.addSingles(t, i, bytes)
	}
	return planned
}

// whole reports whether a train is sent as one.
func (s *sender) whole(t *Train) bool { return !t.Single && s.gso[familyOf(t.Destination.Addr())] }

// reserve empties the header arrays and makes room.
func (s *sender) reserve(messages, iovecs int) {
	if messages > cap(s.headers) {
		s.headers = make([]unix.Mmsghdr, 0, max(messages, maxMessages))
		s.names = make([]sockaddr, cap(s.headers))
		s.controls = make([]control, cap(s.headers))
		s.sent = make([]load, 0, cap(s.headers))
	}
	if iovecs > cap(s.iovecs) {
		s.iovecs = make([]unix.Iovec, 0, max(iovecs, 2*maxMessages))
	}
	s.headers, s.iovecs, s.sent, s.from = s.headers[:0], s.iovecs[:0], s.sent[:0], 0
}

// add appends one message with the given parts.
func (s *sender) add(t *Train, l load, parts [][]byte) {
	first := len(s.iovecs)
	for _, p := range parts {
		s.gather(p)
	}
	s.finish(t, l, first)
}

// addSingles appends one message for each datagram of t.
func (s *sender) addSingles(t *Train, index, bytes int) {
	first, room := len(s.iovecs), t.SegmentSize
	for _, p := range t.Parts {
		for len(p) > 0 {
			n := min(len(p), room)
			s.gather(p[:n])
			p, room, bytes = p[n:], room-n, bytes-n
			if room == 0 || bytes == 0 {
				s.finish(t, load{index, 1, t.SegmentSize - room}, first)
				first, room = len(s.iovecs), t.SegmentSize
			}
		}
	}
}

// gather appends one iovec.
func (s *sender) gather(p []byte) {
	s.iovecs = append(s.iovecs, unix.Iovec{Base: unsafe.SliceData(p)})
	s.iovecs[len(s.iovecs)-1].SetLen(len(p))
}

// finish appends the header for the iovecs from first on.
func (s *sender) finish(t *Train, l load, first int) {
	i := len(s.headers)
	s.headers = s.headers[:i+1]
	s.sent = append(s.sent, l)
	h := &s.headers[i].Hdr
	*h = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&s.names[i]))}
	h.Namelen = s.destination(&s.names[i], t.Destination)
	if n := len(s.iovecs) - first; n > 0 {
		h.Iov = &s.iovecs[first]
		h.SetIovlen(n)
	}
	c, used := &s.controls[i], 0
	if t.TOS != 0 {
		level, kind := int32(unix.SOL_IP), int32(unix.IP_TOS)
		if t.Destination.Addr().Unmap().Is6() {
			level, kind = unix.SOL_IPV6, unix.IPV6_TCLASS
		}
		used = put(c, used, level, kind, uint32(t.TOS), 4)
	}
	if t.Source.IsValid() {
		used = putSource(c, used, t.Source)
	}
	if l.datagrams > 1 {
		used = put(c, used, unix.SOL_UDP, unix.UDP_SEGMENT, uint32(t.SegmentSize), 2)
	}
	if used > 0 {
		h.Control = &c.data[0]
		h.SetControllen(used)
	}
}

// destination writes to as the kernel's address and returns its length. An address of the other
// family is written as such, and the kernel refuses it.
func (s *sender) destination(name *sockaddr, to netip.AddrPort) uint32 {
	*name = sockaddr{}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&name.Port))[:], to.Port())
	addr := to.Addr()
	if !s.socket.is6 && (addr.Is4() || addr.Is4In6()) {
		addr = addr.Unmap()
		name4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(name))
		name4.Family, name4.Addr = unix.AF_INET, addr.As4()
		return unix.SizeofSockaddrInet4
	}
	if !addr.IsValid() {
		name.Family = unix.AF_UNIX // refused by both families, where AF_UNSPEC would mean this host
		return unix.SizeofSockaddrInet6
	}
	// IPv4 is mapped (RFC 4291, Section 2.5.5.2): an IPv6-only socket refuses it
	name.Family, name.Addr = unix.AF_INET6, addr.As16()
	if zone := addr.Zone(); zone != "" {
		name.Scope_id = scope(zone)
	}
	return unix.SizeofSockaddrInet6
}

// scope returns the interface index that a zone stands for, 0 when there is none.
func scope(zone string) uint32 {
	if index, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(index)
	}
	if ifi, err := net.InterfaceByName(zone); err == nil {
		return uint32(ifi.Index)
	}
	return 0
}

// flush gives the planned messages to the kernel. It returns how many trains are finished: all, or
// those before a train that the kernel refused as one or because of its Source; that train must
// then be planned again without.
func (s *sender) flush(trains []Train) (done, sent int, err error) {
	var bytes, calls uint64
	defer func() {
		c := &s.socket.stats
		c.sendCalls.Add(calls)
		c.sentDatagrams.Add(uint64(sent))
		c.sentBytes.Add(bytes)
	}()
	for s.from < len(s.headers) {
		if e := s.socket.raw.Write(s.call); e != nil {
			if errors.Is(e, net.ErrClosed) {
				e = net.ErrClosed
			}
			return len(trains), sent, e
		}
		if s.n > 0 { // possibly fewer than offered: the next call returns the errno of the first one left
			calls++
			for _, l := range s.sent[s.from : s.from+s.n] {
				trains[l.train].Sent += l.datagrams
				sent += l.datagrams
				bytes += uint64(l.bytes)
			}
			s.from += s.n
			continue
		}
		l := s.sent[s.from]
		t := &trains[l.train]
		if l.datagrams > 1 && refusesTrain(s.errno) {
			if s.errno == unix.EIO { // udp(7): the device cannot checksum this family, so no train will ever leave it
				s.socket.gso[familyOf(t.Destination.Addr())].Store(false)
			}
			s.socket.stats.refusedTrains.Add(1)
			t.Single = true
			return l.train, sent, err
		}
		if t.Source.IsValid() && t.Sent == 0 && refusesSource(s.errno) {
			t.Source = netip.Addr{}
			return l.train, sent, err
		}
		s.socket.stats.sendDrops[reasonOf(s.errno)].Add(uint64(l.datagrams))
		if err == nil {
			err = s.errno
		}
		s.from++
	}
	return len(trains), sent, err
}

// refusesTrain reports whether single datagrams may pass where a train did not: no checksum offload
// on the device (EIO), more segments than the kernel takes (EINVAL), or segments above the device's
// MTU (EINVAL, EMSGSIZE), where the last, shorter one may fit.
func refusesTrain(errno unix.Errno) bool {
	return errno == unix.EIO || errno == unix.EINVAL || errno == unix.EMSGSIZE || errno == unix.EOPNOTSUPP
}

// refusesSource reports whether a datagram may pass from another address of ours. For an address
// that we do not have (any more), IPv4 returns ENETUNREACH, IPv6 EINVAL.
func refusesSource(errno unix.Errno) bool {
	return errno == unix.EINVAL || errno == unix.ENETUNREACH || errno == unix.EADDRNOTAVAIL
}

// reasonOf classifies the errno of a datagram that was not sent.
func reasonOf(errno unix.Errno) Reason {
	switch errno {
	case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ENETDOWN,
		unix.ETIMEDOUT, unix.EPROTO,
		unix.EADDRNOTAVAIL: // returned for IPv6 by a machine without IPv6 addresses
		return Unreachable
	case unix.ENOBUFS, unix.ENOMEM:
		return NoBuffer
	case unix.EMSGSIZE:
		return TooBig
	case unix.EPERM, unix.EACCES:
		return NotPermitted
	}
	return Invalid
}
