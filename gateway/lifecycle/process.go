package lifecycle

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// process is another one of this machine.
type process struct {
	id int
	fd int // its own whatever becomes of the ID; -1: the kernel gives none
}

// processOf returns the process with an ID; nil if that is none that this one can know.
func processOf(id int) *process {
	if id <= 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(id, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil // a socket of another process's can name one that was before it: who speaks has not ended
	}
	if err != nil {
		fd = -1
	}
	return &process{id, fd}
}

// ended waits for a time until the process has ended, and reports whether it has. One that nobody has waited for has: it runs no more,
// although it can be sent signals. Nothing is known of nil.
func (p *process) ended(within time.Duration) bool {
	if p == nil {
		return false
	}
	if p.fd < 0 {
		time.Sleep(within)
		return errors.Is(unix.Kill(p.id, 0), unix.ESRCH)
	}
	for until := time.Now().Add(within); ; {
		left := max(time.Until(until), 0)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, int(left.Milliseconds())) // pidfd_open(2)
		if !errors.Is(err, unix.EINTR) {
			return n > 0 && err == nil
		}
	}
}

// kill has a process that may hang end, if it is another one and this one may, and reports whether it will. By its ID alone another could be hit.
func (p *process) kill() bool {
	return p != nil && p.fd >= 0 && p.id != os.Getpid() && unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0) == nil
}

func (p *process) close() {
	if p != nil && p.fd >= 0 {
		unix.Close(p.fd)
	}
}
