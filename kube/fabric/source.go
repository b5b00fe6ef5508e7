package fabric

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"culvert/gateway/control"
	"culvert/gateway/node/links"
	"culvert/kube"
	"culvert/kube/objects"
	"culvert/nat/rules"
)

// lookInterval is how often the source checks for changes that are only due to time.
const lookInterval = time.Second

// A Source makes the links of a node follow Liqo's resources.
type Source struct {
	client dynamic.Interface
	log    *logrus.Entry
	causes *kube.Causes
	teller *kube.Teller
	node   string
	wake   chan struct{}

	mu       sync.Mutex
	state    *State          // +checklocks:mu
	complete map[string]bool // +checklocks:mu
	// when links no longer wait for the list of pods; zero: other lists are missing
	late     time.Time      // +checklocks:mu
	statuses []links.Status // +checklocks:mu
	faults   []kube.Fault   // +checklocks:mu
	waiting  string         // +checklocks:mu

	// For Run only.
	applied []links.Link
	begun   bool
	kernel  map[string]bool // links that the kernel serves, as logged
}

// NewSource returns the Source of the node called name. It is inactive until Run.
func NewSource(client dynamic.Interface, node string, log *logrus.Entry) *Source {
	causes := kube.NewCauses(log)
	return &Source{
		client: client, log: log, causes: causes, node: node, wake: make(chan struct{}, 1),
		teller: kube.NewTeller(kube.Reporter{Client: client, Causes: causes, Self: node + "/links", Node: node,
			Instance: node}, log),
		state: NewState(node), complete: map[string]bool{},
		waiting: "the API server; links of an earlier run are carried as they were",
	}
}

// watched are the kinds that a Source follows.
var watched = map[string]schema.GroupVersionResource{
	kube.KindFabric: objects.LiqoResource(kube.KindFabric), kube.KindTunnel: objects.LiqoResource(kube.KindTunnel),
	kube.KindNode: objects.LiqoResource(kube.KindNode), kindPod: objects.Pods,
}

// activeGateways selects the pods that say that they are the active gateway.
const activeGateways = "networking.liqo.io/component=gateway,networking.liqo.io/active=true"

// podsPatience is how long the list of these pods may take after all others. An older manifest does
// not grant it.
const podsPatience = 3 * time.Second

// Run calls apply with the links that the resources ask for, whenever they change, until ctx ends.
// It does not call apply before every list is complete. While the API server is away, nothing
// changes.
func (s *Source) Run(ctx context.Context, apply func([]links.Link)) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	for kind, resource := range watched {
		f := &kube.Followed{Client: s.client.Resource(resource), Resource: resource.Resource, Into: sink{s, kind}}
		switch kind {
		case kube.KindNode:
			f.Fields = "metadata.name=" + s.node
		case kindPod:
			f.Labels = activeGateways
		}
		tasks.Go(func() { f.Follow(ctx, s.causes) })
	}
	tasks.Go(func() { s.teller.Run(ctx, func() bool { return true }) })
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-tick.C:
		}
		s.follow(apply)
	}
}

// Report records the states of the links.
func (s *Source) Report(all []links.Status) {
	s.mu.Lock()
	s.statuses = slices.Clone(all)
	s.mu.Unlock()
	s.signal()
}

func (s *Source) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Source) follow(apply func([]links.Link)) {
	s.mu.Lock()
	lists, now := len(s.complete), time.Now()
	if !s.complete[kindPod] {
		if lists++; lists == len(watched) && s.late.IsZero() {
			s.late = now.Add(podsPatience)
		}
	}
	if lists < len(watched) || !s.complete[kindPod] && now.Before(s.late) {
		s.mu.Unlock()
		return
	}
	want := s.state.Desired(now)
	if want.Waiting == "" && !s.complete[kindPod] {
		want.Waiting = "the list of pods with " + activeGateways +
			", which this agent may have no right to read: apply the manifest of this version; " +
			"links follow InternalFabrics meanwhile, which Liqo's controller writes"
	}
	statuses := s.statuses
	s.waiting = want.Waiting
	s.mu.Unlock()
	s.teller.Wait(want.Waiting)
	if !s.begun || !slices.Equal(want.Links, s.applied) {
		s.begun, s.applied = true, want.Links
		apply(want.Links)
	}
	faults, kernel := want.Faults, map[string]bool{}
	for _, st := range statuses {
		origin, ok := want.Origin[st.Link.Name]
		text := st.Warning
		if st.State == links.Refused {
			text = st.Err.Error()
		}
		if st.State == links.Kernel {
			if kernel[st.Link.Name] = true; !s.kernel[st.Link.Name] {
				s.log.WithField("interface",
					st.Link.Name).Info("this kernel has Geneve links: Liqo's agent makes its own, culvert makes none")
			}
		}
		if ok && text != "" {
			faults = append(faults, faultOf(kube.KindFabric, origin, text))
		}
	}
	s.kernel = kernel
	s.mu.Lock()
	s.faults = faults
	s.mu.Unlock()
	s.teller.Tell(faults)
}

// Show adds to n what the links wait for, and which resources are left out.
func (s *Source) Show(n *control.NodeStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting != "" {
		n.Waiting = append(n.Waiting, s.waiting)
	}
	if refused := s.causes.Refused(); refused != "" {
		n.Waiting = append(n.Waiting, refused+": apply the manifest of this version (culvert liqo template --nodes)")
	}
	for _, f := range s.faults {
		n.LeftOut = append(n.LeftOut, control.LeftOut{Resource: f.Key().String(), Reason: f.Message})
	}
}

// A sink takes the resources of a kind.
type sink struct {
	*Source
	kind string
}

func (k sink) key(u *unstructured.Unstructured) rules.Key {
	return rules.Key{Kind: k.kind, Namespace: u.GetNamespace(), Name: u.GetName()}
}

func (k sink) Add(u *unstructured.Unstructured) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state.Put(objects.Of(k.kind, u), time.Now())
	k.signal()
}

func (k sink) Delete(u *unstructured.Unstructured) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state.Delete(k.key(u))
	k.signal()
}

func (k sink) Replace(all []*unstructured.Unstructured) {
	k.mu.Lock()
	defer k.mu.Unlock()
	there := map[rules.Key]bool{}
	for _, u := range all {
		k.state.Put(objects.Of(k.kind, u), time.Now())
		there[k.key(u)] = true
	}
	for _, key := range k.state.keys(k.kind) {
		if !there[key] {
			k.state.Delete(key)
		}
	}
	k.complete[k.kind] = true
	k.signal()
}
