package links

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/geneve"
)

const (
	// checkInterval is how often the machine is compared with the desired links if no change is reported.
	checkInterval = 5 * time.Second
	// remakePause is how long a deleted device stays deleted, because a device may be deleted before this process
	// learns that its link is no longer wanted.
	remakePause = 2 * time.Second
	probePause  = time.Minute          // between two tests whether the kernel has Geneve
	askInterval = time.Second          // between two ARP requests to each gateway
	askPace     = 2 * time.Millisecond // between the requests to two gateways
	maxLinks    = 1 << 12
)

// A State is the state of a desired link.
type State string

// States.
const (
	Carried State = "carried" // by a device of this package
	Kernel  State = "kernel"  // the kernel has Geneve links: nothing is done
	Pending State = "pending" // the device was just deleted, or is about to be made
	Refused State = "refused" // by Status.Err
)

// A Status is what became of a desired link.
type Status struct {
	Link    Link
	State   State
	Err     error  // of Refused
	Warning string // why some or all packets do not pass; "" = no known problem
	Presence
}

// A Presence is what is known of the gateway at the other end.
type Presence struct {
	Answers                      bool          // to ARP, in the last seconds
	RTT                          time.Duration // 0: not known
	ReceivedPackets, SentPackets uint64        // inner ones
	ReceivedBytes, SentBytes     uint64
}

// A Set is the links of one machine.
type Set struct {
	log      logrus.FieldLogger
	port     uint16
	endpoint atomic.Pointer[geneve.Endpoint] // nil: no link to carry
	wake     chan struct{}
	carrying atomic.Pointer[map[uint16]*carrier]
	kernel   func() bool   // replaced by tests
	patience time.Duration // with another Set

	failed chan error

	// Of Run alone.
	receiving sync.WaitGroup
	carriers  map[string]*carrier // by name
	away      map[string]time.Time
	hasKern   bool
	probed    time.Time
	nextID    uint16
	loaded    bool // it was logged that the kernel has Geneve links beside ours

	mu       sync.Mutex
	desired  []Link   // +checklocks:mu
	told     bool     // +checklocks:mu
	statuses []Status // +checklocks:mu
}

// New returns a Set whose UDP socket will be at a port of all addresses. There is a socket while there is a link to carry: a kernel's Geneve link
// of the same port could not go up beside it.
func New(port uint16, log logrus.FieldLogger) *Set {
	s := &Set{log: log, port: port, patience: holdPatience, wake: make(chan struct{}, 1), failed: make(chan error, 1), kernel: kernelHasGeneve, carriers: map[string]*carrier{}, away: map[string]time.Time{}}
	s.carrying.Store(&map[uint16]*carrier{})
	return s
}

// Apply sets the desired links. Until the first call, the Set carries the devices of an earlier process as they were.
func (s *Set) Apply(links []Link) {
	s.mu.Lock()
	s.desired, s.told = slices.Clone(links), true
	s.mu.Unlock()
	s.wakeUp()
}

func (s *Set) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run carries packets and follows what is desired until ctx is done. Devices stay, and so do routes through them. report is called with
// all links whenever the state, the error or the warning of one changes. Run fails if another Set still runs in this network namespace after five
// seconds.
func (s *Set) Run(ctx context.Context, report func([]Status)) error {
	release, err := hold(ctx, s.patience)
	if release == nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var beside sync.WaitGroup
	beside.Go(func() { s.ask(ctx) })
	beside.Go(func() { s.watch(ctx) })
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for running := true; running; {
		s.reconcile(time.Now(), report)
		select {
		case <-ctx.Done():
			running = false
		case err = <-s.failed:
			running = false
		case <-tick.C:
		case <-s.wake:
		}
	}
	cancel()
	for _, c := range s.carriers {
		c.close()
	}
	s.closeSocket()
	beside.Wait()
	return err
}

// open returns the endpoint, and opens its socket if there is none.
func (s *Set) open() (*geneve.Endpoint, error) {
	if e := s.endpoint.Load(); e != nil {
		return e, nil
	}
	e, err := geneve.Listen(geneve.Options{Listen: netip.AddrPortFrom(netip.Addr{}, s.port)})
	if err != nil {
		if errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("links: UDP port %d is in use, by a kernel's Geneve link or by another process; stop it: %w", s.port, err)
		}
		return nil, err
	}
	s.endpoint.Store(e)
	s.receiving.Go(func() {
		if err := s.fromGateways(e); err != nil {
			s.failed <- err // there is one such goroutine, and Run ends with its error
		}
	})
	return e, nil
}

// closeSocket closes the socket, so that others can use the port.
func (s *Set) closeSocket() {
	if e := s.endpoint.Swap(nil); e != nil {
		e.Close()
		s.receiving.Wait()
	}
}

// watch wakes Run when a device changes.
func (s *Set) watch(ctx context.Context) {
	updates, done := make(chan netlink.LinkUpdate, 16), make(chan struct{})
	defer close(done)
	if err := netlink.LinkSubscribe(updates, done); err != nil {
		s.log.WithError(err).Debug("no notice of changed devices; they are compared every 5 s")
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case u, ok := <-updates:
			if !ok {
				return
			}
			if u.Header.Type == unix.RTM_DELLINK {
				s.wakeUp()
			}
		}
	}
}

// ask sends ARP requests to all gateways and tests whether trains arrive there.
func (s *Set) ask(ctx context.Context) {
	tick := time.NewTicker(askInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		e := s.endpoint.Load()
		if e == nil {
			continue
		}
		e.AskAll(func() { time.Sleep(askPace) })
		for _, change := range e.ProbeTrains() {
			log := s.log
			if c := (*s.carrying.Load())[change.Tunnel]; c != nil {
				log = log.WithField("interface", c.name)
			}
			if change.On {
				log.Info("trains arrive at the gateway again")
			} else {
				log.Warn("UDP_SEGMENT trains do not arrive at the gateway: sending single datagrams, which is slower")
			}
		}
	}
}

// reconcile makes the machine match the desired links.
func (s *Set) reconcile(now time.Time, report func([]Status)) {
	s.mu.Lock()
	desired, told := s.desired, s.told
	s.mu.Unlock()
	if !told {
		desired = s.leftBehind()
	}
	next := make([]Status, 0, len(desired))
	names := map[string]bool{}
	for _, l := range desired {
		st := Status{Link: l}
		switch {
		case names[l.Name]:
			st.State, st.Err = Refused, fmt.Errorf("interface: %s is the name of another link", l.Name)
		case len(names) == maxLinks:
			st.State, st.Err = Refused, fmt.Errorf("links: no more than %d links", maxLinks)
		default:
			names[l.Name] = true
			st.State, st.Warning, st.Err = s.follow(&l, now)
		}
		next = append(next, st)
	}
	for name, c := range s.carriers {
		if !names[name] {
			s.drop(c)
			s.log.WithField("interface", name).Info("link is no longer wanted")
		}
	}
	s.publish()
	if len(s.carriers) == 0 {
		s.closeSocket()
	}
	if told {
		s.prune(names)
	}
	if len(s.carriers) > 0 && !s.loaded && s.kernelGeneve(now) {
		s.loaded = true
		s.log.WithField("remedy", "to give the links up: culvert node --liqo --remove").Info("the kernel has Geneve links by now; culvert keeps those that it has")
	}
	s.mu.Lock()
	changed := !slices.EqualFunc(s.statuses, next, func(a, b Status) bool {
		return a.Link == b.Link && a.State == b.State && a.Warning == b.Warning && fmt.Sprint(a.Err) == fmt.Sprint(b.Err)
	})
	s.statuses = next
	s.mu.Unlock()
	if changed && report != nil {
		report(next)
	}
}

// leftBehind returns the links of an earlier process's devices.
func (s *Set) leftBehind() (all []Link) {
	devices, err := own()
	if err != nil {
		s.log.WithError(err).Warn("devices of an earlier run are not looked for")
	}
	for _, d := range devices {
		if l, ok := fromDevice(d); ok {
			all = append(all, l)
		}
	}
	return all
}

// follow creates, adopts or changes the device of one link.
func (s *Set) follow(l *Link, now time.Time) (State, string, error) {
	if err := l.check(); err != nil {
		return Refused, "", err
	}
	c := s.carriers[l.Name]
	d, err := find(l.Name)
	if err != nil {
		return Refused, "", err
	}
	if c != nil && (c.gone() || d == nil || d.Attrs().Index != c.index) {
		if d == nil || d.Attrs().Index != c.index {
			s.away[l.Name] = now
			s.log.WithField("interface", l.Name).Info("device was removed by somebody else")
		}
		s.drop(c)
		c = nil
	}
	if d == nil && s.kernelGeneve(now) {
		return Kernel, "", nil
	}
	if d != nil && d.Type() == "geneve" {
		if len(s.carriers) > 0 && d.Attrs().Flags&net.FlagUp == 0 {
			return Kernel, fmt.Sprintf("the kernel's link cannot go up while culvert carries others by UDP port %d; give those up, without culvert's DaemonSet on this node: "+
				"culvert node --liqo --remove", s.port), nil
		}
		return Kernel, "", nil
	}
	if d != nil && !isOurs(d) {
		return Refused, "", fmt.Errorf("interface: %s exists and is a %s link that culvert did not make; remove it: ip link del %s", l.Name, d.Type(), l.Name)
	}
	warning, err := l.way()
	if err != nil {
		return Refused, "", err
	}
	if d == nil {
		if left := remakePause - now.Sub(s.away[l.Name]); left > 0 {
			time.AfterFunc(left, s.wakeUp)
			return Pending, "", nil
		}
		delete(s.away, l.Name)
	}
	if c != nil && l.MTU > c.room {
		s.drop(c)
		c = nil
	}
	if c == nil {
		return s.begin(l, warning)
	}
	if err := configure(d, l); err != nil {
		return Refused, "", err
	}
	if c.link != *l {
		was := c.link
		c.link = *l
		if err := s.endpoint.Load().Apply(s.tunnels()); err != nil {
			// Two links may exchange their tunnels, so this one is dropped and starts again.
			s.drop(c)
			s.wakeUp()
			return Refused, "", err
		}
		if was.Remote != l.Remote {
			s.log.WithFields(logrus.Fields{"interface": l.Name, "from": was.Remote, "to": l.Remote}).Info("gateway has moved")
		}
	}
	return Carried, warning, nil
}

// drop stops carrying the packets of a device. The device stays.
func (s *Set) drop(c *carrier) {
	c.close()
	delete(s.carriers, c.name)
	s.publish()
}

// begin creates or adopts a device and starts carrying its packets.
func (s *Set) begin(l *Link, warning string) (State, string, error) {
	id, ok := s.freeID()
	if !ok {
		return Refused, "", errors.New("links: no tunnel ID is free")
	}
	e, err := s.open()
	if err != nil {
		return Refused, "", err
	}
	if err := e.Apply(append(s.tunnels(), l.tunnel(id))); err != nil {
		return Refused, "", err
	}
	c, err := openCarrier(*l, id)
	if err != nil {
		return Refused, "", errors.Join(err, e.Apply(s.tunnels()))
	}
	s.carriers[l.Name] = c
	s.publish()
	go c.toGateway(e)
	s.log.WithFields(logrus.Fields{"interface": l.Name, "vni": l.VNI, "remote": l.Remote, "mtu": l.MTU}).Info("link is up")
	return Carried, warning, nil
}

// prune removes devices of this package that are not desired.
func (s *Set) prune(names map[string]bool) {
	devices, err := own()
	if err != nil {
		s.log.WithError(err).Warn("devices that are no longer wanted stay")
	}
	for _, d := range devices {
		if name := d.Attrs().Name; !names[name] {
			if err := remove(d); err != nil {
				s.log.WithError(err).Warn("a device that is no longer wanted stays")
				continue
			}
			s.log.WithField("interface", name).Info("link is removed")
		}
	}
	maps.DeleteFunc(s.away, func(name string, _ time.Time) bool { return !names[name] })
}

func (s *Set) tunnels() (all []geneve.Tunnel) {
	for _, name := range slices.Sorted(maps.Keys(s.carriers)) {
		c := s.carriers[name]
		all = append(all, c.link.tunnel(c.id))
	}
	return all
}

// publish tells the receiver and the endpoint the present links.
func (s *Set) publish() {
	byID := make(map[uint16]*carrier, len(s.carriers))
	for _, c := range s.carriers {
		byID[c.id] = c
	}
	s.carrying.Store(&byID)
	if e := s.endpoint.Load(); e == nil {
		return
	} else if err := e.Apply(s.tunnels()); err != nil {
		s.log.WithError(err).Error("tunnels cannot be applied")
	}
}

func (s *Set) freeID() (uint16, bool) {
	used := *s.carrying.Load()
	for range maxLinks + 1 {
		if s.nextID++; s.nextID != 0 && used[s.nextID] == nil {
			return s.nextID, true
		}
	}
	return 0, false
}

// kernelGeneve reports whether the kernel has Geneve links. It asks at most once per probePause.
func (s *Set) kernelGeneve(now time.Time) bool {
	if s.probed.IsZero() || now.Sub(s.probed) >= probePause {
		s.hasKern, s.probed = s.kernel(), now
	}
	return s.hasKern
}

// Statuses returns the desired links and what became of them.
func (s *Set) Statuses() []Status {
	s.mu.Lock()
	all := slices.Clone(s.statuses)
	s.mu.Unlock()
	byName := map[string]*carrier{}
	for _, c := range *s.carrying.Load() {
		byName[c.name] = c
	}
	e := s.endpoint.Load()
	if e == nil {
		return all
	}
	presences := map[uint16]geneve.Presence{}
	e.Presences(func(p geneve.Presence) { presences[p.ID] = p })
	for i := range all {
		if c := byName[all[i].Link.Name]; c != nil && all[i].State == Carried {
			p := presences[c.id]
			t, _ := e.TunnelStats(c.id)
			all[i].Presence = Presence{Answers: p.Answered, RTT: p.RTT,
				ReceivedPackets: t.ReceivedPackets, SentPackets: t.SentPackets, ReceivedBytes: t.ReceivedBytes, SentBytes: t.SentBytes}
		}
	}
	return all
}
