package netns

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is a blocking socket. Benchmarks use system calls without Go's poller, so that they
// measure the path and not themselves.
type Socket struct {
	FD, Family int
	Port       uint16 // local, if bound
}

// socketTimeout ends a call that would otherwise block forever.
const socketTimeout = 5 * time.Second

// NewSocket makes a socket of the host's family inside it; calls on it may then come from any
// thread.
func NewSocket(h *Host, kind, protocol int) (*Socket, error) {
	s, err := in(h, func() (*Socket, error) { return OpenSocket(familyOf(h.Address), kind, protocol) })
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

// SockaddrOf returns an address for system calls.
func SockaddrOf(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is6() {
		return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

// AddrPortOf is the reverse of SockaddrOf.
func AddrPortOf(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// OpenSocket makes a socket in the network namespace of this thread.
func OpenSocket(family, kind, protocol int) (*Socket, error) {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &Socket{FD: fd, Family: family}
	if err := s.SetTimeout(socketTimeout); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// SetTimeout bounds what Read, Write, Connect and Accept may take.
func (s *Socket) SetTimeout(d time.Duration) error {
	t := unix.NsecToTimeval(d.Nanoseconds())
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(s.FD, unix.SOL_SOCKET, option, &t); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return nil
}

// Bind binds the socket to a local address; port 0 is the kernel's choice.
func (s *Socket) Bind(a netip.AddrPort) error {
	if err := unix.Bind(s.FD, SockaddrOf(a)); err != nil {
		return os.NewSyscallError("bind", err)
	}
	local, err := unix.Getsockname(s.FD)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	s.Port = AddrPortOf(local).Port()
	return nil
}

// ListenTCP listens at a port, even if earlier connections to it are still closing; 0 is the
// kernel's choice.
func ListenTCP(h *Host, port uint16) (*Socket, error) {
	s, err := NewSocket(h, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	if port != 0 {
		err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(s.FD, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	}
	if err == nil {
		err = s.Bind(netip.AddrPortFrom(h.Address, port))
	}
	if err == nil {
		err = os.NewSyscallError("listen", unix.Listen(s.FD, unix.SOMAXCONN))
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("%s: %w", h.Name, err)
	}
	return s, nil
}

// Accept waits for a connection.
func (s *Socket) Accept() (*Socket, error) {
	for {
		fd, _, err := unix.Accept4(s.FD, unix.SOCK_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("accept", err)
		}
		conn := &Socket{FD: fd}
		if err := conn.SetTimeout(socketTimeout); err != nil {
			conn.Close()
			return nil, err
		}
		return conn, nil
	}
}

// Connect connects the socket.
func (s *Socket) Connect(to netip.AddrPort) error {
	for {
		err := unix.Connect(s.FD, SockaddrOf(to))
		if err != unix.EINTR {
			return os.NewSyscallError("connect", err)
		}
	}
}

// Write is write(2).
func (s *Socket) Write(b []byte) (int, error) {
	for {
		n, err := unix.Write(s.FD, b)
		if err != unix.EINTR {
			return n, os.NewSyscallError("write", err)
		}
	}
}

// Read returns io.EOF at the end of a stream.
func (s *Socket) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(s.FD, b)
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

// Shutdown makes calls that block return.
func (s *Socket) Shutdown() { unix.Shutdown(s.FD, unix.SHUT_RDWR) }

// Close closes the socket.
func (s *Socket) Close() { unix.Close(s.FD) }
