package sockets

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/node/page"
	"culvert/gateway/node/rtnl"
	"culvert/gateway/node/services"
	"culvert/gateway/sweep"
	"culvert/nat"
)

const retryTime = 10 * time.Second // between attempts to listen

// A place is the address of a listening socket.
type place struct {
	protocol uint8
	at       netip.AddrPort
}

// A Server serves Services on this node.
type Server struct {
	log      logrus.FieldLogger
	engine   *nat.Engine
	page     *page.Page
	began    time.Time
	tolerant bool
	idle     idleTimes
	tcpLimit *connLimiter // of TCP
	all      *flows       // of UDP
	stats    stats

	ctx    context.Context // done when the Server ends
	stop   context.CancelFunc
	beside sync.WaitGroup // all goroutines except Run's

	mu sync.Mutex
	// +checklocks:mu
	config *services.Config
	// +checklocks:mu
	changeLog services.ChangeLog
	// the addresses of this machine that config was applied with
	// +checklocks:mu
	own []netip.Addr
	// +checklocks:mu
	listening map[place]*listenSocket
	// errors of listening, by place +checklocks:mu
	closed map[place]error
	// the processes that occupy a place, as of the first attempt +checklocks:mu
	holders map[place]string
	// configured addresses that this machine no longer has +checklocks:mu
	absent error
	// +checklocks:mu
	sessions map[*session]struct{}
}

// idleTimes are how long connections may be idle.
type idleTimes struct{ tcp, half, udp time.Duration }

var defaultIdle = idleTimes{
	tcp:  2*time.Hour + 4*time.Minute, // RFC 5382, Section 5, REQ-5: at least
	half: time.Hour,                   // one direction has ended: as in kube-proxy (--conntrack-tcp-timeout-close-wait)
	udp:  2 * time.Minute,             // RFC 4787, Section 4.3, REQ-5: at least; the same as the engine's
}

// New listens where c says, and serves from then on. A tolerant Server ignores addresses where it
// cannot listen, and retries; otherwise that is an error, and nothing is left.
func New(c *services.Config, tolerant bool, log logrus.FieldLogger) (*Server, error) {
	return newServer(c, tolerant, log, defaultIdle, room())
}

func newServer(c *services.Config, tolerant bool, log logrus.FieldLogger, idle idleTimes, room int) (*Server, error) {
	s := &Server{
		log: log, began: time.Now(), tolerant: tolerant, idle: idle, tcpLimit: newConnLimiter(room),
		all: newFlows(room), config: c, listening: map[place]*listenSocket{}, closed: map[place]error{},
		holders: map[place]string{}, sessions: map[*session]struct{}{},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	own, err := s.addresses(c)
	if err != nil {
		return nil, err
	}
	s.own = own
	var key [16]byte
	rand.Read(key[:])
	if s.engine, err = nat.New(key, c.NAT(own)); err != nil {
		return nil, err
	}
	if s.page, err = page.New("services.metrics", c.Metrics, nil, s.metrics, s.fault); err != nil {
		return nil, err
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	if err := s.listen(c, own, func() {}); err != nil {
		s.stop()
		s.page.Close()
		return nil, err
	}
	s.log.WithFields(logrus.Fields{"services": len(c.Services), "sockets": len(s.listening), "connections": room}).Info(
		"services are served by sockets")
	s.beside.Go(s.page.Serve)
	return s, nil
}

// listen opens the sockets that c needs and closes all others. New ones accept nobody before
// commit. After an error, which a tolerant s does not return, nothing has changed.
//
// +checklocks:s.mu
func (s *Server) listen(c *services.Config, own []netip.Addr, commit func()) error {
	wanted, made := map[place]services.Place{}, map[place]*listenSocket{}
	var failed []error
	if !s.tolerant {
		own = nil // an address of another machine is a mistake
	}
	for _, p := range c.Places(own) {
		at := place{p.Protocol, p.At}
		if _, twice := wanted[at]; twice {
			continue // a node port that is also an external address's port
		}
		if wanted[at] = p; s.listening[at] != nil {
			continue
		}
		holder := listenerAt
		if s.tolerant {
			holder = s.holder
		}
		d, err := s.open(&p, holder)
		if err == nil {
			made[at] = d
			delete(s.closed, at)
			delete(s.holders, at)
			continue
		}
		if s.tolerant && (s.closed[at] == nil || s.closed[at].Error() != err.Error()) {
			s.log.WithError(err).Warn("a port of a service is not served; trying again")
		}
		if s.tolerant {
			s.closed[at] = err
		}
		failed = append(failed, err)
	}
	if len(failed) > 0 && !s.tolerant {
		for _, d := range made {
			d.close()
		}
		return errors.Join(failed...)
	}
	commit()
	maps.DeleteFunc(s.closed, func(at place, _ error) bool { _, ok := wanted[at]; return !ok })
	maps.DeleteFunc(s.holders, func(at place, _ string) bool { _, ok := wanted[at]; return !ok })
	for at, d := range s.listening {
		p, ok := wanted[at]
		if d.proxied.Store(p.ProxyProtocol); !ok {
			d.close()
			delete(s.listening, at)
		}
	}
	for at, d := range made {
		s.listening[at] = d
		s.beside.Go(d.serve)
	}
	return nil
}

// listenerAt names the process that listens at p. It reads the descriptors of all processes. Tests
// replace it.
var listenerAt = func(p *services.Place) string { return rtnl.ListenerAt(p.Protocol, p.At) }

// holder is listenerAt for callers that hold s.mu, for which clients wait. It asks once for each
// place, without the lock. Until the answer arrives it returns a text that says so; the next
// attempt returns the name.
//
// +checklocksignore
func (s *Server) holder(p *services.Place) string {
	at := place{p.Protocol, p.At}
	if by, asked := s.holders[at]; asked {
		return by
	}
	s.holders[at] = "a process that is being looked for"
	s.beside.Go(func() {
		by := listenerAt(p)
		s.mu.Lock()
		defer s.mu.Unlock()
		if _, ok := s.holders[at]; ok {
			s.holders[at] = by
		}
	})
	return s.holders[at]
}

// Apply serves another configuration from now on. After an error the previous one is still served.
func (s *Server) Apply(ctx context.Context, c *services.Config) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil || ctx.Err() != nil {
		return errors.New("services: no longer served")
	}
	own, err := s.addresses(c)
	if err != nil {
		return err
	}
	if err := s.config.Replaceable(c); err != nil {
		return err
	}
	if err := s.put(c, own); err != nil {
		return err
	}
	before := s.config
	if s.config = c; !before.SameBut(c) {
		s.changeLog.Add(s.log, len(c.Services), time.Now())
	}
	return nil
}

// addresses returns the addresses of this machine. A tolerant s ignores and logs missing addresses
// of c, so that one family continues without the other.
//
// +checklocks:s.mu
func (s *Server) addresses(c *services.Config) ([]netip.Addr, error) {
	own, err := services.OwnAddresses(c)
	if !s.tolerant {
		return own, err
	}
	if err != nil && (s.absent == nil || s.absent.Error() != err.Error()) {
		s.log.WithError(err).Warn("a port of a service is not served; trying again")
	}
	s.absent = err
	if own == nil {
		return nil, err // no address of c is left
	}
	return own, nil
}

// put serves c on a machine whose addresses are own. After an error nothing has changed.
//
// +checklocks:s.mu
func (s *Server) put(c *services.Config, own []netip.Addr) error {
	prepared, err := s.engine.Prepare(c.NAT(own))
	if err != nil {
		return err
	}
	if err := s.listen(c, own, func() { s.engine.Commit(prepared) }); err != nil {
		return err
	}
	s.own = own
	for _, d := range s.listening {
		d.judge()
	}
	for x := range s.sessions {
		x.judge()
	}
	return nil
}

// Run serves until ctx is done, and returns when all its sockets and goroutines have ended. It is
// called once.
func (s *Server) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, s.stop)()
	retried := time.Now()
	sweep.Beside(s.ctx, func() bool { return s.engine.Sweep(s.now()) }, func() {
		if now := time.Now(); now.Sub(retried) >= retryTime {
			retried = now
			s.again()
		}
	})
	s.mu.Lock()
	for _, d := range s.listening {
		d.close()
	}
	for x := range s.sessions {
		x.reset()
	}
	s.mu.Unlock()
	s.page.Close()
	s.beside.Wait()
	s.log.Info("services are no longer served")
	return nil
}

// again retries failed listening, and follows the addresses of this machine.
func (s *Server) again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	own, err := s.addresses(s.config)
	if err != nil || s.ctx.Err() != nil || len(s.closed) == 0 && slices.Equal(own, s.own) {
		return // a configured address has gone, and may come back
	}
	s.put(s.config, own) // a tolerant Server has logged failures, and any other had listened before
}

// fault says why services are not served as they should be, or "".
func (s *Server) fault() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	if s.absent != nil {
		all = append(all, s.absent.Error())
	}
	for _, err := range s.closed {
		all = append(all, err.Error())
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

func (s *Server) now() nat.Time { return nat.Time(time.Since(s.began)) + nat.Time(time.Hour) }

// Check returns what would prevent listening where c says, on this machine now.
func Check(c *services.Config) (all []error) {
	s := &Server{}
	for _, p := range c.Places(nil) {
		d, err := s.open(&p, listenerAt)
		if err != nil {
			all = append(all, err)
			continue
		}
		d.close()
	}
	return all
}
