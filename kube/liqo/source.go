package liqo

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/dynamic"

	"culvert/gateway/config"
	"culvert/kube"
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
	Check() kube.Check
	// Speaks reports whether this gateway, of several, is the one that writes the status of
	// resources.
	Speaks() bool
}

// A Source configures a Gateway by a cluster's resources, and reports back. Nothing is applied
// before every list is complete, so a restart cuts no connection; while the API server is away,
// nothing changes.
//
// Only Run calls the Gateway.
type Source struct {
	identity Identity
	log      *logrus.Entry
	loop     *kube.Loop

	now func() time.Time // the clock of conditions and Events
	// For Run only.
	notes   []kube.Fault
	site    *Site // not applied yet; nil: none
	hasPeer bool  // in the last Site applied

	mu         sync.Mutex
	state      *State      // +checklocks:mu
	connection *connection // nil: there is none in the API server; +checklocks:mu
	refused    string      // +checklocks:mu
	ready      bool        // +checklocks:mu
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
	check    kube.Check
	hasPeer  bool
}

// NewSource returns the Source of a gateway, which is inactive until Run.
func NewSource(client dynamic.Interface, id Identity, log *logrus.Entry) *Source {
	s := &Source{identity: id, log: log, state: NewState(id.Self), now: time.Now}
	s.loop = kube.NewLoop(client, &s.mu, kube.Reporter{Self: id.Namespace + "/" + id.Name, Node: id.Node,
		Instance: cmp.Or(id.Pod, id.Name)}, log)
	return s
}

// Note adds an Event about the gateway itself, on its GatewayServer or GatewayClient. It must be
// called before Run.
func (s *Source) Note(message string) { s.notes = append(s.notes, s.ofItself(message)) }

func (s *Source) ofItself(message string) kube.Fault {
	kind := "GatewayClient"
	if s.identity.Server {
		kind = "GatewayServer"
	}
	of := objects.Metadata{Name: s.identity.Name, Namespace: s.identity.Namespace, UID: s.identity.UID}
	return kube.Fault{Event: kube.Event{Kind: kind, Metadata: of, Message: message}}
}

// Ready reports whether every list has been complete once.
func (s *Source) Ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// Run configures g until ctx ends.
func (s *Source) Run(ctx context.Context, g Gateway) {
	s.loop.Run(ctx, g.Speaks, func() {
		if w := s.apply(g); w != nil {
			s.loop.Teller.Status(func(ctx context.Context) { s.write(ctx, w) })
		}
	}, s.sets()...)
}

// apply passes changes to g, tells faults, and returns what must be written; nil until every list
// is complete. s.mu is free while g works, which may take long: probes and commands ask meanwhile,
// and watches continue.
func (s *Source) apply(g Gateway) *writes {
	check := g.Check()
	s.mu.Lock()
	whole, ready := s.loop.Complete(followed...), s.ready
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
	s.loop.Teller.Wait(waiting...)
	s.loop.Teller.Tell(faults)
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
	for _, kind := range followed {
		if !s.loop.Complete(kind) {
			waiting = append(waiting, "the list of "+objects.LiqoResource(kind).Resource)
		}
	}
	if refused := s.loop.Causes.Refused(); refused != "" {
		waiting = append(waiting, refused)
	}
	return waiting, s.state.Faults()
}
