package kube

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"culvert/kube/objects"
	"culvert/nat/rules"
)

const kindConnection = "Connection"

func (s *Source) resource(kind string) dynamic.NamespaceableResourceInterface {
	return s.client.Resource(objects.LiqoResource(kind))
}

// A watched is a set of resources that a Source follows, selected by the API server as far as
// possible.
type watched struct {
	kind   string
	own    bool // only in the gateway's namespace
	labels string
	fields string
}

func (s *Source) watches() []watched {
	peers := labelRemote + "=" + s.identity.Remote
	return []watched{
		{kind: KindFirewall, labels: labelFirewall + category + "=" + forGateways},
		{kind: KindRoute, labels: labelRoute + category + "=" + forGateways},
		{kind: KindTunnel, own: true},
		{kind: KindFabric, own: true, labels: peers},
		{kind: KindNode},
		{kind: KindPublicKey, own: true, labels: peers},
		{kind: kindConnection, own: true, fields: "metadata.name=" + s.connectionName()},
	}
}

// backoff is how long a failed watch waits: short enough to catch up soon after the API server is
// back.
var backoff = wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 5, Cap: 2 * time.Second}

// follow updates the State from the API server until ctx ends.
func (s *Source) follow(ctx context.Context, w watched) {
	var client dynamic.ResourceInterface = s.resource(w.kind)
	if w.own {
		client = s.resource(w.kind).Namespace(s.identity.Namespace)
	}
	(&Followed{Client: client, Resource: objects.LiqoResource(w.kind).Resource, Labels: w.labels, Fields: w.fields,
		Into: sink{s, w.kind}}).Follow(ctx, s.causes)
}

// brokenWatch is what client-go returns, without an error, for a connection that ended before the
// API server answered.
var brokenWatch = reflect.TypeOf(watch.NewEmptyWatch())

// Followed is a set of objects to follow, selected by the API server as far as possible.
type Followed struct {
	Client         dynamic.ResourceInterface
	Resource       string // name in the API
	Labels, Fields string // selectors
	Into           Taker
	// Trim, if not nil, removes from an object of a list what Into does not use: a list of all Pods
	// of a large cluster has hundreds of megabytes, and comes in parts.
	Trim func(*unstructured.Unstructured)
}

// A Taker receives the objects of a set from the API server. One goroutine at a time calls it.
type Taker interface {
	Add(*unstructured.Unstructured) // or change
	Delete(*unstructured.Unstructured)
	Replace([]*unstructured.Unstructured) // these are all objects
}

// A store passes what a reflector reads to a Taker, and keeps nothing of it.
type store struct{ to Taker }

func (s store) Add(o any) error {
	if u, ok := o.(*unstructured.Unstructured); ok {
		s.to.Add(u)
	}
	return nil
}

func (s store) Update(o any) error { return s.Add(o) }

func (s store) Delete(o any) error {
	if u, ok := o.(*unstructured.Unstructured); ok {
		s.to.Delete(u)
	}
	return nil
}

func (s store) Replace(all []any, _ string) error {
	list := make([]*unstructured.Unstructured, 0, len(all))
	for _, o := range all {
		if u, ok := o.(*unstructured.Unstructured); ok {
			list = append(list, u)
		}
	}
	s.to.Replace(list)
	return nil
}

func (store) Resync() error { return nil }

// Follow updates f.Into from the API server until ctx ends. It reports failures to causes.
func (f *Followed) Follow(ctx context.Context, causes *Causes) {
	choose := func(o *metav1.ListOptions) { o.LabelSelector, o.FieldSelector = f.Labels, f.Fields }
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			choose(&o)
			if f.Trim != nil && o.ResourceVersion == "0" {
				o.ResourceVersion = "" // for "0", the API server sends all objects at once, whatever the limit
			}
			l, err := f.Client.List(ctx, o)
			causes.Log(ctx, "list", f.Resource, err)
			if err != nil {
				return nil, err
			}
			for i := range l.Items {
				if f.Trim != nil {
					f.Trim(&l.Items[i])
				}
			}
			return l, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			choose(&o)
			i, err := f.Client.Watch(ctx, o)
			if err != nil || reflect.TypeOf(i) != brokenWatch {
				causes.Log(ctx, "watch", f.Resource, err)
			}
			return i, err
		},
	}
	backoff := backoff
	ctx = klog.NewContext(ctx, klog.Logger{}) // causes has logged it
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, plainLists{}),
		&unstructured.Unstructured{}, store{f.Into},
		cache.ReflectorOptions{Name: "culvert", TypeDescription: f.Resource, Backoff: &backoff}).RunWithContext(ctx)
}

// plainLists makes a reflector list and then watch, which every API server supports.
type plainLists struct{}

// IsWatchListSemanticsUnSupported is called by client-go.
func (plainLists) IsWatchListSemanticsUnSupported() bool { return true }

// A sink takes the resources of a kind.
type sink struct {
	*Source
	kind string
}

func (k sink) Add(u *unstructured.Unstructured) {
	if k.kind == kindConnection {
		k.saw(u)
		return
	}
	k.put(objects.Of(k.kind, u))
}

func (k sink) Delete(u *unstructured.Unstructured) {
	if k.kind == kindConnection {
		k.saw(nil)
		return
	}
	k.remove(rules.Key{Kind: k.kind, Namespace: u.GetNamespace(), Name: u.GetName()})
}

func (k sink) Replace(all []*unstructured.Unstructured) {
	if k.kind == kindConnection {
		var one *unstructured.Unstructured
		if len(all) > 0 {
			one = all[0]
		}
		k.saw(one)
		return
	}
	list := make([]*objects.Object, 0, len(all))
	for _, u := range all {
		list = append(list, objects.Of(k.kind, u))
	}
	k.take(k.kind, list)
}

// Log logs why a request failed, once for each cause. While the API server is away, all requests
// have the same cause.
func (c *Causes) Log(ctx context.Context, verb, resource string, err error) {
	if ctx.Err() != nil {
		return
	}
	var status apierrors.APIStatus
	var cause string
	switch {
	case err == nil:
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err), apierrors.IsConflict(err):
		return // the reflector lists or reads again
	case errors.As(err, &status):
		cause = verb + " " + resource
	default:
		cause = "away"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	request := verb + " " + resource
	if c.refused[request] = apierrors.IsForbidden(err) || apierrors.IsNotFound(err); !c.refused[request] {
		delete(c.refused, request)
	}
	if apierrors.IsForbidden(err) {
		c.forbidden[request] = true
	} else if err == nil {
		delete(c.forbidden, request)
	}
	if err == nil {
		for _, was := range []string{"away", verb + " " + resource} {
			if c.told[was] {
				delete(c.told, was)
				c.log.WithFields(logrus.Fields{"verb": verb, "resource": resource}).Info("the API server answers again")
			}
		}
		return
	}
	if !c.told[cause] {
		c.told[cause] = true
		c.log.WithError(err).WithFields(logrus.Fields{"verb": verb, "resource": resource}).Warn(
			"request to the API server failed; retrying")
	}
}
