package links

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/carry"
	"culvert/gateway/node/rtnl"
	"culvert/geneve"
)

const (
	// checkInterval is how often the machine is compared with the desired links if no change is
	// reported.
	checkInterval = 5 * time.Second
	// remakePause is how long a deleted device stays deleted, because a device may be deleted
	// before this process learns that its link is no longer wanted.
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
	Refused State = "refused" // Err says why
)

// A Status is the state of a desired link.
type Status struct {
	Link    Link
	State   State
	Err     error  // why it is Refused
	Warning string // why some or all packets do not pass; "" = no known problem
	Presence
}

// A Presence is what is known about the gateway at the other end.
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
	hub      *carry.Hub
	wake     chan struct{}
	patience time.Duration // with another Set
	held     chan struct{} // closed once this Set keeps the links
	succeeds bool          // it waits longer
	// others drop packets for links too
	others func(yield func(reason string, packets uint64))

	// Replaced by tests.
	kernel func() bool
	remove func(netlink.Link) error

	// For Run only.
	carriers map[string]*carrier // by name
	away     map[string]time.Time
	hasKern  bool
	probed   time.Time
	loaded   bool // it was logged that the kernel has Geneve links beside ours
	unread   rtnl.Failure
	staying  rtnl.Failure

	mu       sync.Mutex
	desired  []Link   // +checklocks:mu
	told     bool     // +checklocks:mu
	statuses []Status // +checklocks:mu
}

// New returns a Set with its UDP socket at port of all addresses. The socket exists only while
// there is a link to carry, because a kernel's Geneve link with the same port could not go up
// beside it.
func New(port uint16, log logrus.FieldLogger) *Set {
	return &Set{
		log: log, port: port, patience: holdPatience, kernel: kernelHasGeneve, remove: rtnl.RemoveLink,
		hub:  carry.NewHub(netip.AddrPortFrom(netip.Addr{}, port), nil),
		wake: make(chan struct{}, 1), held: make(chan struct{}),
		carriers: map[string]*carrier{}, away: map[string]time.Time{},
	}
}

// Apply sets the desired links. Until the first call, the Set carries the devices of an earlier
// process as they were.
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

// Succeed makes Run wait without limit while another Set runs in this network namespace, which ends
// once this process is ready to take its place.
func (s *Set) Succeed() { s.succeeds = true }

// Held is closed once this Set keeps the links.
func (s *Set) Held() <-chan struct{} { return s.held }

// Run carries packets and follows the desired links until ctx is done. Devices stay, and so do
// routes through them. Run calls report with all links whenever the state, error or warning of one
// changes. It fails if another Set still runs in this network namespace after five seconds, unless
// it is to Succeed.
func (s *Set) Run(ctx context.Context, report func([]Status)) error {
	release, err := hold(ctx, s.patience)
	if errors.Is(err, ErrHeld) && s.succeeds {
		s.log.WithError(err).Warn("waiting until that process ends")
		release, err = hold(ctx, math.MaxInt64)
	}
	if release == nil {
		return err
	}
	defer release()
	close(s.held)
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
		case err = <-s.hub.Failed():
			err, running = fmt.Errorf("links: %w", err), false
		case <-tick.C:
		case <-s.wake:
		}
	}
	cancel()
	s.hub.Close()
	beside.Wait()
	return err
}

// watch wakes Run when a device is deleted.
func (s *Set) watch(ctx context.Context) {
	deleted := func(m syscall.NetlinkMessage) bool { return m.Header.Type == unix.RTM_DELLINK }
	rtnl.Listen(ctx, []uint{unix.RTNLGRP_LINK}, deleted, s.wakeUp, nil)
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
		if e := s.hub.Endpoint(); e != nil {
			e.AskAll(func() { time.Sleep(askPace) })
			s.hub.LogTrains(s.log)
		}
	}
}

// Statuses returns the desired links with their states.
func (s *Set) Statuses() []Status {
	s.mu.Lock()
	all := slices.Clone(s.statuses)
	s.mu.Unlock()
	byName := map[string]*carry.Device{}
	for _, d := range s.hub.Devices() {
		byName[d.Name] = d
	}
	e := s.hub.Endpoint()
	if e == nil {
		return all
	}
	presences := map[uint16]geneve.Presence{}
	e.Presences(func(p geneve.Presence) { presences[p.ID] = p })
	for i := range all {
		if d := byName[all[i].Link.Name]; d != nil && all[i].State == Carried {
			p := presences[d.ID]
			t, _ := e.TunnelStats(d.ID)
			all[i].Presence = Presence{Answers: p.Answered, RTT: p.RTT,
				ReceivedPackets: t.ReceivedPackets, SentPackets: t.SentPackets, ReceivedBytes: t.ReceivedBytes,
				SentBytes: t.SentBytes}
		}
	}
	return all
}
