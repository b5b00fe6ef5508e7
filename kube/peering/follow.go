package peering

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"culvert/kube"
	"culvert/kube/objects"
)

// A follower keeps up-to-date copies of objects of several kinds. Each watch has a goroutine, which
// changes them under mu.
type follower struct {
	client dynamic.Interface
	causes *kube.Causes
	wake   chan struct{} // something has changed

	mu       sync.Mutex
	complete map[string]bool // by kind: its list has been read; +checklocks:mu
}

func newFollower(client dynamic.Interface, causes *kube.Causes) *follower {
	return &follower{client: client, causes: causes, wake: make(chan struct{}, 1), complete: map[string]bool{}}
}

func (f *follower) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// A followed is a set of objects of one kind. put and drop are called with the follower's mutex
// held.
type followed struct {
	kind, namespace, fields string // kind is that of a set in paths
	labels                  string
	put                     func(u *unstructured.Unstructured)
	drop                    func(key string)
	keys                    func() []string
	trim                    func(u *unstructured.Unstructured) // of an object of a list; nil: all of it is used
	// called like put, after all objects of a list; nil: nothing to do
	whole func()
}

// paths are the API resources of the sets.
var paths = map[string]schema.GroupVersionResource{
	KindPeering: objects.Peerings, KindTunnelNode: objects.TunnelNodes, kindNode: objects.Nodes, kindPod: objects.Pods,
	kindService: objects.Services, kindSlice: objects.EndpointSlices, kindRole: objects.Roles,
	kindServiceCIDR: objects.ServiceCIDRs,

	setExported: objects.Services, setImported: objects.Services, setImportedSlices: objects.EndpointSlices,
}

// follow keeps a set up to date until ctx ends.
func (f *follower) follow(ctx context.Context, w followed) {
	var client dynamic.ResourceInterface = f.client.Resource(paths[w.kind])
	if w.namespace != "" {
		client = f.client.Resource(paths[w.kind]).Namespace(w.namespace)
	}
	(&kube.Followed{Client: client, Resource: paths[w.kind].Resource, Labels: w.labels, Fields: w.fields,
		Into: sink{f, w}, Trim: w.trim}).Follow(ctx, f.causes)
}

// keyOf names an object among those of its kind.
func keyOf(u *unstructured.Unstructured) string {
	if u.GetNamespace() == "" {
		return u.GetName()
	}
	return u.GetNamespace() + "/" + u.GetName()
}

// A sink receives the objects of a set: it is the kube.Taker of follow.
type sink struct {
	*follower
	followed
}

func (k sink) change(do func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	do()
	k.signal()
}

func (k sink) Add(u *unstructured.Unstructured)    { k.change(func() { k.put(u) }) }
func (k sink) Delete(u *unstructured.Unstructured) { k.change(func() { k.drop(keyOf(u)) }) }

// Replace replaces all objects of the set. Those of a first list come in the order of their age, as
// they would have come one by one.
//
// +checklocksignore: change holds mu
func (k sink) Replace(all []*unstructured.Unstructured) {
	type aged struct {
		*unstructured.Unstructured
		created time.Time
	}
	byAge := make([]aged, len(all))
	for i, u := range all {
		byAge[i] = aged{u, u.GetCreationTimestamp().Time}
	}
	slices.SortFunc(byAge, func(a, b aged) int {
		return cmp.Or(a.created.Compare(b.created), strings.Compare(keyOf(a.Unstructured), keyOf(b.Unstructured)))
	})
	k.change(func() {
		there := map[string]bool{}
		for _, x := range byAge {
			u := x.Unstructured
			there[keyOf(u)] = true
			k.put(u)
		}
		for _, key := range k.keys() {
			if !there[key] {
				k.drop(key)
			}
		}
		k.complete[k.kind] = true
		if k.whole != nil {
			k.whole()
		}
	})
}

// A kept holds the used part of each object, by key. Setting a zero V removes it.
type kept[V any] interface {
	set(key string, v V)
	keys() []string
}

// A table holds objects from which nothing else is derived.
type table[V comparable] map[string]V

func (t table[V]) set(key string, v V) {
	var none V
	if t[key] = v; v == none {
		delete(t, key)
	}
}

func (t table[V]) keys() (all []string) {
	for key := range t {
		all = append(all, key)
	}
	return all
}

// named holds the objects of one namespace, by name alone.
type named[V any] struct {
	kept[V]
	namespace string
}

func (n named[V]) set(key string, v V) { n.kept.set(key[strings.LastIndexByte(key, '/')+1:], v) }

func (n named[V]) keys() (all []string) {
	for _, name := range n.kept.keys() {
		all = append(all, n.namespace+"/"+name)
	}
	return all
}

// parsed is the field of a trimmed object with the result of reading it.
const parsed = "parsed"

// into returns a set of the objects of a kind. It keeps in all, by name, what read makes of each.
// An object of a list is read by trim, as soon as its part of the list is there, and carries the
// result to put in the field parsed. An object of a watch event has no such field: put reads it.
func into[V any](kind, namespace string, all kept[V], read func(*unstructured.Unstructured) V) followed {
	var none V
	return followed{kind: kind, namespace: namespace,
		put: func(u *unstructured.Unstructured) {
			v, ok := u.Object[parsed].(V)
			if !ok {
				v = read(u)
			}
			all.set(keyOf(u), v)
		},
		drop: func(key string) { all.set(key, none) },
		keys: all.keys,
		trim: func(u *unstructured.Unstructured) {
			v, name := read(u), map[string]any{"name": u.GetName(), "namespace": u.GetNamespace()}
			if created, there, _ := unstructured.NestedFieldNoCopy(u.Object, "metadata", "creationTimestamp"); there {
				name["creationTimestamp"] = created
			}
			u.Object = map[string]any{"metadata": name, parsed: v}
		},
	}
}
