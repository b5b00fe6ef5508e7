package services

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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

	"culvert/nat"
)

// A Server serves Services on this node.
type Server struct {
	log     logrus.FieldLogger
	engine  *nat.Engine
	device  *os.File
	index   int // of the device
	keeper  *keeper
	page    *Page
	fault   atomic.Pointer[string] // why what leads to the device cannot be put back; nil: nothing is wrong
	began   time.Time
	closing atomic.Bool // errors of the device are expected from here on

	mu sync.Mutex
	// The device, and what leads to it, outlive this process.
	// +checklocks:mu
	stays bool
	// the addresses of this machine that config was applied with
	// +checklocks:mu
	own []netip.Addr
	// +checklocks:mu
	config *Config
	// +checklocks:mu
	steering *steering
	// +checklocks:mu
	announcer *announcer
	// what nameListeners has found last
	// +checklocks:mu
	named map[string]bool
}

// New makes the device, and the rules and routes that lead to it, or goes on with those of a run before. A tolerant Server goes on without
// those addresses of c that this machine lacks. An error means that nothing was left behind that was not there before, unless it says so.
func New(c *Config, tolerant bool, log logrus.FieldLogger) (*Server, error) {
	own, err := OwnAddresses(c)
	if err != nil && (!tolerant || own == nil) {
		return nil, err // else watch says it
	}
	if err := c.checkPorts(); err != nil {
		return nil, err
	}
	s := &Server{config: c, own: own, began: time.Now(), log: log.WithField("interface", c.Interface)}
	if s.keeper, err = openKeeper(c, s.log); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := c.plan(own)
	if s.page, err = NewPage(c.Metrics, s.metrics, s.broken); err == nil {
		s.engine, err = nat.New(s.keeper.key, &p.nat)
	}
	if err == nil {
		s.keeper.restore(s.engine, s.now())
		err = s.open(p)
	}
	if err != nil {
		err = errors.Join(err, s.close())
		s.keeper.close()
		return nil, err
	}
	s.log.WithFields(logrus.Fields{"services": len(c.Services), "routes": len(p.routes), "rules": len(p.front) + len(p.behind)}).Info("services are served")
	s.nameListeners()
	return s, nil
}

// nameListeners warns of sockets of this machine whose packets go to the device, and of those that could come to be: of each once, however often
// Services change.
//
// +checklocks:s.mu
func (s *Server) nameListeners() {
	before, now := s.named, map[string]bool{}
	for _, l := range s.config.listeners() {
		at, remedy := "node port of "+l.service, "stop it, or give the service another node port"
		if l.service == "" {
			at, remedy = "one of services.clientPorts", "stop it, or choose other ports"
		}
		if fields := (logrus.Fields{"port": l.port, "process": l.process, "remedy": remedy}); isNews(fields, before, now) {
			s.log.WithFields(fields).Warn("a process listens in vain: its port is " + at)
		}
	}
	for _, p := range s.config.lentPorts() {
		if fields := (logrus.Fields{"port": p.First, "last": p.Last, "remedy": "reserve it: net.ipv4.ip_local_reserved_ports"}); isNews(fields, before, now) {
			s.log.WithFields(fields).Warn("this node may give a node port to connections of its own, whose answers the service gets")
		}
	}
	s.named = now
}

// isNews notes in now what is to be said, and reports whether it is none of what has been said before.
func isNews(what logrus.Fields, before, now map[string]bool) bool {
	key := fmt.Sprint(what)
	now[key] = true
	return !before[key]
}

// +checklocks:s.mu
func (s *Server) open(p *plan) error {
	c := s.config
	if link, err := netlink.LinkByName(c.Interface); err == nil {
		if s.stays = isKept(link); !s.stays {
			return inUse(c.Interface)
		}
	}
	device, err := createDevice(c.Interface)
	if err != nil {
		return deviceError(c.Interface, err)
	}
	s.device = device
	if err := openDevice(c.Interface); err != nil {
		return err
	}
	made, err := netlink.LinkByName(c.Interface)
	if err == nil {
		err = netlink.LinkSetMTU(made, c.MTU)
	}
	if err == nil {
		err = netlink.LinkSetUp(made)
	}
	if err != nil {
		return fmt.Errorf("services: bring up %s: %w", c.Interface, err)
	}
	if s.index = made.Attrs().Index; c.masquerade().V4.IsValid() {
		if err := addressDevice(made); err != nil {
			return err
		}
	}
	if s.steering, err = newSteering(c.Interface, s.index, familiesOf(c.Addresses)); err != nil {
		return err
	}
	if err := s.steering.apply(p, c.sources(s.own)); err != nil {
		return err
	}
	stays := s.keeper.dir != nil
	if err := keepDevice(device, c.Interface, stays); err != nil {
		return err
	}
	s.stays = stays
	s.announcer = newAnnouncer(s.index, s.log)
	s.announcer.apply(c.Answers, c.AnnounceOn)
	return nil
}

// sources returns, by family, the source that the node's own processes get for what goes to the device: none that is not among the
// addresses of this machine, which the kernel would refuse.
func (c *Config) sources(own []netip.Addr) func(family int) net.IP {
	return func(family int) net.IP {
		if a := c.masquerade().Of(family == unix.AF_INET6); slices.Contains(own, a) {
			return a.AsSlice()
		}
		return nil
	}
}

func deviceError(name string, err error) error {
	switch {
	case errors.Is(err, unix.EBUSY):
		return inUse(name)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV):
		return fmt.Errorf("services: this machine has no TUN devices (%w); load the module tun", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("services: making a TUN device needs /dev/net/tun and CAP_NET_ADMIN; run culvert node as root: %w", err)
	}
	return fmt.Errorf("services: make TUN device %s: %w", name, err)
}

func inUse(name string) error {
	return fmt.Errorf("services.interface: %s exists; stop the culvert node that it belongs to, or choose another name", name)
}

// Replaceable returns what of next a node that serves c can only take at a restart, as an error.
func (c *Config) Replaceable(next *Config) error {
	if c.Mode != next.Mode {
		return errors.New("services.mode: changes only at a restart")
	}
	if c.Interface != next.Interface || c.MTU != next.MTU || c.Ports != next.Ports || c.State != next.State || c.Metrics != next.Metrics {
		return errors.New("services: interface, mtu, clientPorts, state and metrics change only at a restart")
	}
	if !slices.Equal(familiesOf(c.Addresses), familiesOf(next.Addresses)) {
		return errors.New("services.addresses: IPv4 or IPv6 comes and goes only at a restart")
	}
	return nil
}

// Apply serves by another configuration from here on. Connections go on as far as their services do. After an error the one before is
// still served. Endpoints come and go all the time: where nothing else has changed, it costs what they are.
func (s *Server) Apply(ctx context.Context, c *Config) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() || ctx.Err() != nil {
		return errors.New("services: no longer served")
	}
	own, err := OwnAddresses(c)
	if err != nil && (own == nil || !slices.Equal(c.Addresses, s.config.Addresses)) {
		return err // an address that has been there may come back
	}
	if err := s.config.Replaceable(c); err != nil {
		return err
	}
	if slices.Equal(own, s.own) {
		if amended, alone := s.config.Amended(c); alone && len(amended) > 0 {
			if err := s.engine.Amend(amended); err != nil {
				return err
			}
			s.config = c
			return nil
		}
	}
	p := c.plan(own)
	prepared, err := s.engine.Prepare(&p.nat)
	if err != nil {
		return err
	}
	if err := s.announcer.withdraw(c.Answers); err != nil {
		return err
	}
	if err := s.steering.apply(p, c.sources(own)); err != nil {
		before := s.config.plan(own)
		err = errors.Join(err, s.steering.apply(before, s.config.sources(own)))
		s.announcer.apply(s.config.Answers, s.config.AnnounceOn)
		s.own = nil // the next one looks at all
		return err
	}
	s.engine.Commit(prepared)
	s.announcer.apply(c.Answers, c.AnnounceOn)
	before := s.config
	if s.config, s.own = c, own; before.SameBut(c) {
		return nil
	}
	s.log.WithField("services", len(c.Services)).Info("services have changed")
	s.nameListeners()
	return nil
}

// Run serves until ctx is done, and removes what New made, unless it is to be kept. It is called once.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	var beside sync.WaitGroup
	beside.Go(func() { ended <- s.serve() })
	beside.Go(s.page.Serve)
	beside.Go(func() { s.watch(ctx) })
	beside.Go(func() { s.keeper.run(ctx, s) })
	beside.Go(func() { s.announce(ctx) })
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var err error
	for running := true; running; {
		select {
		case <-ctx.Done():
			running = false
		case err = <-ended:
			if err == nil {
				err = errors.New("services: the device was removed by somebody else")
			}
			running = false
		case <-tick.C:
			for !s.engine.Sweep(s.now()) && ctx.Err() == nil {
			}
		}
	}
	cancel()
	s.mu.Lock()
	s.stays = s.stays && err == nil // a device that somebody has removed is not kept
	stays := s.stays
	err = errors.Join(err, s.close())
	s.mu.Unlock()
	beside.Wait()
	s.keeper.end(s)
	if stays {
		s.log.WithField("remedy", "to remove device, rules and routes: start and end culvert node once without services.state").Info("services wait for the next run")
	} else {
		s.log.Info("services are no longer served")
	}
	return err
}

// close may be called again.
//
// +checklocks:s.mu
func (s *Server) close() error {
	var err error
	if s.announcer != nil {
		err = s.announcer.withdraw(nil)
	}
	switch {
	case s.steering != nil && !s.stays:
		err = errors.Join(err, s.steering.close())
	case s.steering != nil:
		s.steering.stopPulse()
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

// OwnAddresses returns all addresses of this machine, and with them an error that names those of the configuration that are not among them.
func OwnAddresses(c *Config) ([]netip.Addr, error) {
	list, err := listed(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("services: list this machine's addresses: %w", err)
	}
	var own []netip.Addr
	here, tentative := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, l := range list {
		a, _ := netip.AddrFromSlice(l.IP)
		a = a.Unmap()
		if l.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_OPTIMISTIC) == unix.IFA_F_TENTATIVE { // RFC 4862, Section 5.4: not assigned; no source of routes
			tentative[a] = true
			continue
		}
		if !here[a] && a != dummyAddress && !a.IsLoopback() && !(a.Is6() && a.IsLinkLocalUnicast()) {
			own = append(own, a)
		}
		here[a] = true
	}
	var missing []error
	for i, a := range c.Addresses {
		switch {
		case here[a]:
		case tentative[a]:
			missing = append(missing, fmt.Errorf("services.addresses[%d]: %s is tentative, until it is found that no other host has it; if ip address shows dadfailed, one has: remove it there", i, a))
		default:
			missing = append(missing, fmt.Errorf("services.addresses[%d]: %s is not an address of this machine; ip -br address shows all", i, a))
		}
	}
	return own, errors.Join(missing...)
}
