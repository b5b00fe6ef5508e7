package udp

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// TestSendFaults has the kernel refuse what a Sender sends, in turn and for good. Each message is
// offered once for each answer that the kernel gives, what it refuses is counted, and the others
// arrive.
func TestSendFaults(t *testing.T) {
	const none unix.Errno = 0
	for _, tt := range []struct {
		name   string
		errnos []unix.Errno // of the calls, in turn; behind the last, calls are real
		sent   int          // datagrams, of 1 + 3 + 1
		reason Reason       // of those that are not sent
		calls  int          // with a fault
		err    error
	}{
		{"nothing", nil, 5, 0, 0, nil},
		{"ENOBUFS for the first", []unix.Errno{unix.ENOBUFS}, 4, NoBuffer, 1, unix.ENOBUFS},
		{"ENOBUFS for the train", []unix.Errno{none, unix.ENOBUFS}, 2, NoBuffer, 2, unix.ENOBUFS},
		{"ENOMEM for the last", []unix.Errno{none, none, unix.ENOMEM}, 4, NoBuffer, 3, unix.ENOMEM},
		{"ENOBUFS for all", []unix.Errno{unix.ENOBUFS, unix.ENOBUFS, unix.ENOBUFS}, 0, NoBuffer, 3, unix.ENOBUFS},
		{"EPERM, then ENOBUFS", []unix.Errno{unix.EPERM, unix.ENOBUFS, none}, 1, NoBuffer, 3, unix.EPERM},
		{"EIO for the train, which then goes as three", []unix.Errno{none, unix.EIO}, 5, 0, 2, nil},
		{"EIO for the train, ENOBUFS for its first", []unix.Errno{none, unix.EIO, unix.ENOBUFS}, 4, NoBuffer, 3,
			unix.ENOBUFS},
	} {
		t.Run(tt.name, func(t *testing.T) {
			loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
			to := listen(t, "udp4", loopback, Options{})
			from := listen(t, "udp4", loopback, Options{})
			need.Offloads(t, from.GSO(loopback))
			s, calls, left := from.NewSender().(*sender), 0, tt.errnos
			s.call = func(fd uintptr) bool {
				var errno unix.Errno
				if len(left) > 0 {
					errno, left = left[0], left[1:]
					calls++
				}
				// One message a call, so that each meets an answer of its own.
				if s.n, s.errno = 0, errno; errno == 0 {
					s.n, s.errno = sendmmsg(fd, s.headers[s.from:s.from+1])
				}
				return true
			}
			single := func(b byte) Train { return Train{Destination: to.LocalAddr(), Parts: [][]byte{{b}}} }
			trains := []Train{single(1), {Destination: to.LocalAddr(), SegmentSize: 1, Parts: [][]byte{{2, 3, 4}}},
				single(5)}
			sent, err := s.Send(trains)
			if sent != tt.sent || calls != tt.calls || len(left) != 0 || !errors.Is(err, tt.err) {
				t.Fatalf("%d sent in %d calls with a fault, %v; want %d in %d, %v", sent, calls, err, tt.sent,
					tt.calls, tt.err)
			}
			if got := receive(t, to, sent); len(got) != sent {
				t.Errorf("%d datagrams arrived, want %d", len(got), sent)
			}
			var drops uint64
			for _, n := range from.Stats().SendDrops {
				drops += n
			}
			perTrain := 0
			for _, train := range trains {
				perTrain += train.Sent
			}
			if drops != uint64(5-tt.sent) || drops > 0 && from.Stats().SendDrops[tt.reason] == 0 || perTrain != sent {
				t.Errorf("%d counted as dropped, %v by reason, want %d; %d sent by train", drops,
					from.Stats().SendDrops, 5-tt.sent, perTrain)
			}
		})
	}
}

// TestSendBufferFull: a Sender that finds the send buffer full waits without calling the kernel
// again, until Close.
func TestSendBufferFull(t *testing.T) {
	from := fullSocket(t)
	s, calls, full := from.NewSender().(*sender), 0, make(chan bool)
	s.call = func(uintptr) bool {
		if calls++; calls == 1 {
			close(full)
		}
		return false // EAGAIN
	}
	done := make(chan error)
	go func() {
		_, err := s.Send([]Train{{Destination: from.LocalAddr(), Parts: [][]byte{{1}}}})
		done <- err
	}()
	<-full
	need.NoError(t, from.Close())
	if err := <-done; err != net.ErrClosed || calls != 1 {
		t.Errorf("Send: %v after %d calls; want net.ErrClosed after 1", err, calls)
	}
}

// fullSocket returns a socket whose send buffer is full and stays so: the kernel holds a datagram
// until it is uncorked (udp(7)). The poller of Go meets it full. Of a socket that it meets empty it
// reports, at some time after the socket was opened, that it takes data.
func fullSocket(t *testing.T) *Socket {
	t.Helper()
	first := listen(t, "udp4", netip.AddrFrom4([4]byte{127, 0, 0, 1}), Options{SendBuffer: 1})
	to := &unix.SockaddrInet4{Port: int(first.LocalAddr().Port()), Addr: [4]byte{127, 0, 0, 1}}
	if err := first.raw.Control(func(fd uintptr) {
		err := errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_CORK, 1),
			unix.Sendto(int(fd), make([]byte, 60_000), 0, to))
		if n, e := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0); n != 0 ||
			e != nil || err != nil {
			t.Fatalf("the send buffer is not full: %v, %v", e, err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	file, err := first.conn.File()
	need.NoError(t, err)
	defer file.Close()
	s, err := Adopt(file, Options{SendBuffer: 1})
	need.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}
