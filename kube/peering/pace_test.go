package peering

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"

	"culvert/gateway/config"
	"culvert/gateway/exports"
	"culvert/gateway/node/links"
	"culvert/gateway/node/remote"
	"culvert/integration/need"
	"culvert/integration/need/slowapi"
	"culvert/kube"
)

func init() {
	utilruntime.ErrorHandlers = nil // one of them counts on time that is no bubble's
}

// A cluster is a simulated API server with a gateway that runs.
type cluster struct {
	*fake.FakeDynamicClient
	t       *testing.T
	source  *GatewaySource
	mu      sync.Mutex
	check   kube.Check
	rests   atomic.Bool // another gateway is active
	slow    *slowapi.Client
	config  atomic.Pointer[config.Config] // of the gateway
	refuses atomic.Bool                   // configurations
	refused atomic.Int64
	prunes  atomic.Bool  // parts of the status, as an API server with an older CRD does
	hides   atomic.Value // the error with which a list of all Peerings is refused; "": none
	trouble atomic.Value
	peer    atomic.Pointer[exports.Exchange] // gets what the gateway tells
	stop    func()                           // ends the gateway
}

func (c *cluster) Resource(r schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return resource{c.FakeDynamicClient.Resource(r), c, r}
}

// A resource decodes what is written and selects by name, as an API server does; the simulated one
// keeps all as it comes.
type resource struct {
	dynamic.NamespaceableResourceInterface
	in *cluster
	is schema.GroupVersionResource
}

type objectsIn struct {
	dynamic.ResourceInterface
	in *cluster
	is schema.GroupVersionResource
}

func (r resource) Namespace(name string) dynamic.ResourceInterface {
	return objectsIn{r.NamespaceableResourceInterface.Namespace(name), r.in, r.is}
}

func (o objectsIn) List(ctx context.Context, opts metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	if hidden := o.in.hides.Load(); o.is == paths[KindPeering] && opts.FieldSelector == "" && hidden != nil {
		return nil, hidden.(error)
	}
	all, err := o.ResourceInterface.List(ctx, opts)
	if name, one := strings.CutPrefix(opts.FieldSelector, "metadata.name="); one && err == nil {
		all.Items = slices.DeleteFunc(all.Items, func(u unstructured.Unstructured) bool { return u.GetName() != name })
	}
	return all, err
}

func (o objectsIn) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	all, err := o.ResourceInterface.Watch(ctx, opts)
	name, one := strings.CutPrefix(opts.FieldSelector, "metadata.name=")
	if !one || err != nil {
		return all, err
	}
	events := make(chan watch.Event)
	w := watch.NewProxyWatcher(events)
	go func() {
		defer close(events)
		defer all.Stop()
		for {
			select {
			case <-w.StopChan():
				return
			case e, ok := <-all.ResultChan():
				if u, is := e.Object.(*unstructured.Unstructured); is && u.GetName() != name {
					continue
				}
				if !ok {
					return
				}
				select {
				case <-w.StopChan():
					return
				case events <- e:
				}
			}
		}
	}()
	return w, nil
}

func decoded(u *unstructured.Unstructured) *unstructured.Unstructured {
	b, err := u.MarshalJSON()
	next := new(unstructured.Unstructured)
	if err == nil {
		err = next.UnmarshalJSON(b)
	}
	if err != nil {
		panic(err) // the gateway has made it
	}
	return next
}

func (o objectsIn) Create(ctx context.Context, u *unstructured.Unstructured, opts metav1.CreateOptions,
	sub ...string) (*unstructured.Unstructured, error) {
	return o.ResourceInterface.Create(ctx, decoded(u), opts, sub...)
}

func (o objectsIn) Update(ctx context.Context, u *unstructured.Unstructured, opts metav1.UpdateOptions,
	sub ...string) (*unstructured.Unstructured, error) {
	return o.ResourceInterface.Update(ctx, decoded(u), opts, sub...)
}

func (o objectsIn) UpdateStatus(ctx context.Context, u *unstructured.Unstructured, opts metav1.UpdateOptions) (
	*unstructured.Unstructured, error) {
	if u = decoded(u); o.in.prunes.Load() {
		unstructured.RemoveNestedField(u.Object, "status", "accepted")
		unstructured.RemoveNestedField(u.Object, "status", "podsSeenAs")
	}
	return o.ResourceInterface.UpdateStatus(ctx, u, opts)
}

func (c *cluster) Speaks() bool               { return !c.rests.Load() }
func (c *cluster) Trouble(bool) string        { return c.trouble.Load().(string) }
func (c *cluster) Exchange(func([]byte) bool) {}
func (c *cluster) Tell(b []byte) {
	if peer := c.peer.Load(); peer != nil {
		peer.Receive(b)
	}
}
func (c *cluster) NodeTroubles() map[string]string { return nil }
func (c *cluster) Standbys() ([]Standby, bool)     { return nil, true }
func (c *cluster) Amend(next *config.Config) bool {
	c.config.Store(next)
	return !c.refuses.Load()
}

func (c *cluster) Apply(*config.Config) error {
	c.refused.Add(1)
	return errors.New("refused")
}

func (c *cluster) Check() kube.Check {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.check
}

func (c *cluster) connect(state kube.CheckState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.check.State = state
}

// inCluster runs f in a bubble of time with a gateway on node1 of a cluster of two nodes.
func inCluster(t *testing.T, f func(*testing.T, *cluster)) {
	need.Bubble(t, func(t *testing.T) {
		kinds := map[schema.GroupVersionResource]string{{Version: "v1", Resource: "events"}: "EventList"}
		for _, r := range paths {
			kinds[r] = "List"
		}
		c := &cluster{FakeDynamicClient: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
			kinds), t: t}
		c.trouble.Store("")
		c.create(KindPeering, romeToMilan)
		for n := 1; n <= 2; n++ {
			c.create(kindNode, fmt.Sprintf(nodeText, n))
			c.create(KindTunnelNode, fmt.Sprintf(tunnelText, n))
		}
		c.create(kindRole, "metadata: {name: culvert-imports-milan, namespace: imported, uid: u-role}")
		log := logrus.New()
		log.SetOutput(io.Discard)
		c.slow = &slowapi.Client{Interface: c}
		s := NewGatewaySource(c.slow, rome(t).self, NodeNamespace, logrus.NewEntry(log))
		c.source = s
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := s.Await(ctx, base(), c.Speaks); err != nil {
			t.Fatal(err)
		}
		var tasks sync.WaitGroup
		tasks.Go(func() {
			if err := s.Run(ctx, c); err != nil {
				t.Error(err)
			}
		})
		c.stop = func() { cancel(); tasks.Wait() }
		defer c.stop()
		c.connect(kube.CheckConnected)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if st := c.status(); st.NodesReady != "2/2" || st.Message != "" {
			t.Fatalf("status %s", text(t, st))
		}
		f(t, c)
	})
}

func (c *cluster) create(kind, yaml string) {
	c.t.Helper()
	u := object(c.t, yaml)
	if err := c.Tracker().Create(paths[kind], u, u.GetNamespace()); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) update(kind string, u *unstructured.Unstructured) {
	c.t.Helper()
	if err := c.Tracker().Update(paths[kind], u, u.GetNamespace()); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) peering() *unstructured.Unstructured {
	c.t.Helper()
	o, err := c.Tracker().Get(paths[KindPeering], "culvert", "milan")
	if err != nil {
		c.t.Fatal(err)
	}
	return o.(*unstructured.Unstructured)
}

func (c *cluster) status() *Status { return &PeeringOf(c.peering()).Status }

func (c *cluster) condition(kind string) *Condition {
	for _, x := range c.status().Conditions {
		if x.Type == kind {
			return x
		}
	}
	return &Condition{}
}

// imports sets spec.imports.
func (c *cluster) imports(namespace string, generation int64) {
	c.t.Helper()
	u := c.peering().DeepCopy()
	u.SetGeneration(generation)
	if err := unstructured.SetNestedField(u.Object, namespace, "spec", "imports"); err != nil {
		c.t.Fatal(err)
	}
	c.update(KindPeering, u)
}

// tell sets what the peer exports.
func (c *cluster) tell(list ...*exports.Service) {
	x := c.source.services
	c.source.mu.Lock()
	x.known, x.heard = true, list
	c.source.mu.Unlock()
	c.source.loop.Wake()
}

// hear is tell, and waits until the gateway has done something about it.
func (c *cluster) hear(list ...*exports.Service) {
	c.tell(list...)
	time.Sleep(2 * kube.Tick)
	synctest.Wait()
}

// written returns how often the Peering's status and Events were written since the last call.
func (c *cluster) written() (statuses, events int) {
	statuses, events, _ = c.all()
	return statuses, events
}

// all is written, and with what was imported.
func (c *cluster) all() (statuses, events, imports int) {
	for _, a := range c.Actions() {
		switch r := a.GetResource().Resource; {
		case a.GetVerb() == "update" && r == "peerings" && a.GetSubresource() == "status":
			statuses++
		case a.GetVerb() == "create" && r == "events":
			events++
		case a.GetVerb() != "list" && a.GetVerb() != "watch" && (r == "services" || r == "endpointslices"):
			imports++
		}
	}
	c.ClearActions()
	return statuses, events, imports
}

// runAgain ends the gateway and runs another one, if it becomes one within a minute.
func (c *cluster) runAgain() (runs bool) {
	c.t.Helper()
	c.stop()
	c.config.Store(nil)
	s := NewGatewaySource(c.slow, rome(c.t).self, NodeNamespace, quiet())
	ctx, cancel := context.WithCancel(c.t.Context())
	waiting, enough := context.WithTimeout(ctx, time.Minute)
	_, err := s.Await(waiting, base(), c.Speaks)
	enough()
	var tasks sync.WaitGroup
	if err == nil {
		tasks.Go(func() {
			if err := s.Run(ctx, c); err != nil {
				c.t.Error(err)
			}
		})
	}
	c.stop = func() { cancel(); tasks.Wait() }
	time.Sleep(5 * time.Second)
	synctest.Wait()
	return err == nil && s.Ready()
}

// remap changes how the Peering sees the peer's pods, and waits until the gateway has done
// something about it.
func (c *cluster) remap(to string) {
	c.t.Helper()
	u := c.peering().DeepCopy()
	u.SetGeneration(u.GetGeneration() + 1)
	need.NoError(c.t, unstructured.SetNestedSlice(u.Object, []any{map[string]any{"cidr": "10.244.0.0/16",
		"remap": to}}, "spec", "remote", "podCIDRs"))
	c.update(KindPeering, u)
	time.Sleep(2 * time.Second)
	synctest.Wait()
}

// TestRestartWithFault: a gateway that starts while its Peering has a fault goes on with what the
// one before had, and takes the next Peering without one. A Peering that never was right has no
// gateway, and an API server that keeps no accepted spec is not asked to all the time.
func TestRestartWithFault(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		defer func() { c.stop() }()
		const fault = "spec.remote.podCIDRs[0].remap: 10.80.0.0/16 overlaps spec.internalCIDR"
		check := func(after, remap, fault string) {
			t.Helper()
			has, said := c.config.Load(), c.condition(Accepted)
			if has == nil || has.Remote[0].Remapped.String() != remap || len(has.Geneve.Nodes) != 2 ||
				!strings.HasPrefix(said.Message, fault) || (said.Status == "True") != (fault == "") ||
				said.Observed != c.peering().GetGeneration() || c.condition(NodesReady).Status != "True" {
				t.Errorf("%s: %+v, %s", after, has, text(t, c.status()))
			}
		}
		c.remap("10.80.0.0/16")
		check("a wrong change", "10.61.0.0/16", fault)
		if !c.runAgain() {
			t.Error("a gateway that starts then does not become ready")
		}
		check("a start", "10.61.0.0/16", fault)
		c.remap("10.62.0.0/16")
		check("a right change", "10.62.0.0/16", "")
		c.stop()
		c.remap("10.80.0.0/16")
		c.runAgain()
		check("a wrong change without a gateway, and a start", "10.62.0.0/16", fault)

		c.stop()
		u := c.peering().DeepCopy()
		unstructured.RemoveNestedField(u.Object, "status", "accepted")
		c.update(KindPeering, u)
		if c.runAgain() {
			t.Error("a Peering that never was right has a gateway")
		}
		c.prunes.Store(true)
		c.remap("10.61.0.0/16")
		c.runAgain()
		c.written()
		time.Sleep(time.Minute)
		if n, _ := c.written(); n > 1 || c.status().Accepted != nil {
			t.Errorf("%d writes in a minute to an API server that keeps no accepted spec", n)
		}
		c.prunes.Store(false) // its CRD is a newer one now
		c.remap("10.80.0.0/16")
		if a := c.status().Accepted; a == nil || a.Remote.PodCIDRs[0].Remap != "10.61.0.0/16" {
			t.Errorf("with the newer CRD, the accepted spec is %+v", a)
		}
	})
}

// TestTroubleIsTold: what the gateway knows about a silent peer is the whole message of the Peering
// and of its condition, until the peer answers.
func TestTroubleIsTold(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		const clock = "the peer's clock went back: its handshakes are of 2026-11-23 11:00:00 UTC and so older than its last " +
			"one, and WireGuard refuses them: correct the clock of the peer's machine, or restart this gateway"
		for state, want := range map[kube.CheckState]string{kube.CheckLost: clock, kube.CheckConnected: ""} {
			c.trouble.Store(want)
			c.connect(state)
			time.Sleep(5 * time.Second)
			synctest.Wait()
			has := c.condition(Connected)
			if has.Message != want || c.status().Message != want || (has.Status == "True") != (want == "") {
				t.Errorf("%q: %s", want, text(t, c.status()))
			}
		}
	})
}

// TestLoudNodeWritesLittle: an agent that says something else all the time has the Peering's status
// written once a second. What else changes is written at once meanwhile, and at the end the status
// is right.
func TestLoudNodeWritesLittle(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		n := 0
		babble := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				n++
				c.update(KindTunnelNode, object(t, fmt.Sprintf(tunnelText, 2), "ready: true",
					fmt.Sprintf("ready: false, message: no room %d", n)))
			}
		}
		c.written()
		babble(10 * time.Second)
		if statuses, _ := c.written(); statuses < 5 || statuses > 11 {
			t.Errorf("%d writes of the status in 10 s", statuses)
		}
		untilWritten := func() { // from then on, what others change waits for a second
			t.Helper()
			c.written()
			for range 100 {
				babble(20 * time.Millisecond)
				if statuses, _ := c.written(); statuses > 0 {
					return
				}
			}
			t.Error("no status in 2 s")
		}
		untilWritten()
		u := c.peering().DeepCopy()
		u.SetGeneration(4)
		c.update(KindPeering, u)
		babble(2 * breath)
		if got := c.condition(Accepted).Observed; got != 4 {
			t.Errorf("0.2 s after a change of the spec, the status is of generation %d", got)
		}
		untilWritten()
		c.connect(kube.CheckLost)
		babble(2 * breath)
		if got := c.condition(Connected).Status; got != "False" {
			t.Errorf("0.2 s after the peer was lost, Connected is %q", got)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got, want := c.condition(NodesReady).Message, fmt.Sprintf("node node2: no room %d", n); got != want {
			t.Errorf("at the end the status says %q, want %q", got, want)
		}
		c.written()
		time.Sleep(time.Hour)
		synctest.Wait()
		if statuses, events := c.written(); statuses+events > 0 {
			t.Errorf("%d statuses and %d Events written in an hour without a change", statuses, events)
		}
	})
}

// TestLoudNodeHidesNone: an agent that has another fault all the time causes few Events, and
// another node's fault has its own at once.
func TestLoudNodeHidesNone(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		c.written()
		fault := func(node int, address, another string) {
			c.update(KindTunnelNode, object(t, fmt.Sprintf(tunnelText, node), address, another))
			time.Sleep(2 * breath)
		}
		for n := range 299 { // less than a minute
			fault(2, "172.18.0.2", fmt.Sprintf("fd00::%x", n+1))
		}
		if _, events := c.written(); events != kube.FaultsAtOnce {
			t.Errorf("%d Events in a minute, want %d", events, kube.FaultsAtOnce)
		}
		fault(1, "10.244.1.1", "fd00::1") // which the gateway's own node uses
		if _, events := c.written(); events != 1 {
			t.Errorf("%d Events about another node's fault", events)
		}
		u := c.peering().DeepCopy()
		if err := unstructured.SetNestedField(u.Object, "Both", "spec", "role"); err != nil {
			t.Fatal(err)
		}
		c.update(KindPeering, u)
		time.Sleep(2 * breath)
		if _, events := c.written(); events == 0 {
			t.Error("no Event about the Peering's own fault")
		}
	})
}

// TestLoudPeerWritesLittle: a peer that exports something else all the time has Services written
// once a second, after the first ones. A change of the Peering is obeyed at once all the same.
func TestLoudPeerWritesLittle(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		port := uint16(0)
		babble := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				port++
				var list []*exports.Service
				for n := range 40 {
					list = append(list, told("shop", fmt.Sprint("web", n), "10.70.0.9", exports.Port{Protocol: "TCP",
						Port: port}))
				}
				c.tell(list...)
			}
		}
		c.imports("imported", 4)
		babble(time.Minute)
		if _, _, n := c.all(); n < importWritesFirst {
			t.Fatalf("%d writes of imports at once", n)
		}
		babble(time.Minute)
		if _, _, n := c.all(); n < 30 || n > 65 {
			t.Errorf("%d writes of imports in a minute", n)
		}
		c.imports("elsewhere", 5)
		babble(10 * time.Second)
		for n := range 40 {
			if _, err := c.Tracker().Get(paths[setImported], "imported", fmt.Sprintf("web%d-shop", n)); err == nil {
				t.Errorf("10 s after spec.imports has changed, an import is still where it was")
			}
		}
	})
}

// machine is a node that counts how often it is looked at.
type machine struct {
	looks  atomic.Int64
	peers  atomic.Pointer[[]remote.Peer]
	source func(to string) string // "": no address
}

func (m *machine) Apply(_ []links.Link, peers []remote.Peer) { m.peers.Store(&peers) }

func (m *machine) SourceTo(to netip.Addr) (netip.Addr, error) {
	if to == netip.MustParseAddr("10.244.1.9") { // the gateway
		m.looks.Add(1)
	}
	if m.source == nil {
		return netip.MustParseAddr("172.18.0.2"), nil
	}
	return netip.ParseAddr(m.source(to.String()))
}

// TestWaysBeforehand: an agent tells from which address it would send to a gateway where none is
// active, by the way to other pods there, and what it measures once one is.
func TestWaysBeforehand(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		s, m := NewNodeSource(c, "node2", "culvert", NodeNamespace, nil, quiet()), &machine{}
		sources := map[string]string{"10.244.1.9": "172.18.0.2", "10.244.1.2": "172.18.0.2"}
		var mu sync.Mutex
		set := func(to, from string) {
			mu.Lock()
			defer mu.Unlock()
			sources[to] = from
		}
		m.source = func(to string) string {
			mu.Lock()
			defer mu.Unlock()
			return sources[to]
		}
		set("10.244.2.2", "172.18.0.2") // no pod has been there yet
		c.update(KindTunnelNode, object(t, fmt.Sprintf(tunnelText, 2), "{local: 10.244.2.1, remote: 172.18.0.2}", "{}"))
		ctx, cancel := context.WithCancel(t.Context())
		var tasks sync.WaitGroup
		tasks.Go(func() { s.Run(ctx, m) })
		defer tasks.Wait()
		defer cancel()
		tells := func(when, want string) {
			t.Helper()
			time.Sleep(2 * kube.Tick)
			synctest.Wait()
			o, err := c.Tracker().Get(paths[KindTunnelNode], NodeNamespace, "node2")
			need.NoError(t, err)
			if got := text(t, o.(*unstructured.Unstructured).Object["spec"]); got != want {
				t.Errorf("%s: the node tells %s, want %s", when, got, want)
			}
		}
		tells("at its start", `{"remote":"172.18.0.2"}`)
		set("10.244.2.2", "10.244.2.1")
		tells("with a pod", `{"local":"10.244.2.1","remote":"172.18.0.2"}`)
		set("10.244.1.9", "10.244.2.0")
		tells("the gateway is somewhere else than other pods", `{"local":"10.244.2.1","remote":"10.244.2.0"}`)
		set("10.244.2.9", "10.244.2.3")
		c.stop()
		u := c.peering().DeepCopy()
		need.NoError(t, unstructured.SetNestedMap(u.Object, map[string]any{"pod": "gw-2", "node": "node2",
			"term": int64(9), "addresses": []any{"10.244.2.9"}}, "status", "active"))
		c.update(KindPeering, u)
		tells("a gateway on itself", `{"local":"10.244.2.3","remote":"10.244.2.0"}`)
		set("10.244.2.2", "")
		tells("the network of its pods is away", `{"local":"10.244.2.3","remote":"10.244.2.0"}`)
	})
}

// TestAgentRests: whoever changes a Node or a Service all the time makes an agent look at
// everything ten times a second, and a change of the Peering is obeyed as soon.
func TestAgentRests(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		log := logrus.New()
		log.SetOutput(io.Discard)
		s, m := NewNodeSource(c, "node2", "culvert", NodeNamespace, nil, logrus.NewEntry(log)), &machine{}
		ctx, cancel := context.WithCancel(t.Context())
		var tasks sync.WaitGroup
		tasks.Go(func() { s.Run(ctx, m) })
		defer tasks.Wait()
		defer cancel()
		time.Sleep(time.Second)
		synctest.Wait()
		before := m.looks.Load()
		for n := range 1000 {
			c.update(kindNode, object(t, fmt.Sprintf(nodeText, 1), "uid: u1",
				fmt.Sprintf("uid: u1, labels: {n: \"%d\"}", n)))
			time.Sleep(time.Millisecond)
		}
		if n := m.looks.Load() - before; n < 5 || n > 11 {
			t.Errorf("the agent looked %d times in a second", n)
		}
		u := object(t, romeToMilan, "10.61.0.0/16", "10.63.0.0/16")
		u.Object["status"] = c.peering().Object["status"]
		c.update(KindPeering, u)
		time.Sleep(2 * breath)
		if p := *m.peers.Load(); len(p) != 1 || !slices.Contains(p[0].Remote, netip.MustParsePrefix("10.63.0.0/16")) {
			t.Errorf("0.2 s after the Peering has changed, the routes are %+v", p)
		}
	})
}
