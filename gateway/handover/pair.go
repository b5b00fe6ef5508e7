package handover

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Monotonic is a time that processes of one machine share, in nanoseconds.
func Monotonic() int64 {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return now.Nano()
}

// RelayPair returns both ends of a Relay, the other process's as a descriptor.
func RelayPair() (net.Conn, int, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, -1, os.NewSyscallError("socketpair", err)
	}
	f := os.NewFile(uintptr(pair[0]), "relay")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		unix.Close(pair[1])
	}
	return conn, pair[1], err
}
