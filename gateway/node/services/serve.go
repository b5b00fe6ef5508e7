package services

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// patience is how often an empty device is polled before its reader sleeps. Processes woken by the
// last packets run first, and their packets are then taken without a wake-up: a wake-up from
// another CPU takes 15 µs, a poll less than one. Medians of three series on two CPUs, more and less
// busy, together with raw calls: 1.05 to 1.5 of the throughput, 1.03 to 1.4 of the connections a
// second.
const patience = 20

// A queue is the descriptor of a non-blocking TUN device.
type queue uintptr

func (q queue) Read(b []byte) (int, error) { return q.call(unix.SYS_READ, b) }

func (q queue) Write(b []byte) (int, error) { return q.call(unix.SYS_WRITE, b) }

// call makes the call raw: it does not wait for packets, but a written packet passes through the
// whole kernel, often for longer than 20 µs. A normal call would then lose its P to another thread,
// at the cost of a thread switch per packet.
func (q queue) call(trap uintptr, b []byte) (int, error) {
	n, _, errno := unix.RawSyscall(trap, uintptr(q), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// read starts serve in a goroutine.
func (s *Server) read() {
	s.ended = make(chan error, 1)
	go func() { s.ended <- s.serve() }()
}

// errStopped means that the device must not be read at present.
var errStopped = errors.New("services: the device is not read")

// A parking is a pause of the reader.
type parking struct {
	rests chan struct{} // closed by the reader
	goOn  chan bool
}

// park makes the reader of the device pause within a time. goOn makes it continue, or end.
// Preconditions: the caller holds s.mu, so that everybody who checks s.closing waits.
func (s *Server) park(within time.Duration) (goOn func(bool), err error) {
	p := &parking{rests: make(chan struct{}), goOn: make(chan bool, 1)}
	s.parking.Store(p)
	s.closing.Store(true)
	s.device.SetReadDeadline(time.Now())
	select {
	case <-p.rests:
	case <-time.After(within):
		err = fmt.Errorf("packets are still moved after %v", within)
	}
	return func(yes bool) {
		s.parking.Store(nil)
		s.closing.Store(!yes)
		s.device.SetReadDeadline(time.Time{})
		p.goOn <- yes
	}, err
}

// serve processes packets from the device, and gives them back, until the device is closed.
func (s *Server) serve() error {
	for {
		if err := s.serveSome(); err != errStopped {
			return err
		}
		if p := s.parking.Load(); p != nil {
			close(p.rests)
			if !<-p.goOn {
				return nil
			}
		} else if s.closing.Load() {
			return nil
		}
	}
}

// serveSome is serve until the reader must pause: errStopped.
func (s *Server) serveSome() error {
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
	switch {
	case errors.Is(err, os.ErrClosed), errors.Is(err, unix.EBADFD):
		return nil
	case errors.Is(err, errStopped), errors.Is(err, os.ErrDeadlineExceeded), s.closing.Load():
		return errStopped
	case isRemoved(conn):
		return nil
	}
	return fmt.Errorf("services: read from the device: %w", err)
}

// isRemoved reports whether a device is gone: Go's poller then often fails before a read does, with
// an error that has no name.
func isRemoved(device syscall.RawConn) bool {
	request, err := unix.NewIfreq("")
	if err != nil {
		return false
	}
	device.Control(func(fd uintptr) { err = unix.IoctlIfreq(int(fd), unix.TUNGETIFF, request) })
	return err == unix.EBADFD
}

// pass takes packets from a device until it is closed, or has been empty for a while: unix.EAGAIN.
// The device stays open meanwhile.
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
	return errStopped
}
