package wg

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const uapiDirectory = "/var/run/wireguard"

// ListenUAPI opens the socket where wg(8) looks for an interface of a name, which is cut
// to what an interface name may be, 15 characters.
func ListenUAPI(name string) (net.Listener, error) {
	return listenPrivate(uapiDirectory, name[:min(len(name), 15)]+".sock")
}

// listenPrivate listens on a Unix socket in dir that only its owner may connect to. It
// takes the place of the socket of a process that was killed, and of nothing else.
func listenPrivate(dir, name string) (net.Listener, error) {
	if name != filepath.Base(name) {
		return nil, fmt.Errorf("%q is no name of a file in %s; choose another cluster", name, dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("%w; make the folder writable", err)
	}
	path := filepath.Join(dir, name)
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		conn.Close()
		return nil, fmt.Errorf("%s is in use by another process; stop it", path)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
		os.Remove(path)
	}
	lc := net.ListenConfig{Control: makePrivate}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("%w; make the folder writable", err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
		l.Close()
		return nil, fmt.Errorf("%s: others may connect to it: %v, %v", path, info, err)
	}
	return l, nil
}

// makePrivate gives a socket that has no name yet the mode that Linux gives to its file
// when it is bound. A umask would do so too, but to all files of the process.
func makePrivate(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); e != nil {
		return e
	}
	return os.NewSyscallError("fchmod", err)
}
