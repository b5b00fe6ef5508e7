package handover

import (
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// How long one end waits for one message of the other.
const (
	AskTime  = 5 * time.Second        // the new process waits for the old one's answer
	TalkTime = 30 * time.Second       // before the cut, while the old process forwards
	CutTime  = 500 * time.Millisecond // between Cut and Forwarding, in which no process forwards
	ParkTime = 100 * time.Millisecond // the old process waits for its own readers to stop, before it sends Cut
)

// An Opened is a Socket of the old process. Descriptor returns a new descriptor of it; it is nil if
// the new process gets only the name and the address.
type Opened struct {
	Socket
	Descriptor func() (int, error)
}

// Open returns the Opened of an open file.
func Open(name, at string, file syscall.Conn) Opened {
	return Opened{Socket{name, at}, func() (int, error) { return Duplicate(file) }}
}

// Duplicate returns a new descriptor of an open file, which the caller closes. (os.File.Fd would
// make the file blocking.)
func Duplicate(file syscall.Conn) (fd int, err error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return -1, err
	}
	if e := raw.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		return -1, e
	}
	return fd, os.NewSyscallError("fcntl", err)
}

// SendOffer sends an Offer of all that is open, for which it sets o.Sockets.
func (l *Line) SendOffer(o *Offer, all []Opened) error {
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	var others []Socket // without a descriptor
	for _, open := range all {
		if open.Descriptor == nil {
			others = append(others, open.Socket)
			continue
		}
		fd, err := open.Descriptor()
		if err != nil {
			return fmt.Errorf("%s: %w", open.Name, err)
		}
		fds, o.Sockets = append(fds, fd), append(o.Sockets, open.Socket)
	}
	o.Sockets = append(o.Sockets, others...)
	return l.SendJSON(KindOffer, o, TalkTime, fds...)
}

// Files are the descriptors of an Offer, by name, until they are used. A nil Files has none.
type Files map[string]*os.File

// WantOffer receives an Offer. The caller closes the Files, also after an error.
func (l *Line) WantOffer() (o Offer, f Files, err error) {
	body, files, err := l.Want(KindOffer, AskTime)
	if err != nil {
		return o, nil, err
	}
	err, f = Decode(body, &o), make(Files)
	for i, file := range files {
		if i >= len(o.Sockets) || f[o.Sockets[i].Name] != nil {
			file.Close()
			continue
		}
		f[o.Sockets[i].Name] = file
	}
	return o, f, err
}

// Use returns a file, which the caller then owns, or nil if there is none of the name.
func (f Files) Use(name string) *os.File {
	file := f[name]
	delete(f, name)
	return file
}

// Listener is Use of a socket that listens; nil if there is none.
func (f Files) Listener(name string) (net.Listener, error) {
	file := f.Use(name)
	if file == nil {
		return nil, nil
	}
	defer file.Close()
	l, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("%s of the previous process: %w", name, err)
	}
	return l, nil
}

// Close closes the files that nobody has used.
func (f Files) Close() {
	for name := range f {
		f.Use(name).Close()
	}
}
