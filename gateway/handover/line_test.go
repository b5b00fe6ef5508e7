package handover

import (
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// TestOneWrite sends messages without a body over sockets that keep writes apart: each is one write. A second one, of nothing, could fail
// after the other end has the message and has shut the Line, so that both would think that the other one forwards.
func TestOneWrite(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var lines [2]*Line
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "line")
		conn, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		lines[i] = NewLine(conn.(*net.UnixConn))
	}
	for _, k := range []Kind{KindForwarding, KindDone} {
		if err := lines[0].Send(k, nil, time.Second); err != nil {
			t.Fatal(err)
		}
		if _, _, err := lines[1].Want(k, time.Second); err != nil {
			t.Errorf("message %d: %v", k, err)
		}
	}
}
