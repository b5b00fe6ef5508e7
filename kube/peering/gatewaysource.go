package peering

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"culvert/gateway/config"
	"culvert/gateway/wgkey"
	"culvert/kube"
	"culvert/kube/objects"
)

const (
	writeTimeout = 10 * time.Second // of one object
	lastTimeout  = 2 * time.Second  // of the final status, which says that the gateway has stopped
	rttInterval  = 30 * time.Second // between two round-trip times
	// refusedInterval is the time between two attempts of a configuration that the gateway refuses:
	// to check it takes long, and seldom helps.
	refusedInterval = time.Minute
	breath          = 100 * time.Millisecond // between two rounds of a gateway or an agent
)

// newLoop returns a Loop that waits between two rounds: many Pods and Services change at once, and
// each plan looks at all of them.
func newLoop(client dynamic.Interface, mu sync.Locker, r kube.Reporter, log *logrus.Entry) *kube.Loop {
	l := kube.NewLoop(client, mu, r, log)
	l.Breath = breath
	return l
}

// Running is the gateway that a GatewaySource drives: cmd/culvert makes it of a gateway.Gateway.
type Running interface {
	Apply(*config.Config) error
	// Amend is the method of gateway.Gateway.
	Amend(*config.Config) bool
	Check() kube.Check
	// Speaks reports whether this gateway, of several, is the active one, which writes the
	// Peering's status.
	Speaks() bool
	// Trouble returns a sentence that says why nothing passes or, if the peer answers, why not
	// everything does; "" if the gateway knows no reason.
	Trouble(answers bool) string
	// Exchange and Tell are the methods of gateway.Gateway.
	Exchange(take func(datagram []byte) bool)
	Tell(datagram []byte)
	// NodeTroubles returns, by node, a sentence that says why nothing passes between the gateway
	// and the node.
	NodeTroubles() map[string]string
	// Standbys returns the pods that copy the gateway's connections. alone: the gateway has no
	// other pod.
	Standbys() (all []Standby, alone bool)
}

// A GatewaySource makes a gateway follow its Peering, the Nodes and their agents, and writes the
// Peering's status. Nothing is applied before every list is complete; while the API server is away,
// nothing changes.
type GatewaySource struct {
	loop          *kube.Loop
	self          Self
	nodeNamespace string // of TunnelNodes
	log           *logrus.Entry
	now           func() time.Time

	services *serviceExchange

	mu    sync.Mutex
	state *Gateway                   // +checklocks:mu
	u     *unstructured.Unstructured // the Peering as received; +checklocks:mu
	told  []string                   // why the gateway differs from what the objects say; +checklocks:mu
	ready bool                       // +checklocks:mu
	ended bool                       // no other pod goes on; +checklocks:mu
	// of the Secret as it was last readable; nil: that of base
	preshared *wgkey.Key // +checklocks:mu
	badSecret error      // why it is not readable now; +checklocks:mu

	// For Run only.
	base      *config.Config
	begun     *Peering       // the Peering from which the fixed part of base was made
	tried     *config.Config // the last one that was passed to the gateway
	triedAt   time.Time
	refused   string // why the gateway refused it
	rtt       time.Duration
	rttAt     time.Time
	following bool // Pods

	// For the writer of the status only.
	pace   pace
	stale  *unstructured.Unstructured // the version before the one that was written last
	pruned bool                       // the API server, with an older CRD, has not kept all of the status
}

// NewGatewaySource returns the source of a gateway. Await and then Run make it work.
func NewGatewaySource(client dynamic.Interface, self Self, nodeNamespace string, log *logrus.Entry) *GatewaySource {
	s := &GatewaySource{self: self, nodeNamespace: nodeNamespace, log: log, now: time.Now, state: NewGateway(self),
		pace: newPace()}
	s.loop = newLoop(client, &s.mu, kube.Reporter{Self: self.Namespace + "/" + self.Name, Node: self.Node,
		Instance: self.Pod}, log)
	s.services = newServiceExchange(s)
	return s
}

// Await follows the Peering and the Nodes until the Peering has, or once had, no fault, and returns
// the configuration that a gateway starts with: base, and the fields that cannot change while the
// gateway runs. speaks reports whether this gateway, of several, is the one that writes the
// Peering's status.
func (s *GatewaySource) Await(ctx context.Context, base *config.Config, speaks func() bool) (*config.Config, error) {
	awaiting, done := context.WithCancel(ctx)
	defer done()
	s.loop.Run(awaiting, speaks, func() {
		s.mu.Lock()
		s.look()
		s.state.judge()
		p, u := s.state.good, s.u
		if p != nil { // no plan yet: it would decide who had an address first, and not all that says so is read
			s.mu.Unlock()
			s.begun, s.base = p, p.Base(base)
			done()
			return
		}
		plan := s.state.Plan()
		s.mu.Unlock()
		s.tell(plan)
		if len(plan.Faults) > 0 { // without one, it is not judged yet
			plan.Status.Conditions = s.conditions(plan, kube.Check{}, "")
			s.writeLater(u, plan)
		}
	}, append(s.others(), s.ownPeering(), s.members())...)
	if s.begun == nil {
		return nil, ctx.Err()
	}
	return s.base, nil
}

// Wake makes Run check at once whether the gateway's role has changed.
func (s *GatewaySource) Wake() { s.loop.Wake() }

// ownPeering follows the one Peering.
//
// +checklocksignore: what it returns is called with mu held
func (s *GatewaySource) ownPeering() kube.Set {
	return kube.Set{Name: KindPeering, Resource: objects.Peerings, Namespace: s.self.Namespace,
		Fields: "metadata.name=" + s.self.Name,
		Read: func(u *unstructured.Unstructured) func(string) {
			p := PeeringOf(u)
			return func(string) { s.u = u; s.state.put(p) }
		},
		Drop: func(string, string) { s.u = nil; s.state.put(nil) },
	}
}

// members follows the Nodes.
//
// +checklocksignore: what it returns is called with mu held
func (s *GatewaySource) members() kube.Set {
	w := into(kindNode, "", table[*node](s.state.nodes), readMember)
	w.Listed = func() { s.state.nodesKnown = true }
	return w
}

// others follows what may have addresses that a change of the Peering would take.
//
// +checklocksignore: what it returns is called with mu held
func (s *GatewaySource) others() []kube.Set {
	return []kube.Set{
		into(setOthers, s.self.Namespace, table[*Peering](s.state.others), s.state.readOther),
		into(kindService, "", offers{s.state}, readOffer),
	}
}

// look notes whether all that others follows is known. An older manifest does not allow all of it.
//
// +checklocks:s.mu
func (s *GatewaySource) look() {
	for _, set := range []string{setOthers, kindService} {
		if !s.loop.Complete(set) && !s.loop.Causes.Refuses("list "+paths[set].Resource) {
			return
		}
	}
	s.state.othersKnown = true
}

// Run drives g, which was made from the result of Await, until ctx ends. It returns an error when
// the Peering requires a change that only a new process can make.
func (s *GatewaySource) Run(ctx context.Context, g Running) error {
	err := s.run(ctx, g)
	s.last(context.WithoutCancel(ctx), err) // nothing else writes any more
	return err
}

// run is Run without the final status.
func (s *GatewaySource) run(ctx context.Context, g Running) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	s.services.start(ctx, &tasks, g)
	all, pods := s.sets()
	s.loop.Run(ctx, g.Speaks, func() {
		if err = s.round(func() { tasks.Go(func() { s.loop.Follow(ctx, pods) }) }, g); err != nil {
			cancel()
		}
	}, append(all, s.services.sets()...)...)
	return err
}

// sets returns the sets that every gateway follows, and the Pods, which a gateway follows if
// Nodes do not say where pods are.
//
// +checklocksignore: what it returns is called with mu held
func (s *GatewaySource) sets() (all []kube.Set, pods kube.Set) {
	return append([]kube.Set{
		s.ownPeering(),
		s.secret(),
		s.members(),
		into(KindTunnelNode, s.nodeNamespace, table[*tunnelNode](s.state.tunnels), readTunnelNode),
	}, s.others()...), into(kindPod, "", s.state.pods, readPod)
}

// round applies changes and tells of them. It calls followPods, once, if the Peering asks for it.
func (s *GatewaySource) round(followPods func(), g Running) error {
	speaks := g.Speaks()
	s.mu.Lock()
	if !speaks || s.self.Elected {
		s.state.term = 0 // the election decides who is active, and Plan takes the next term
	}
	if !speaks {
		s.state.agree()
	}
	s.look()
	s.state.judge() // others may have given up what the Peering takes
	want := append(s.services.needs(), KindPeering, kindNode, KindTunnelNode)
	if p := s.state.good; p != nil && p.FollowPods {
		want = append(want, kindPod)
		if !s.following {
			s.following = true
			followPods()
		}
	}
	whole := s.state.othersKnown && s.loop.Complete(want...) && !s.services.waits()
	var plan *Plan
	var u *unstructured.Unstructured
	if whole {
		plan, u = s.state.Plan(), s.u
	}
	badSecret := s.badSecret
	if s.preshared != nil && plan != nil {
		badSecret = cmp.Or(badSecret, s.share(*s.preshared, plan.Peering))
	}
	s.mu.Unlock()
	if !whole {
		return nil
	}
	if plan.Ousted {
		return fmt.Errorf("status.active of Peering %s/%s names another gateway, pod %s, which began later",
			s.self.Namespace, s.self.Name, plan.Status.Active.Pod)
	}
	if err := s.apply(plan, g); err != nil {
		return err
	}
	if !speaks { // the active gateway says the same
		s.services.rest()
		s.tell(plan)
		return nil
	}
	check := g.Check()
	s.services.tellPeer(plan, check)
	more := s.services.faults(plan)
	if badSecret != nil {
		more = append(more, s.fault(plan, kindSecret, badSecret.Error()+"; the one before stays in use"))
	}
	s.tell(plan, more...)
	if u == nil {
		return nil
	}
	s.keepAccepted(plan)
	plan.troubles(g.NodeTroubles())
	plan.Status.PublicKey = s.base.WireGuard.PrivateKey.Public().Base64()
	plan.Status.RTT = s.roundTrip(&check)
	plan.Status.Conditions = s.conditions(plan, check, g.Trouble(check.State == kube.CheckConnected))
	standbys, alone := g.Standbys()
	plan.Status.Conditions = s.standby(plan, s.undisputed(plan.Status.Conditions), standbys, alone)
	s.writeLater(u, plan)
	return nil
}

// share makes a key the pre-shared one, unless it is another key of a gateway, with which all else
// would be refused, too.
func (s *GatewaySource) share(key wgkey.Key, p *Peering) error {
	base := *s.base
	base.WireGuard.PresharedKey = key
	with := base.WireGuard
	if p != nil {
		with.PeerPublicKey = p.PublicKey
	}
	if fault := with.PresharedFault(); fault != "" {
		at := s.self.Namespace + "/" + SecretName(s.self.Name)
		return fmt.Errorf("%s: %s", fieldAt(at, presharedField), fault)
	}
	s.base = &base
	return nil
}

// apply passes changes to g.
func (s *GatewaySource) apply(plan *Plan, g Running) error {
	next := s.base // without a Peering there is no peer and no node
	if p := plan.Peering; p != nil {
		if was := s.begun; p.Role != was.Role || p.MTU != was.MTU || p.Cluster != was.Cluster || p.Peer != was.Peer {
			return fmt.Errorf("the clusters, spec.role or spec.mtu of Peering %s/%s changed: the gateway must restart",
				s.self.Namespace, s.self.Name)
		}
		next = plan.Config(s.base)
	}
	s.mu.Lock()
	s.ready = true
	s.told = slices.Concat(plan.Waiting, plan.Unready)
	s.mu.Unlock()
	if s.tried != nil && reflect.DeepEqual(s.tried, next) &&
		(s.refused == "" || s.now().Sub(s.triedAt) < refusedInterval) {
		return nil
	}
	s.tried, s.triedAt = next, s.now()
	var err error
	if !g.Amend(next) {
		err = g.Apply(next)
	}
	if s.refused = ""; err == nil {
		return nil
	}
	s.refused = "the new configuration is invalid; the previous one stays in force: " +
		strings.ReplaceAll(err.Error(), "\n", "; ")
	return nil
}

// keepAccepted leaves in the status what the gateway goes on with, if it has refused the plan.
func (s *GatewaySource) keepAccepted(plan *Plan) {
	if s.refused != "" {
		plan.Status.Accepted = plan.Current.Status.Accepted
	}
}

// End says before Run ends that no other gateway goes on, so that Run says so in the status.
func (s *GatewaySource) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

// Ready reports whether every list has been read.
func (s *GatewaySource) Ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// Waiting returns what the gateway waits for: objects, and agents of nodes.
func (s *GatewaySource) Waiting() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.told)
}

// tell tells faults. more are those that do not affect whether the Peering is accepted.
func (s *GatewaySource) tell(plan *Plan, more ...kube.Fault) {
	if s.refused != "" {
		plan.Faults = append(plan.Faults, s.refused)
	}
	s.loop.Teller.Tell(append(s.faults(plan, plan.Faults), more...))
	s.loop.Teller.Wait(plan.Waiting...)
}

// faults returns faults of objects. Each has the limit of the object or the field that its text
// names before the first ": ".
func (s *GatewaySource) faults(plan *Plan, texts []string) (all []kube.Fault) {
	for _, text := range texts {
		of, _, _ := strings.Cut(text, ": ")
		all = append(all, s.fault(plan, of, text))
	}
	return all
}

// fault returns a fault that is told by an Event on the Peering.
func (s *GatewaySource) fault(plan *Plan, of, text string) kube.Fault {
	meta := objects.Metadata{Name: s.self.Name, Namespace: s.self.Namespace}
	if plan.Current != nil {
		meta = plan.Current.Metadata
	}
	return kube.Fault{Of: of, Event: kube.Event{APIVersion: objects.Culvert, Kind: KindPeering, Metadata: meta,
		Message: text}}
}
