package seats

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"culvert/integration/need"
)

// TestSeats fills a listener from some addresses, as many connections from each as it
// takes, one address after the other. Whoever comes last must find a seat.
func TestSeats(t *testing.T) {
	for _, tt := range []struct {
		name      string
		addresses []string
		want      []int // seats of each
	}{
		{"one alone", []string{"10.0.1.1"}, []int{11}},
		{"two networks", []string{"10.0.1.1", "10.0.2.1"}, []int{11, 7}},
		{"a network of many", addresses("10.0.1.%d", 200, "10.9.9.9"), append(append([]int{11, 4, 1}, make([]int, 197)...), 6)},
		{"a host with many addresses of IPv6", addresses("fd00::%x", 200, "fd00:1::1"), append(append([]int{11}, make([]int, 199)...), 7)},
		{"a site with many hosts", addresses("fd00:0:0:%x::1", 200, "fd00:1::1"), append(append([]int{11, 4, 1}, make([]int, 197)...), 6)},
		{"the same in both families", []string{"10.0.1.1", "::ffff:10.0.1.1"}, []int{11, 0}},
		{"eight networks", addresses("10.0.%d.1", 8), []int{11, 7, 5, 3, 2, 2, 1, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := New(nil)
			for i, a := range tt.addresses {
				got := 0
				for s.take(origin(netip.MustParseAddr(a))) {
					got++
				}
				if got != tt.want[i] {
					t.Errorf("%s: %d seats, want %d", a, got, tt.want[i])
				}
			}
			for i, a := range tt.addresses {
				for range tt.want[i] {
					s.leave(origin(netip.MustParseAddr(a)))
				}
			}
			if s.InUse() != 0 || len(s.taken) != 0 {
				t.Errorf("%d seats in use in the end, %v", s.InUse(), s.taken)
			}
		})
	}
}

// TestSeatsWithoutAddresses: who comes by a Unix socket finds each seat, and leaves it.
func TestSeatsWithoutAddresses(t *testing.T) {
	s := New(nil)
	for range 2 {
		got := 0
		for s.take(netip.Prefix{}, netip.Prefix{}) {
			got++
		}
		if got != Max {
			t.Errorf("%d seats, want %d", got, Max)
		}
		for range got {
			s.leave(netip.Prefix{}, netip.Prefix{})
		}
	}
	if s.InUse() != 0 || len(s.taken) != 0 {
		t.Errorf("%d seats in use in the end, %v", s.InUse(), s.taken)
	}
}

func addresses(format string, n int, others ...string) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf(format, i))
	}
	return append(all, others...)
}

// callers is a listener whose connections come from the given addresses.
type callers struct {
	from   chan net.Addr
	closed chan net.Addr
}

func (c *callers) Accept() (net.Conn, error) {
	from, ok := <-c.from
	if !ok {
		return nil, net.ErrClosed
	}
	return &caller{from: from, closed: c.closed}, nil
}

func (c *callers) Close() error   { return nil }
func (c *callers) Addr() net.Addr { return nil }

type caller struct {
	net.Conn
	from   net.Addr
	closed chan net.Addr
}

func (c *caller) RemoteAddr() net.Addr { return c.from }

func (c *caller) Close() error {
	c.closed <- c.from
	return nil
}

// TestSeatsAccept: who has no seat is closed and counted, and the next is served; a seat
// that is given back stays taken for its time, and no longer.
func TestSeatsAccept(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		outside := &callers{make(chan net.Addr, 100), make(chan net.Addr, 100)}
		s := New(outside)
		crowd := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("10.0.1.1:1"))
		other := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("10.0.2.1:1"))
		var crowded []net.Conn
		for range 50 {
			outside.from <- crowd
		}
		outside.from <- other
		for range 11 {
			c, err := s.Accept()
			if err != nil || c.RemoteAddr() != crowd {
				t.Fatal(c, err)
			}
			crowded = append(crowded, c)
		}
		if c, err := s.Accept(); err != nil || c.RemoteAddr() != other {
			t.Fatal(c, err)
		}
		if s.Refused() != 39 || len(outside.closed) != 39 || s.InUse() != 12 {
			t.Errorf("%d refused, %d closed, %d seats in use; want 39, 39, 12", s.Refused(), len(outside.closed), s.InUse())
		}

		crowded[0].Close() // at once: its seat stays taken
		crowded[0].Close()
		if synctest.Wait(); s.InUse() != 12 {
			t.Errorf("%d seats in use, want 12", s.InUse())
		}
		time.Sleep(seatTime)
		if synctest.Wait(); s.InUse() != 11 {
			t.Errorf("%d seats in use after their time, want 11", s.InUse())
		}
		crowded[1].Close()
		if s.InUse() != 10 {
			t.Errorf("%d seats in use after an old connection's end, want 10", s.InUse())
		}
		close(outside.from)
		if _, err := s.Accept(); err != net.ErrClosed {
			t.Errorf("Accept of a closed listener: %v", err)
		}
	})
}

// TestSeatsAreWaitedFor: who comes by a Unix socket when all seats are taken, but some of them left, gets the first that is free.
func TestSeatsAreWaitedFor(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		outside := &callers{make(chan net.Addr, 1), make(chan net.Addr, 20*Max)}
		s := New(outside)
		accept := func() net.Conn {
			outside.from <- &net.UnixAddr{}
			c, err := s.Accept()
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		began := time.Now()
		for range 10 * Max {
			accept().Close()
		}
		if took := time.Since(began); took != 9*seatTime || s.Refused() != 0 {
			t.Errorf("%v, %d refused; want %v, 0", took, s.Refused(), 9*seatTime)
		}
		time.Sleep(seatTime)
		for range Max { // and stay
			accept()
		}
		outside.from <- &net.UnixAddr{}
		close(outside.from)
		if c, err := s.Accept(); err != net.ErrClosed || s.Refused() != 1 {
			t.Errorf("%v, %v, %d refused", c, err, s.Refused())
		}

		s = New(outside)
		for range Max {
			s.take(netip.Prefix{}, netip.Prefix{})
		}
		s.leaveAt(time.Now().Add(seatTime), netip.Prefix{}, netip.Prefix{})
		found := make(chan bool)
		go func() { found <- s.take(netip.Prefix{}, netip.Prefix{}) }()
		synctest.Wait()
		if s.Close(); <-found {
			t.Error("a seat after the end")
		}
	})
}
