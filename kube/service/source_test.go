package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic/fake"
	kubetesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"culvert/gateway/node/services"
	"culvert/gateway/node/services/steer"
	"culvert/integration/need"
	"culvert/kube"
	"culvert/kube/objects"
)

func init() {
	utilruntime.ErrorHandlers = nil // one of them counts on time that is no bubble's
}

// A cluster is a simulated API server, with a Source of the node n1 that follows it.
type cluster struct {
	t      *testing.T
	api    *fake.FakeDynamicClient
	log    bytes.Buffer
	logger *logrus.Logger // to log, for all that do at a time
	*Source

	mutex   sync.Mutex
	applied []*services.Config
	refusal func(*services.Config) error
}

var resources = map[string]schema.GroupVersionResource{
	KindService: objects.Services, KindNode: objects.Nodes, "Event": objects.Events, KindSlice: objects.EndpointSlices,
	KindLease: objects.Leases,
}

func (c *cluster) serve(wanted *services.Config) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.applied = append(c.applied, wanted)
	if c.refusal != nil {
		return c.refusal(wanted)
	}
	return nil
}

// last returns the last configuration that was applied, and how many were since the last call.
func (c *cluster) last() (*services.Config, int) {
	time.Sleep(100 * time.Millisecond)
	synctest.Wait()
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if len(c.applied) == 0 {
		return nil, 0
	}
	last, n := c.applied[len(c.applied)-1], len(c.applied)
	c.applied = nil
	return last, n
}

func unstructuredOf(t testing.TB, o *Object) *unstructured.Unstructured {
	t.Helper()
	text, err := json.Marshal(o)
	u := &unstructured.Unstructured{}
	if err == nil {
		err = json.Unmarshal(text, &u.Object)
	}
	need.NoError(t, err)
	u.SetAPIVersion(resources[o.Kind].GroupVersion().String())
	return u
}

func (c *cluster) put(o *Object) {
	c.t.Helper()
	u := unstructuredOf(c.t, o)
	err := c.api.Tracker().Update(resources[o.Kind], u, o.Metadata.Namespace)
	if apierrors.IsNotFound(err) {
		err = c.api.Tracker().Create(resources[o.Kind], u, o.Metadata.Namespace)
	}
	need.NoError(c.t, err)
}

// inCluster runs f in a bubble of time with a Source that runs.
func inCluster(t *testing.T, prepare, f func(*cluster), objects ...*Object) {
	t.Helper()
	need.Bubble(t, func(t *testing.T) {
		kinds := map[schema.GroupVersionResource]string{}
		for kind, r := range resources {
			kinds[r] = kind + "List"
		}
		c := &cluster{t: t, api: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)}
		for _, o := range objects {
			c.put(o)
		}
		c.logger = logrus.New()
		c.logger.SetOutput(&c.log)
		c.Source = NewSource(c.api, All, selfName, leaseNamespace, aBase(), logrus.NewEntry(c.logger))
		if prepare != nil {
			prepare(c)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { c.Run(ctx, c.serve); close(done) }()
		defer func() { cancel(); <-done }()
		f(c)
	})
}

// TestSource: changes of a cluster are applied at once, nothing is applied without a change, and a
// malformed object gets an Event.
func TestSource(t *testing.T) {
	inCluster(t, nil, func(c *cluster) {
		got, n := c.last()
		if n != 1 || endpoints(served(t, got, "shop/web:http", true)) != "10.244.0.1:8080 here" {
			t.Fatalf("%d times, %s", n, show(got))
		}
		c.put(aSlice(t, "a", "web", webPort, "{addresses: [10.244.0.2]}"))
		if got, n = c.last(); n != 1 || endpoints(served(t, got, "shop/web:http", true)) != "10.244.0.2:8080" {
			t.Errorf("%d times, %s", n, show(got))
		}
		c.put(aSlice(t, "a", "web", webPort, "{addresses: [10.244.0.2]}"))
		c.put(aNode(t))
		time.Sleep(time.Hour)
		if _, n := c.last(); n != 0 {
			t.Errorf("configurations were applied %d times in an hour without a change, want never", n)
		}
		c.put(aService(t, "bad", "clusterIP: 10.96.0.20, ports: [{port: 80, protocol: DCCP}]"))
		if got, _ = c.last(); len(got.Services) != 1 {
			t.Errorf("%s", show(got))
		}
		want := `spec.ports[0].protocol: "DCCP" is not TCP, UDP or SCTP`
		if told := c.told(); !slices.Equal(told, []string{"Service/bad: " + want}) {
			t.Errorf("Events %q", told)
		}
		if !strings.Contains(c.log.String(), "Service/shop/bad") || strings.Count(c.log.String(), "DCCP") != 1 {
			t.Errorf("log: %s", &c.log)
		}
		need.NoError(t, c.api.Tracker().Delete(resources[KindService], "shop", "web"))
		if got, n = c.last(); n != 1 || len(got.Services) != 0 {
			t.Errorf("%d times, %s", n, show(got))
		}
	}, aNode(t), aService(t, "web", web), aSlice(t, "a", "web", webPort, "{addresses: [10.244.0.1], nodeName: n1}"))
}

// requireRights fails unless every right that the manifest grants was used, and no other. Leases
// are used only to announce addresses.
func (c *cluster) requireRights() {
	c.t.Helper()
	text, err := os.ReadFile("../manifests/services.yaml")
	need.NoError(c.t, err)
	granted, asked := map[string]bool{}, map[string]bool{}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var role struct {
			Rules []struct{ APIGroups, Resources, Verbs []string }
		}
		need.NoError(c.t, yaml.Unmarshal([]byte(document), &role))
		for _, r := range role.Rules {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					granted[verb+" "+r.APIGroups[0]+"/"+resource] = true
				}
			}
		}
	}
	delete(granted, "get apps/daemonsets") // the program asks when it ends: TestKubeTakeOver
	for _, a := range c.api.Actions() {
		asked[a.GetVerb()+" "+a.GetResource().Group+"/"+a.GetResource().Resource] = true
	}
	if !maps.Equal(granted, asked) {
		c.t.Errorf("used were the rights %v, want those of the manifest: %v", asked, granted)
	}
}

// told returns the Events that were written.
func (c *cluster) told() (all []string) {
	c.t.Helper()
	list, err := c.api.Tracker().List(resources["Event"], schema.GroupVersionKind{Version: "v1", Kind: "Event"}, "shop")
	need.NoError(c.t, err)
	for _, e := range list.(*unstructured.UnstructuredList).Items {
		of, _, _ := unstructured.NestedString(e.Object, "involvedObject", "name")
		kind, _, _ := unstructured.NestedString(e.Object, "involvedObject", "kind")
		message, _, _ := unstructured.NestedString(e.Object, "message")
		all = append(all, kind+"/"+of+": "+message)
	}
	return all
}

// TestSourceWaits: nothing is applied before every list is complete and the Node has an address.
func TestSourceWaits(t *testing.T) {
	for _, kind := range []string{KindService, KindSlice, KindNode} {
		var mu sync.Mutex
		refused := true
		inCluster(t, func(c *cluster) {
			c.api.PrependReactor("list", resources[kind].Resource, func(kubetesting.Action) (bool,
				runtime.Object, error) {
				mu.Lock()
				defer mu.Unlock()
				return refused, nil, apierrors.NewForbidden(resources[kind].GroupResource(), "", errors.New("no"))
			})
		}, func(c *cluster) {
			time.Sleep(time.Minute)
			if got, _ := c.last(); got != nil {
				t.Errorf("without the list of %s: %s", kind, show(got))
			}
			if n := strings.Count(c.log.String(), "request to the API server failed"); n != 1 {
				t.Errorf("%s: said %d times: %s", kind, n, &c.log)
			}
			mu.Lock()
			refused = false
			mu.Unlock()
			time.Sleep(10 * time.Second)
			if got, n := c.last(); n != 1 || len(got.Services) != 1 {
				t.Errorf("with the list of %s: %d times, %s", kind, n, show(got))
			}
		}, aNode(t), aService(t, "web", web))
	}
	inCluster(t, nil, func(c *cluster) {
		if got, _ := c.last(); got != nil || !strings.Contains(c.log.String(), "the Node n1") {
			t.Errorf("without the Node: %s\n%s", show(got), &c.log)
		}
		c.put(aNode(t))
		if _, n := c.last(); n != 1 {
			t.Errorf("applied %d times with the Node", n)
		}
	}, aService(t, "web", web))
}

// TestSourceRefused: a configuration that the node refuses is tried again, and an address that the
// kernel routes elsewhere is left out.
func TestSourceRefused(t *testing.T) {
	refusal := errors.New("the address is gone")
	inCluster(t, func(c *cluster) {
		c.refusal = func(*services.Config) error { return refusal }
	}, func(c *cluster) {
		time.Sleep(10 * time.Second)
		if _, n := c.last(); n < 5 || n > 12 {
			t.Errorf("the configuration was tried %d times in ten seconds, want 5 to 12", n)
		}
		said := func(text string) int { return strings.Count(c.log.String(), text) }
		const end = "accepted again"
		if n := said("the address is gone"); n != 1 || said(end) > 0 {
			t.Errorf("said %d times: %s", n, &c.log)
		}
		taken := addr("198.51.100.7")
		c.mutex.Lock()
		c.refusal = func(w *services.Config) error {
			if slices.Contains(w.Services[0].ExternalIPs, taken[0]) {
				return &steer.ConflictError{Addresses: taken}
			}
			return nil
		}
		c.mutex.Unlock()
		time.Sleep(2 * time.Second)
		if got, _ := c.last(); !slices.Equal(got.Services[0].ExternalIPs, addr("198.51.100.8")) {
			t.Errorf("%s", show(got))
		}
		if told := c.told(); !slices.Equal(told,
			[]string{"Service/web: spec.externalIPs[0]: this node has another route to 198.51.100.7, or by it"}) {
			t.Errorf("Events %q", told)
		}
		time.Sleep(5 * forgive)
		if n := said("another route"); n != 1 {
			t.Errorf("said %d times that an address is routed elsewhere", n)
		}
		c.mutex.Lock()
		c.refusal = nil
		c.mutex.Unlock()
		time.Sleep(2 * forgive)
		if got, _ := c.last(); len(got.Services[0].ExternalIPs) != 2 {
			t.Errorf("when the other route has gone: %s", show(got))
		}
		if n := said(end); n != 1 {
			t.Errorf("said %d times that it is accepted again: %s", n, &c.log)
		}
	}, aNode(t), aService(t, "web", web+", externalIPs: [198.51.100.7, 198.51.100.8]"))
}

// TestBrokenWatch: a connection that breaks before the API server sends anything does not count as
// an answer.
func TestBrokenWatch(t *testing.T) {
	inCluster(t, func(c *cluster) {
		asked := 0
		c.api.PrependWatchReactor("nodes", func(kubetesting.Action) (bool, watch.Interface, error) {
			c.mutex.Lock()
			defer c.mutex.Unlock()
			switch asked++; asked {
			case 1, 2:
				return true, nil, fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
			case 3:
				return true, watch.NewEmptyWatch(), nil
			}
			return false, nil, nil
		})
	}, func(c *cluster) {
		time.Sleep(10 * time.Second)
		synctest.Wait()
		log := c.log.String()
		if !strings.Contains(log, "request to the API server failed") ||
			!strings.Contains(log, "the API server answers again") {
			t.Errorf("it says\n%s", log)
		}
		for line := range strings.Lines(log) {
			if strings.Contains(line, "answers again") && strings.Contains(line, "resource=nodes verb=watch") {
				t.Errorf("a broken connection counts as an answer: %s", line)
			}
		}
	}, aNode(t))
}

// TestEventThatAlwaysFails: an Event that cannot be written does not keep others from being
// written.
func TestEventThatAlwaysFails(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.api.PrependReactor("create", "events", func(a kubetesting.Action) (bool, runtime.Object, error) {
			u := a.(kubetesting.CreateAction).GetObject().(*unstructured.Unstructured)
			return strings.HasPrefix(u.GetName(), "a."), nil, apierrors.NewBadRequest("no")
		})
	}, func(c *cluster) {
		time.Sleep(10 * time.Second)
		if told := c.told(); len(told) != 1 || !strings.HasPrefix(told[0], "Service/b: ") {
			t.Errorf("Events %q", told)
		}
	}, aNode(t), aService(t, "a", "clusterIP: 10.96.0.20, ports: 80"),
		aService(t, "b", "clusterIP: 10.96.0.21, ports: 80"))
}

// TestEventsOfOneObject: whoever gives a Service another fault all the time causes few Events. The
// fault of another Service is told at once, and the last one of the first when its limit allows.
func TestEventsOfOneObject(t *testing.T) {
	inCluster(t, nil, func(c *cluster) {
		for n := range 300 {
			c.put(aService(c.t, "loud", fmt.Sprintf("clusterIP: x%d, ports: [{port: 80}]", n)))
			time.Sleep(100 * time.Millisecond)
		}
		if told := c.told(); len(told) != kube.FaultsAtOnce {
			c.t.Errorf("%d Events in half a minute, want %d", len(told), kube.FaultsAtOnce)
		}
		c.put(aService(c.t, "quiet", "clusterIP: x, ports: [{port: 80}]"))
		time.Sleep(time.Second)
		if told := c.told(); !slices.ContainsFunc(told,
			func(e string) bool { return strings.HasPrefix(e, "Service/quiet: ") }) {
			c.t.Errorf("Events %q", told)
		}
		time.Sleep(2 * kube.FaultInterval)
		if told := c.told(); !slices.ContainsFunc(told,
			func(e string) bool { return strings.HasPrefix(e, "Service/loud: ") && strings.Contains(e, `"x299"`) }) {
			c.t.Errorf("Events %q", told)
		}
	}, aNode(t))
}

// TestSourceRebase: another configuration file is applied.
func TestSourceRebase(t *testing.T) {
	inCluster(t, nil, func(c *cluster) {
		c.last()
		base := aBase()
		base.Addresses = addr("172.18.0.9", "fd18::9")
		need.NoError(t, c.Rebase(t.Context(), base))
		if got, n := c.last(); n != 1 || !slices.Equal(got.Addresses, base.Addresses) {
			t.Errorf("%d times, %s", n, show(got))
		}
		other := aBase()
		other.MTU = 1400
		if err := c.Rebase(t.Context(), other); err == nil {
			t.Error("another MTU is accepted, which can change only at a restart")
		}
		c.put(aSlice(t, "a", "web", webPort, "{addresses: [10.244.0.2]}"))
		if got, _ := c.last(); got.MTU != 1500 || endpoints(served(t, got, "shop/web:http", true)) !=
			"10.244.0.2:8080" {
			t.Errorf("%s", show(got))
		}
	}, aNode(t), aService(t, "web", web))
}
