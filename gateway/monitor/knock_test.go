package monitor

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"culvert/gateway/health"
	"culvert/geneve/genevetest"
	"culvert/integration/need"
)

// TestKnock distinguishes a closed port from a silent one, which gets one empty datagram each
// peerKnocks.
func TestKnock(t *testing.T) {
	silent, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	need.NoError(t, err)
	defer silent.Close()
	open, closed := silent.LocalAddr().(*net.UDPAddr).AddrPort(), closedPort(t)
	var k knocker
	defer k.close()
	for second := range 31 {
		now := time.Duration(second) * time.Second
		k.tidy()
		if is := k.knock(open, now, peerKnocks); is != health.KnockSilent {
			t.Fatalf("second %d: who listens is %v", second, is)
		}
		is := k.knock(closed, now, peerKnocks)
		if second == 0 { // the loopback answers at once, unless it is busy
			waitFor(t, "a refusal", func() bool { return k.knock(closed, now, peerKnocks) == health.KnockRefused })
		} else if is != health.KnockRefused {
			t.Fatalf("second %d: who does not listen is %v", second, is)
		}
	}
	const want = 3 // in 30 seconds
	buffer := make([]byte, 10)
	for got := range want + 1 {
		patience := genevetest.Timeout
		if got == want {
			patience = 10 * time.Millisecond
		}
		silent.SetReadDeadline(time.Now().Add(patience))
		n, err := silent.Read(buffer)
		if over := errors.Is(err, os.ErrDeadlineExceeded); over != (got == want) || !over && (n != 0 || err != nil) {
			t.Fatalf("datagram %d, want %d: %d bytes, %v", got+1, want, n, err)
		}
	}
	k.tidy()
	if k.tidy(); len(k.sockets) != 0 {
		t.Errorf("%d sockets are kept", len(k.sockets))
	}
}

// closedPort returns a UDP port that is closed until the end of the test: a socket that is
// connected elsewhere occupies it, so the kernel gives it to nobody else.
func closedPort(t *testing.T) netip.AddrPort {
	t.Helper()
	conn, err := net.Dial("udp4", "127.0.0.1:9")
	need.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

func TestKnockOf(t *testing.T) {
	for err, want := range map[syscall.Errno]health.Knock{
		syscall.ECONNREFUSED: health.KnockRefused, syscall.EHOSTUNREACH: health.KnockNobody,
		syscall.ENETUNREACH:   health.KnockNoRoute,
		syscall.EADDRNOTAVAIL: health.KnockNoRoute,
		syscall.EPERM:         health.KnockForbidden, syscall.ENOBUFS: health.KnockSilent,
	} {
		if got := knockOf(&net.OpError{Err: os.NewSyscallError("write", err)}); got != want {
			t.Errorf("%v is %v, want %v", err, got, want)
		}
	}
}
