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
	causes   *Causes
	wake     chan struct{} // something has changed

	now func() time.Time // the clock of conditions and Events
	// Of Run alone.
	waiting []string // as logged last
	site    *Site    // that the gateway is still to take; nil: none
	hasPeer bool     // in the Site that it has taken

	mu         sync.Mutex
	state      *State          // +checklocks:mu
	complete   map[string]bool // +checklocks:mu
	connection *connection     // +checklocks:mu
	refused    string          // +checklocks:mu
	writes     writes          // +checklocks:mu
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

// writes are what is to be written.
type writes struct {
	verdicts map[rules.Key]bool
	events   []Event
	check    Check
	hasPeer  bool
}

// NewSource returns the Source of a gateway. Run makes it work.
func NewSource(client dynamic.Interface, id Identity, log *logrus.Entry) *Source {
	return &Source{
		client: client, identity: id, log: log, causes: NewCauses(log), wake: make(chan struct{}, 1),
		state: NewState(id.Self), complete: map[string]bool{}, now: time.Now,
	}
}

// Note tells of something about the gateway itself, in an Event on its GatewayServer or GatewayClient. It must be called before Run.
func (s *Source) Note(message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(message)
}

// +checklocks:s.mu
func (s *Source) note(message string) {
	kind := "GatewayClient"
	if s.identity.Server {
		kind = "GatewayServer"
	}
	of := Metadata{Name: s.identity.Name, Namespace: s.identity.Namespace, UID: s.identity.UID}
	s.state.events = append(s.state.events, Event{Kind: kind, Metadata: of, Message: message})
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
		s.site = c.Site
	}
	if s.ready {
		s.applySite(g)
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
		// The first nodes come after all rules: no packet of theirs, and no connection that the gateway before has left, is judged without.
		s.applySite(g)
		s.ready = true
		s.log.Info("all resources are known")
	}
	s.logWaiting()
	s.writes.verdicts = map[rules.Key]bool{}
	for _, v := range s.state.Verdicts() {
		s.writes.verdicts[v.Key] = v.Applied
	}
	for _, e := range s.state.Events() {
		s.log.WithFields(logrus.Fields{"resource": e.Key().String(), "cause": e.Message}).Warn("a resource cannot be obeyed")
		if len(s.writes.events) < maxEvents {
			s.writes.events = append(s.writes.events, e)
		}
	}
	s.writes.check, s.writes.hasPeer = check, s.hasPeer
	return true
}

// applySite hands the Site to g. One that is refused is tried again in the next round: what it did not go with may have gone by then.
//
// +checklocks:s.mu
func (s *Source) applySite(g Gateway) {
	if s.site == nil {
		return
	}
	err := g.Apply(s.site.Config(s.identity.Base))
	if err == nil {
		s.hasPeer, s.site, s.refused = s.site.PeerPublicKey != [32]byte{}, nil, ""
		return
	}
	if why := "what the resources say about the gateway is refused, and what runs stays: " + err.Error(); why != s.refused {
		s.refused = why
		s.note(why)
	}
}

// Resources returns what the gateway has to have and does not, and why resources are left out.
func (s *Source) Resources() (waiting []string, leftOut map[rules.Key]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting = slices.Clone(s.state.Waiting())
	if s.refused != "" {
		waiting = append(waiting, s.refused)
	}
	for _, w := range s.watches() {
		if !s.complete[w.kind] {
			waiting = append(waiting, "the list of "+resources[w.kind])
		}
	}
	return waiting, s.state.Faults()
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

// Causes logs each reason for which the API server cannot be asked once, until it can again.
type Causes struct {
	log *logrus.Entry

	mu   sync.Mutex
	told map[string]bool // +checklocks:mu
}

// NewCauses returns one that has told nothing.
func NewCauses(log *logrus.Entry) *Causes { return &Causes{log: log, told: map[string]bool{}} }
