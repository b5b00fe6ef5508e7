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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"culvert/gateway/node/services"
	"culvert/gateway/node/services/steer"
	"culvert/kube"
	"culvert/kube/objects"
)

// A Source makes a node serve the Services of its cluster. Nothing is served before every list is
// complete; while the API server is away, nothing changes.
type Source struct {
	log  *logrus.Entry
	loop *kube.Loop
	self string
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

	mu      sync.Mutex
	state   *State         // +checklocks:mu
	changed bool           // +checklocks:mu
	routed  []netip.Prefix // of Route; +checklocks:mu
	tracker *leaseTracker  // +checklocks:mu
	moved   bool           // tracker may know of other nodes that are alive; +checklocks:mu
	// unable lists the addresses that this node cannot announce, as in its Lease.
	unable []netip.Prefix // +checklocks:mu
}

// NewSource returns the Source of the node called self; namespace is that of its Lease. base has
// the settings that no object has. It is inactive until Run.
func NewSource(client dynamic.Interface, mode Mode, self, namespace string, base *services.Config,
	log *logrus.Entry) *Source {
	s := &Source{
		log: log, self: self, checks: checks{answering: map[asked]*answering{}},
		state: NewState(mode, self, base), changed: true, tracker: newLeaseTracker(self),
		namespace: namespace, announces: len(base.Announce) > 0,
		serving: make(chan struct{}), ableness: make(chan struct{}, 1),
	}
	s.loop = kube.NewLoop(client, &s.mu, kube.Reporter{Self: self, Node: self, Instance: self}, log)
	return s
}

// forgive is the time after which an address refused by the kernel is tried again.
const forgive = time.Minute

// Run makes apply serve what the objects say, until ctx ends. A refused configuration is tried
// again; a steer.ConflictError costs only the addresses that it names.
func (s *Source) Run(ctx context.Context, apply func(*services.Config) error) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer s.checks.close()
	if s.announces {
		tasks.Go(func() { s.hold(ctx) })
	}
	again, pardon := time.NewTicker(kube.Tick), time.NewTicker(forgive)
	defer again.Stop()
	defer pardon.Stop()
	s.loop.Run(ctx, nil, func() {
		s.mu.Lock()
		select {
		case <-again.C:
			s.changed = s.changed || s.refused != "" || len(s.closed) > 0
		default:
		}
		select {
		case <-pardon.C:
			s.changed = s.state.Forgive() || s.untold || s.changed
		default:
		}
		if s.moved {
			s.moved, s.changed = false, s.state.SetAlive(s.tracker.alive()) || s.changed
		}
		s.mu.Unlock()
		s.apply(apply)
	}, s.sets()...)
}

// sets are what a node follows.
//
// +checklocksignore: a Loop holds mu
func (s *Source) sets() []kube.Set {
	set := func(kind string, of schema.GroupVersionResource, labels string) kube.Set {
		return kube.Set{Name: kind, Resource: of, Labels: labels,
			Read: func(u *unstructured.Unstructured) func(string) {
				r := read(objects.Of(kind, u), s.self)
				return func(string) { s.changed = s.state.put(r) || s.changed }
			},
			Drop: func(namespace, name string) {
				s.changed = s.state.Delete(kind, Name{namespace, name}) || s.changed
			},
		}
	}
	all := []kube.Set{
		set(KindService, objects.Services, "!"+labelHeadless),
		set(KindSlice, objects.EndpointSlices, "!"+labelHeadless), set(KindNode, objects.Nodes, ""),
	}
	if s.announces {
		all = append(all, s.leaseSet())
	}
	return all
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
	s.loop.Wake()
	return nil
}

// Route sets which hosts of other clusters answer through this node: they see the addresses of pods
// that reach them by a Service.
func (s *Source) Route(hosts []netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.routed, hosts) {
		s.routed, s.changed = hosts, true
		s.loop.Wake()
	}
}

// apply serves the latest state.
func (s *Source) apply(serve func(*services.Config) error) {
	for {
		s.mu.Lock()
		if !s.changed || !s.loop.Complete(KindService, KindSlice, KindNode) {
			s.mu.Unlock()
			return
		}
		waiting := s.state.Waiting()
		s.loop.Teller.Wait(waiting)
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
		var taken *steer.ConflictError
		if errors.As(err, &taken) && s.refuse(taken) {
			continue
		}
		s.mu.Lock()
		// Other refusals change nothing that this node announces.
		if unable := s.state.Unable(); err == nil && !slices.Equal(unable, s.unable) {
			s.unable = unable
			select {
			case s.ableness <- struct{}{}:
			default:
			}
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
		s.untold = s.loop.Teller.Tell(faults)
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
func (s *Source) refuse(taken *steer.ConflictError) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	news := s.state.Refuse(taken.Addresses)
	s.changed = s.changed || news
	return news
}
