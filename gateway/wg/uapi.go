package wg

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.zx2c4.com/wireguard/device"

	"culvert/gateway/unixsocket"
)

const uapiDirectory = "/var/run/wireguard"

// ListenUAPI opens the socket where wg(8) looks for an interface of this name, which is cut to 15
// characters, the maximum length of an interface name.
func ListenUAPI(name string) (net.Listener, error) {
	if name != filepath.Base(name) {
		return nil, fmt.Errorf("%q is no name of a file in %s; choose another cluster", name, uapiDirectory)
	}
	return unixsocket.Listen(UAPIPath(name))
}

// UAPIPath is the path of that socket.
func UAPIPath(name string) string {
	return filepath.Join(uapiDirectory, name[:min(len(name), 15)]+".sock")
}

// ServeUAPI answers the "get" of wg(8) on l without the private key, and refuses its "set".
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
	// Read up to the empty line that ends a request: closing a socket with unread bytes would
	// discard the answer at the other end.
	r := bufio.NewReader(io.LimitReader(conn, maxUAPIRequest))
	request, err := r.ReadString('\n')
	for line := request; line != "\n"; line, err = r.ReadString('\n') {
		if err != nil {
			return
		}
	}
	if request != "get=1\n" {
		fmt.Fprintf(conn, "errno=%d\n\n", -int64(syscall.EPERM)) // negative, like device.IPCError
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
