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

// ListenUAPI opens the socket where wg(8) looks for an interface of a name, which is cut
// to what an interface name may be, 15 characters.
func ListenUAPI(name string) (net.Listener, error) {
	if name != filepath.Base(name) {
		return nil, fmt.Errorf("%q is no name of a file in %s; choose another cluster", name, uapiDirectory)
	}
	return unixsocket.Listen(UAPIPath(name))
}

// UAPIPath is where that socket is.
func UAPIPath(name string) string {
	return filepath.Join(uapiDirectory, name[:min(len(name), 15)]+".sock")
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
