package services

import (
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// patience is how often an empty device is looked at again before its reader sleeps. Those that the last packets have woken run first, and
// what they send is taken without being woken for it: a wake-up from another CPU takes 15 µs, a look less than one. Medians of three series on
// two CPUs, more and less busy, together with raw calls: 1.05 to 1.5 of the throughput, 1.03 to 1.4 of the connections a second.
const patience = 20

// A queue is the descriptor of a TUN device that does not block.
type queue uintptr

func (q queue) Read(b []byte) (int, error) { return q.call(unix.SYS_READ, b) }

func (q queue) Write(b []byte) (int, error) { return q.call(unix.SYS_WRITE, b) }

// call makes the call raw: it does not wait for packets, but one that is written goes all its way through the kernel, often for longer than 20 µs.
// Then a call that is not raw loses its P to another thread, and each packet costs the change of threads.
func (q queue) call(trap uintptr, b []byte) (int, error) {
	n, _, errno := unix.RawSyscall(trap, uintptr(q), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// serve decides about what comes out of the device, and gives it back, until the device is closed.
func (s *Server) serve() error {
	conn, err := s.device.SyscallConn()
	if err != nil {
		return fmt.Errorf("services: read from the device: %w", err)
	}
	w := &way{engine: s.engine}
	buffer := make([]byte, headroom+packetRoom)
	var passed error
	err = conn.Read(func(fd uintptr) bool {
		w.device = queue(fd)
		passed = s.pass(w, queue(fd), buffer)
		return passed != unix.EAGAIN
	})
	if err == nil {
		err = passed
	}
	if errors.Is(err, os.ErrClosed) || errors.Is(err, unix.EBADFD) || s.closing.Load() {
		return nil
	}
	return fmt.Errorf("services: read from the device: %w", err)
}

// pass takes packets from a device until it is closed, or has been empty for a while: unix.EAGAIN. The device does not close meanwhile.
func (s *Server) pass(w *way, device io.Reader, buffer []byte) error {
	for looks := 0; !s.closing.Load(); {
		n, err := device.Read(buffer[headroom-virtioLen:])
		switch {
		case err == nil:
			looks = 0
			w.take(buffer, n, s.now())
		case err == unix.EAGAIN && looks < patience:
			looks++
			unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		case err != unix.EINTR:
			return err
		}
	}
	return os.ErrClosed
}
