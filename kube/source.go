package kube

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/dynamic"

	"culvert/gateway/config"
	"culvert/nat/rules"
)

// Gateway is what a Source drives. Apply is everything but the rules, which go piece by piece: CommitRules publishes what was put and
// deleted.
type Gateway interface {
	Apply(*config.Config) error
	Put(rules.Key, rules.Resource) error
	Delete(rules.Key)
	CommitRules()
	// Check returns what the connection check knows.
	Check() Check
}

// A Source keeps a Gateway as the resources of a cluster say, and writes back what it makes of them. Nothing is applied before every
// list is complete, so that a restart cuts no connection; while the API server is away, all stays as it is.
//
// Each watch has a goroutine, which changes the State under mu. Run applies what follows, and is the only one to call the Gateway. A
// goroutine of its own writes, so that a slow API server does not keep rules waiting. complete has the kinds whose lists are, connection
// the Connection as the API server has it, nil if there is none.
type Source struct {
	client   dynamic.Interface
	identity Identity
	log      *logrus.Entry
	causes   causes
	wake     chan struct{} // something has changed

	now     func() time.Time // the clock of conditions and Events
	waiting []string         // as logged last; only Run uses it

	mu         sync.Mutex
	state      *State          // +checklocks:mu
	complete   map[string]bool // +checklocks:mu
	connection *connection     // +checklocks:mu
	todo       todo            // +checklocks:mu
	ready      bool            // +checklocks:mu
}

// Identity is what a Source is told about its gateway besides Self.
type Identity struct {
	Self
	Base    *config.Config // what no resource says
	UID     string         // of the GatewayServer or GatewayClient
	Pod     string
	Refresh time.Duration // of the Connection's latency
}

// todo is what is to be written.
type todo struct {
	verdicts map[rules.Key]bool
	events   []Event
	check    Check
	hasPeer  bool
}

// NewSource returns the Source of a gateway. Run makes it work.
func NewSource(client dynamic.Interface, id Identity, log *logrus.Entry) *Source {
	return &Source{
		client: client, identity: id, log: log, causes: causes{log: log, told: map[string]bool{}}, wake: make(chan struct{}, 1),
		state: NewState(id.Self), complete: map[string]bool{}, now: time.Now,
	}
}

// Note tells of something about the gateway itself, in an Event on its GatewayServer or GatewayClient. It must be called before Run.
func (s *Source) Note(message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := "GatewayClient"
	if s.identity.Server {
		kind = "GatewayServer"
	}
	of := Metadata{Name: s.identity.Name, Namespace: s.identity.Namespace, UID: s.identity.UID}
	s.state.events = append(s.state.events, Event{kind, of, message})
}

// Ready reports whether every list has been complete once.
func (s *Source) Ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// pace is how often Run looks whether something is left to be written.
const pace = time.Second

// breath is how long the writer waits between two rounds, whatever happens.
const breath = 100 * time.Millisecond

// Run drives g until ctx ends.
func (s *Source) Run(ctx context.Context, g Gateway) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, w := range s.watches() {
		tasks.Go(func() { s.follow(ctx, w) })
	}
	writing := make(chan struct{}, 1)
	tasks.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-writing:
				s.write(ctx)
			}
			select {
			case <-ctx.Done():
			case <-time.After(breath):
			}
		}
	})
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-tick.C:
		}
		if s.apply(g) {
			select {
			case writing <- struct{}{}:
			default: // it is about to look
			}
		}
	}
}

// changed wakes Run.
func (s *Source) changed() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// apply hands what has changed to g, and notes what is to be written. It returns false until every list is complete.
func (s *Source) apply(g Gateway) bool {
	check := g.Check()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.complete) < len(s.watches()) {
		return false
	}
	c := s.state.Changes()
	if c.Site != nil {
		if err := g.Apply(c.Site.Config(s.identity.Base)); err != nil {
			s.log.WithError(err).Error("what the resources say about the gateway is refused, what runs stays")
		}
	}
	for _, key := range c.Delete {
		g.Delete(key)
	}
	for _, p := range c.Put {
		err := g.Put(p.Key, p.Resource)
		if err != nil {
			s.log.WithError(err).WithField("resource", p.Key.String()).Warn("rules are refused")
		}
		s.state.Refused(p.Key, err)
	}
	if len(c.Delete)+len(c.Put) > 0 {
		g.CommitRules()
	}
	if !s.ready {
		s.ready = true
		s.log.Info("all resources are known")
	}
	s.logWaiting()
	s.todo.verdicts = map[rules.Key]bool{}
	for _, v := range s.state.Verdicts() {
		s.todo.verdicts[v.Key] = v.Applied
	}
	for _, e := range s.state.Events() {
		s.log.WithFields(logrus.Fields{"resource": e.Key().String(), "cause": e.Message}).Warn("a resource cannot be obeyed")
		if len(s.todo.events) < maxEvents {
			s.todo.events = append(s.todo.events, e)
		}
	}
	s.todo.check, s.todo.hasPeer = check, s.state.applied.PeerPublicKey != [32]byte{}
	return true
}

// maxEvents caps the Events that wait for an API server; the log has all of them.
const maxEvents = 1024

// logWaiting says what is missing, once.
//
// +checklocks:s.mu
func (s *Source) logWaiting() {
	waiting := s.state.Waiting()
	if slices.Equal(waiting, s.waiting) {
		return
	}
	for _, w := range waiting {
		if !slices.Contains(s.waiting, w) {
			s.log.WithField("for", w).Info("waiting")
		}
	}
	s.waiting = slices.Clone(waiting)
}

// take replaces all resources of a kind.
func (s *Source) take(kind string, all []*Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	there := make(map[rules.Key]bool, len(all))
	for _, o := range all {
		there[o.Key()] = true
		s.state.Put(o)
	}
	for _, key := range slices.Collect(maps.Keys(s.state.items[kind])) {
		if !there[key] {
			s.state.Delete(key)
		}
	}
	s.complete[kind] = true
	s.changed()
}

func (s *Source) put(o *Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Put(o)
	s.changed()
}

func (s *Source) remove(key rules.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Delete(key)
	s.changed()
}

// causes logs each reason for which the API server cannot be asked once, until it can again.
type causes struct {
	log *logrus.Entry

	mu   sync.Mutex
	told map[string]bool // +checklocks:mu
}
