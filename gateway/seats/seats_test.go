package seats

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"culvert/integration/need"
)

// TestSeats fills a listener from some addresses, one after another, with as many connections as
// each gets. The last address must still get seats.
func TestSeats(t *testing.T) {
	for _, tt := range []struct {
		name      string
		addresses []string
		want      []int // of each address, after it has connected
	}{
		{"one alone", []string{"10.0.1.1"}, []int{11}},
		{"two networks", []string{"10.0.1.1", "10.0.2.1"}, []int{11, 7}},
		{"a network of many", addresses("10.0.1.%d", 200, "10.9.9.9"),
			append(append([]int{11, 4, 1}, make([]int, 197)...), 6)},
		{"a host with many addresses of IPv6", addresses("fd00::%x", 200, "fd00:1::1"),
			append(append([]int{11}, make([]int, 199)...), 7)},
		{"a site with many hosts", addresses("fd00:0:0:%x::1", 200, "fd00:1::1"),
			append(append([]int{11, 4, 1}, make([]int, 197)...), 6)},
		{"the same in both families", []string{"10.0.1.1", "::ffff:10.0.1.1"}, []int{11, 0}},
		{"eight networks", addresses("10.0.%d.1", 8), []int{11, 7, 5, 3, 2, 2, 1, 1}},
		{"this machine by its loopback addresses", addresses("127.1.%d.1", 200, "::1", "::ffff:127.0.0.1", "10.0.1.1"),
			append(append([]int{11}, make([]int, 201)...), 7)},
		{"and by its own ones", addresses("127.1.%d.1", 200, "192.0.2.1", "192.0.2.1", "10.0.1.1"),
			append(append([]int{11}, make([]int, 199)...), 7, 0, 5)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := New(nil)
			for i, a := range tt.addresses {
				got := 0
				for {
					if victim, ok := s.take(s.from(a)); !ok || victim != nil {
						break
					}
					got++
				}
				if got != tt.want[i] {
					t.Errorf("%s: %d seats, want %d", a, got, tt.want[i])
				}
			}
			for len(s.all) > 0 {
				s.leave(s.all[0])
			}
			if s.InUse() != 0 || s.shares.Used() != 0 {
				t.Errorf("%d seats in use in the end, %d counted", s.InUse(), s.shares.Used())
			}
		})
	}
}

// from returns a connection without a seat from an address to 192.0.2.1, which none of the
// machine's addresses is.
func (s *Listener) from(a string) *seated {
	at := netip.MustParseAddr(a)
	c := &caller{from: net.TCPAddrFromAddrPort(netip.AddrPortFrom(at, 9)), closed: make(chan net.Addr, 9)}
	seat := &seated{Conn: c, of: s, source: origin(at)}
	if at.Unmap().IsLoopback() || a == "192.0.2.1" {
		seat.source = sourceOf(c)
	}
	return seat
}

// TestStrangersYield: slow connections of many networks hold all seats. Where they yield, a new
// source gets the oldest one's seat, and keeps it from then on. Elsewhere it gets none.
func TestStrangersYield(t *testing.T) {
	for _, yields := range []bool{true, false} {
		s := New(nil)
		s.Yields = yields
		var all []*seated
		for _, a := range addresses("10.0.%d.1", Max) {
			c := s.from(a)
			if victim, ok := s.take(c); victim == nil && ok {
				all = append(all, c)
			}
		}
		for i := len(all); i < Max; i++ { // a share grows smaller with what is free, so that some seats are left
			c := s.from(fmt.Sprintf("10.1.%d.1", i))
			s.take(c)
			all = append(all, c)
		}
		all[0].Write(nil) // what it sends is not the proof
		replica := s.from("10.9.9.9")
		victim, ok := s.take(replica)
		if ok != yields || yields && victim != all[0] {
			t.Fatalf("yields %t: the replica has a seat: %t, of %v", yields, ok, victim)
		}
		if !yields {
			continue
		}
		Keep(replica)
		for i := range 3 * Max {
			c := s.from(fmt.Sprintf("10.2.%d.1", i))
			if victim, ok := s.take(c); !ok || victim == replica {
				t.Fatalf("%d: %t, the replica lost its seat: %t", i, ok, victim == replica)
			}
		}
		for _, c := range slices.Clone(s.all) {
			Keep(c)
		}
		if _, ok := s.take(s.from("10.8.8.8")); ok {
			t.Error("a kept seat was taken")
		}
	}
}

// TestSeatsMakeRoom: at its share, an address loses its oldest connection that waits for a request,
// or else the oldest. An address without a connection takes the seat of another address in its
// network, and never one elsewhere.
func TestSeatsMakeRoom(t *testing.T) {
	s := New(nil)
	take := func(a string) (c, victim *seated, ok bool) {
		c = s.from(a)
		victim, ok = s.take(c)
		return c, victim, ok
	}
	var held []*seated
	for range 11 { // long before: their answers are old
		c, _, _ := take("10.0.1.1")
		held = append(held, c)
	}
	for _, i := range []int{0, 2} {
		held[i].Write(nil)
	}
	for _, want := range []int{1, 3, 4} {
		c, victim, ok := take("10.0.1.1")
		if !ok || victim != held[want] {
			t.Fatalf("connection %d makes room, want %d", slices.Index(held, victim), want)
		}
		c.Write(nil)
		victim.Close() // again
	}
	for _, c := range held {
		c.Write(nil)
	}
	if _, victim, ok := take("10.0.1.1"); !ok || victim != held[0] {
		t.Errorf("where none waits, connection %d makes room, want 0", slices.Index(held, victim))
	}
	for i := range 6 { // four find a free seat, one takes another's
		_, victim, ok := take(fmt.Sprintf("10.0.1.%d", 2+i/4))
		if free := i < 5; !ok || free != (victim == nil) || victim != nil &&
			victim.address != s.from("10.0.1.3").address {
			t.Errorf("connection %d of the same network: %v, %t", i, victim, ok)
		}
	}
	if _, victim, ok := take("10.0.1.4"); !ok || victim == nil || victim.network != s.from("10.0.1.1").network {
		t.Errorf("an address of the same network without a seat: %v, %t", victim, ok)
	}
	n := s.InUse()
	for i := range 40 { // networks, until no seat is left
		take(fmt.Sprintf("10.0.%d.1", 2+i))
	}
	if _, _, ok := take("10.9.9.9"); ok || s.InUse() != Max || n != 16 {
		t.Errorf("%t, %d seats in use, %d before", ok, s.InUse(), n)
	}
}

// TestSeatsOfThisMachine: over real sockets, connections from loopback addresses belong to one
// source, and those from the machine's other addresses to another, whether or not they go to that
// same address.
func TestSeatsOfThisMachine(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	need.NoError(t, err)
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	dial := func(from, to string) source {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.Dial("tcp", net.JoinHostPort(to, fmt.Sprint(port)))
		need.NoError(t, err)
		defer c.Close()
		in, err := l.Accept()
		need.NoError(t, err)
		defer in.Close()
		return sourceOf(in)
	}
	for _, from := range []string{"127.0.0.1", "127.1.2.1", "127.255.0.9"} {
		if got := dial(from, "127.0.0.1"); got != loopback {
			t.Errorf("%s: %v", from, got)
		}
	}
	addresses, err := net.InterfaceAddrs()
	need.NoError(t, err)
	for _, a := range addresses {
		ip := a.(*net.IPNet).IP
		if !ip.IsGlobalUnicast() {
			continue
		}
		if got := dial(ip.String(), ip.String()); got != own {
			t.Errorf("%s: %v", ip, got)
		}
		if to := map[bool]string{true: "127.0.0.1", false: "::1"}[ip.To4() != nil]; dial(ip.String(), to) != own {
			t.Errorf("%s to %s is not this machine's", ip, to)
		}
	}
	if isOwn(&net.TCPAddr{IP: net.ParseIP("192.0.2.77"), Port: 9}, nil) {
		t.Error("192.0.2.77 is an address of this machine")
	}
}

// TestSeatsWithoutAddresses: a client of a Unix socket may use every seat, and gives it back.
func TestSeatsWithoutAddresses(t *testing.T) {
	s := New(nil)
	for range 2 {
		var got []*seated
		for {
			c := &seated{of: s, Conn: &caller{closed: make(chan net.Addr, 1)}}
			if _, ok := s.take(c); !ok {
				break
			}
			got = append(got, c)
		}
		if len(got) != Max {
			t.Errorf("%d seats, want %d", len(got), Max)
		}
		for _, c := range got {
			c.Close()
		}
	}
	if s.InUse() != 0 || s.shares.Used() != 0 {
		t.Errorf("%d seats in use in the end, %d counted", s.InUse(), s.shares.Used())
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

func (c *caller) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP("192.0.2.1"), Port: 8082} }

func (c *caller) Read([]byte) (int, error) { return 0, io.EOF }

func (c *caller) Write(b []byte) (int, error) { return len(b), nil }

func (c *caller) Close() error {
	c.closed <- c.from
	return nil
}

// TestSeatsAccept: a source at its share loses its oldest connection to its next one, which is
// counted and served. A seat that is given back after an answer stays reserved for a while, and no
// longer.
func TestSeatsAccept(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		outside := &callers{make(chan net.Addr, 100), make(chan net.Addr, 100)}
		s := New(outside)
		crowd := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("198.51.100.1:1"))
		other := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("203.0.113.1:1"))
		accept := func(from net.Addr) net.Conn {
			t.Helper()
			outside.from <- from
			c, err := s.Accept()
			if err != nil || c.RemoteAddr() != from {
				t.Fatal(c, err)
			}
			return c
		}
		var crowded []net.Conn
		for range 50 {
			crowded = append(crowded, accept(crowd))
		}
		accept(other)
		if s.Refused() != 39 || len(outside.closed) != 39 || s.InUse() != 12 {
			t.Errorf("%d refused, %d closed, %d seats in use; want 39, 39, 12", s.Refused(),
				len(outside.closed), s.InUse())
		}
		crowded = crowded[39:]
		crowded[0].Write(nil) // closed at once, so its seat stays reserved
		crowded[0].Close()
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
		for _, c := range crowded {
			c.Close()
		}

		// A client that asks again and again waits for its own seats, and is not refused.
		refused, began := s.Refused(), time.Now()
		for range 30 {
			c := accept(crowd)
			c.Read(nil)
			c.Write(nil)
			c.Close()
		}
		if took := time.Since(began); s.Refused() != refused || took != 2*seatTime {
			t.Errorf("%d refused, want %d; %v, want %v", s.Refused(), refused, took, 2*seatTime)
		}
		close(outside.from)
		if _, err := s.Accept(); err != net.ErrClosed {
			t.Errorf("Accept of a closed listener: %v", err)
		}
	})
}

// TestSeatsAreWaitedFor: if all seats are occupied or reserved, a client of a Unix socket gets the
// first reserved one that becomes free.
func TestSeatsAreWaitedFor(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		outside := &callers{make(chan net.Addr, 1), make(chan net.Addr, 20*Max)}
		s := New(outside)
		accept := func() net.Conn {
			outside.from <- &net.UnixAddr{}
			c, err := s.Accept()
			need.NoError(t, err)
			return c
		}
		began := time.Now()
		for range 10 * Max {
			c := accept()
			c.Write(nil)
			c.Close()
		}
		if took := time.Since(began); took != 9*seatTime || s.Refused() != 0 {
			t.Errorf("%v, %d refused; want %v, 0", took, s.Refused(), 9*seatTime)
		}
		time.Sleep(seatTime)
		for range Max { // these stay
			accept()
		}
		outside.from <- &net.UnixAddr{}
		close(outside.from)
		if c, err := s.Accept(); err != net.ErrClosed || s.Refused() != 1 {
			t.Errorf("%v, %v, %d refused", c, err, s.Refused())
		}

		s = New(outside)
		for range Max {
			s.take(&seated{of: s, Conn: &caller{closed: make(chan net.Addr, 1)}, begin: time.Now()})
		}
		s.all[0].Write(nil)
		s.all[0].Close()
		found := make(chan bool)
		go func() {
			_, ok := s.take(&seated{of: s})
			found <- ok
		}()
		synctest.Wait()
		if s.Close(); <-found {
			t.Error("a seat after the end")
		}
	})
}
