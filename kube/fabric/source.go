package fabric

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"culvert/gateway/control"
	"culvert/gateway/node/links"
	"culvert/kube"
	"culvert/kube/liqo"
	"culvert/kube/objects"
	"culvert/nat/rules"
)

// A Source makes the links of a node follow Liqo's resources.
type Source struct {
	log  *logrus.Entry
	loop *kube.Loop
	node string

	mu    sync.Mutex
	state *State // +checklocks:mu
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
	s := &Source{log: log, node: node, state: NewState(node),
		waiting: "the API server; links of an earlier run are carried as they were"}
	s.loop = kube.NewLoop(client, &s.mu, kube.Reporter{Self: node + "/links", Node: node, Instance: node}, log)
	return s
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
	s.loop.Run(ctx, nil, func() { s.follow(apply) }, s.sets()...)
}

// sets are what a node follows.
//
// +checklocksignore: a Loop holds mu
func (s *Source) sets() (all []kube.Set) {
	for _, kind := range []string{liqo.KindFabric, liqo.KindTunnel, liqo.KindNode, kindPod} {
		set := kube.Set{Name: kind, Resource: objects.LiqoResource(kind),
			Read: func(u *unstructured.Unstructured) func(string) {
				o := objects.Of(kind, u)
				return func(string) { s.state.Put(o, time.Now()) }
			},
			Drop: func(namespace, name string) {
				s.state.Delete(rules.Key{Kind: kind, Namespace: namespace, Name: name})
			},
		}
		switch kind {
		case liqo.KindNode:
			set.Fields = "metadata.name=" + s.node
		case kindPod:
			set.Resource, set.Labels = objects.Pods, activeGateways
		}
		all = append(all, set)
	}
	return all
}

// Report records the states of the links.
func (s *Source) Report(all []links.Status) {
	s.mu.Lock()
	s.statuses = slices.Clone(all)
	s.mu.Unlock()
	s.loop.Wake()
}

func (s *Source) follow(apply func([]links.Link)) {
	s.mu.Lock()
	pods, now := s.loop.Complete(kindPod), time.Now()
	rest := s.loop.Complete(liqo.KindFabric, liqo.KindTunnel, liqo.KindNode)
	if rest && !pods && s.late.IsZero() {
		s.late = now.Add(podsPatience)
	}
	if !rest || !pods && now.Before(s.late) {
		s.mu.Unlock()
		return
	}
	want := s.state.Desired(now)
	if want.Waiting == "" && !pods {
		want.Waiting = "the list of pods with " + activeGateways +
			", which this agent may have no right to read: apply the manifest of this version; " +
			"links follow InternalFabrics meanwhile, which Liqo's controller writes"
	}
	statuses := s.statuses
	s.waiting = want.Waiting
	s.mu.Unlock()
	s.loop.Teller.Wait(want.Waiting)
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
			faults = append(faults, faultOf(liqo.KindFabric, origin, text))
		}
	}
	s.kernel = kernel
	s.mu.Lock()
	s.faults = faults
	s.mu.Unlock()
	s.loop.Teller.Tell(faults)
}

// Show adds to n what the links wait for, and which resources are left out.
func (s *Source) Show(n *control.NodeStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting != "" {
		n.Waiting = append(n.Waiting, s.waiting)
	}
	if refused := s.loop.Causes.Refused(); refused != "" {
		n.Waiting = append(n.Waiting, refused+": apply the manifest of this version (culvert liqo template --nodes)")
	}
	for _, f := range s.faults {
		n.LeftOut = append(n.LeftOut, control.LeftOut{Resource: f.Key().String(), Reason: f.Message})
	}
}
