// Package seats is a per-source connection limiter for a listener: no client can lock out others by
// opening many connections.
package seats

import (
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"culvert/geneve/share"
)

// A Listener has room for Max connections (seats) at a time. A network may hold as many seats as
// are free, and an address as many as its network may still take: one address alone gets 11, and
// neither an address nor the rest of its network can lock out an address elsewhere. If a source has
// used up its share, its next connection waits for one of its seats that is about to become free.
// If there is none, it takes the seat of the source's oldest connection that has sent nothing, or
// else of its oldest. So a client that sends its request at once is answered before it can lose its
// seat. A connection without a seat is closed at once. Connections without an address, by a Unix
// socket, may use all seats, and wait for one that is about to become free.
type Listener struct {
	net.Listener
	// Yields says that every client sends at once what proves who it is, whereupon Keep is called.
	// Until then a connection loses its seat, the oldest first, to a source that has none. So many
	// slow sources cannot lock out a new one. It must be set before Accept.
	Yields  bool
	refused atomic.Uint64
	freed   sync.Cond

	mu   sync.Mutex
	all  []*seated // oldest first; +checklocks:mu
	left int       // how many of them are closed; +checklocks:mu
	done bool      // +checklocks:mu
	// by network and by address
	shares *share.Pool[netip.Prefix] // +checklocks:mu
}

const (
	// Max is the number of seats.
	Max = 32
	// seatTime is the minimum time for which an answer takes a seat. So the seats also limit
	// answers per second: 320, and 110 to one address.
	seatTime = 100 * time.Millisecond
)

// New returns a Listener for the connections of l, which it then owns.
func New(l net.Listener) *Listener {
	s := &Listener{Listener: l, shares: share.New[netip.Prefix](Max)}
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
		next := &seated{Conn: c, of: s, source: sourceOf(c), begin: time.Now()}
		victim, ok := s.take(next)
		if ok && (victim == nil || victim.left) {
			return next, nil
		}
		s.refused.Add(1)
		if ok {
			victim.Conn.Close()
		} else {
			c.Close()
		}
		runtime.Gosched() // packets first, and connections that got a seat before
		if ok {
			return next, nil
		}
	}
}

// Close implements net.Listener. No connection gets a seat afterwards.
func (s *Listener) Close() error {
	s.mu.Lock()
	s.done = true
	s.freed.Broadcast()
	s.mu.Unlock()
	return s.Listener.Close()
}

// A source is what a connection counts against. Its zero value is a Unix socket.
type source struct{ network, address netip.Prefix }

// Local sources, which count as one each, however many addresses they have: a local client may use
// all of 127.0.0.0/8 and ::1, and the machine's own addresses. There are two, so that a client on a
// loopback address cannot lock out the kubelet, which probes a pod in the host network from the
// machine's own address.
var (
	loopback = source{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/32")}
	own      = source{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("0.0.0.0/32")}
)

// sourceOf returns the source of a connection.
func sourceOf(c net.Conn) source {
	from, ok := c.RemoteAddr().(*net.TCPAddr)
	switch {
	case !ok:
		return source{}
	case from.IP.IsLoopback():
		return loopback
	case isOwn(from, c.LocalAddr()):
		return own
	}
	return origin(from.AddrPort().Addr())
}

// isOwn reports whether a connection comes from an address of this machine. It asks the kernel
// instead of keeping a list, because addresses change: packets to the machine's own address have
// that address as source.
func isOwn(from *net.TCPAddr, to net.Addr) bool {
	if to, ok := to.(*net.TCPAddr); ok && to.IP.Equal(from.IP) {
		return true
	}
	c, err := net.DialUDP("udp", nil, (*net.UDPAddr)(from)) // sends nothing
	if err != nil {
		return false
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).IP.Equal(from.IP)
}

// origin returns the source for a remote address. Its network is a /24 for IPv4; for IPv6, where a
// host has a /64 to itself, a site's /48.
func origin(a netip.Addr) (of source) {
	a = a.Unmap().WithZone("")
	bits := 24
	if a.Is6() {
		bits = 48
	}
	of.network, _ = a.Prefix(bits) // fails for longer prefixes only
	of.address = share.Source(a)
	return of
}

// take gives next a seat, if necessary that of victim, which the caller closes.
func (s *Listener) take(next *seated) (victim *seated, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := next.source != source{}
	for !known && len(s.all) == Max && s.left > 0 && !s.done {
		s.freed.Wait()
	}
	if s.done {
		return nil, false
	}
	if s.shares.Free() == 0 || known && !s.shares.OfFree(next.network, next.address) {
		if !known {
			return nil, false
		}
		if victim = s.oldest(next.source); victim != nil {
			next.begin = victim.free(next.begin)
		} else if victim = s.stranger(); victim == nil || s.shares.Held(next.network) > 0 {
			return nil, false
		}
		s.remove(victim)
	}
	s.all = append(s.all, next)
	s.shares.Take(1, next.network, next.address)
	return victim, true
}

// oldest returns the connection to evict for a new one of its address or, if that has none, of its
// network; nil if there is no such connection.
//
// +checklocks:s.mu
func (s *Listener) oldest(of source) (victim *seated) {
	for _, c := range s.all {
		switch {
		case c.network != of.network || s.shares.Held(of.address) > 0 && c.address != of.address:
		case c.left:
			return c
		case victim == nil || victim.asked.Load() && !c.asked.Load():
			victim = c
		}
	}
	return victim
}

// stranger returns the oldest connection that is not kept, if such ones yield; nil if there is
// none.
//
// +checklocks:s.mu
func (s *Listener) stranger() *seated {
	i := slices.IndexFunc(s.all, func(c *seated) bool { return !c.kept })
	if i < 0 || !s.Yields {
		return nil
	}
	return s.all[i]
}

// remove frees a seat, if it is not free.
//
// +checklocks:s.mu
func (s *Listener) remove(c *seated) {
	i := slices.Index(s.all, c)
	if i < 0 {
		return
	}
	s.all = slices.Delete(s.all, i, i+1)
	if c.left {
		s.left--
	}
	s.shares.Give(1, c.network, c.address)
	s.freed.Signal()
}

// leave frees the seat of a closed connection, after an answer once seatTime is over.
func (s *Listener) leave(c *seated) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.left || !slices.Contains(s.all, c) {
		return
	}
	early := time.Until(c.free(time.Now()))
	if early <= 0 {
		s.remove(c)
		return
	}
	c.left = true
	s.left++
	time.AfterFunc(early, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.remove(c)
	})
}

// InUse returns how many seats are taken.
func (s *Listener) InUse() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

// Refused returns how many connections were closed because they had no seat, or lost it to another
// of their source.
func (s *Listener) Refused() uint64 { return s.refused.Load() }

// Keep lets no other source take the seat of a Listener's connection, once its client is probably
// known. It does nothing to other connections.
func Keep(c net.Conn) {
	if c, ok := c.(*seated); ok {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		c.kept = true
	}
}

// Release frees the seat of a Listener's connection but leaves the connection open, once its client
// is known. It does nothing to other connections.
func Release(c net.Conn) {
	if c, ok := c.(*seated); ok {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		c.of.remove(c)
	}
}

// seated is a connection that gives its seat back when it is closed.
type seated struct {
	net.Conn
	of *Listener
	source
	begin time.Time   // when it may send a request
	asked atomic.Bool // it has sent something
	left  bool        // closed before its time; guarded by of.mu
	kept  bool        // no other source takes its seat; guarded by of.mu
}

// free returns when a connection arriving at now may get the seat.
func (c *seated) free(now time.Time) time.Time {
	free := c.begin
	if c.asked.Load() {
		free = free.Add(seatTime)
	}
	if free.Before(now) {
		return now
	}
	return free
}

// Read implements net.Conn.
func (c *seated) Read(b []byte) (int, error) {
	time.Sleep(time.Until(c.begin))
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.asked.Store(true) // a connection about to be answered is evicted after those that sent nothing
	}
	return n, err
}

// NetConn returns the connection in the seat.
func (c *seated) NetConn() net.Conn { return c.Conn }

// Write implements net.Conn.
func (c *seated) Write(b []byte) (int, error) {
	c.asked.Store(true)
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *seated) Close() error {
	err := c.Conn.Close()
	c.of.leave(c)
	return err
}
