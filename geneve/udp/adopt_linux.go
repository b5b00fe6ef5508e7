package udp

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// Adopt is Listen for a socket that is already open, in this process or another: all holders share
// what arrives there. The file stays the caller's.
func Adopt(file *os.File, o Options) (*Socket, error) {
	pc, err := net.FilePacketConn(file)
	if err != nil {
		return nil, fmt.Errorf("udp: adopt: %w", err)
	}
	conn, ok := pc.(*net.UDPConn)
	if !ok {
		pc.Close()
		return nil, fmt.Errorf("udp: adopt: %s is no UDP socket", pc.LocalAddr().Network())
	}
	return newSocket(conn, o)
}

// SyscallConn implements syscall.Conn, for passing the socket to another process.
func (s *Socket) SyscallConn() (syscall.RawConn, error) { return s.raw, nil }
