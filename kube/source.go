package kube

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/dynamic"

	"culvert/gateway/config"
	"culvert/kube/objects"
	"culvert/nat/rules"
)

// Gateway is what a Source configures. Apply is for everything except the rules, which are put one
// by one: CommitRules publishes all puts and deletes.
type Gateway interface {
	Apply(*config.Config) error
	Put(rules.Key, rules.Resource) error
	Delete(rules.Key)
	CommitRules()
	// Check returns the result of the connection check.
	Check() Check
	// Speaks reports whether this gateway, of several, is the one that writes the status of
	// resources.
	Speaks() bool
}

// A Source configures a Gateway by a cluster's resources, and reports back. Nothing is applied
// before every list is complete, so a restart cuts no connection; while the API server is away,
// nothing changes.
//
// Each watch has a goroutine, which changes the State under mu. Run applies the results, and only
// it calls the Gateway. A Teller writes. complete has the kinds whose lists are complete;
// connection is the Connection in the API server, nil if there is none.
type Source struct {
	client   dynamic.Interface
	identity Identity
	log      *logrus.Entry
	causes   *Causes
	teller   *Teller
	wake     chan struct{} // something has changed

	now func() time.Time // the clock of conditions and Events
	// For Run only.
	notes   []Fault
	site    *Site // not applied yet; nil: none
	hasPeer bool  // in the last Site applied

	mu         sync.Mutex
	state      *State          // +checklocks:mu
	complete   map[string]bool // +checklocks:mu
	connection *connection     // +checklocks:mu
	refused    string          // +checklocks:mu
	ready      bool            // +checklocks:mu
}

// Identity is what a Source knows about its gateway besides Self.
type Identity struct {
	Self
	Base    *config.Config // settings that are in no resource
	UID     string         // of the GatewayServer or GatewayClient
	Pod     string
	Refresh time.Duration // of the Connection's latency
}

// writes are pending writes.
type writes struct {
	verdicts map[rules.Key]bool
	check    Check
	hasPeer  bool
}

// NewSource returns the Source of a gateway, which is inactive until Run.
func NewSource(client dynamic.Interface, id Identity, log *logrus.Entry) *Source {
	causes := NewCauses(log)
	return &Source{
		client: client, identity: id, log: log, causes: causes, wake: make(chan struct{}, 1),
		teller: NewTeller(Reporter{Client: client, Causes: causes, Self: id.Namespace + "/" + id.Name, Node: id.Node,
			Instance: cmp.Or(id.Pod, id.Name)}, log),
		state: NewState(id.Self), complete: map[string]bool{}, now: time.Now,
	}
}

// Note adds an Event about the gateway itself, on its GatewayServer or GatewayClient. It must be
// called before Run.
func (s *Source) Note(message string) { s.notes = append(s.notes, s.ofItself(message)) }

func (s *Source) ofItself(message string) Fault {
	kind := "GatewayClient"
	if s.identity.Server {
		kind = "GatewayServer"
	}
	of := objects.Metadata{Name: s.identity.Name, Namespace: s.identity.Namespace, UID: s.identity.UID}
	return Fault{Event: Event{Kind: kind, Metadata: of, Message: message}}
}

// Ready reports whether every list has been complete once.
func (s *Source) Ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// pace is how often Run checks for pending writes.
const pace = time.Second

// Run configures g until ctx ends.
func (s *Source) Run(ctx context.Context, g Gateway) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, w := range s.watches() {
		tasks.Go(func() { s.follow(ctx, w) })
	}
	tasks.Go(func() { s.teller.Run(ctx, g.Speaks) })
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-tick.C:
		}
		if w := s.apply(g); w != nil {
			s.teller.Status(func(ctx context.Context) { s.write(ctx, w) })
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

// apply passes changes to g, tells faults, and returns what must be written; nil until every list
// is complete. s.mu is free while g works, which may take long: probes and commands ask meanwhile,
// and watches continue.
func (s *Source) apply(g Gateway) *writes {
	check := g.Check()
	s.mu.Lock()
	whole, ready := len(s.complete) == len(s.watches()), s.ready
	var c Changes
	if whole {
		c = s.state.Changes()
	}
	s.mu.Unlock()
	if !whole {
		return nil
	}
	if c.Site != nil {
		s.site = c.Site
	}
	if ready {
		s.applySite(g)
	}
	for _, key := range c.Delete {
		g.Delete(key)
	}
	answers := make([]error, len(c.Put))
	for i, p := range c.Put {
		answers[i] = g.Put(p.Key, p.Resource)
	}
	if len(c.Delete)+len(c.Put) > 0 {
		g.CommitRules()
	}
	if !ready {
		// The first nodes come after all rules, so that no packet of theirs, and no connection of
		// the previous gateway, is judged without them.
		s.applySite(g)
		s.log.Info("all resources are known")
	}
	s.mu.Lock()
	s.ready = true
	for i, p := range c.Put {
		if s.state.Refused(p.Key, answers[i]) {
			s.log.WithError(answers[i]).WithField("resource", p.Key.String()).Warn("rules are refused")
		}
	}
	w := &writes{verdicts: map[rules.Key]bool{}, check: check, hasPeer: s.hasPeer}
	for _, v := range s.state.Verdicts() {
		w.verdicts[v.Key] = v.Applied
	}
	waiting, faults := s.state.Waiting(), append(s.state.Reports(), s.notes...)
	if s.refused != "" {
		faults = append(faults, s.ofItself(s.refused))
	}
	s.mu.Unlock()
	s.teller.Wait(waiting...)
	s.teller.Tell(faults)
	return w
}

// applySite passes the Site to g. If g refuses it, the next round tries again: the conflict may be
// gone by then.
func (s *Source) applySite(g Gateway) {
	if s.site == nil {
		return
	}
	err := g.Apply(s.site.Config(s.identity.Base))
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.hasPeer, s.site, s.refused = s.site.PeerPublicKey != [32]byte{}, nil, ""
		return
	}
	s.refused = "what the resources say about the gateway is refused, and what runs stays: " + err.Error()
}

// Resources returns what the gateway needs and lacks, and why resources are left out.
func (s *Source) Resources() (waiting []string, leftOut map[rules.Key]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting = slices.Clone(s.state.Waiting())
	if s.refused != "" {
		waiting = append(waiting, s.refused)
	}
	for _, w := range s.watches() {
		if !s.complete[w.kind] {
			waiting = append(waiting, "the list of "+objects.LiqoResource(w.kind).Resource)
		}
	}
	if refused := s.causes.Refused(); refused != "" {
		waiting = append(waiting, refused)
	}
	return waiting, s.state.Faults()
}

// take replaces all resources of a kind.
func (s *Source) take(kind string, all []*objects.Object) {
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

func (s *Source) put(o *objects.Object) {
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

// Causes logs each cause of failed API requests once, until they succeed again.
type Causes struct {
	log *logrus.Entry

	mu        sync.Mutex
	told      map[string]bool // +checklocks:mu
	forbidden map[string]bool // requests that the API server refuses for want of a right; +checklocks:mu
	refused   map[string]bool // those and others that it refuses whenever it answers; +checklocks:mu
}

// NewCauses returns a Causes that has logged nothing.
func NewCauses(log *logrus.Entry) *Causes {
	return &Causes{log: log, told: map[string]bool{}, forbidden: map[string]bool{}, refused: map[string]bool{}}
}

// Refuses reports whether the API server has refused the last request of a verb and a resource for
// want of a right, or because it does not know it.
func (c *Causes) Refuses(request string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused[request]
}

// Refused says which rights are missing; "" if none is.
func (c *Causes) Refused() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.forbidden) == 0 {
		return ""
	}
	return "the API server refuses for want of rights: " + strings.Join(slices.Sorted(maps.Keys(c.forbidden)), ", ")
}
