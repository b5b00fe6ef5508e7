package multicluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"culvert/kube"
	"culvert/kube/mcs"
	"culvert/kube/objects"
	"culvert/kube/peering"
)

const (
	writers     = 4                      // requests at once
	writesASec  = 200                    // of one Source, after writesFirst
	writesFirst = 5000                   // for a start with many Services
	restOfName  = 200 * time.Millisecond // between two looks at a name that keeps changing
	retryName   = 5 * time.Second        // after a request about it was refused
	turn        = 100                    // writes of one cause in a row, before others have their turn
	roomEach    = time.Minute            // between two looks at the cluster's ServiceCIDRs
	least       = 1000                   // bytes of a write, of those that the API server adds
)

// A Source makes the multi-cluster Services of a cluster, while it speaks.
type Source struct {
	log       *logrus.Entry
	loop      *kube.Loop
	namespace string // of Peerings and PeerExports
	limit     *rate.Limiter
	speaks    func() bool
	looked    time.Time // at the ServiceCIDRs; for round alone

	mu    sync.Mutex
	state *State             // +checklocks:mu
	later map[task]time.Time // when it is due again, by key; +checklocks:mu
	spent map[string]int     // writes of this round, by cause; +checklocks:mu
	// What Peerings may still have written, in bytes. A peer that has used up its part waits.
	budgets map[string]*rate.Limiter        // +checklocks:mu
	why     map[types.NamespacedName]string // what is in its way; +checklocks:mu
}

// NewSource returns the Source of the cluster of a client, whose Peerings are in a namespace. Pod
// is its own name, for Events. It writes only while speaks returns true.
func NewSource(client dynamic.Interface, namespace, pod string, speaks func() bool, log *logrus.Entry) *Source {
	s := &Source{log: log, namespace: namespace, limit: rate.NewLimiter(writesASec, writesFirst), speaks: speaks,
		state: NewState(), later: map[task]time.Time{}, why: map[types.NamespacedName]string{},
		budgets: map[string]*rate.Limiter{}}
	s.loop = kube.NewLoop(client, &s.mu, kube.Reporter{Self: pod, Instance: pod}, log)
	return s
}

// Run keeps the Services as they should be, until ctx ends.
func (s *Source) Run(ctx context.Context) {
	s.loop.Run(ctx, s.speaks, func() { s.round(ctx) }, s.sets()...)
}

// The names of the sets.
const (
	setExports    = "ServiceExport"
	setImports    = "ServiceImport"
	setServices   = "Service"
	setDerived    = "derived Service"
	setSlices     = "EndpointSlice"
	setOurs       = "imported EndpointSlice"
	setPeerings   = "Peering"
	setHeard      = "PeerExports"
	setNamespaces = "Namespace"
)

var allSets = []string{setExports, setImports, setServices, setDerived, setSlices, setOurs, setPeerings, setHeard,
	setNamespaces}

func within(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// keyed returns the name of a key of package kube.
func keyed(key string) types.NamespacedName {
	i := strings.IndexByte(key, '/')
	return within(key[:max(i, 0)], key[i+1:])
}

// sets are what a Source follows.
//
// +checklocksignore: a Loop holds mu
func (s *Source) sets() []kube.Set {
	st := s.state
	exports := kube.Set{Name: setExports, Resource: objects.ServiceExports,
		Read: func(u *unstructured.Unstructured) func(string) {
			e := mcs.ReadExport(u)
			return func(key string) { st.putExport(keyed(key), e) }
		},
		Drop: func(ns, name string) { delete(st.exports, within(ns, name)); st.touch(within(ns, name)) }}
	imports := kube.Set{Name: setImports, Resource: objects.ServiceImports,
		Read: func(u *unstructured.Unstructured) func(string) {
			return func(key string) { st.putImport(keyed(key), u) }
		},
		Drop: func(ns, name string) { st.putImport(within(ns, name), nil) }}
	services := kube.Set{Name: setServices, Resource: objects.Services, Large: true, Labels: "!" + mcs.LabelManaged,
		Read: func(u *unstructured.Unstructured) func(string) {
			x := mcs.ReadService(u)
			return func(key string) { st.services[keyed(key)] = x; st.touchExported(keyed(key)) }
		},
		Drop: func(ns, name string) { delete(st.services, within(ns, name)); st.touchExported(within(ns, name)) }}
	derived := kube.Set{Name: setDerived, Resource: objects.Services, Labels: mcs.LabelManaged,
		Read: func(u *unstructured.Unstructured) func(string) {
			return func(key string) { st.putDerived(keyed(key), u) }
		},
		Drop: func(ns, name string) { st.putDerived(within(ns, name), nil) }}
	endpoints := kube.Set{Name: setSlices, Resource: objects.EndpointSlices, Large: true,
		Labels: "!" + mcs.LabelCluster,
		Read: func(u *unstructured.Unstructured) func(string) {
			x := mcs.ReadSlice(u)
			if x == nil {
				return nil
			}
			return func(key string) { st.putSlice(keyed(key), x) }
		},
		Drop: func(ns, name string) { st.putSlice(within(ns, name), nil) }}
	ours := kube.Set{Name: setOurs, Resource: objects.EndpointSlices, Large: true, Labels: mcs.LabelManaged,
		Read: func(u *unstructured.Unstructured) func(string) {
			x, of := readOurs(u)
			return func(key string) { st.putOurs(keyed(key), of, x) }
		},
		Drop: func(ns, name string) { st.dropOurs(within(ns, name)) }}
	peerings := kube.Set{Name: setPeerings, Resource: objects.Peerings, Namespace: s.namespace,
		Read: func(u *unstructured.Unstructured) func(string) {
			p := peering.PeeringOf(u)
			return func(string) { st.PutPeering(p.Metadata.Name, p) }
		},
		Drop: func(_, name string) { st.PutPeering(name, nil) }}
	told := kube.Set{Name: setHeard, Resource: objects.PeerExports, Namespace: s.namespace,
		Read: func(u *unstructured.Unstructured) func(string) {
			h, name := readHeard(u), u.GetName()
			return func(string) { st.PutHeard(name, h) }
		},
		Drop: func(_, name string) { st.PutHeard(name, nil) }}
	namespaces := kube.Set{Name: setNamespaces, Resource: objects.Namespaces,
		Read: func(u *unstructured.Unstructured) func(string) {
			name, there := u.GetName(), u.GetDeletionTimestamp() == nil
			return func(string) { st.PutNamespace(name, there) }
		},
		Drop: func(_, name string) { st.PutNamespace(name, false) }}
	return []kube.Set{exports, imports, services, derived, endpoints, ours, peerings, told, namespaces}
}

// round looks at the names of which something has changed, and writes what they need.
func (s *Source) round(ctx context.Context) {
	now := time.Now()
	if s.Ready() && now.Sub(s.looked) >= roomEach {
		s.look(ctx, now)
	}
	s.mu.Lock()
	whole := s.loop.Complete(allSets...) && !s.looked.IsZero()
	var due []task
	var more bool
	var lists []*unstructured.Unstructured
	s.state.Lose(now)
	if whole && s.speaks() {
		due, more = s.due(now)
		lists = s.lists(now)
	}
	s.spent = map[string]int{}
	faults := s.faults()
	s.mu.Unlock()
	for _, u := range lists {
		s.write(ctx, within("", u.GetName()), &Write{Verb: "create", Resource: objects.PeerExports, Object: u})
	}
	waiting := ""
	if !whole {
		waiting = s.Waiting()
	}
	s.loop.Teller.Wait(waiting)
	s.loop.Teller.Tell(faults)
	names := make(chan task)
	var tasks sync.WaitGroup
	for range min(writers, len(due)) {
		tasks.Go(func() {
			for t := range names {
				s.settle(ctx, t)
			}
		})
	}
	for _, t := range due {
		names <- t
	}
	close(names)
	tasks.Wait()
	s.mu.Lock()
	left, unfinished := len(s.state.dirty) > 0, slices.Contains(slices.Collect(maps.Values(s.spent)), turn)
	s.mu.Unlock()
	switch {
	case unfinished, more:
		s.loop.Wake()
	case left:
		time.AfterFunc(restOfName, s.loop.Wake)
	}
}

// due returns the tasks of now; more says that others of their names are due, too.
//
// +checklocks:s.mu
func (s *Source) due(now time.Time) (all []task, more bool) {
	later, budgets := s.later, s.budgets
	all, more = s.state.take(func(t task) bool {
		b := budgets[t.cause]
		return !now.Before(later[t.key()]) && (b == nil || b.TokensAt(now) >= 0)
	})
	for _, t := range all {
		s.later[t.key()] = now.Add(restOfName)
	}
	maps.DeleteFunc(s.later, func(_ task, at time.Time) bool { return !now.Before(at) })
	return all, more
}

// charge takes a write from the budget of the peer that has caused it.
//
// +checklocks:s.mu
func (s *Source) charge(cause string, w *Write) {
	s.spent[cause]++
	if cause == local {
		return
	}
	if s.budgets[cause] == nil {
		s.budgets[cause] = kube.NewBudget()
	}
	b, _ := json.Marshal(w.Object.Object) // there is no error: it is made of JSON
	s.budgets[cause].ReserveN(time.Now(), len(b)+least)
}

// look finds out how many ClusterIPs a peer's Services may have. The first time, all is judged
// again with the ClusterIPs that Services have already.
func (s *Source) look(ctx context.Context, now time.Time) {
	ctx, cancel := context.WithTimeout(ctx, kube.WritePatience)
	defer cancel()
	room, err := peering.ImportRoom(ctx, s.loop.Client)
	s.loop.Causes.Log(ctx, "list", objects.ServiceCIDRs.Resource, err)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.looked.IsZero() || room != s.state.room {
		s.state.PutRoom(room)
	}
	s.state.Forgive()
	s.looked = now
}

// lists returns the PeerExports that are missing, in which gateways write what their peers export.
//
// +checklocks:s.mu
func (s *Source) lists(now time.Time) (all []*unstructured.Unstructured) {
	for name, p := range s.state.peerings {
		of := task{name: within("", name)}
		if len(p.Services.Import) == 0 || s.state.heard[name] != nil || now.Before(s.later[of]) {
			continue
		}
		s.later[of] = now.Add(retryName)
		all = append(all, &unstructured.Unstructured{Object: map[string]any{"apiVersion": objects.Culvert,
			"kind": setHeard, "metadata": map[string]any{"name": name, "namespace": s.namespace,
				"ownerReferences": []any{map[string]any{"apiVersion": objects.Culvert, "kind": peering.KindPeering,
					"name": name, "uid": p.Metadata.UID}}}}})
	}
	return all
}

// Wake makes the Source look at its role and at what has changed.
func (s *Source) Wake() { s.loop.Wake() }

// Ready reports whether the Source knows the cluster.
func (s *Source) Ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loop.Complete(allSets...)
}

// Waiting says what is missing while it is not ready.
func (s *Source) Waiting() string {
	for _, kind := range []string{objects.ServiceExports.Resource, objects.ServiceImports.Resource} {
		if s.loop.Causes.Refuses("list " + kind) {
			return kind + " of " + objects.Multicluster + ", which the API server does not know or does not show: " +
				"culvert multicluster crds prints the CRDs"
		}
	}
	return "the API server's lists"
}

// faults returns what is wrong.
//
// +checklocks:s.mu
func (s *Source) faults() (all []kube.Fault) {
	for name, texts := range s.state.Faults() {
		p := s.state.peerings[name]
		if p == nil {
			continue
		}
		for _, text := range texts {
			all = append(all, kube.Fault{Event: kube.Event{APIVersion: objects.Culvert, Kind: peering.KindPeering,
				Metadata: p.Metadata, Message: text}})
		}
	}
	for name, text := range s.why {
		f := kube.Fault{Event: kube.Event{APIVersion: objects.Multicluster, Kind: mcs.KindImport, Message: text},
			LogOnly: true}
		f.Metadata.Namespace, f.Metadata.Name = name.Namespace, name.Name
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b kube.Fault) int {
		return strings.Compare(a.Key().String()+a.Message, b.Key().String()+b.Message)
	})
	return all
}

// settle writes what a name needs, as far as it is the turn of the cause.
func (s *Source) settle(ctx context.Context, t task) {
	name := t.name
	for ctx.Err() == nil && s.speaks() {
		s.mu.Lock()
		if s.spent[t.cause] >= turn {
			delete(s.later, t.key())
			s.mu.Unlock()
			break
		}
		w, fault := s.state.Next(t, time.Now())
		if fault != "" {
			s.why[name] = fault
		} else if w == nil {
			delete(s.why, name)
		}
		if w != nil {
			s.charge(t.cause, w)
		}
		s.mu.Unlock()
		if w == nil {
			return
		}
		if s.limit.Wait(ctx) != nil {
			break
		}
		if again, ok := s.write(ctx, name, w); !ok {
			s.mu.Lock()
			if s.later[t.key()] = time.Now().Add(retryName); again {
				s.later[t.key()] = time.Now().Add(restOfName)
			}
			s.mu.Unlock()
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.back(t)
}

// write makes one request and keeps the answer. If it failed, again says that the watch will bring
// what was missed.
func (s *Source) write(ctx context.Context, name types.NamespacedName, w *Write) (again, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, kube.WritePatience)
	defer cancel()
	client := s.loop.Client.Resource(w.Resource).Namespace(w.Object.GetNamespace())
	var stored *unstructured.Unstructured
	var err error
	switch w.Verb {
	case "create":
		stored, err = client.Create(ctx, w.Object, metav1.CreateOptions{})
	case "update":
		stored, err = client.Update(ctx, w.Object, metav1.UpdateOptions{})
	case "update status":
		stored, err = client.UpdateStatus(ctx, w.Object, metav1.UpdateOptions{})
	case "delete":
		uid := w.Object.GetUID()
		err = client.Delete(ctx, w.Object.GetName(),
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			err = nil // the watch says so, too
		}
	}
	if family := lacking(w, err); family != "" { // the ServiceImport says so
		s.mu.Lock()
		defer s.mu.Unlock()
		s.state.lacks[family] = true
		return true, false
	}
	s.loop.Causes.Log(ctx, w.Verb, w.Resource.Resource, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		if set := s.state.keep(w, stored); set != "" {
			s.loop.Made(set, within(w.Object.GetNamespace(), w.Object.GetName()).String())
		}
		return false, true
	case w.Resource == objects.PeerExports && apierrors.IsAlreadyExists(err): // the watch says so, too
	case apierrors.IsConflict(err), apierrors.IsNotFound(err), apierrors.HasStatusCause(err, "NamespaceTerminating"):
		return true, false
	case apierrors.IsAlreadyExists(err):
		s.why[name] = fmt.Sprintf("%s %s/%s: another one is there that culvert has not made; delete it",
			w.Object.GetKind(), w.Object.GetNamespace(), w.Object.GetName())
	default:
		s.why[name] = fmt.Sprintf("%s %s %s/%s: %.300s", w.Verb, w.Resource.Resource, w.Object.GetNamespace(),
			w.Object.GetName(), err.Error())
	}
	return false, false
}

// lacking returns the family of a Service which the API server refuses because it has no addresses
// of it; "" if it does not.
func lacking(w *Write, err error) string {
	var refusal apierrors.APIStatus
	if w.Resource != objects.Services || !apierrors.IsInvalid(err) || !errors.As(err, &refusal) ||
		refusal.Status().Details == nil || !slices.ContainsFunc(refusal.Status().Details.Causes,
		func(c metav1.StatusCause) bool { return strings.HasPrefix(c.Field, "spec.ipFamilies") }) {
		return ""
	}
	family, _, _ := unstructured.NestedStringSlice(w.Object.Object, "spec", "ipFamilies")
	if len(family) != 1 {
		return ""
	}
	return family[0]
}
