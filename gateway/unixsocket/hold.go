package unixsocket

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrHeld means that another process, or another part of this one, holds a name.
var ErrHeld = errors.New("unixsocket: the name is held")

// Hold takes a name that only one holder in a network namespace can have: that of an abstract Unix
// socket (unix(7)). The kernel frees it when the process ends. The error is ErrHeld if there is a
// holder.
func Hold(name string) (release func(), err error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("unixsocket: hold %s: %w", name, err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: "@" + name}); err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EADDRINUSE) {
			return nil, ErrHeld
		}
		return nil, fmt.Errorf("unixsocket: hold %s: %w", name, err)
	}
	return func() { unix.Close(fd) }, nil
}
