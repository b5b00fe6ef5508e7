package udp

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sockaddr holds an address of either family for the kernel.
type sockaddr = unix.RawSockaddrInet6

// control holds the control messages of one message. Up to three are received (UDP_GRO, type of
// service or traffic class, our address) or sent (UDP_SEGMENT, type of service or traffic class,
// our address).
type control struct {
	_    [0]uint64 // cmsg(3): same alignment as the header
	data [controlSize]byte
}

const (
	// controlSize is 2 × CMSG_SPACE(4) + CMSG_SPACE(sizeof(struct in6_pktinfo)) on 64-bit systems
	// and more than that on others.
	controlSize = 2*24 + 40
	// maxMessages is the number of messages of one sendmmsg call.
	maxMessages = 64
)

// recvmmsg and sendmmsg return the number of messages moved, or the errno of the first if none was.
// x/sys has no wrapper for them. The pointers inside the headers are Go pointers to heap memory,
// which keeps their targets alive and in place.
func recvmmsg(fd uintptr, headers []unix.Mmsghdr) (int, unix.Errno) {
	return mmsg(unix.SYS_RECVMMSG, fd, headers)
}

func sendmmsg(fd uintptr, headers []unix.Mmsghdr) (int, unix.Errno) {
	return mmsg(unix.SYS_SENDMMSG, fd, headers)
}

// mmsg makes the call raw: it cannot sleep (MSG_DONTWAIT). A normal call that takes longer than 20
// µs, as a train through the kernel's stack does, would lose its P to another thread, which
// migrates every goroutine from CPU to CPU.
func mmsg(trap, fd uintptr, headers []unix.Mmsghdr) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(headers))),
			uintptr(len(headers)),
			unix.MSG_DONTWAIT, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return int(n), 0
	}
}

// next splits the first control message off b, which the kernel wrote.
func next(b []byte) (level, kind int32, data, rest []byte) {
	if len(b) < unix.SizeofCmsghdr {
		return 0, 0, nil, nil
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(unsafe.SliceData(b)))
	if uint64(h.Len) < unix.SizeofCmsghdr || uint64(h.Len) > uint64(len(b)) {
		return 0, 0, nil, nil
	}
	return h.Level, h.Type, b[unix.SizeofCmsghdr:h.Len], b[min(unix.CmsgSpace(int(h.Len)-unix.SizeofCmsghdr), len(b)):]
}

// number reads the value of a control message: the kernel uses one byte (IP_TOS), two (UDP_SEGMENT)
// or four.
func number(data []byte) uint32 {
	switch {
	case len(data) >= 4:
		return binary.NativeEndian.Uint32(data)
	case len(data) >= 2:
		return uint32(binary.NativeEndian.Uint16(data))
	case len(data) == 1:
		return uint32(data[0])
	}
	return 0
}

// ourAddress reads from PKTINFO our address to which a message was sent.
func ourAddress(level, kind int32, data []byte) (a netip.Addr) {
	switch {
	case level == unix.SOL_IP && kind == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
		a = netip.AddrFrom4((*unix.Inet4Pktinfo)(unsafe.Pointer(unsafe.SliceData(data))).Spec_dst)
	case level == unix.SOL_IPV6 && kind == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
		a = netip.AddrFrom16((*unix.Inet6Pktinfo)(unsafe.Pointer(unsafe.SliceData(data))).Addr).Unmap()
	}
	if a.IsLinkLocalUnicast() {
		return netip.Addr{} // it would need its interface
	}
	return a
}

// putSource writes a control message with the source address at b[at:] and returns where the next
// one begins.
func putSource(b *control, at int, from netip.Addr) int {
	if from = from.Unmap(); from.Is4() {
		data, next := head(b, at, unix.SOL_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)
		*(*unix.Inet4Pktinfo)(unsafe.Pointer(unsafe.SliceData(data))) = unix.Inet4Pktinfo{Spec_dst: from.As4()}
		return next
	}
	data, next := head(b, at, unix.SOL_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo)
	*(*unix.Inet6Pktinfo)(unsafe.Pointer(unsafe.SliceData(data))) = unix.Inet6Pktinfo{Addr: from.As16()}
	return next
}

// head writes the header of a control message with a value of size bytes at b[at:]. It returns the
// room for the value, and where the next message begins.
func head(b *control, at int, level, kind int32, size int) (data []byte, next int) {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b.data[at]))
	h.Level, h.Type = level, kind
	h.SetLen(unix.CmsgLen(size))
	return b.data[at+unix.SizeofCmsghdr:], at + unix.CmsgSpace(size)
}

// put writes a control message with a value of size bytes (2 or 4) at b[at:] and returns where the
// next one begins.
func put(b *control, at int, level, kind int32, value uint32, size int) int {
	data, next := head(b, at, level, kind, size)
	if size == 2 {
		binary.NativeEndian.PutUint16(data, uint16(value))
	} else {
		binary.NativeEndian.PutUint32(data, value)
	}
	return next
}
