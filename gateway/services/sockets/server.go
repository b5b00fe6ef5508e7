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

	"culvert/gateway/services"
	"culvert/nat"
)

const (
	sweepInterval = time.Second      // after which the engine forgets clients
	retryTime     = 10 * time.Second // after what could not be listened at
)

// A place is where a socket listens.
type place struct {
	protocol uint8
	at       netip.AddrPort
}

// A Server serves Services on this node.
type Server struct {
	log      logrus.FieldLogger
	engine   *nat.Engine
	page     *services.Page
	began    time.Time
	tolerant bool
	idle     idleTimes
	crowd    *crowd // of TCP
	all      *flows // of UDP
	stats    stats

	ctx    context.Context // ends with the Server
	stop   context.CancelFunc
	beside sync.WaitGroup // all goroutines but Run's

	mu sync.Mutex
	// +checklocks:mu
	config *services.Config
	// the addresses of this machine that config was applied with
	// +checklocks:mu
	own []netip.Addr
	// +checklocks:mu
	doors map[place]*door
	// why nothing listens where something should
	// +checklocks:mu
	closed map[place]error
	// addresses that this machine has no longer
	// +checklocks:mu
	absent error
	// +checklocks:mu
	sessions map[*session]struct{}
}

// idleTimes are how long connections stay without traffic.
type idleTimes struct{ tcp, half, udp time.Duration }

var defaultIdle = idleTimes{
	tcp:  2*time.Hour + 4*time.Minute, // RFC 5382, Section 5, REQ-5: at least
	half: time.Hour,                   // one way has ended: as kube-proxy has it (--conntrack-tcp-timeout-close-wait)
	udp:  2 * time.Minute,             // RFC 4787, Section 4.3, REQ-5: at least; the engine's too
}

// New listens where c says, and serves from then on. A tolerant one goes on without what it cannot listen at, and tries again; else that is an
// error, and nothing is left.
func New(c *services.Config, tolerant bool, log logrus.FieldLogger) (*Server, error) {
	return newServer(c, tolerant, log, defaultIdle, room())
}

func newServer(c *services.Config, tolerant bool, log logrus.FieldLogger, idle idleTimes, room int) (*Server, error) {
	s := &Server{
		log: log, began: time.Now(), tolerant: tolerant, idle: idle, crowd: newCrowd(room),
		all: newFlows(room), config: c, doors: map[place]*door{}, closed: map[place]error{}, sessions: map[*session]struct{}{},
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
	if s.page, err = services.NewPage(c.Metrics, s.metrics, s.fault); err != nil {
		return nil, err
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	if err := s.listen(c, own, func() {}); err != nil {
		s.stop()
		s.page.Close()
		return nil, err
	}
	s.log.WithFields(logrus.Fields{"services": len(c.Services), "sockets": len(s.doors), "connections": room}).Info("services are served by sockets")
	s.beside.Go(s.page.Serve)
	return s, nil
}

// listen makes doors where c says, and no others stay. Nobody comes in by new ones before commit. An error, which a tolerant s has not, means that
// nothing has changed.
//
// +checklocks:s.mu
func (s *Server) listen(c *services.Config, own []netip.Addr, commit func()) error {
	wanted, made := map[place]services.Place{}, map[place]*door{}
	var failed []error
	if !s.tolerant {
		own = nil // an address of another machine is a mistake
	}
	for _, p := range c.Places(own) {
		at := place{p.Protocol, p.At}
		if _, twice := wanted[at]; twice {
			continue // a node port that is an external address' port too
		}
		if wanted[at] = p; s.doors[at] != nil {
			continue
		}
		d, err := s.open(&p)
		if err == nil {
			made[at] = d
			delete(s.closed, at)
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
	for at, d := range s.doors {
		p, ok := wanted[at]
		if d.proxied.Store(p.ProxyProtocol); !ok {
			d.close()
			delete(s.doors, at)
		}
	}
	for at, d := range made {
		s.doors[at] = d
		s.beside.Go(d.serve)
	}
	return nil
}

// Apply serves by another configuration from here on. After an error the one before is still served.
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
		s.log.WithField("services", len(c.Services)).Info("services have changed")
	}
	return nil
}

// addresses returns those of this machine. A tolerant s does without those of c that it has no longer, and says so: one family goes on where the
// other one's has gone.
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
		return nil, err // there is no address but those of this machine alone
	}
	return own, nil
}

// put serves c on a machine whose addresses are own. After an error all is as it was.
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
	for _, d := range s.doors {
		d.judge()
	}
	for x := range s.sessions {
		x.judge()
	}
	return nil
}

// Run serves until ctx is done, and returns when nothing of it is left. It is called once.
func (s *Server) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, s.stop)()
	sweep := time.NewTicker(sweepInterval)
	defer sweep.Stop()
	retry := time.NewTicker(retryTime)
	defer retry.Stop()
	for s.ctx.Err() == nil {
		select {
		case <-s.ctx.Done():
		case <-sweep.C:
			s.engine.Sweep(s.now())
		case <-retry.C:
			s.again()
		}
	}
	s.mu.Lock()
	for _, d := range s.doors {
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

// again tries to listen where that has failed, and follows the addresses of this machine.
func (s *Server) again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	own, err := s.addresses(s.config)
	if err != nil || s.ctx.Err() != nil || len(s.closed) == 0 && slices.Equal(own, s.own) {
		return // an address of the configuration has gone: it may come back
	}
	s.put(s.config, own) // a tolerant Server has said what fails, and another one has listened before
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

// Check returns what stands in the way of listening where c says, on this machine at this moment.
func Check(c *services.Config) (all []error) {
	s := &Server{}
	for _, p := range c.Places(nil) {
		d, err := s.open(&p)
		if err != nil {
			all = append(all, err)
			continue
		}
		d.close()
	}
	return all
}
