package kube

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// A Loop keeps sets of objects of a cluster up to date and acts on them, in rounds. Each set has a
// goroutine that follows it, and rounds have one; a Teller writes what they tell.
type Loop struct {
	Client dynamic.Interface
	Causes *Causes
	Teller *Teller
	Breath time.Duration // the least pause between two rounds

	wake chan struct{} // something has changed
	mu   sync.Locker   // held while a set changes, and by callers of Complete
	sets map[string]*contents
}

// contents are the keys of the objects of a set, which is complete once its list has been read.
type contents struct {
	complete bool
	there    map[string]bool
}

// NewLoop returns a Loop that does nothing before Run or Follow. It writes Events as r says, which
// lacks Client and Causes.
func NewLoop(client dynamic.Interface, mu sync.Locker, r Reporter, log *logrus.Entry) *Loop {
	r.Client, r.Causes = client, NewCauses(log)
	return &Loop{Client: client, Causes: r.Causes, Teller: NewTeller(r, log), wake: make(chan struct{}, 1), mu: mu,
		sets: map[string]*contents{}}
}

// A Set is a set of objects to follow, selected by the API server as far as possible.
type Set struct {
	Name                      string // among the sets of a Loop
	Resource                  schema.GroupVersionResource
	Namespace, Labels, Fields string // selectors
	// Large makes lists come in parts, of which only what Read returns is kept: a list of all Pods
	// of a large cluster has hundreds of megabytes.
	Large bool
	// Read reads an object. It returns what takes the object, or its new version, into the set;
	// nil: the object is not of the set. A key is what KeyOf returns.
	Read func(*unstructured.Unstructured) (put func(key string))
	// Drop takes an object out of the set.
	Drop func(namespace, name string)
	// Listed, if not nil, is called after all objects of a list were put. The Loop's mutex is held
	// for it, as for Drop and what Read returns.
	Listed func()
}

const (
	Tick  = time.Second            // between two rounds while nothing changes, and between attempts
	pause = 100 * time.Millisecond // maximum pause between two rounds; it is as long as the last one took
)

// Run follows sets and calls round when they, or what Wake tells of, have changed, and each Tick,
// until ctx ends. Events and status are written while speaks, if it is not nil, returns true.
func (l *Loop) Run(ctx context.Context, speaks func() bool, round func(), sets ...Set) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	for _, s := range sets {
		tasks.Go(func() { l.Follow(ctx, s) })
	}
	tasks.Go(func() { l.Teller.Run(ctx, speaks) })
	tick := time.NewTicker(Tick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
		case <-l.wake:
		case <-tick.C:
		}
		if ctx.Err() != nil {
			return
		}
		began := time.Now()
		round()
		select { // much changes at once
		case <-ctx.Done():
		case <-time.After(max(l.Breath, min(pause, time.Since(began)))):
		}
	}
}

// Wake makes a round begin.
func (l *Loop) Wake() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Complete reports whether the lists of these sets have been read. The Loop's mutex must be held.
func (l *Loop) Complete(sets ...string) bool {
	return !slices.ContainsFunc(sets, func(name string) bool { return l.sets[name] == nil || !l.sets[name].complete })
}

// Made notes that the owner of a set has put an object there itself: a list may lack it before any
// watch has shown it. The Loop's mutex must be held.
func (l *Loop) Made(set, key string) { l.contents(set).there[key] = true }

func (l *Loop) contents(set string) *contents {
	if l.sets[set] == nil {
		l.sets[set] = &contents{there: map[string]bool{}}
	}
	return l.sets[set]
}

// backoff is how long a failed watch waits: short enough to catch up soon after the API server is
// back.
var backoff = wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 5, Cap: 2 * time.Second}

// brokenWatch is what client-go returns, without an error, for a connection that ended before the
// API server answered.
var brokenWatch = reflect.TypeOf(watch.NewEmptyWatch())

// Follow keeps a set up to date until ctx ends.
func (l *Loop) Follow(ctx context.Context, s Set) {
	client := dynamic.ResourceInterface(l.Client.Resource(s.Resource))
	if s.Namespace != "" {
		client = l.Client.Resource(s.Resource).Namespace(s.Namespace)
	}
	choose := func(o *metav1.ListOptions) { o.LabelSelector, o.FieldSelector = s.Labels, s.Fields }
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			choose(&o)
			if s.Large && o.ResourceVersion == "0" {
				o.ResourceVersion = "" // for "0", the API server sends all objects at once, whatever the limit
			}
			list, err := client.List(ctx, o)
			l.Causes.Log(ctx, "list", s.Resource.Resource, err)
			if err != nil {
				return nil, err
			}
			for i := range list.Items {
				if s.Large {
					s.Trim(&list.Items[i])
				}
			}
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			choose(&o)
			i, err := client.Watch(ctx, o)
			if err != nil || reflect.TypeOf(i) != brokenWatch {
				l.Causes.Log(ctx, "watch", s.Resource.Resource, err)
			}
			return i, err
		},
	}
	backoff := backoff
	ctx = klog.NewContext(ctx, klog.Logger{}) // Causes has logged it
	of := cache.ReflectorOptions{Name: "culvert", TypeDescription: s.Resource.Resource, Backoff: &backoff}
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, plainLists{}),
		&unstructured.Unstructured{}, Sink{l, s}, of).RunWithContext(ctx)
}

// plainLists makes a reflector list and then watch, which every API server supports.
type plainLists struct{}

// IsWatchListSemanticsUnSupported is called by client-go.
func (plainLists) IsWatchListSemanticsUnSupported() bool { return true }

// A Sink takes the objects of a Set from a reflector. One goroutine at a time uses it.
type Sink struct {
	*Loop
	Set
}

// An entry is an object of a set, or one to put there.
type entry struct {
	key     string
	created time.Time
	put     func(key string) // nil: not there
}

// trimmed is the field of a trimmed object with its entry.
const trimmed = "trimmed"

// Trim reads an object of a large list, and leaves of it what its Sink takes.
func (s *Set) Trim(u *unstructured.Unstructured) {
	whole := *u
	u.Object = map[string]any{trimmed: s.entry(&whole)}
}

func (s *Set) entry(u *unstructured.Unstructured) entry {
	if e, ok := u.Object[trimmed].(entry); ok {
		return e
	}
	return entry{KeyOf(u), u.GetCreationTimestamp().Time, s.Read(u)}
}

// KeyOf returns the key of an object among those of its kind: NAMESPACE/NAME, or the name of an
// object that has no namespace.
func KeyOf(u *unstructured.Unstructured) string { return cache.MetaObjectToName(u).String() }

// change changes the set.
func (k Sink) change(do func(*contents)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	do(k.contents(k.Name))
	k.Wake()
	return nil
}

// take puts an object into the set, or takes it out.
func (k Sink) take(c *contents, e entry) {
	switch {
	case e.put != nil:
		c.there[e.key] = true
		e.put(e.key)
	case c.there[e.key]:
		delete(c.there, e.key)
		i := strings.LastIndexByte(e.key, '/')
		k.Drop(e.key[:max(i, 0)], e.key[i+1:])
	}
}

// Add is called by client-go, like all methods of a Sink, with nothing but Unstructured objects.
func (k Sink) Add(o any) error {
	e := k.entry(o.(*unstructured.Unstructured))
	return k.change(func(c *contents) { k.take(c, e) })
}

// Update takes the new version of an object.
func (k Sink) Update(o any) error { return k.Add(o) }

// Delete takes an object out of the set.
func (k Sink) Delete(o any) error {
	return k.change(func(c *contents) { k.take(c, entry{key: KeyOf(o.(*unstructured.Unstructured))}) })
}

// Replace replaces all objects of the set. Those of a first list come in the order of their age, as
// they would have come one by one.
func (k Sink) Replace(all []any, _ string) error {
	entries, there := make([]entry, len(all)), make(map[string]bool, len(all))
	for i, o := range all {
		entries[i] = k.entry(o.(*unstructured.Unstructured))
		there[entries[i].key] = true
	}
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(a.created.Compare(b.created), strings.Compare(a.key, b.key))
	})
	return k.change(func(c *contents) {
		for _, e := range entries {
			k.take(c, e)
		}
		for key := range c.there {
			if !there[key] {
				k.take(c, entry{key: key})
			}
		}
		if c.complete = true; k.Listed != nil {
			k.Listed()
		}
	})
}

// Resync is called by client-go, and has nothing to do.
func (Sink) Resync() error { return nil }
