package peering

import (
	"cmp"
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

// A NodeSource makes a node's links and routes follow the Peerings, and writes the node's TunnelNode. Nothing is applied before every list is
// complete; while the API server is away, nothing changes.
type NodeSource struct {
	*follower
	name              string
	namespace         string // of TunnelNodes
	peeringsNamespace string
	log               *logrus.Entry
	reporter          *kube.Reporter
	now               func() time.Time
	state             *Node                      // +checklocks:mu
	linkStatuses      []links.Status             // +checklocks:mu
	routeStatuses     []remote.Status            // +checklocks:mu
	shown             []NodePeering              // +checklocks:mu
	refused           map[string]string          // Peerings; replaced as a whole; +checklocks:mu
	tunnelNode        *unstructured.Unstructured // last version seen at the API server; nil if it must be read; this and the rest for Run only
	asked             time.Time
	appliedLinks      []links.Link
	appliedPeers      []remote.Peer
	begun             bool
	said              map[string]bool
	unsaid            []kube.Event
	local, remote     netip.Addr // last known addresses
}

// NewNodeSource returns the source of the node called name, which follows the Peerings of a namespace. api are addresses of the API server.
func NewNodeSource(client dynamic.Interface, name, peerings, tunnelNodes string, api []netip.Addr, log *logrus.Entry) *NodeSource {
	causes := kube.NewCauses(log)
	return &NodeSource{
		follower: newFollower(client, causes), name: name, namespace: tunnelNodes, peeringsNamespace: peerings, log: log, now: time.Now,
		state: NewNode(name, api), said: map[string]bool{},
		reporter: &kube.Reporter{Client: client, Causes: causes, Self: name + "/peerings", Node: name, Instance: name},
	}
}

// ReportLinks records the states of the links, ReportRoutes those of the routes.
func (s *NodeSource) ReportLinks(all []links.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.linkStatuses = slices.Clone(all)
	s.signal()
}

// ReportRoutes is ReportLinks for routes.
func (s *NodeSource) ReportRoutes(all []remote.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.routeStatuses = all
	s.signal()
}

// Run drives m until ctx ends. Links and routes stay.
func (s *NodeSource) Run(ctx context.Context, m Machine) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	all := s.watches()
	for _, w := range all {
		tasks.Go(func() { s.follow(ctx, w) })
	}
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-tick.C:
		}
		s.round(ctx, len(all), m)
		select { // many Services change at once, and each plan looks at all of them
		case <-ctx.Done():
		case <-time.After(breath):
		}
	}
}

// round applies and writes changes, once that many lists are complete.
func (s *NodeSource) round(ctx context.Context, lists int, m Machine) {
	s.mu.Lock()
	if len(s.complete) < lists {
		s.mu.Unlock()
		return
	}
	plan, own := s.state.Plan(), s.state.nodes[s.name]
	status := plan.status(s.linkStatuses, s.routeStatuses)
	s.mu.Unlock()
	s.apply(plan, m)
	s.tell(status)
	s.addRemoved(status)
	s.mu.Lock()
	s.shown, s.refused = status.Peerings, plan.Refused
	s.mu.Unlock()
	s.unsaid = s.reporter.WriteAll(ctx, s.unsaid, s.now())
	if own != nil {
		s.writeTunnelNode(ctx, own, s.sources(plan, m), status)
	}
}

// watches returns the sets that an agent follows.
//
// +checklocksignore: what it returns is called with mu held
func (s *NodeSource) watches() []followed {
	return []followed{
		into(KindPeering, s.peeringsNamespace, named[*Peering]{table[*Peering](s.state.peerings), s.peeringsNamespace}, readPeering),
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

// sources returns the addresses from which the node sends to gateways. An address that is unknown at present stays as it was.
func (s *NodeSource) sources(plan *NodePlan, m Machine) NodeSpec {
	here, elsewhere := netip.Addr{}, netip.Addr{}
	for _, p := range plan.Peers {
		at := &elsewhere
		if p.Here {
			at = &here
		}
		if a, err := m.SourceTo(p.Link.Remote); err == nil && !at.IsValid() {
			*at = a
		}
	}
	s.local, s.remote = known(here, s.local), known(elsewhere, s.remote)
	return NodeSpec{Local: addressText(s.local), Remote: addressText(s.remote)}
}

func known(now, before netip.Addr) netip.Addr {
	if now.IsValid() {
		return now
	}
	return before
}

// tell logs new faults and queues Events about them.
func (s *NodeSource) tell(status *NodeStatus) {
	now := map[string]bool{}
	for _, p := range status.Peerings {
		if p.Message == "" {
			continue
		}
		text := p.Name + ": " + p.Message
		now[text] = true
		if !s.said[text] {
			s.log.WithFields(logrus.Fields{"peering": p.Name, "ready": p.Ready}).Warn(p.Message)
			if s.tunnelNode != nil {
				s.unsaid = append(s.unsaid, kube.Event{APIVersion: Group + "/" + Version, Kind: KindTunnelNode, Message: text,
					Metadata: kube.Metadata{Name: s.name, Namespace: s.namespace, UID: string(s.tunnelNode.GetUID())}})
			}
		}
	}
	s.said = now
}

// writeTunnelNode creates this node's TunnelNode, or updates it.
func (s *NodeSource) writeTunnelNode(ctx context.Context, own *node, spec NodeSpec, status *NodeStatus) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	client := s.client.Resource(paths[KindTunnelNode]).Namespace(s.namespace)
	did := func(verb, resource string, u *unstructured.Unstructured, err error) bool {
		if s.causes.Log(ctx, verb, resource, err); err != nil {
			s.tunnelNode = nil
			return false
		}
		s.tunnelNode, s.asked = u, s.now()
		return true
	}
	if s.tunnelNode == nil || s.now().Sub(s.asked) >= tunnelNodeInterval {
		u, err := client.Get(ctx, s.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			u, err = client.Create(ctx, s.newTunnelNode(own, spec), metav1.CreateOptions{})
			if !did("create", "tunnelnodes", u, err) {
				return
			}
		} else if !did("get", "tunnelnodes", u, err) {
			return
		}
	}
	was := readTunnelNode(s.tunnelNode)
	s.local, s.remote = known(s.local, was.local), known(s.remote, was.remote) // from the previous run
	spec.Local, spec.Remote = cmp.Or(spec.Local, addressText(was.local)), cmp.Or(spec.Remote, addressText(was.remote))
	if was.fault != "" || addressText(was.local) != spec.Local || addressText(was.remote) != spec.Remote {
		u, err := client.Update(ctx, with(s.tunnelNode, "spec", spec), metav1.UpdateOptions{})
		if !did("update", "tunnelnodes", u, err) {
			return
		}
	}
	part, err := kube.PartOf(s.tunnelNode, "status")
	var have NodeStatus
	if err == nil && json.Unmarshal(part, &have) == nil && have.Peerings != nil && reflect.DeepEqual(&have, status) {
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
		"apiVersion": Group + "/" + Version, "kind": KindTunnelNode,
		"metadata": map[string]any{
			"name": s.name, "namespace": s.namespace,
			"ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": kindNode, "name": s.name, "uid": own.meta.UID}},
		},
	}}, "spec", spec)
}
