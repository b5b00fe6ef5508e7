package gateway

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"culvert/gateway/health"
)

// TestKnock: a port at which nobody listens is told from one at which somebody is silent,
// who gets one empty datagram in peerKnocks.
func TestKnock(t *testing.T) {
	silent, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
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
		// The loopback answers before the datagram is sent.
		if is := k.knock(closed, now, peerKnocks); second > 0 && is != health.KnockRefused {
			t.Fatalf("second %d: who does not listen is %v", second, is)
		}
	}
	got := 0
	buffer := make([]byte, 10)
	for {
		silent.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		n, err := silent.Read(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if got++; n != 0 || err != nil {
			t.Fatalf("%d bytes, %v", n, err)
		}
	}
	if got != 3 {
		t.Errorf("%d datagrams in 30 seconds, want 3", got)
	}
	k.tidy()
	if k.tidy(); len(k.doors) != 0 {
		t.Errorf("%d doors are kept", len(k.doors))
	}
}

// closedPort returns a UDP port at which nobody listens until the test ends: the kernel gives it to nobody else, for who has it listens to
// another one alone.
func closedPort(t *testing.T) netip.AddrPort {
	t.Helper()
	conn, err := net.Dial("udp4", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

func TestKnockOf(t *testing.T) {
	for err, want := range map[syscall.Errno]health.Knock{
		syscall.ECONNREFUSED: health.KnockRefused, syscall.EHOSTUNREACH: health.KnockNobody, syscall.ENETUNREACH: health.KnockNoRoute,
		syscall.EADDRNOTAVAIL: health.KnockNoRoute,
		syscall.EPERM:         health.KnockForbidden, syscall.ENOBUFS: health.KnockSilent,
	} {
		if got := knockOf(&net.OpError{Err: os.NewSyscallError("write", err)}); got != want {
			t.Errorf("%v is %v, want %v", err, got, want)
		}
	}
}
