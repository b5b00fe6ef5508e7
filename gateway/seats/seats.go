// Package seats shares the connections of a listener among those who make them, so that
// who makes many keeps out nobody else.
package seats

import (
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A Listener has room for Max connections at a time, and closes those beyond at once. A
// network holds at most as many seats as stay free, and an address at most as many as its
// network may still take: one alone gets 11, and neither an address nor the others of its
// network can lock out an address elsewhere. Who comes without an address, by a Unix
// socket, may have all seats, and waits for one that was left and will be free.
type Listener struct {
	net.Listener
	refused atomic.Uint64
	freed   sync.Cond

	mu    sync.Mutex
	total int // +checklocks:mu
	// of them, those whose connection is closed
	left int  // +checklocks:mu
	done bool // +checklocks:mu
	// by network and by address
	taken map[netip.Prefix]int // +checklocks:mu
}

const (
	// Max is how many seats a Listener has.
	Max = 32
	// seatTime is how long a seat is taken at least. With it the seats also bound how
	// many connections are served in a second: 320, and 110 of one address.
	seatTime = 100 * time.Millisecond
)

// New returns a Listener for the connections of l, which belongs to it from here on.
func New(l net.Listener) *Listener {
	s := &Listener{Listener: l, taken: map[netip.Prefix]int{}}
	s.freed.L = &s.mu
	return s
}

// Accept returns the next connection that has a seat.
func (s *Listener) Accept() (net.Conn, error) {
	for {
		c, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		var network, address netip.Prefix
		if from, ok := c.RemoteAddr().(*net.TCPAddr); ok {
			network, address = origin(from.AddrPort().Addr())
		}
		if s.take(network, address) {
			until := time.Now().Add(seatTime)
			return &seated{c, sync.OnceFunc(func() { s.leaveAt(until, network, address) })}, nil
		}
		s.refused.Add(1)
		c.Close()
		runtime.Gosched() // packets first
	}
}

// Close implements net.Listener. Nobody gets a seat any more.
func (s *Listener) Close() error {
	s.mu.Lock()
	s.done = true
	s.freed.Broadcast()
	s.mu.Unlock()
	return s.Listener.Close()
}

// origin returns what a counts for: 256 addresses of IPv4, and of IPv6, where a host has
// a /64 to itself, a site's /48.
func origin(a netip.Addr) (network, address netip.Prefix) {
	a = a.Unmap().WithZone("")
	bits, own := 24, 32
	if a.Is6() {
		bits, own = 48, 64
	}
	network, _ = a.Prefix(bits) // fails for longer prefixes only
	address, _ = a.Prefix(own)
	return network, address
}

func (s *Listener) take(network, address netip.Prefix) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !address.IsValid() && s.total == Max && s.left > 0 && !s.done {
		s.freed.Wait()
	}
	free := Max - s.total
	if s.done || free == 0 || address.IsValid() && s.taken[address] >= free-s.taken[network] {
		return false
	}
	s.total++
	s.taken[network]++
	s.taken[address]++
	return true
}

func (s *Listener) leave(network, address netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaveLocked(network, address)
}

// +checklocks:s.mu
func (s *Listener) leaveLocked(network, address netip.Prefix) {
	s.total--
	for _, of := range []netip.Prefix{network, address} {
		if s.taken[of]--; s.taken[of] == 0 {
			delete(s.taken, of)
		}
	}
	s.freed.Signal()
}

// leaveAt is leave, but for that the seat stays taken until its time.
func (s *Listener) leaveAt(until time.Time, network, address netip.Prefix) {
	early := time.Until(until)
	if early <= 0 {
		s.leave(network, address)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left++
	time.AfterFunc(early, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.left--
		s.leaveLocked(network, address)
	})
}

// InUse returns how many seats are taken.
func (s *Listener) InUse() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// Refused returns how many connections were closed because they had no seat.
func (s *Listener) Refused() uint64 { return s.refused.Load() }

// seated is a connection that gives its seat back when it is closed.
type seated struct {
	net.Conn
	leave func()
}

// NetConn returns the connection that has the seat.
func (c *seated) NetConn() net.Conn { return c.Conn }

// Close implements net.Conn.
func (c *seated) Close() error {
	err := c.Conn.Close()
	c.leave()
	return err
}
