package peering

import (
	"context"
	"encoding/json"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"culvert/gateway/node/links"
	"culvert/gateway/node/remote"
	"culvert/kube"
	"culvert/kube/objects"
)

// tunnelNodeInterval is how often an agent checks whether its TunnelNode is still as written.
const tunnelNodeInterval = 30 * time.Second

// Machine is the node that a NodeSource drives.
type Machine interface {
	// Apply sets the desired links and routes.
	Apply([]links.Link, []remote.Peer)
	// SourceTo returns the address from which the node sends to another.
	SourceTo(netip.Addr) (netip.Addr, error)
}

// A NodeSource makes a node's links and routes follow the Peerings, and writes the node's
// TunnelNode. Nothing is applied before every list is complete; while the API server is away,
// nothing changes.
type NodeSource struct {
	loop              *kube.Loop
	name              string
	namespace         string // of TunnelNodes
	peeringsNamespace string
	log               *logrus.Entry
	now               func() time.Time

	mu            sync.Mutex
	state         *Node             // +checklocks:mu
	linkStatuses  []links.Status    // +checklocks:mu
	routeStatuses []remote.Status   // +checklocks:mu
	shown         []NodePeering     // +checklocks:mu
	refused       map[string]string // Peerings; replaced as a whole; +checklocks:mu
	uid           string            // of the TunnelNode; "": it is not known yet; +checklocks:mu

	// For Run only.
	appliedLinks []links.Link
	appliedPeers []remote.Peer
	begun        bool

	// For the writer of the TunnelNode only.
	tunnelNode *unstructured.Unstructured // last version seen at the API server; nil if it must be read
	asked      time.Time
	ways       ways // last measured
}

// NewNodeSource returns the source of the node called name, which follows the Peerings of a
// namespace. api are addresses of the API server.
func NewNodeSource(client dynamic.Interface, name, peerings, tunnelNodes string, api []netip.Addr,
	log *logrus.Entry) *NodeSource {
	s := &NodeSource{name: name, namespace: tunnelNodes, peeringsNamespace: peerings, log: log, now: time.Now,
		state: NewNode(name, api)}
	s.loop = newLoop(client, &s.mu, kube.Reporter{Self: name + "/peerings", Node: name, Instance: name}, log)
	return s
}

// ReportLinks records the states of the links, ReportRoutes those of the routes.
func (s *NodeSource) ReportLinks(all []links.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.linkStatuses = slices.Clone(all)
	s.loop.Wake()
}

// ReportRoutes is ReportLinks for routes.
func (s *NodeSource) ReportRoutes(all []remote.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.routeStatuses = all
	s.loop.Wake()
}

// Run drives m until ctx ends. Links and routes stay.
func (s *NodeSource) Run(ctx context.Context, m Machine) {
	s.loop.Run(ctx, nil, func() { s.round(m) }, s.sets()...)
}

// round applies changes and tells of them, once the lists are complete.
func (s *NodeSource) round(m Machine) {
	s.mu.Lock()
	if !s.loop.Complete(KindPeering, kindNode, kindService) {
		s.mu.Unlock()
		return
	}
	plan, own := s.state.Plan(), s.state.nodes[s.name]
	here, elsewhere := s.state.pods()
	status := plan.status(s.linkStatuses, s.routeStatuses)
	s.mu.Unlock()
	s.apply(plan, m)
	s.tell(status)
	s.addRemoved(status)
	s.mu.Lock()
	s.shown, s.refused = status.Peerings, plan.Refused
	s.mu.Unlock()
	if own != nil {
		now, likely := measured(plan, m), expected(own, here, elsewhere, m)
		s.loop.Teller.Status(func(ctx context.Context) { s.writeTunnelNode(ctx, own, now, likely, status) })
	}
}

// sets returns the sets that an agent follows.
//
// +checklocksignore: what it returns is called with mu held
func (s *NodeSource) sets() []kube.Set {
	return []kube.Set{
		into(KindPeering, s.peeringsNamespace, table[*Peering](s.state.peerings), PeeringOf),
		into(kindNode, "", table[*node](s.state.nodes), readNode),
		into(kindService, "", table[*clusterIPs](s.state.services), readService),
	}
}

// apply passes changes to m.
func (s *NodeSource) apply(plan *NodePlan, m Machine) {
	wanted, peers := []links.Link{}, []remote.Peer{}
	for _, p := range plan.Peers {
		wanted, peers = append(wanted, p.Link), append(peers, p.Routes)
	}
	if s.begun && slices.Equal(wanted, s.appliedLinks) && reflect.DeepEqual(peers, s.appliedPeers) {
		return
	}
	s.begun, s.appliedLinks, s.appliedPeers = true, wanted, peers
	m.Apply(wanted, peers)
}

// ways are the addresses from which a node sends to a gateway on itself and elsewhere. One that is
// unknown is invalid.
type ways struct{ local, remote netip.Addr }

// measured returns the ways to the gateways that are active.
func measured(plan *NodePlan, m Machine) (w ways) {
	for _, p := range plan.Peers {
		at := &w.remote
		if p.Here {
			at = &w.local
		}
		if a, err := m.SourceTo(p.Link.Remote); err == nil && !at.IsValid() {
			*at = a
		}
	}
	return w
}

// expected returns the ways to pods, which are those to a gateway where none is active yet: the
// standby on another node must know the node before it takes over. The way to a pod here counts
// only if it begins at an address of the pods' CIDR. Otherwise the node has no network for them
// yet, or a route for each pod.
func expected(own *node, here, elsewhere netip.Addr, m Machine) (w ways) {
	source := func(to netip.Addr) (a netip.Addr) {
		if to.IsValid() {
			a, _ = m.SourceTo(to) // with an error, it is invalid
		}
		return a
	}
	if a := source(here); slices.ContainsFunc(own.pods, func(c netip.Prefix) bool { return c.Contains(a) }) {
		w.local = a
	}
	w.remote = source(elsewhere)
	return w
}

// or returns w, with the ways of others where its own are unknown.
func (w ways) or(others ...ways) ways {
	for _, o := range others {
		w = ways{known(w.local, o.local), known(w.remote, o.remote)}
	}
	return w
}

func (w ways) spec() NodeSpec {
	return NodeSpec{Local: addressText(w.local), Remote: addressText(w.remote)}
}

func known(now, before netip.Addr) netip.Addr {
	if now.IsValid() {
		return now
	}
	return before
}

// tell tells what is wrong with Peerings, by Events on the TunnelNode.
func (s *NodeSource) tell(status *NodeStatus) {
	s.mu.Lock()
	of := objects.Metadata{Name: s.name, Namespace: s.namespace, UID: s.uid}
	s.mu.Unlock()
	var all []kube.Fault
	for _, p := range status.Peerings {
		if p.Message != "" {
			all = append(all, kube.Fault{Of: p.Name, LogOnly: of.UID == "",
				Event: kube.Event{APIVersion: objects.Culvert, Kind: KindTunnelNode, Metadata: of,
					Message: p.Name + ": " + p.Message}})
		}
	}
	s.loop.Teller.Tell(all)
}

// writeTunnelNode creates this node's TunnelNode, or updates it.
func (s *NodeSource) writeTunnelNode(ctx context.Context, own *node, now, likely ways, status *NodeStatus) {
	s.ways = now.or(s.ways)
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	client := s.loop.Client.Resource(objects.TunnelNodes).Namespace(s.namespace)
	did := func(verb, resource string, u *unstructured.Unstructured, err error) bool {
		if s.loop.Causes.Log(ctx, verb, resource, err); err != nil {
			s.tunnelNode = nil
			return false
		}
		s.tunnelNode, s.asked = u, s.now()
		s.mu.Lock()
		s.uid = string(u.GetUID())
		s.mu.Unlock()
		return true
	}
	if s.tunnelNode == nil || s.now().Sub(s.asked) >= tunnelNodeInterval {
		u, err := client.Get(ctx, s.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			u, err = client.Create(ctx, s.newTunnelNode(own, s.ways.or(likely).spec()), metav1.CreateOptions{})
			if !did("create", "tunnelnodes", u, err) {
				return
			}
		} else if !did("get", "tunnelnodes", u, err) {
			return
		}
	}
	was := readTunnelNode(s.tunnelNode)
	before := ways{was.local, was.remote} // from the previous run
	spec := s.ways.or(likely, before).spec()
	if was.fault != "" || before.spec() != spec {
		u, err := client.Update(ctx, with(s.tunnelNode, "spec", spec), metav1.UpdateOptions{})
		if !did("update", "tunnelnodes", u, err) {
			return
		}
	}
	var have NodeStatus
	if json.Unmarshal(objects.PartOf(s.tunnelNode, "status"), &have) == nil && have.Peerings != nil &&
		reflect.DeepEqual(&have, status) {
		return
	}
	u, err := client.UpdateStatus(ctx, with(s.tunnelNode, "status", status), metav1.UpdateOptions{})
	did("update", "tunnelnodes/status", u, err)
}

func addressText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// with returns a copy of an object with one part replaced.
func with(u *unstructured.Unstructured, name string, part any) *unstructured.Unstructured {
	text, err := json.Marshal(part)
	if err != nil {
		return u // unreachable: the parts are structs of texts and numbers
	}
	next := &unstructured.Unstructured{Object: maps.Clone(u.Object)}
	next.Object[name] = json.RawMessage(text)
	return next
}

// newTunnelNode returns a TunnelNode that is deleted with its Node.
func (s *NodeSource) newTunnelNode(own *node, spec NodeSpec) *unstructured.Unstructured {
	return with(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": objects.Culvert, "kind": KindTunnelNode,
		"metadata": map[string]any{
			"name": s.name, "namespace": s.namespace,
			"ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": kindNode, "name": s.name,
				"uid": own.meta.UID}},
		},
	}}, "spec", spec)
}
