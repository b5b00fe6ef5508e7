package election

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"culvert/gateway/role"
	"culvert/kube"
	"culvert/kube/objects"
)

// Gateway is what an Elector drives.
type Gateway interface {
	Become(role.Role)
	Signs() role.Signs
	// Call tries a handshake with the peer.
	Call()
}

// Options configure an Elector. All are required except Told and Changed.
type Options struct {
	Client          dynamic.Interface
	Namespace, Name string // of the Lease
	Pod             string // the identity
	Times           role.Times
	Retry           time.Duration // between two attempts; a standby waits up to 2.2 times as long
	Deadline        time.Duration // after which State reports that the Lease cannot be renewed
	Label           Label
	ReplicaPort     uint16 // port at which each pod lets others copy its table
	Log             *logrus.Entry
	Causes          *kube.Causes
	Told            func(message string) // called with messages for operators, for an Event
	Changed         func()               // called when the gateway's role has changed; may be nil
}

// Label is the label by which others find the pod that forwards: one of the selected pods carries
// it. Without a Name, none does.
type Label struct{ Selector, Name string }

// An Elector takes part in an election for one gateway.
type Elector struct {
	Options
	started  time.Time
	poke     chan struct{} // attempt at once
	relabels chan struct{} // the role has changed
	said     chan notice   // notices of other gateways
	taken    chan struct{} // another gateway has the Lease that this one gave back
	yielded  chan struct{} // yieldedTo has changed
	trying   chan struct{} // full during an attempt, which may have written the Lease and not heard so yet

	// the Lease as this gateway has last written it; nil: it has to be read. Only attempt uses it.
	written *unstructured.Unstructured

	mu      sync.Mutex
	machine *role.Machine // +checklocks:mu
	gateway Gateway       // nil before Drive; +checklocks:mu
	table   Table         // nil: it is not copied; +checklocks:mu
	// the latest term in which another gateway has sent this one all of the table
	yieldedTo int64     // +checklocks:mu
	role      role.Role // last announced; +checklocks:mu
	failing   time.Time // since when the Lease cannot be renewed; zero: it can be; +checklocks:mu
	ending    bool      // no more attempts; +checklocks:mu
	changes   uint64    // of the role; +checklocks:mu
	alone     bool      // the gateway has no other pod; +checklocks:mu
	gone      string    // a holder whose pod no longer exists; +checklocks:mu

	owner *metav1.OwnerReference // what controls this pod, and owns the Lease; nil: it is unknown; +checklocks:mu
}

// New returns an Elector, which does nothing before Run.
func New(o Options) *Elector {
	return &Elector{Options: o, started: time.Now(), machine: role.New(o.Pod, o.Times), role: role.Standby,
		poke: make(chan struct{}, 1), relabels: make(chan struct{}, 1),
		said: make(chan notice, maxSaid), taken: make(chan struct{}, 1), yielded: make(chan struct{}, 1),
		trying: make(chan struct{}, 1)}
}

// look is how often the role is decided again while nothing happens.
const look = 200 * time.Millisecond

// now is the Machine's clock.
func (e *Elector) now() time.Duration { return time.Since(e.started) }

// Run takes part in the election until ctx ends. It does not give back the Lease; Leave does.
func (e *Elector) Run(ctx context.Context) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	tasks.Go(func() { e.attempts(ctx) })
	tasks.Go(func() { e.label(ctx) })
	tasks.Go(func() { e.listen(ctx) })
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		e.look()
	}
}

// Drive makes the Elector drive g from now on. The other gateways copy g's connections by t; nil:
// they do not. Before Drive, the Elector does not take the Lease, because another gateway may have
// a copy of the table. Nor does it renew a Lease that an earlier container of its pod had: a
// container that dies whenever it starts would keep the others from forwarding.
func (e *Elector) Drive(g Gateway, t Table) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gateway, e.table = g, t
	g.Become(e.role)
	signal(e.poke)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// look decides the role and gives it to the gateway.
func (e *Elector) look() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ending {
		return
	}
	var signs role.Signs
	if e.gateway != nil {
		signs = e.gateway.Signs()
	}
	if e.machine.Look(signs, e.now()) && e.gateway != nil {
		e.gateway.Call()
	}
	e.announce()
}

// announce gives the gateway its role, if that has changed.
//
// +checklocks:e.mu
func (e *Elector) announce() {
	now, why := e.machine.Role()
	was := e.role
	if now == was {
		return
	}
	e.role, e.gone = now, ""
	e.changes++
	if e.gateway != nil {
		e.gateway.Become(now)
	}
	signal(e.relabels)
	if e.Changed != nil {
		e.Changed()
	}
	lease, _, _ := e.machine.Lease(e.now())
	entry := e.Log.WithFields(logrus.Fields{"role": now, "was": was, "term": lease.Term, "cause": why})
	if now == role.Silent || now == role.Static {
		entry.Warn("the gateway has another role")
	} else {
		entry.Info("the gateway has another role")
	}
	if e.Told != nil {
		e.Told("pod " + e.Pod + " was " + was.String() + " and is " + now.String() + ": " + why + " (at " +
			time.Now().UTC().Format(time.RFC3339) + ")")
	}
}

// attempts tries to get or renew the Lease until ctx ends.
func (e *Elector) attempts(ctx context.Context) {
	for {
		e.attempt(ctx)
		e.mu.Lock()
		r := e.role
		e.mu.Unlock()
		wait := e.Retry
		if !r.Forwards() {
			wait += time.Duration(rand.Float64() * role.Jitter * float64(e.Retry))
		}
		select {
		case <-ctx.Done():
			return
		case <-e.poke:
		case <-time.After(wait):
		}
	}
}

// attempt reads the Lease, and writes it if this gateway may have it. The holder writes what it
// wrote last without reading it again: the API server refuses that if somebody else has written
// since.
func (e *Elector) attempt(ctx context.Context) {
	e.trying <- struct{}{}
	defer func() { <-e.trying }()
	ctx, cancel := context.WithTimeout(ctx, max(e.Deadline/2, e.Retry))
	defer cancel()
	client := e.Client.Resource(objects.Leases).Namespace(e.Namespace)
	u, err := e.written, error(nil)
	if e.written = nil; u == nil {
		u, err = client.Get(ctx, e.Name, metav1.GetOptions{})
		e.Causes.Log(ctx, "get", objects.Leases.Resource, ignoreAbsent(err))
	}
	var have *role.Lease
	switch {
	case apierrors.IsNotFound(err):
		u = nil
	case err != nil:
		e.failed()
		return
	default:
		if have, err = readLease(u); err != nil {
			// No API server would accept such a spec: treat the Lease as one that nobody renews.
			have = &role.Lease{Holder: "?"}
		}
	}
	e.mu.Lock()
	if e.ending {
		e.mu.Unlock()
		return
	}
	if have != nil && have.Holder == e.gone {
		have.Holder = ""
	}
	want := e.machine.Read(have, e.now())
	e.announce()
	if e.gateway == nil {
		want = nil
	}
	takes, owner := !e.role.Forwards(), e.owner
	e.mu.Unlock()
	if want == nil {
		e.succeeded()
		return
	}
	next, err := writeLease(u, e.Namespace, e.Name, owner, want, time.Now())
	if err != nil {
		e.Causes.Log(ctx, "update", objects.Leases.Resource, err)
		return
	}
	asked := e.now()
	if u == nil {
		next, err = client.Create(ctx, next, metav1.CreateOptions{})
	} else {
		next, err = client.Update(ctx, next, metav1.UpdateOptions{})
	}
	// another gateway was faster, or somebody has removed the Lease
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || u != nil && apierrors.IsNotFound(err) {
		signal(e.poke)
		return
	}
	e.Causes.Log(ctx, "update", objects.Leases.Resource, err)
	if err != nil {
		e.failed()
		return
	}
	e.succeeded()
	e.written = next
	if takes {
		e.take(ctx, want.Term)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.ending {
		e.machine.Wrote(want, asked, e.now())
		e.announce()
	}
}

func ignoreAbsent(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// failed records that an attempt has failed.
func (e *Elector) failed() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.machine.Failed()
	if e.failing.IsZero() {
		e.failing = time.Now()
	}
}

func (e *Elector) succeeded() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failing = time.Time{}
}

// State is what an operator sees of an election.
type State struct {
	Role    role.Role
	Why     string        // why it has the role
	Holder  string        // of the Lease; "": nobody, or it is unknown
	Term    int64         // of the Lease
	Age     time.Duration // since the Lease was seen to be renewed
	Failing time.Duration // how long attempts have failed; 0: not longer than the deadline
	Changes uint64        // of the role
}

// State returns the current state.
func (e *Elector) State() State {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := State{Changes: e.changes}
	s.Role, s.Why = e.machine.Role()
	l, age, known := e.machine.Lease(e.now())
	if known {
		s.Holder, s.Term, s.Age = l.Holder, l.Term, age
	}
	if since := time.Since(e.failing); !e.failing.IsZero() && since >= e.Deadline {
		s.Failing = since
	}
	return s
}

// Alone reports whether the gateway has no other pod, not even one that is about to start.
func (e *Elector) Alone() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.alone
}

// Role returns the role.
func (e *Elector) Role() role.Role {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.role
}
