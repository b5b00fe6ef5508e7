package wg

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/device"
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

// ServeUAPI answers the "get" of wg(8) on l and refuses its "set". The private
// key is left out of the answer.
func (d *Device) ServeUAPI(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			d.answerUAPI(conn)
		}()
	}
}

const (
	uapiTimeout    = 5 * time.Second
	maxUAPIRequest = 64 << 10
)

func (d *Device) answerUAPI(conn net.Conn) {
	conn.SetDeadline(time.Now().Add(uapiTimeout))
	// Read to the empty line that ends a request: closing a socket with unread bytes
	// in it would take the answer away from the other end.
	r := bufio.NewReader(io.LimitReader(conn, maxUAPIRequest))
	request, err := r.ReadString('\n')
	for line := request; line != "\n"; line, err = r.ReadString('\n') {
		if err != nil {
			return
		}
	}
	if request != "get=1\n" {
		fmt.Fprintf(conn, "errno=%d\n\n", -int64(syscall.EPERM)) // negative, as device.IPCError is
		return
	}
	text, err := d.device.IpcGet()
	var ipc *device.IPCError
	if errors.As(err, &ipc) {
		fmt.Fprintf(conn, "errno=%d\n\n", ipc.ErrorCode())
		return
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "private_key=") && !strings.HasPrefix(line, "preshared_key=") {
			conn.Write([]byte(line))
		}
	}
	fmt.Fprint(conn, "errno=0\n\n")
}
