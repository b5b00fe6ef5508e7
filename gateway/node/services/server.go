package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/page"
	"culvert/gateway/node/rtnl"
	"culvert/gateway/node/services/announce"
	"culvert/gateway/node/services/steer"
	"culvert/gateway/state"
	"culvert/gateway/sweep"
	"culvert/nat"
)

// A Server serves Services on this node.
type Server struct {
	log      logrus.FieldLogger
	engine   *nat.Engine
	device   *os.File
	index    int // of the device
	keeper   *keeper
	page     *page.Page
	fault    atomic.Pointer[string] // why routes and rules to the device cannot be restored; nil: no fault
	deaf     atomic.Pointer[string] // why the kernel reports no changes; nil: it does
	lent     atomic.Pointer[string] // why connections of the node may get no answers; nil: they do
	began    time.Time
	closing  atomic.Bool // from now on, errors of the device are expected
	parking  atomic.Pointer[parking]
	ended    chan error   // from the reader of the device; nil before it runs
	takeover net.Listener // where another process asks to take over; nil: nowhere

	mu sync.Mutex
	// Another process serves instead of this one. +checklocks:mu
	handed bool
	// The device, its routes and rules survive this process. +checklocks:mu
	stays bool
	// the addresses of this machine that config was applied with
	// +checklocks:mu
	own []netip.Addr
	// +checklocks:mu
	config *Config
	// +checklocks:mu
	steering *steer.Steering
	// +checklocks:mu
	announcer *announce.Announcer
	// what the last plan led to the device without a Service, and all ports of endpoints
	// +checklocks:mu
	orphans orphans
	// +checklocks:mu
	changeLog ChangeLog
	// the last findings of nameListeners +checklocks:mu
	named map[string]bool
}

// New makes the device, and the routes and rules that lead to it, or continues with those of an
// earlier run. With c.TakeOver it takes over from a running process; it may then return a Server
// together with a ConflictError, which says what the next Apply must leave out. A tolerant Server
// runs without addresses of c that this machine lacks. An error without a Server means that nothing
// new was left behind, unless it says so. The error is state.ErrInUse while another process serves.
func New(c *Config, tolerant bool, log logrus.FieldLogger) (*Server, error) {
	s, err := newServer(c, tolerant, nil, log)
	if !c.TakeOver || !errors.Is(err, state.ErrInUse) {
		return s, err
	}
	t, failed := ask(c)
	if failed == nil {
		if s, failed = newServer(c, tolerant, t, log); s != nil {
			return s, failed
		}
	}
	if again, err := newServer(c, tolerant, nil, log); !errors.Is(err, state.ErrInUse) {
		return again, err // the previous process has ended
	}
	return nil, fmt.Errorf("%w; --takeover: %w", err, failed)
}

// newServer is New for a process that replaces another, or for a first one if t is nil.
func newServer(c *Config, tolerant bool, t *taking, log logrus.FieldLogger) (*Server, error) {
	s, err := openServer(c, tolerant, t, log)
	if s == nil && t != nil {
		t.refuse(err)
	}
	return s, err
}

// openServer is newServer, except that it does not notify the replaced process if it fails.
func openServer(c *Config, tolerant bool, t *taking, log logrus.FieldLogger) (*Server, error) {
	own, err := OwnAddresses(c)
	if err != nil && (!tolerant || own == nil) {
		return nil, err // else watch reports it
	}
	s := &Server{config: c, own: own, began: time.Now(), log: log.WithField("interface", c.Interface)}
	if t != nil {
		s.keeper = &keeper{Keeper: &state.Keeper{Dir: t.dir, Log: s.log}, key: t.identity.PortKey}
	} else if s.keeper, err = openKeeper(c, s.log); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := c.plan(own, orphans{})
	if s.page, err = page.New("services.metrics", c.Metrics, t.listener(offerPage, c.Metrics), s.metrics,
		s.broken); err == nil {
		s.engine, err = nat.New(s.keeper.key, &p.nat)
	}
	if err == nil && t != nil {
		err = t.restore(s)
	} else if err == nil {
		s.keeper.restore(s.engine, s.now())
	}
	if err == nil {
		if s.orphans = s.findOrphans(c); len(s.orphans.at)+len(s.orphans.ends) > 0 {
			p = c.plan(own, s.orphans)
			err = s.engine.Apply(&p.nat)
		}
		s.orphans.ends = p.ends
	}
	var conflict *steer.ConflictError
	if err == nil {
		if err = s.open(p, t); t != nil && errors.As(err, &conflict) {
			err = nil
		}
	}
	if err != nil {
		took := s.device != nil && t != nil
		err = errors.Join(err, s.close())
		if took {
			<-s.ended
			s.keeper.end(s)
		} else if t == nil {
			s.keeper.Close()
		}
		return nil, err
	}
	s.openTakeover(t)
	if t != nil {
		t.done()
	}
	s.log.WithFields(logrus.Fields{"services": len(c.Services), "routes": len(p.Routes),
		"rules": len(p.Front) + len(p.Behind)}).Info("services are served")
	s.watchPorts()
	s.nameListeners()
	if conflict != nil {
		s.own = nil // makes Apply check everything
		return s, conflict
	}
	return s, nil
}

// open opens the device, and makes the kernel lead the packets of p to it. If a process that takes
// over gets a ConflictError, everything except the named destinations is in place.
//
// +checklocks:s.mu
func (s *Server) open(p *plan, t *taking) (err error) {
	c := s.config
	if s.device = t.use(offerDevice); s.device != nil {
		s.stays = true
		s.read() // everything else is as the previous process left it
	} else if s.device, s.stays, err = steer.MakeDevice(c.Interface); err != nil {
		return err
	}
	if s.index, err = steer.SetUp(c.Interface, c.MTU, c.masquerade().V4.IsValid()); err != nil {
		return err
	}
	before, err := t.vip()
	if err != nil {
		return err
	}
	if s.steering, err = steer.New(c.Interface, s.index, steer.FamiliesOf(c.Addresses), before); err != nil {
		return err
	}
	conflict := s.steering.Apply(&p.Plan, c.sources(s.own))
	if conflict != nil && (t == nil || !errors.As(conflict, new(*steer.ConflictError))) {
		return conflict
	}
	stays := s.keeper.Dir != nil
	if err := steer.KeepDevice(s.device, c.Interface, stays); err != nil {
		return err
	}
	s.stays = stays
	s.announcer = announce.New(s.index, s.log)
	s.announcer.Apply(c.Answers, c.AnnounceOn)
	return conflict
}

// sources returns, by family, the source address that the node's own processes use towards the
// device. It returns no address that this machine lacks, because the kernel would refuse that.
func (c *Config) sources(own []netip.Addr) func(family int) net.IP {
	return func(family int) net.IP {
		if a := c.masquerade().Of(family == unix.AF_INET6); slices.Contains(own, a) {
			return a.AsSlice()
		}
		return nil
	}
}

// Run serves until ctx is done, and removes what New made, unless it is kept. The error is a
// HandedOver if another process has taken over. It is called once.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.ended == nil {
		s.read()
	}
	gone := make(chan *HandedOver, 1)
	var beside sync.WaitGroup
	beside.Go(func() { s.serveTakeover(ctx, gone) })
	beside.Go(s.page.Serve)
	beside.Go(func() { s.watch(ctx) })
	beside.Go(func() { s.keeper.run(ctx, s) })
	s.mu.Lock()
	announcer := s.announcer
	s.mu.Unlock()
	beside.Go(func() { announcer.Run(ctx, s.announce) })
	beside.Go(func() { sweep.Beside(ctx, func() bool { return s.engine.Sweep(s.now()) }, func() {}) })
	var err error
	removed := false
	select {
	case <-ctx.Done():
	case err = <-s.ended:
		s.ended <- nil
		removed = err == nil
	}
	cancel()
	s.mu.Lock()
	stays, handed := s.stays, s.handed
	if removed && !handed {
		err = errors.New("services: the device was removed by somebody else")
	}
	s.stays = stays && err == nil // a device that somebody removed is not kept
	stays = s.stays
	err = errors.Join(err, s.close())
	s.mu.Unlock()
	<-s.ended
	beside.Wait()
	s.keeper.end(s)
	if handed {
		s.log.Info("another process serves")
		return errors.Join(err, <-gone)
	}
	if stays {
		s.log.WithField("remedy", "to remove device, rules and routes: culvert node --remove").Info(
			"services wait for the next run")
	} else {
		s.log.Info("services are no longer served")
	}
	return err
}

// announce announces what it should, as links may have changed.
func (s *Server) announce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing.Load() {
		s.announcer.Apply(s.config.Answers, s.config.AnnounceOn)
	}
}

// close may be called again.
//
// +checklocks:s.mu
func (s *Server) close() error {
	var err error
	if s.announcer != nil && s.handed {
		s.announcer.Leave()
	} else if s.announcer != nil {
		err = s.announcer.Withdraw(nil)
	}
	if s.takeover != nil {
		if l, ok := s.takeover.(*net.UnixListener); ok {
			l.SetUnlinkOnClose(!s.handed)
		}
		s.takeover.Close()
	}
	switch {
	case s.steering != nil && !s.stays:
		err = errors.Join(err, s.steering.Close())
	case s.steering != nil:
		s.steering.CloseVIP()
	}
	s.closing.Store(true)
	s.page.Close()
	if s.device != nil {
		if closeErr := s.device.Close(); !errors.Is(closeErr, os.ErrClosed) {
			err = errors.Join(err, closeErr)
		}
	}
	return err
}

func (s *Server) now() nat.Time { return nat.Time(time.Since(s.began)) + nat.Time(time.Hour) }

// Check returns what is wrong with this machine for serving c by a device now: it lacks addresses,
// without which New fails unless it is tolerant, or else the kernel gives client ports to its own
// connections, of which a Server warns.
func (c *Config) Check() error {
	if _, err := OwnAddresses(c); err != nil {
		return err
	}
	return c.checkPorts()
}

// OwnAddresses returns all addresses of this machine, together with an error that names the
// configured ones it lacks.
func OwnAddresses(c *Config) ([]netip.Addr, error) {
	list, err := rtnl.List(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("services: list this machine's addresses: %w", err)
	}
	var own []netip.Addr
	here, tentative := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, l := range list {
		a, _ := netip.AddrFromSlice(l.IP)
		a = a.Unmap()
		// RFC 4862, Section 5.4: not assigned; not usable as a route's source
		if l.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_OPTIMISTIC) == unix.IFA_F_TENTATIVE {
			tentative[a] = true
			continue
		}
		if !here[a] && a != steer.DummyAddress && !a.IsLoopback() && !(a.Is6() && a.IsLinkLocalUnicast()) {
			own = append(own, a)
		}
		here[a] = true
	}
	var missing []error
	for i, a := range c.Addresses {
		switch {
		case here[a]:
		case tentative[a]:
			missing = append(missing,
				fmt.Errorf("services.addresses[%d]: %s is tentative, until it is found that no other host has it; if ip address shows dadfailed, one has: remove it there", i, a))
		default:
			missing = append(missing,
				fmt.Errorf("services.addresses[%d]: %s is not an address of this machine; ip -br address shows all", i,
					a))
		}
	}
	return own, errors.Join(missing...)
}
