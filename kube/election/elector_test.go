package election

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"culvert/gateway/role"
	"culvert/integration/need"
	"culvert/kube"
	"culvert/kube/objects"
)

const namespace, leaseName = "liqo-tenant-milan", "milan.liqo-tenant-milan.client.connections.liqo.io"

// driven is a gateway that records its roles.
type driven struct {
	mu    sync.Mutex
	roles []role.Role
	signs role.Signs
	calls int
}

func (g *driven) Become(r role.Role) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.roles = append(g.roles, r)
}

func (g *driven) Signs() role.Signs {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.signs
}

func (g *driven) Call() { g.calls++ }

func (g *driven) is() role.Role {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.roles[len(g.roles)-1]
}

// newAPI returns an API server that refuses, as real ones do, to update a Lease of an old version.
func newAPI(all ...runtime.Object) *fake.FakeDynamicClient {
	api := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{objects.Leases: "LeaseList", objects.Pods: "PodList"}, all...)
	var mu sync.Mutex
	versions := map[string]int{}
	api.PrependReactor("*", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		write, ok := a.(clienttesting.UpdateAction) // also one that creates
		if !ok {
			return false, nil, nil
		}
		u := write.GetObject().(*unstructured.Unstructured)
		if v := versions[u.GetName()]; a.GetVerb() == "update" && u.GetResourceVersion() != strconv.Itoa(v) && v > 0 {
			return true, nil, &conflict
		}
		versions[u.GetName()]++
		u.SetResourceVersion(strconv.Itoa(versions[u.GetName()]))
		return false, nil, nil
	})
	return api
}

func newElector(api *fake.FakeDynamicClient, pod string) (*Elector, *driven) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	entry := logrus.NewEntry(log)
	e := New(Options{
		Client: api, Namespace: namespace, Name: leaseName, Pod: pod, Retry: 20 * time.Millisecond,
		Deadline: time.Second,
		Times:    role.Times{Lease: time.Second, Patience: 300 * time.Millisecond}, Log: entry,
		Causes: kube.NewCauses(entry),
		Label:  Label{Selector: "component=gateway,gateway-name=milan", Name: "active"},
	})
	g := &driven{}
	e.Drive(g, nil)
	<-e.poke
	return e, g
}

func pod(name string, labels map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name, "namespace": namespace,
			"labels": labels},
	}}
}

func storedLease(t *testing.T, api *fake.FakeDynamicClient) *role.Lease {
	t.Helper()
	u, err := api.Resource(objects.Leases).Namespace(namespace).Get(t.Context(), leaseName, metav1.GetOptions{})
	need.NoError(t, err)
	l, err := readLease(u)
	need.NoError(t, err)
	return l
}

// TestAttempts: the first gateway gets the Lease. The second stands by until the Lease is released,
// and takes it with the next term.
func TestAttempts(t *testing.T) {
	api := newAPI()
	a, gatewayA := newElector(api, "a")
	b, gatewayB := newElector(api, "b")
	a.attempt(t.Context())
	b.attempt(t.Context())
	if gatewayA.is() != role.Active || gatewayB.is() != role.Standby {
		t.Fatalf("a is %v and b %v, want active and standby", gatewayA.is(), gatewayB.is())
	}
	before := storedLease(t, api)
	if before.Holder != "a" || before.Duration != time.Second || before.Renewed == "" {
		t.Errorf("the Lease is %+v, want one that a holds for a second", before)
	}
	if s := b.State(); s.Holder != "a" || s.Role != role.Standby || !strings.Contains(s.Why, "a has the Lease") {
		t.Errorf("b's state is %+v, want a standby that knows that a has the Lease", s)
	}
	if claim := string(a.Claim()); claim != `{"says":"mine","pod":"a","term":0}` || b.Claim() != nil {
		t.Errorf("a claims %s and b %s, want a claim of a alone", claim, b.Claim())
	}
	if _, err := a.release(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.attempt(t.Context())
	if l := storedLease(t, api); l.Holder != "b" || l.Term != before.Term+1 || gatewayB.is() != role.Active {
		t.Errorf("the Lease is %+v and b is %v, want the next term of b, which is active", l, gatewayB.is())
	}
	if l, err := a.release(t.Context()); err != nil || l == nil || l.Holder != "b" ||
		storedLease(t, api).Holder != "b" {
		t.Errorf("a releases the Lease of b: %+v, %v", l, err)
	}
	a.attempt(t.Context())
	<-a.poke // somebody else has written the Lease since
	a.attempt(t.Context())
	if gatewayA.is() != role.Standby {
		t.Errorf("while b has the Lease, a is %v, want standby", gatewayA.is())
	}
}

// TestRenew: a gateway renews its Lease with one request. It takes note when somebody else has
// written the Lease, or removed it.
func TestRenew(t *testing.T) {
	api := newAPI()
	e, g := newElector(api, "a")
	requests := func() (all []string) {
		api.ClearActions()
		e.attempt(t.Context())
		for _, a := range api.Actions() {
			all = append(all, a.GetVerb())
		}
		return all
	}
	expect := func(want ...string) {
		t.Helper()
		if got := requests(); !slices.Equal(got, want) {
			t.Errorf("an attempt makes the requests %q, want %q", got, want)
		}
	}
	expect("get", "create")
	expect("update")
	expect("update")
	leases := api.Resource(objects.Leases).Namespace(namespace)
	u, err := leases.Get(t.Context(), leaseName, metav1.GetOptions{})
	need.NoError(t, err)
	u.SetAnnotations(map[string]string{"by": "somebody"})
	_, err = leases.Update(t.Context(), u, metav1.UpdateOptions{})
	need.NoError(t, err)
	expect("update")
	<-e.poke
	expect("get", "update")
	expect("update")
	need.NoError(t, leases.Delete(t.Context(), leaseName, metav1.DeleteOptions{}))
	expect("update")
	<-e.poke
	expect("get", "create")
	if g.is() != role.Active {
		t.Errorf("it is %v, want active", g.is())
	}
}

// TestForeignFields: fields that others have written into a Lease stay.
func TestForeignFields(t *testing.T) {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
		"metadata": map[string]any{"name": leaseName, "namespace": namespace,
			"annotations": map[string]any{"note": "x"}},
		"spec": map[string]any{"holderIdentity": "gw-milan-5d_6f1c", "leaseDurationSeconds": int64(15),
			"leaseTransitions": int64(3),
			"acquireTime":      "2026-11-26T20:00:00.000000Z", "renewTime": "2026-11-26T20:00:00.000000Z",
			"strategy": "OldestEmulationVersion"},
	}}
	api := newAPI(u)
	e, g := newElector(api, "a")
	e.attempt(t.Context())
	if g.is() != role.Standby {
		t.Fatalf("while a kernel-based gateway has the Lease, this one is %v, want standby", g.is())
	}
	l, err := readLease(u)
	if err != nil || l.Holder != "gw-milan-5d_6f1c" || l.Term != 3 || l.Duration != 15*time.Second {
		t.Fatalf("%+v, %v", l, err)
	}
	next, err := writeLease(u, namespace, leaseName, nil, &role.Lease{Holder: "a", Term: 4, Duration: 15 * time.Second},
		time.Now())
	need.NoError(t, err)
	spec := next.Object["spec"].(map[string]any)
	if spec["strategy"] != "OldestEmulationVersion" || spec["acquireTime"] != spec["renewTime"] ||
		next.GetAnnotations()["note"] != "x" {
		t.Errorf("%v", next.Object)
	}
	if was := u.Object["spec"].(map[string]any); was["holderIdentity"] != "gw-milan-5d_6f1c" {
		t.Error("the object that was read has changed")
	}
}

// TestAway: without an API server a gateway goes on forwarding, unless the peer is silent too.
func TestAway(t *testing.T) { need.Bubble(t, away) }

func away(t *testing.T) {
	api := newAPI()
	e, g := newElector(api, "a")
	e.attempt(t.Context())
	api.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("away")
	})
	e.attempt(t.Context())
	// in virtual time: see TestAway
	for until := time.Now().Add(5 * time.Second); g.is() != role.Silent && time.Now().Before(until); time.Sleep(look) {
		if g.is() == role.Active { // the peer sends until the Lease has expired
			g.signs.Heard++
		}
		e.look()
	}
	if want := []role.Role{role.Standby, role.Active, role.Static, role.Silent}; !slices.Equal(g.roles, want) {
		t.Errorf("roles %v, want %v", g.roles, want)
	}
	if s := e.State(); s.Failing < time.Second {
		t.Errorf("it reports failures for %v, want at least 1s", s.Failing)
	}
	g.signs.Data++
	e.look()
	if g.is() != role.Static {
		t.Errorf("it is %v when the peer sends again, want static", g.is())
	}
	api.ReactionChain = api.ReactionChain[1:]
	e.attempt(t.Context())
	if g.is() != role.Active || e.State().Failing != 0 {
		t.Errorf("when the API server is back, it is %v (%+v), want active without failures", g.is(), e.State())
	}
}

// TestUnreadable: a Lease that cannot be parsed counts as held.
func TestUnreadable(t *testing.T) {
	for _, spec := range []any{"", map[string]any{"holderIdentity": int64(7)}, []any{}} {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
			"metadata": map[string]any{"name": leaseName, "namespace": namespace}, "spec": spec}}
		e, g := newElector(newAPI(u), "a")
		e.attempt(t.Context())
		if g.is() != role.Standby {
			t.Errorf("with spec %v it is %v, want standby", spec, g.is())
		}
	}
}

// TestLabel: the winner removes the label from the other pods of its gateway before it labels its
// own, and changes no other pod.
func TestLabel(t *testing.T) {
	labels := func(more ...string) map[string]any {
		l := map[string]any{"component": "gateway", "gateway-name": "milan"}
		for _, name := range more {
			l[name] = "true"
		}
		return l
	}
	other := labels("active")
	other["gateway-name"] = "turin"
	api := newAPI(pod("a", labels()), pod("b", labels("active")), pod("gone", labels("active")), pod("of-turin", other),
		pod("stranger", map[string]any{"active": "true"}))
	e, _ := newElector(api, "a")
	if err := e.relabel(t.Context()); err != nil || len(api.Actions()) != 0 {
		t.Fatalf("a standby makes the requests %v (%v), want none", api.Actions(), err)
	}
	e.attempt(t.Context())
	api.ClearActions()
	need.NoError(t, e.relabel(t.Context()))
	var patched []string
	for _, a := range api.Actions() {
		if p, ok := a.(clienttesting.PatchAction); ok {
			var body struct {
				Metadata struct{ Labels map[string]any }
			}
			need.NoError(t, json.Unmarshal(p.GetPatch(), &body))
			patched = append(patched, p.GetName())
		}
	}
	if want := []string{"b", "gone", "a"}; !slices.Equal(patched, want) {
		t.Errorf("patched %v, want %v", patched, want)
	}
	for name, want := range map[string]string{"a": "true", "b": "", "gone": "", "of-turin": "true",
		"stranger": "true"} {
		u, err := api.Resource(objects.Pods).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
		need.NoError(t, err)
		if is := u.GetLabels()["active"]; is != want {
			t.Errorf("pod %s: active %q, want %q", name, is, want)
		}
	}
}

// TestLateLabel: the request of a former holder, which labels its pod, arrives after that of its
// successor. The pod loses the label long before the Lease would expire.
func TestLateLabel(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		labels := map[string]any{"component": "gateway", "gateway-name": "milan"}
		api := newAPI(pod("a", labels), pod("late", labels))
		e, _ := newElector(api, "a")
		e.Times.Lease = time.Hour
		e.attempt(t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			e.label(ctx)
		}()
		signal(e.relabels)
		synctest.Wait()
		need.NoError(t, e.patch(ctx, "late", active))
		time.Sleep(e.Retry + look)
		synctest.Wait()
		cancel()
		<-done
		for name, want := range map[string]string{"a": active, "late": ""} {
			u, err := api.Resource(objects.Pods).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
			need.NoError(t, err)
			if is := u.GetLabels()["active"]; is != want {
				t.Errorf("pod %s: active %q, want %q", name, is, want)
			}
		}
	})
}

// TestLeave: a gateway that leaves forwards until another one has the Lease, and then stops.
func TestLeave(t *testing.T) {
	api := newAPI()
	a, gatewayA := newElector(api, "a")
	b, gatewayB := newElector(api, "b")
	a.attempt(t.Context())
	b.attempt(t.Context())
	left := make(chan struct{})
	go func() { a.Leave(t.Context()); close(left) }()
	need.Eventually(t, 10*time.Second, "b is active", func() error {
		if b.attempt(t.Context()); gatewayB.is() != role.Active {
			return fmt.Errorf("it is %v", gatewayB.is())
		}
		return nil
	})
	<-left
	if want := []role.Role{role.Standby, role.Active, role.Static, role.Standby}; !slices.Equal(gatewayA.roles, want) {
		t.Errorf("roles %v, want %v", gatewayA.roles, want)
	}
	a.attempt(t.Context())
	a.look()
	if gatewayA.is() != role.Standby || storedLease(t, api).Holder != "b" {
		t.Errorf("after it has left, a is %v and %q has the Lease; want standby and b", gatewayA.is(),
			storedLease(t, api).Holder)
	}
	b.Leave(t.Context())
	if gatewayB.is() != role.Standby || storedLease(t, api).Holder != "" {
		t.Errorf("b leaves without a successor: it is %v and %q has the Lease; want standby and nobody", gatewayB.is(),
			storedLease(t, api).Holder)
	}
}

// TestConflict: of two gateways that write the Lease, the slower one stands by.
func TestConflict(t *testing.T) {
	api := newAPI()
	e, g := newElector(api, "a")
	api.PrependReactor("create", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, &conflict
	})
	e.attempt(t.Context())
	if g.is() != role.Standby || len(e.poke) != 1 {
		t.Errorf("it is %v with %d new attempts, want standby with one", g.is(), len(e.poke))
	}
}

var conflict = statusError{}

// statusError is a conflict as client-go returns it.
type statusError struct{}

func (*statusError) Error() string { return "conflict" }
func (*statusError) Status() metav1.Status {
	return metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonConflict, Code: 409}
}
