package lab

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// socket is a blocking socket. Benchmarks use system calls without Go's poller, so that they
// measure the path and not themselves.
type socket struct {
	fd, family int
	port       uint16 // local, if bound
}

// socketTimeout ends a call that would otherwise block forever.
const socketTimeout = 5 * time.Second

// newSocket makes a socket of the host's family inside it; calls on it may then come from any
// thread.
func newSocket(h *Host, kind, protocol int) (*socket, error) {
	s, err := in(h, func() (*socket, error) { return openSocket(familyOf(h.Address), kind, protocol) })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.Name, err)
	}
	return s, nil
}

// familyOf is the family of a's sockets.
func familyOf(a netip.Addr) int {
	if a.Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func sockaddrOf(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is6() {
		return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

func addrPort(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// openSocket makes a socket in the network namespace of this thread.
func openSocket(family, kind, protocol int) (*socket, error) {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &socket{fd: fd, family: family}
	if err := s.setTimeout(socketTimeout); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// setTimeout bounds what read, write, connect and accept may take.
func (s *socket) setTimeout(d time.Duration) error {
	t := unix.NsecToTimeval(d.Nanoseconds())
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, option, &t); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return nil
}

func (s *socket) bind(a netip.AddrPort) error {
	if err := unix.Bind(s.fd, sockaddrOf(a)); err != nil {
		return os.NewSyscallError("bind", err)
	}
	local, err := unix.Getsockname(s.fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	s.port = addrPort(local).Port()
	return nil
}

// listenTCP listens at a port, even if earlier connections to it are still closing; 0 is the
// kernel's choice.
func listenTCP(h *Host, port uint16) (*socket, error) {
	s, err := newSocket(h, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	if port != 0 {
		err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	}
	if err == nil {
		err = s.bind(netip.AddrPortFrom(h.Address, port))
	}
	if err == nil {
		err = os.NewSyscallError("listen", unix.Listen(s.fd, unix.SOMAXCONN))
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("%s: %w", h.Name, err)
	}
	return s, nil
}

func (s *socket) accept() (*socket, error) {
	for {
		fd, _, err := unix.Accept4(s.fd, unix.SOCK_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("accept", err)
		}
		conn := &socket{fd: fd}
		if err := conn.setTimeout(socketTimeout); err != nil {
			conn.close()
			return nil, err
		}
		return conn, nil
	}
}

func (s *socket) connect(to netip.AddrPort) error {
	for {
		err := unix.Connect(s.fd, sockaddrOf(to))
		if err != unix.EINTR {
			return os.NewSyscallError("connect", err)
		}
	}
}

func (s *socket) Write(b []byte) (int, error) {
	for {
		n, err := unix.Write(s.fd, b)
		if err != unix.EINTR {
			return n, os.NewSyscallError("write", err)
		}
	}
}

// Read returns io.EOF at the end of a stream.
func (s *socket) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(s.fd, b)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0 && len(b) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// shutdown makes calls that block return.
func (s *socket) shutdown() { unix.Shutdown(s.fd, unix.SHUT_RDWR) }

func (s *socket) close() { unix.Close(s.fd) }
