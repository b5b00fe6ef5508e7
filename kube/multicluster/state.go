package multicluster

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"culvert/gateway/exports"
	"culvert/kube/mcs"
	"culvert/kube/peering"
)

// A State has the objects from which multi-cluster Services are derived, and those that are
// derived from them. It is not safe for concurrent use.
type State struct {
	namespaces map[string]bool
	peerings   map[string]*peering.Peering
	heard      map[string]*heard // by Peering
	exports    map[types.NamespacedName]*mcs.Export
	services   map[types.NamespacedName]*mcs.Service
	slices     index[*mcs.Slice]

	imports map[types.NamespacedName]*unstructured.Unstructured // all ServiceImports
	derived map[types.NamespacedName]*unstructured.Unstructured // Services with LabelManaged, by their own name
	ours    index[*ourSlice]

	room    int                                                  // how many ClusterIPs the Services of a peer may have
	lacks   map[string]bool                                      // families of which Services here have no ClusterIPs
	cluster string                                               // this cluster's ID; "" = no Peering says
	peers   map[string]map[types.NamespacedName]*exports.Service // what is accepted, by Peering
	clashes map[string]string                                    // why nothing is accepted of a Peering
	faults  map[string][]string                                  // of peers, by Peering
	silent  map[string]time.Time                                 // since when, by Peering
	lost    map[string]bool                                      // Peerings that are silent for lostAfter

	// What is to be derived again, by whose doing, each with a number in the order of time.
	dirty   map[string]map[types.NamespacedName]uint64
	touched uint64
	// What a peer exported before, by Peering: until its own task begins, it counts for others'.
	before map[string]map[types.NamespacedName]*exports.Service
}

// local is the cause of what anything but the exports of a peer has changed. The other causes are
// Peerings.
const local = ""

// NewState returns a State without objects.
func NewState() *State {
	return &State{room: exports.MaxServices,
		namespaces: map[string]bool{}, peerings: map[string]*peering.Peering{}, heard: map[string]*heard{},
		exports: map[types.NamespacedName]*mcs.Export{}, services: map[types.NamespacedName]*mcs.Service{},
		lacks: map[string]bool{}, slices: newIndex[*mcs.Slice](),
		imports: map[types.NamespacedName]*unstructured.Unstructured{},
		derived: map[types.NamespacedName]*unstructured.Unstructured{}, ours: newIndex[*ourSlice](),
		peers: map[string]map[types.NamespacedName]*exports.Service{}, clashes: map[string]string{},
		silent: map[string]time.Time{}, lost: map[string]bool{},
		faults: map[string][]string{}, dirty: map[string]map[types.NamespacedName]uint64{},
		before: map[string]map[types.NamespacedName]*exports.Service{}}
}

// An index has objects by their own name, and their names by the Service that they belong to.
type index[V any] struct {
	all map[types.NamespacedName]V
	of  map[types.NamespacedName]map[string]V // names within the Service's namespace
}

func newIndex[V any]() index[V] {
	return index[V]{map[types.NamespacedName]V{}, map[types.NamespacedName]map[string]V{}}
}

func (x index[V]) put(name, of types.NamespacedName, v V) {
	x.all[name] = v
	if x.of[of] == nil {
		x.of[of] = map[string]V{}
	}
	x.of[of][name.Name] = v
}

func (x index[V]) drop(name, of types.NamespacedName) {
	delete(x.all, name)
	if delete(x.of[of], name.Name); len(x.of[of]) == 0 {
		delete(x.of, of)
	}
}

// touch makes all of a name be derived again.
func (s *State) touch(name types.NamespacedName) { s.touchBy(local, name) }

func (s *State) touchBy(cause string, name types.NamespacedName) {
	s.touched++
	s.back(task{name, cause, s.touched})
}

// A task is to derive all of a name again, except what the tasks of other peers are for.
type task struct {
	name  types.NamespacedName
	cause string
	since uint64
}

// key returns what is the same of all tasks of a cause about a name.
func (t task) key() task { return task{name: t.name, cause: t.cause} }

// back makes a task wait again.
func (s *State) back(t task) {
	if s.dirty[t.cause] == nil {
		s.dirty[t.cause] = map[types.NamespacedName]uint64{}
	}
	if _, waits := s.dirty[t.cause][t.name]; !waits {
		s.dirty[t.cause][t.name] = t.since
	}
}

// take returns the tasks of which due is true, those that have waited longest first, and at most
// one of a name. They wait no longer. more says that others of these names are due.
func (s *State) take(due func(task) bool) (all []task, more bool) {
	for cause, names := range s.dirty {
		for name, since := range names {
			if t := (task{name, cause, since}); due(t) {
				all = append(all, t)
			}
		}
	}
	slices.SortFunc(all, func(a, b task) int { return cmp.Compare(a.since, b.since) })
	taken, n := map[types.NamespacedName]bool{}, len(all)
	all = slices.DeleteFunc(all, func(t task) bool {
		had := taken[t.name]
		taken[t.name] = true
		return had
	})
	for _, t := range all {
		delete(s.before[t.cause], t.name)
		if delete(s.dirty[t.cause], t.name); len(s.dirty[t.cause]) == 0 {
			delete(s.dirty, t.cause)
		}
	}
	return all, len(all) < n
}

// changed touches a name of which a peer exports something else than before.
func (s *State) changed(peering string, name types.NamespacedName, was *exports.Service) {
	if s.before[peering] == nil {
		s.before[peering] = map[types.NamespacedName]*exports.Service{}
	}
	if _, waits := s.before[peering][name]; !waits {
		s.before[peering][name] = was
	}
	s.touchBy(peering, name)
}

// leaves reports whether a task leaves the endpoints of a cluster to one of that peer.
func (s *State) leaves(t task, cluster string) bool {
	for of, p := range s.peerings {
		if _, waits := s.dirty[of][t.name]; waits && of != t.cause && p.Peer == cluster {
			return true
		}
	}
	return false
}

func (s *State) touchAll(within func(types.NamespacedName) bool) {
	for _, name := range s.names() {
		if within(name) {
			s.touch(name)
		}
	}
}

// names returns the names of which there is anything.
func (s *State) names() []types.NamespacedName {
	all := map[types.NamespacedName]bool{}
	for name := range s.exports {
		all[name] = true
	}
	for name, u := range s.imports {
		if managed(u) {
			all[name] = true
		}
	}
	for name := range s.ours.of {
		all[name] = true
	}
	for _, of := range s.peers {
		for name := range of {
			all[name] = true
		}
	}
	return slices.Collect(maps.Keys(all))
}

// PutNamespace notes that a namespace is there, or, if not, that it has gone or is ending.
func (s *State) PutNamespace(name string, there bool) {
	if s.namespaces[name] != there {
		if s.namespaces[name] = there; !there {
			delete(s.namespaces, name)
		}
		s.touchAll(func(n types.NamespacedName) bool { return n.Namespace == name })
	}
}

// PutPeering takes a Peering; nil: it has gone. While its spec has a fault, the version before
// counts, or, if there is none, nothing is known of its peer: what is here of it stays. The status,
// which a gateway writes, is not trusted here: it says of its own peer alone whether it is silent.
func (s *State) PutPeering(name string, p *peering.Peering) {
	if p != nil && p.Deleting {
		p = nil
	}
	delete(s.silent, name)
	if p != nil {
		if since, down := p.Silent(); down {
			s.silent[name] = since
		}
	}
	was := s.peerings[name]
	if p == nil && was == nil {
		return
	}
	if p != nil && was != nil && p.Metadata.UID == was.Metadata.UID {
		faulty, before := len(p.Faults) > 0, len(was.Faults) > 0
		if faulty && !before || faulty == before && p.SameSpec(was) {
			return // a gateway writes the status all the time
		}
	}
	if s.peerings[name] = p; p == nil {
		delete(s.peerings, name)
	}
	s.judge()
}

// lostAfter is how long a peer is silent until clients should use other clusters' endpoints.
const lostAfter = 30 * time.Second

// Lose finds out which peers are lost, and which are so no longer.
func (s *State) Lose(now time.Time) {
	for name := range s.peerings {
		since, silent := s.silent[name]
		if lost := silent && now.Sub(since) >= lostAfter; lost != s.lost[name] {
			s.lost[name] = lost
			for of := range s.peers[name] {
				s.touchBy(name, of)
			}
		}
	}
	maps.DeleteFunc(s.lost, func(name string, lost bool) bool { return !lost || s.peerings[name] == nil })
}

// PutHeard takes a PeerExports; nil: it has gone.
func (s *State) PutHeard(name string, h *heard) {
	if s.heard[name] = h; h == nil {
		delete(s.heard, name)
	}
	s.accept(name)
}

// PutRoom says how many ClusterIPs the Services of a peer may have.
func (s *State) PutRoom(n int) {
	s.room = n
	s.judge()
}

// Forgive has the API server asked again for ClusterIPs of the families that it has refused.
func (s *State) Forgive() {
	if len(s.lacks) > 0 {
		clear(s.lacks)
		s.touchAll(func(types.NamespacedName) bool { return true })
	}
}

// judge finds out which Peerings count, and what is accepted of each.
func (s *State) judge() {
	inAge := slices.SortedFunc(maps.Values(s.peerings), func(a, b *peering.Peering) int {
		return cmp.Or(a.Metadata.Created.Compare(b.Metadata.Created),
			strings.Compare(a.Metadata.Name, b.Metadata.Name))
	})
	s.cluster = ""
	clear(s.clashes)
	of := map[string]string{}
	for _, p := range inAge {
		name := p.Metadata.Name
		if s.cluster = cmp.Or(s.cluster, p.Cluster); p.Cluster != s.cluster {
			s.clashes[name] = fmt.Sprintf("spec.cluster: %s, and an older Peering says that this cluster is %s",
				p.Cluster, s.cluster)
		} else if p.Peer == s.cluster {
			s.clashes[name] = "spec.peer: it is this cluster's own ID"
		} else if other := of[p.Peer]; other != "" {
			s.clashes[name] = fmt.Sprintf("spec.peer: Peering %s has the Services of %s already", other, p.Peer)
		} else {
			of[p.Peer] = name
		}
	}
	for name := range maps.Keys(s.peers) {
		if s.peerings[name] == nil {
			s.accept(name)
		}
	}
	for name := range s.peerings {
		s.accept(name)
	}
	s.touchAll(func(types.NamespacedName) bool { return true })
	clear(s.before)
	maps.DeleteFunc(s.dirty, func(cause string, _ map[types.NamespacedName]uint64) bool { return cause != local })
}

// accept judges what a peer exports, and touches the names that differ from before.
func (s *State) accept(name string) {
	was := s.peers[name]
	delete(s.peers, name)
	delete(s.faults, name)
	p, h := s.peerings[name], s.heard[name]
	switch {
	case p == nil:
	case s.clashes[name] != "":
		s.faults[name] = []string{s.clashes[name]}
	case len(p.Faults) > 0, h == nil, !h.known && h.fault == "":
		// The slices that are there stay: see Next.
	case h.fault != "": // what was heard before stays, and so do the slices that are there
		s.faults[name] = []string{h.fault}
		if was != nil {
			s.peers[name] = was
		}
	default:
		s.peers[name], s.faults[name] = h.judge(p, s.room, func(of types.NamespacedName) bool {
			return s.derived[types.NamespacedName{Namespace: of.Namespace, Name: derivedName(of)}] != nil
		})
	}
	is := s.peers[name]
	for of, service := range is {
		if was[of] == nil || !reflect.DeepEqual(was[of], service) {
			s.changed(name, of, was[of])
		}
	}
	for of := range was {
		if is[of] == nil {
			s.changed(name, of, was[of])
		}
	}
	if (is == nil) != (was == nil) && p != nil { // what was left while nothing was known is judged now
		for of, all := range s.ours.of {
			for _, x := range all {
				if x.cluster == p.Peer {
					s.touchBy(name, of)
				}
			}
		}
	}
}

// unknown reports whether nothing has been heard of a cluster that is a peer, so that what is there
// of it stays.
func (s *State) unknown(cluster string) bool {
	for name, p := range s.peerings {
		if p.Peer == cluster && s.clashes[name] == "" && s.peers[name] == nil {
			return true
		}
	}
	return false
}

// offers returns what all clusters export by the name of a task, the oldest first.
func (s *State) offers(t task) (all []offer) {
	if o, ok := s.own(t.name); ok {
		all = append(all, o)
	}
	for of, p := range s.peerings {
		x := s.peers[of][t.name]
		if was, waits := s.before[of][t.name]; waits && of != t.cause {
			x = was
		}
		if x != nil {
			all = append(all, offer{p.Peer, x, s.lost[of]})
		}
	}
	slices.SortFunc(all, older)
	if slices.ContainsFunc(all, offer.serves) {
		for i, o := range all {
			if o.lost {
				all[i].Service = notReady(o.Service)
			}
		}
	}
	return all
}

// notReady returns a Service whose endpoints get no new connections.
func notReady(x *exports.Service) *exports.Service {
	away := *x
	away.Endpoints = slices.Clone(x.Endpoints)
	for i := range away.Endpoints {
		g := &away.Endpoints[i]
		g.Addresses = slices.Clone(g.Addresses)
		for i := range g.Addresses {
			g.Addresses[i].State = exports.NotReady
		}
	}
	return &away
}

// own returns what this cluster exports by a name.
func (s *State) own(name types.NamespacedName) (offer, bool) {
	e, of := s.exports[name], s.services[name]
	if e == nil || e.Deleting || of == nil || of.Invalid != "" || s.cluster == "" || !s.shared(name.Namespace) {
		return offer{}, false
	}
	var groups []exports.Group
	for _, called := range slices.Sorted(maps.Keys(s.slices.of[name])) {
		groups = append(groups, s.slices.of[name][called].Group)
	}
	x := mcs.Offer(e, of.Service, groups)
	x.Labels, x.Annotations = acceptable(x.Labels, labelValue), acceptable(x.Annotations, annotationValue)
	for i := range x.Endpoints {
		g := &x.Endpoints[i]
		g.Addresses = slices.Clone(g.Addresses)
		for i := range g.Addresses {
			named(&g.Addresses[i])
		}
	}
	return offer{s.cluster, &x, false}, true
}

// shared reports whether any peer hears of the exports of a namespace.
func (s *State) shared(namespace string) bool {
	for name, p := range s.peerings {
		if s.clashes[name] == "" && p.Exports(namespace) {
			return true
		}
	}
	return false
}

// Faults returns what is wrong with what peers export, by Peering.
func (s *State) Faults() map[string][]string { return s.faults }

// touchExported touches a name if this cluster exports it.
func (s *State) touchExported(name types.NamespacedName) {
	if s.exports[name] != nil {
		s.touch(name)
	}
}
