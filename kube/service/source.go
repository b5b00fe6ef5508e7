package service

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"culvert/gateway/node/services"
	"culvert/kube"
	"culvert/kube/objects"
)

// A Source makes a node serve the Services of its cluster. Nothing is served before every list is
// complete; while the API server is away, nothing changes.
//
// Each watch has a goroutine, which changes the State under mu. Run applies the results. A Teller
// writes Events.
type Source struct {
	client dynamic.Interface
	log    *logrus.Entry
	causes *kube.Causes
	teller *kube.Teller
	wake   chan struct{} // something has changed
	self   string
	// namespace is that of Leases, which are used only if addresses are announced at layer 2.
	namespace string
	announces bool
	serving   chan struct{} // closed by began when something is served
	ableness  chan struct{} // signals that unable has changed
	began     sync.Once
	handed    atomic.Bool

	// For Run only.
	checks  checks
	refused string         // why the objects' state is not served
	closed  map[Name]error // why health checks are not answered
	untold  bool           // faults wait for their limits

	mu       sync.Mutex
	state    *State          // +checklocks:mu
	complete map[string]bool // +checklocks:mu
	changed  bool            // +checklocks:mu
	routed   []netip.Prefix  // of Route; +checklocks:mu
	tracker  *leaseTracker   // +checklocks:mu
	// unable lists the addresses that this node cannot announce, as in its Lease.
	unable []netip.Prefix // +checklocks:mu
}

// NewSource returns the Source of the node called self; namespace is that of its Lease. base has
// the settings that no object has. It is inactive until Run.
func NewSource(client dynamic.Interface, mode Mode, self, namespace string, base *services.Config,
	log *logrus.Entry) *Source {
	causes := kube.NewCauses(log)
	return &Source{
		client: client, log: log, causes: causes, wake: make(chan struct{}, 1), self: self,
		teller: kube.NewTeller(kube.Reporter{Client: client, Causes: causes, Self: self, Node: self, Instance: self},
			log),
		checks: checks{answering: map[asked]*answering{}},
		state:  NewState(mode, self, base), complete: map[string]bool{}, tracker: newLeaseTracker(self),
		namespace: namespace, announces: len(base.Announce) > 0,
		serving: make(chan struct{}), ableness: make(chan struct{}, 1),
	}
}

// A watched is a kind of objects that a Source follows.
type watched struct {
	kind     string
	resource schema.GroupVersionResource
	labels   string
}

func (s *Source) watches() []watched {
	return []watched{
		{KindService, objects.Services, "!" + labelHeadless}, {KindSlice, objects.EndpointSlices, "!" + labelHeadless},
		{KindNode, objects.Nodes, ""},
	}
}

const (
	retry   = time.Second            // between attempts after a refusal
	forgive = time.Minute            // after which an address refused by the kernel is tried again
	rest    = 100 * time.Millisecond // maximum pause between two changes; it is as long as the last change took
)

// Run makes apply serve what the objects say, until ctx ends. A refused configuration is tried
// again; a services.ConflictError costs only the addresses that it names.
func (s *Source) Run(ctx context.Context, apply func(*services.Config) error) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer s.checks.close()
	for _, w := range s.watches() {
		f := &kube.Followed{Client: s.client.Resource(w.resource), Resource: w.resource.Resource, Labels: w.labels,
			Into: sink{s, w.kind}}
		tasks.Go(func() { f.Follow(ctx, s.causes) })
	}
	tasks.Go(func() { s.teller.Run(ctx, func() bool { return true }) })
	if s.announces {
		tasks.Go(func() { s.followLeases(ctx) })
		tasks.Go(func() { s.hold(ctx) })
	}
	again := time.NewTicker(retry)
	defer again.Stop()
	pardon := time.NewTicker(forgive)
	defer pardon.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-again.C:
			s.mu.Lock()
			s.changed = s.changed || s.refused != "" || len(s.closed) > 0
			s.mu.Unlock()
		case <-pardon.C:
			s.mu.Lock()
			s.changed = s.state.Forgive() || s.untold || s.changed
			s.mu.Unlock()
		}
		began := time.Now()
		s.apply(apply)
		select {
		case <-ctx.Done():
		case <-time.After(min(rest, time.Since(began))):
		}
	}
}

// HandedOver makes Run leave this node's Lease unchanged at its end: another process serves the
// node.
func (s *Source) HandedOver() { s.handed.Store(true) }

// Rebase changes the settings that no object has. After an error, nothing has changed.
func (s *Source) Rebase(_ context.Context, base *services.Config) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.announces != (len(base.Announce) > 0) {
		return errors.New("services.announce: under Kubernetes it comes and goes only at a restart")
	}
	if err := s.state.Rebase(base); err != nil {
		return err
	}
	s.changed = true
	signal(s.wake)
	return nil
}

// Route sets which hosts of other clusters answer through this node: they see the addresses of pods
// that reach them by a Service.
func (s *Source) Route(hosts []netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.routed, hosts) {
		s.routed, s.changed = hosts, true
		signal(s.wake)
	}
}

// apply serves the latest state.
func (s *Source) apply(serve func(*services.Config) error) {
	for {
		s.mu.Lock()
		if !s.changed || len(s.complete) < len(s.watches()) {
			s.mu.Unlock()
			return
		}
		waiting := s.state.Waiting()
		s.teller.Wait(waiting)
		if waiting != "" {
			s.mu.Unlock()
			return
		}
		c := s.state.Config()
		c.Routed = s.routed
		checks := s.state.Checks()
		s.changed = false
		s.mu.Unlock()

		err := serve(c)
		var taken *services.ConflictError
		if errors.As(err, &taken) && s.refuse(taken) {
			continue
		}
		s.mu.Lock()
		// Other refusals change nothing that this node announces.
		if unable := s.state.Unable(); err == nil && !slices.Equal(unable, s.unable) {
			s.unable = unable
			signal(s.ableness)
		}
		s.mu.Unlock()
		s.checks.healthy.Store(err == nil)
		s.closed = s.checks.set(c.Addresses, checks)
		s.mu.Lock()
		faults := s.state.Faults()
		for name, err := range s.closed {
			if meta, ok := s.state.metadata(name); ok {
				faults = append(faults, kube.Fault{Event: kube.Event{APIVersion: "v1", Kind: KindService,
					Metadata: meta,
					Message:  "spec.healthCheckNodePort: " + err.Error()}})
			}
		}
		s.mu.Unlock()
		s.untold = s.teller.Tell(faults)
		switch {
		case err == nil:
			if s.refused != "" {
				s.log.Info("the configuration from the cluster is accepted again")
			}
			s.refused = ""
			s.began.Do(func() { close(s.serving) })
		case err.Error() != s.refused:
			s.refused = err.Error()
			s.log.WithError(err).Error(
				"the configuration from the cluster is refused, and the one before stays; trying again")
		}
		return
	}
}

// refuse leaves out addresses that the kernel has refused, and reports whether there are new ones.
func (s *Source) refuse(taken *services.ConflictError) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	news := s.state.Refuse(taken.Addresses)
	s.changed = s.changed || news
	return news
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
