package handover

import (
	"fmt"
	"io"
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
	// While the old process looks for records, it sends something at least this often.
	aliveTime = 100 * time.Millisecond
)

// Connections that had a packet while records were sent are sent again, until a round takes no
// longer than roundTime. The last round, in which no process forwards, then takes about as long. If
// connections change faster than they are sent, it comes after maxRounds.
const (
	roundTime = 10 * time.Millisecond
	maxRounds = 5
)

// CatchUp sends what has changed since began, in rounds, until little is left: round sends the
// records of connections that had a packet since a time. CatchUp returns the time at which its last
// round began; after the cut, the caller sends what has changed since. now is the clock of these
// times, in nanoseconds.
func CatchUp[Time ~int64](now func() Time, began Time, round func(since Time) error) (Time, error) {
	for range maxRounds {
		again := now()
		if err := round(began); err != nil {
			return 0, err
		}
		if began = again; now() < again+Time(roundTime) {
			break
		}
	}
	return began, nil
}

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

// Records returns a RecordWriter with a limit of within for each message.
func (l *Line) Records(within time.Duration) *RecordWriter {
	return &RecordWriter{l, within, time.Now()}
}

// A RecordWriter sends each Write as one message.
type RecordWriter struct {
	line   *Line
	within time.Duration
	sent   time.Time
}

// Write implements io.Writer.
func (w *RecordWriter) Write(b []byte) (int, error) {
	err := w.line.Send(KindRecords, b, w.within)
	w.sent = time.Now()
	return len(b), err
}

// Pause sleeps. If nothing was sent for aliveTime, for example because few connections of a large
// table need records, it sends an empty message: otherwise the other end would conclude that this
// one hangs. If this fails, so does the next Write.
func (w *RecordWriter) Pause(length time.Duration) {
	time.Sleep(length)
	if time.Since(w.sent) >= aliveTime {
		w.Write(nil)
	}
}

// WantRecords receives records until a message of kind last arrives, and returns the body of that
// message. It waits for each message as long as within. begin starts to restore records, whose ages
// count from that moment, and end completes them. Before KindCut each message is restored by
// itself, because ages count from the time when it was sent.
func (l *Line) WantRecords(last Kind, within time.Duration, begin func() (w io.Writer, end func())) ([]byte, error) {
	w, end := begin()
	for {
		k, body, _, err := l.Receive(within)
		switch {
		case err != nil:
			return nil, err
		case k == KindRecords:
			w.Write(body)
			if last == KindCut {
				end()
				w, end = begin()
			}
		case k == last:
			if last == KindStanding {
				end()
			}
			return body, nil
		default:
			return nil, fmt.Errorf("%w: message %d", ErrStrange, k)
		}
	}
}
