package lifecycle

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// process is another process on this machine.
type process struct {
	id int
	fd int // a pidfd, which still names the process when its ID is reused; -1: the kernel gives none
}

// processOf returns the process with an ID; nil if this process cannot observe it.
func processOf(id int) *process {
	if id <= 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(id, 0)
	if errors.Is(err, unix.ESRCH) {
		// the ID may be that of an earlier owner of the socket, because the process that speaks has
		// not exited
		return nil
	}
	if err != nil {
		fd = -1
	}
	return &process{id, fd}
}

// ended waits up to a time for the process to exit, and reports whether it has. A zombie has
// exited, although signals can be sent to it. The result for nil is false.
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
		// pidfd_open(2)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return n > 0 && err == nil
		}
	}
}

// kill kills a process that may hang, if it is not this one and if this one is permitted to, and
// reports whether it succeeded. It uses the pidfd, because the ID alone could hit another process.
func (p *process) kill() bool {
	return p != nil && p.fd >= 0 && p.id != os.Getpid() && unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0) == nil
}

func (p *process) close() {
	if p != nil && p.fd >= 0 {
		unix.Close(p.fd)
	}
}
