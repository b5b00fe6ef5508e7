// Package unixsocket makes Unix sockets that only their owner may connect to, and names that only
// one process has.
package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// MaxPath is the maximum length of a Unix socket's path, in bytes (unix(7): sun_path, less its zero
// byte).
const MaxPath = 107

// Listen listens on a Unix socket at path with mode 0600, and creates its folder if necessary. It
// replaces the socket of a killed process, and nothing else. Close removes the socket.
func Listen(path string) (net.Listener, error) {
	if len(path) > MaxPath {
		return nil, fmt.Errorf("%s: %d bytes are too long for a socket's path; choose one of at most %d", path,
			len(path), MaxPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("%w; make the folder writable", err)
	}
	if err := checkFolder(filepath.Dir(path)); err != nil {
		return nil, err
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		conn.Close()
		return nil, fmt.Errorf("%s is in use by another process; stop it", path)
	} else if info, e := os.Lstat(path); e == nil && info.Mode().Type() == fs.ModeSocket &&
		errors.Is(err, syscall.ECONNREFUSED) {
		os.Remove(path)
	}
	lc := net.ListenConfig{Control: makePrivate}
	l, err := lc.Listen(context.Background(), "unix", path)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s exists and is not replaced; remove it", path)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; make the folder writable", err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
		l.Close()
		return nil, fmt.Errorf("%s: others may connect to it: %v, %v", path, info, err)
	}
	return l, nil
}

// checkFolder refuses a folder of another user, who could replace the socket, also if the folder is
// sticky: the default folder of users without $XDG_RUNTIME_DIR is in /tmp, and others can guess its
// name. Root may use every folder.
func checkFolder(dir string) error {
	var is syscall.Stat_t
	err, own := syscall.Stat(dir, &is), os.Geteuid()
	if err != nil || own == 0 || is.Uid == 0 || int(is.Uid) == own {
		return err
	}
	return fmt.Errorf("%s belongs to user %d, who could replace a socket there; choose another folder", dir, is.Uid)
}

// makePrivate gives a socket, before it is bound, the mode that Linux then gives to its file. A
// umask would do so too, but for all files of the process.
func makePrivate(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); e != nil {
		return e
	}
	return os.NewSyscallError("fchmod", err)
}
