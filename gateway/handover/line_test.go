package handover

import (
	"io"
	"net"
	"os"
	"runtime/debug"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// TestOneWrite sends messages without a body over sockets that keep writes apart: each must be one
// write. A second, empty one could fail after the other end has the message and has closed the
// Line, and then each end would believe that the other forwards.
func TestOneWrite(t *testing.T) {
	lines := newLines(t, unix.SOCK_SEQPACKET)
	for _, k := range []Kind{KindForwarding, KindDone} {
		need.NoError(t, lines[0].Send(k, nil, 20*time.Second))
		if _, _, err := lines[1].Want(k, 20*time.Second); err != nil {
			t.Errorf("message %d: %v", k, err)
		}
	}
}

// socketPair returns both ends of a connection between processes, of a kind such as
// unix.SOCK_STREAM.
func socketPair(t *testing.T, kind int) (ends [2]net.Conn) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	need.NoError(t, err)
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "pair")
		ends[i], err = net.FileConn(f)
		f.Close()
		need.NoError(t, err)
		t.Cleanup(func() { ends[i].Close() })
	}
	return ends
}

// newLines returns both ends of a conversation.
func newLines(t *testing.T, kind int) (lines [2]*Line) {
	t.Helper()
	for i, conn := range socketPair(t, kind) {
		lines[i] = NewLine(conn.(*net.UnixConn))
	}
	return lines
}

// TestStrangeDescriptors: descriptors with a message that must have none, such as a second Offer,
// are closed at once.
func TestStrangeDescriptors(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would close leaked descriptors
	lines := newLines(t, unix.SOCK_SEQPACKET)
	for i, k := range []Kind{KindOffer, KindRecords, KindStanding, KindReady, KindCut, KindForwarding, KindDone,
		KindRefusal, KindOffer} {
		out, in, err := os.Pipe()
		need.NoError(t, err)
		defer out.Close()
		need.NoError(t, lines[0].Send(k, nil, 20*time.Second, int(in.Fd())))
		in.Close()
		_, _, files, err := lines[1].Receive(20 * time.Second)
		if (err != nil) != (i >= 7) || (len(files) > 0) != (i == 0) {
			t.Errorf("message %d: %d descriptors, %v", k, len(files), err)
		}
		closeAll(files)
		out.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := out.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("message %d: the pipe is open: %v", k, err)
		}
	}
}
