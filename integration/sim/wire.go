package sim

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// wire is one end of a Unix socket of the world: a handover.Wire whose time is the bubble's. Who
// waits at one of the kernel's would keep the clock of the bubble from going on.
type wire struct {
	net.Conn // the rest of net.Conn, which nobody calls
	in, out  *pipeline
	until    time.Time // of reading; zero: for ever
}

func newWires() (a, b *wire) {
	x, y := newPipeline(), newPipeline()
	return &wire{in: x, out: y}, &wire{in: y, out: x}
}

// pipeline is what goes one way.
type pipeline struct {
	changed chan struct{}

	mu    sync.Mutex
	data  []byte // +checklocks:mu
	files []int  // +checklocks:mu
	ended bool   // who writes has closed it; +checklocks:mu
	shut  bool   // who reads has; +checklocks:mu
}

func newPipeline() *pipeline { return &pipeline{changed: make(chan struct{}, 1)} }

// change changes s, and tells who reads.
func (s *pipeline) change(how func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	how()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Read implements net.Conn. What came before the stream was closed can be read after that, as of a
// socket.
func (w *wire) Read(b []byte) (n int, err error) {
	var late <-chan time.Time
	if !w.until.IsZero() {
		t := time.NewTimer(time.Until(w.until))
		defer t.Stop()
		late = t.C
	}
	for {
		s := w.in
		s.mu.Lock()
		n = copy(b, s.data)
		s.data = s.data[n:]
		over := s.ended || s.shut
		s.mu.Unlock()
		switch {
		case n > 0 || len(b) == 0:
			return n, nil
		case over:
			return 0, io.EOF
		}
		select {
		case <-s.changed:
		case <-late:
			return 0, os.ErrDeadlineExceeded
		}
	}
}

// Write implements net.Conn. There is room for all.
func (w *wire) Write(b []byte) (int, error) { return w.send(b, nil) }

// send sends data with descriptors, which are closed if nobody will read them.
func (w *wire) send(b []byte, files []int) (n int, err error) {
	w.out.change(func() {
		if w.out.ended || w.out.shut {
			closeAll(files)
			err = syscall.EPIPE
			return
		}
		w.out.data, w.out.files, n = append(w.out.data, b...), append(w.out.files, files...), len(b)
	})
	return n, err
}

func closeAll(files []int) {
	for _, fd := range files {
		syscall.Close(fd)
	}
}

// ReadMsgUnix implements handover.Wire.
func (w *wire) ReadMsgUnix(b, oob []byte) (n, oobn, flags int, from *net.UnixAddr, err error) {
	n, err = w.Read(b)
	w.in.mu.Lock()
	defer w.in.mu.Unlock()
	if len(w.in.files) > 0 {
		oobn = copy(oob, syscall.UnixRights(w.in.files...))
		w.in.files = nil
	}
	return n, oobn, 0, nil, err
}

// WriteMsgUnix implements handover.Wire. Descriptors are duplicated on their way, as the kernel
// does.
func (w *wire) WriteMsgUnix(b, oob []byte, _ *net.UnixAddr) (n, oobn int, err error) {
	var files []int
	messages, err := syscall.ParseSocketControlMessage(oob)
	for i := 0; i < len(messages) && err == nil; i++ {
		var fds []int
		fds, err = syscall.ParseUnixRights(&messages[i])
		for j := 0; j < len(fds) && err == nil; j++ {
			var copied int
			if copied, err = syscall.Dup(fds[j]); err == nil {
				files = append(files, copied)
			}
		}
	}
	if err != nil {
		closeAll(files)
		return 0, 0, err
	}
	n, err = w.send(b, files)
	return n, len(oob), err
}

// CloseRead implements handover.Wire.
func (w *wire) CloseRead() error {
	w.in.change(func() { w.in.shut = true })
	return nil
}

// Close implements net.Conn.
func (w *wire) Close() error {
	w.in.change(func() {
		w.in.shut = true
		closeAll(w.in.files)
		w.in.files = nil
	})
	w.out.change(func() { w.out.ended = true })
	return nil
}

// The rest of handover.Wire.
func (w *wire) SetReadDeadline(t time.Time) error           { w.until = t; return nil }
func (w *wire) SetWriteDeadline(time.Time) error            { return nil }
func (w *wire) SyscallConn() (c syscall.RawConn, err error) { return nil, errors.ErrUnsupported }

// relayEnd is one end of a connection that keeps messages apart.
type relayEnd struct {
	net.Conn       // the rest of net.Conn, which nobody calls
	in, out        chan []byte
	own, others    chan struct{} // closed when the end is
	once           sync.Once
	packetsArrived atomic.Uint64
}

// relayRoom is how many messages are on their way.
const relayRoom = 256

func newRelays() (a, b *relayEnd) {
	there, back, first, second := make(chan []byte, relayRoom), make(chan []byte, relayRoom), make(chan struct{}),
		make(chan struct{})
	return &relayEnd{in: back, out: there, own: first, others: second}, &relayEnd{in: there, out: back, own: second,
		others: first}
}

// Read implements net.Conn.
func (r *relayEnd) Read(b []byte) (int, error) {
	var m []byte
	select {
	case m = <-r.in:
	default:
		select {
		case m = <-r.in:
		case <-r.own:
			return 0, net.ErrClosed
		case <-r.others:
			return 0, io.EOF
		}
	}
	if m[0] == 'p' { // a packet that the other gateway has decrypted
		r.packetsArrived.Add(1)
	}
	return copy(b, m), nil
}

// Write implements net.Conn.
func (r *relayEnd) Write(b []byte) (int, error) {
	select {
	case r.out <- append([]byte(nil), b...):
		return len(b), nil
	case <-r.own:
		return 0, net.ErrClosed
	case <-r.others:
		return 0, syscall.EPIPE
	}
}

// Close implements net.Conn.
func (r *relayEnd) Close() error {
	r.once.Do(func() { close(r.own) })
	return nil
}
