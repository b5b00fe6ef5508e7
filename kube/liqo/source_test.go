package liqo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/dynamic/fake"
	kubetesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"culvert/gateway/config"
	"culvert/gateway/wgkey"
	"culvert/integration/need"
	"culvert/kube"
	"culvert/kube/objects"
	"culvert/nat/rules"
)

func init() {
	utilruntime.ErrorHandlers = nil // one of them counts on time that is no bubble's
}

// A cluster is a simulated API server, with a Source that follows it.
type cluster struct {
	t      *testing.T
	api    *fake.FakeDynamicClient
	source *Source
	log    bytes.Buffer

	standby atomic.Bool

	mu sync.Mutex
	fakeGateway
	check   kube.Check
	refusal error // of Apply
	config  *config.Config
	commits int
	before  int // commits before the first Apply
}

func (c *cluster) Apply(wanted *config.Config) error {
	if err := config.Check(wanted); err != nil {
		c.t.Errorf("a configuration that no gateway takes: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refusal != nil {
		return c.refusal
	}
	c.config = wanted
	if c.sites++; c.sites == 1 {
		c.before = c.commits
	}
	return nil
}

func (c *cluster) Put(key rules.Key, r rules.Resource) error {
	if err := accepted(r); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if strings.Contains(key.Name, "too-much") {
		return errors.New("nat: more rules than there is room for")
	}
	c.pieces[key] = r
	return nil
}

func (c *cluster) Delete(key rules.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pieces, key)
}

func (c *cluster) CommitRules() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.commits++
}

func (c *cluster) Speaks() bool { return !c.standby.Load() }

func (c *cluster) Check() kube.Check {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.check
}

func (c *cluster) setCheck(check kube.Check) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.check = check
}

var gvr = objects.LiqoResource

// kindsInAPI are all kinds that a Source reads.
var kindsInAPI = []string{KindFirewall, KindRoute, KindTunnel, KindFabric, KindNode, KindPublicKey, kindConnection}

func unstructuredOf(t testing.TB, o *Object) *unstructured.Unstructured {
	t.Helper()
	o.APIVersion = objects.Liqo
	text, err := json.Marshal(o)
	need.NoError(t, err)
	u := &unstructured.Unstructured{}
	need.NoError(t, json.Unmarshal(text, &u.Object))
	if o.Kind != KindTunnel { // numbers are int64 where the API machinery has read them; only ids matter
		return u
	}
	spec := u.Object["spec"].(map[string]any)
	if id, ok := spec["id"].(float64); ok {
		spec["id"] = int64(id)
	}
	return u
}

// baseOf is what flags say of the gateway of a peering.
func baseOf(remote string) *config.Config {
	c := &config.Config{Peer: remote, MTU: 1340, WireGuard: config.WireGuard{Role: config.Server,
		PrivateKey: wgkey.NewPrivate(), ListenPort: 51840}}
	c.Geneve.ListenPort = 6091
	return c
}

// inCluster runs f in a bubble of time with a Source of cluster-b's gateway that runs.
func inCluster(t *testing.T, all []*Object, prepare func(*cluster), f func(*cluster)) {
	t.Helper()
	need.Bubble(t, func(t *testing.T) {
		kinds := map[schema.GroupVersionResource]string{objects.Events: "EventList"}
		for _, kind := range kindsInAPI {
			kinds[gvr(kind)] = kind + "List"
		}
		c := &cluster{t: t, fakeGateway: *newFakeGateway()}
		c.api = fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
		for _, o := range all {
			need.NoError(t, c.api.Tracker().Create(gvr(o.Kind), unstructuredOf(t, o), o.Metadata.Namespace))
		}
		log := logrus.New()
		log.SetOutput(&c.log)
		log.SetFormatter(&logrus.JSONFormatter{})
		c.source = NewSource(c.api, Identity{Self: gatewayOf("cluster-b"), Base: baseOf("cluster-b"),
			UID: "gateway-uid", Pod: "pod-1", Refresh: 10 * time.Second}, logrus.NewEntry(log))
		if prepare != nil {
			prepare(c)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { c.source.Run(ctx, c); close(done) }()
		defer func() { cancel(); <-done }()
		c.awaitQuiet()
		f(c)
	})
}

// awaitQuiet waits until everything that is due has happened.
func (c *cluster) awaitQuiet() {
	time.Sleep(5 * time.Second)
	synctest.Wait()
}

func (c *cluster) get(kind, namespace, name string) *unstructured.Unstructured {
	c.t.Helper()
	o, err := c.api.Tracker().Get(gvr(kind), namespace, name)
	need.NoError(c.t, err)
	return o.(*unstructured.Unstructured)
}

func (c *cluster) update(o *Object) {
	c.t.Helper()
	need.NoError(c.t, c.api.Tracker().Update(gvr(o.Kind), unstructuredOf(c.t, o), o.Metadata.Namespace))
	c.awaitQuiet()
}

func (c *cluster) delete(kind, namespace, name string) {
	c.t.Helper()
	need.NoError(c.t, c.api.Tracker().Delete(gvr(kind), namespace, name))
	c.awaitQuiet()
}

// conditions returns the conditions of a resource, as "host type status".
func (c *cluster) conditions(kind, namespace, name string) []string {
	c.t.Helper()
	all, _, err := unstructured.NestedSlice(c.get(kind, namespace, name).Object, "status", "conditions")
	need.NoError(c.t, err)
	var texts []string
	for _, x := range all {
		m := x.(map[string]any)
		if _, err := time.Parse(time.RFC3339, m["lastTransitionTime"].(string)); err != nil || len(m) != 4 {
			c.t.Errorf("condition %v: %v", m, err)
		}
		texts = append(texts, fmt.Sprintf("%s %s %s", m["host"], m["type"], m["status"]))
	}
	return texts
}

// writes returns what was written since its last call, as "verb resource".
func (c *cluster) writes() []string {
	var all []string
	for _, a := range c.api.Actions() {
		switch a.GetVerb() {
		case "create", "update", "patch", "delete":
			all = append(all, fullName(a))
		}
	}
	c.api.ClearActions()
	return all
}

func fullName(a kubetesting.Action) string {
	name := a.GetVerb() + " " + a.GetResource().Resource
	if a.GetSubresource() != "" {
		name += "/" + a.GetSubresource()
	}
	return name
}

// checkRole fails if anything was done that the role of Liqo's gateways does not grant.
func (c *cluster) checkRole(actions []kubetesting.Action) {
	c.t.Helper()
	var role struct {
		Rules []struct{ APIGroups, Resources, Verbs []string }
	}
	text, err := os.ReadFile("../testdata/liqo-gateway-ClusterRole.rules.yaml")
	if err == nil {
		err = yaml.Unmarshal(text, &role)
	}
	need.NoError(c.t, err)
	granted := map[string]bool{}
	for _, r := range role.Rules {
		for _, resource := range r.Resources {
			for _, verb := range r.Verbs {
				granted[verb+" "+resource] = true
			}
		}
	}
	if len(granted) < 20 || len(actions) == 0 {
		c.t.Fatalf("%d grants, %d actions", len(granted), len(actions))
	}
	for _, a := range actions {
		if !granted[fullName(a)] {
			c.t.Errorf("the role does not grant %s", fullName(a))
		}
	}
}

func TestSourceAppliesCaptureAndSaysSo(t *testing.T) {
	objects := loadCapture(t, captures[0])
	want, _ := outcomeWith(objects...)
	inCluster(t, objects, nil, func(c *cluster) {
		if !c.source.Ready() || c.sites != 1 || !maps.EqualFunc(c.pieces, want.pieces,
			func(a, b rules.Resource) bool { return a.Order == b.Order }) {
			t.Errorf("ready %v, %d sites, %d pieces of %d\n%s", c.source.Ready(), c.sites, len(c.pieces),
				len(want.pieces), &c.log)
		}
		for key := range want.verdicts {
			if got := c.conditions(key.Kind, key.Namespace, key.Name); !slices.Equal(got,
				[]string{"cluster-b Applied True"}) {
				t.Errorf("%s: %q", key, got)
			}
		}
		if got := c.conditions(KindFirewall, "liqo-tenant-cluster-c", "cluster-c-remap-podcidr"); got != nil {
			t.Errorf("another gateway's resource: %q", got)
		}
		c.checkRole(c.api.Actions())
		c.writes()
		time.Sleep(time.Hour)
		synctest.Wait()
		if w := c.writes(); len(w) > 0 {
			t.Errorf("writes in an hour without a change: %q, want none", w)
		}
	})
}

func TestNothingIsAppliedBeforeEveryListIsComplete(t *testing.T) {
	for _, kind := range kindsInAPI {
		t.Run(kind, func(t *testing.T) {
			var mu sync.Mutex
			refused := true
			inCluster(t, loadCapture(t, captures[0]), func(c *cluster) {
				resource := gvr(kind).Resource
				c.api.PrependReactor("list", resource, func(kubetesting.Action) (bool, runtime.Object, error) {
					mu.Lock()
					defer mu.Unlock()
					return refused, nil, apierrors.NewForbidden(gvr(kind).GroupResource(), "", errors.New("no"))
				})
			}, func(c *cluster) {
				time.Sleep(time.Minute)
				synctest.Wait()
				if c.source.Ready() || c.sites > 0 || len(c.pieces) > 0 || c.commits > 0 || len(c.writes()) > 0 {
					t.Error("something is applied before all lists are complete")
				}
				said := strings.Count(c.log.String(), `"level":"warning"`)
				if want := fmt.Sprintf(`"resource":%q,`, gvr(kind).Resource); said != 1 ||
					!strings.Contains(c.log.String(), want) || !strings.Contains(c.log.String(), `"verb":"list"`) {
					t.Errorf("%d warnings, want one that names list and %s:\n%s", said, gvr(kind).Resource, &c.log)
				}
				mu.Lock()
				refused = false
				mu.Unlock()
				c.awaitQuiet()
				if !c.source.Ready() || c.sites != 1 || len(c.pieces) == 0 || c.before != 1 { // nodes come last
					t.Error("when all lists are complete, not everything is applied")
				}
			})
		})
	}
}

func TestAPIServerAwayIsOneCause(t *testing.T) {
	inCluster(t, nil, func(c *cluster) {
		c.api.PrependReactor("*", "*", func(kubetesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("connection refused")
		})
	}, func(c *cluster) {
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := strings.Count(c.log.String(), "\n"); n != 1 || c.source.Ready() {
			t.Errorf("the log has %d lines, want one:\n%s", n, &c.log)
		}
	})
}

// Twenty gateways write to one resource at a time, and none loses another's entry.
func TestConditionsOfOthersSurvive(t *testing.T) {
	objects := loadCapture(t, captures[0])
	i := slices.IndexFunc(objects, func(o *Object) bool { return o.Metadata.Name == mssTable })
	shared := *objects[i]
	shared.Status = json.RawMessage(`{"conditions": [{"host": "other", "type": "Applied", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"},
		{"host": "cluster-b", "type": "Error", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}`)
	objects[i] = &shared
	conflicts := 0
	inCluster(t, objects, func(c *cluster) {
		c.api.PrependReactor("update", gvr(KindFirewall).Resource, func(a kubetesting.Action) (bool,
			runtime.Object, error) {
			u := a.(kubetesting.UpdateAction).GetObject().(*unstructured.Unstructured)
			if u.GetName() != mssTable || conflicts == 7 {
				return false, nil, nil
			}
			conflicts++ // somebody was faster
			now := c.get(KindFirewall, u.GetNamespace(), u.GetName()).DeepCopy()
			all, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions")
			all = append(all, map[string]any{"host": fmt.Sprintf("gateway-%d", conflicts), "type": "Applied",
				"status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"})
			if err := unstructured.SetNestedSlice(now.Object, all, "status", "conditions"); err != nil {
				t.Error(err)
			}
			if err := c.api.Tracker().Update(gvr(KindFirewall), now, now.GetNamespace()); err != nil {
				t.Error(err)
			}
			return true, nil, apierrors.NewConflict(gvr(KindFirewall).GroupResource(), mssTable, errors.New("changed"))
		})
	}, func(c *cluster) {
		got := c.conditions(KindFirewall, "liqo", mssTable)
		slices.Sort(got)
		want := []string{"cluster-b Applied True", "other Applied False"}
		for n := range 7 {
			want = append(want, fmt.Sprintf("gateway-%d Applied True", n+1))
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("conditions %q, want %q", got, want)
		}
	})
}

func (c *cluster) eventsOn(uid string) (messages []string) {
	list, err := c.api.Tracker().List(objects.Events, schema.GroupVersionKind{Version: "v1", Kind: "Event"}, "")
	need.NoError(c.t, err)
	for _, e := range list.(*unstructured.UnstructuredList).Items {
		involved := e.Object["involvedObject"].(map[string]any)
		if involved["uid"] == uid {
			messages = append(messages, e.Object["message"].(string))
		}
		if e.Object["type"] != "Warning" || e.GetNamespace() == "" || e.Object["apiVersion"] != "v1" {
			c.t.Errorf("Event %v", e.Object)
		}
	}
	return messages
}

func TestMalformedResourceGetsConditionAndOneEvent(t *testing.T) {
	objects := loadCapture(t, captures[0])
	bad := allSpoilt[3].object(t, objects, 3)
	node := (&spoilt{kind: KindNode, name: "n1", path: "spec.interface.node.ip", value: "x"}).object(t, objects, 4)
	full := (&spoilt{kind: KindFirewall, name: mssTable, path: "spec.table.name", value: "good"}).object(t, objects, 5)
	full.Metadata.Name = "too-much"
	inCluster(t, append(objects, bad, node, full), nil, func(c *cluster) {
		for _, o := range []*Object{bad, full} {
			if got := c.conditions(o.Kind, o.Metadata.Namespace, o.Metadata.Name); !slices.Equal(got,
				[]string{"cluster-b Applied False"}) {
				t.Errorf("%s: conditions %q", o.Metadata.Name, got)
			}
		}
		for _, want := range []struct{ uid, message string }{
			{bad.Metadata.UID, "spec.table.name: a number, where a string belongs"},
			{node.Metadata.UID, `spec.interface.node.ip: "x" is no IPv4 address`},
			{full.Metadata.UID, "spec.table: nat: more rules than there is room for"},
		} {
			if got := c.eventsOn(want.uid); !slices.Equal(got, []string{want.message}) {
				t.Errorf("Events %q, want %q", got, want.message)
			}
		}
		c.checkRole(c.api.Actions())
		c.writes()
		time.Sleep(time.Hour)
		synctest.Wait()
		if w := c.writes(); len(w) > 0 {
			t.Errorf("writes in an hour after the report: %q, want none", w)
		}
		mended := *bad
		for _, o := range objects {
			if o.Metadata.Name == natTable && o.Kind == KindFirewall {
				mended.Spec = o.Spec
			}
		}
		c.update(&mended)
		if got := c.conditions(bad.Kind, bad.Metadata.Namespace, bad.Metadata.Name); !slices.Equal(got,
			[]string{"cluster-b Applied True"}) {
			t.Errorf("after it was fixed: conditions %q", got)
		}
	})
}

func TestDeletedResourceTakesItsRulesWithIt(t *testing.T) {
	inCluster(t, loadCapture(t, captures[0]), nil, func(c *cluster) {
		key := rules.Key{Kind: KindFirewall, Namespace: "liqo", Name: mssTable}
		if _, there := c.pieces[key]; !there {
			t.Fatal("no rules")
		}
		before := c.commits
		c.delete(key.Kind, key.Namespace, key.Name)
		if _, there := c.pieces[key]; there || c.commits != before+1 {
			t.Error("the rules of a deleted resource stay, or are not committed once")
		}
	})
}

func (c *cluster) connection() string {
	u := c.get(kindConnection, "liqo-tenant-cluster-b", "gw-cluster-b")
	status, _ := u.Object["status"].(map[string]any)
	text, err := json.Marshal(status)
	need.NoError(c.t, err)
	return string(text)
}

func (c *cluster) expectConnection(want string) {
	c.t.Helper()
	if got := c.connection(); got != want {
		c.t.Errorf("status %s, want %s", got, want)
	}
}

func TestConnection(t *testing.T) {
	objects := loadCapture(t, captures[0])
	inCluster(t, objects, nil, func(c *cluster) {
		u := c.get(kindConnection, "liqo-tenant-cluster-b", "gw-cluster-b")
		delete(u.Object, "status")
		got, err := json.Marshal(u.Object)
		want := `{"apiVersion":"networking.liqo.io/v1beta1","kind":"Connection","metadata":{"labels":{"liqo.io/remote-cluster-id":"cluster-b"},` +
			`"name":"gw-cluster-b","namespace":"liqo-tenant-cluster-b","ownerReferences":[{"apiVersion":"networking.liqo.io/v1beta1",` +
			`"kind":"GatewayServer","name":"cluster-b","uid":"gateway-uid"}]},"spec":{"gatewayRef":{"apiVersion":"networking.liqo.io/v1beta1",` +
			`"kind":"WgGatewayServer","name":"cluster-b","namespace":"liqo-tenant-cluster-b","uid":"gateway-uid"},"type":"Server"}}`
		if err != nil || string(got) != want {
			t.Errorf("%s, want %s", got, want)
		}
		c.expectConnection(`{"latency":{"value":"N/A"},"value":"Connecting"}`)

		at := time.Now()
		c.setCheck(kube.Check{State: kube.CheckConnected, Latency: 12345 * time.Microsecond, At: at})
		c.awaitQuiet()
		stamp := at.UTC().Format(time.RFC3339)
		c.expectConnection(`{"latency":{"timestamp":"` + stamp + `","value":"12ms"},"value":"Connected"}`)

		// The latency is refreshed no more often than configured.
		c.writes()
		for i := range 60 {
			c.setCheck(kube.Check{State: kube.CheckConnected, Latency: 850 * time.Microsecond,
				At: at.Add(time.Duration(i) * time.Second)})
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if w := c.writes(); len(w) < 5 || len(w) > 6 {
			t.Errorf("%d writes in a minute", len(w))
		}
		if !strings.Contains(c.connection(), `"value":"850μs"`) {
			t.Error(c.connection())
		}

		c.setCheck(kube.Check{State: kube.CheckLost})
		c.awaitQuiet()
		c.expectConnection(`{"latency":{"value":"N/A"},"value":"Error"}`)

		// A Connection that somebody deletes is made again.
		c.setCheck(kube.Check{State: kube.CheckConnected, Latency: 2 * time.Millisecond, At: at})
		c.delete(kindConnection, "liqo-tenant-cluster-b", "gw-cluster-b")
		c.expectConnection(`{"latency":{"timestamp":"` + stamp + `","value":"2ms"},"value":"Connected"}`)

		// Without a key there is no peer.
		c.delete(KindPublicKey, "liqo-tenant-cluster-b", "peer")
		if c.config.WireGuard.PeerPublicKey != (wgkey.Key{}) {
			t.Error("without a key, the gateway still has a peer")
		}
		c.expectConnection(`{"latency":{"value":"N/A"},"value":"Error"}`)
		c.checkRole(c.api.Actions())
	})
}

func TestConnectionNeedsAKey(t *testing.T) {
	inCluster(t, nil, nil, func(c *cluster) {
		if _, err := c.api.Tracker().Get(gvr(kindConnection), "liqo-tenant-cluster-b",
			"gw-cluster-b"); !apierrors.IsNotFound(err) {
			t.Errorf("a Connection without a peer's key: %v", err)
		}
	})
}

// A gateway that restarts leaves the status of its Connection as it was until it knows the state of
// the tunnel.
func TestConnectionSurvivesARestart(t *testing.T) {
	old := object(t,
		`{kind: Connection, metadata: {name: gw-cluster-b, namespace: liqo-tenant-cluster-b}, status: {value: Connected, latency: {value: 3ms, timestamp: "1999-01-01T00:00:00Z"}}}`)
	inCluster(t, append(loadCapture(t, captures[0]), old), nil, func(c *cluster) {
		c.expectConnection(`{"latency":{"timestamp":"1999-01-01T00:00:00Z","value":"3ms"},"value":"Connected"}`)
	})
}

// A configuration that a gateway refuses is reported once in the log and in an Event, and in the
// status, and tried again even if no resource changes.
func TestRefusedSiteIsTriedAgain(t *testing.T) {
	refuse := func(c *cluster, err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.refusal = err
	}
	inCluster(t, loadCapture(t, captures[0]),
		func(c *cluster) { refuse(c, errors.New("geneve.nodes: too many of them")) }, func(c *cluster) {
			if c.sites != 0 || len(c.pieces) == 0 || !c.source.Ready() {
				t.Errorf("%d sites, %d pieces", c.sites, len(c.pieces))
			}
			const said = "what the resources say about the gateway is refused, and what runs stays: geneve.nodes: too many of them"
			if n := strings.Count(c.log.String(), said); n != 1 {
				t.Errorf("said %d times\n%s", n, &c.log)
			}
			made, err := c.api.Tracker().List(objects.Events, schema.GroupVersionKind{Version: "v1", Kind: "Event"},
				"liqo-tenant-cluster-b")
			need.NoError(t, err)
			if all := made.(*unstructured.UnstructuredList).Items; len(all) != 1 || all[0].Object["message"] != said ||
				all[0].Object["involvedObject"].(map[string]any)["kind"] != "GatewayServer" {
				t.Errorf("Events: %v", all)
			}
			if waiting, _ := c.source.Resources(); !slices.Equal(waiting, []string{said}) {
				t.Errorf("waiting: %q", waiting)
			}
			if _, err := c.api.Tracker().Get(gvr(kindConnection), "liqo-tenant-cluster-b",
				"gw-cluster-b"); !apierrors.IsNotFound(err) {
				t.Errorf("a Connection without a peer: %v", err)
			}
			refuse(c, nil)
			c.awaitQuiet()
			if waiting, leftOut := c.source.Resources(); c.sites != 1 ||
				c.config.WireGuard.PeerPublicKey == (wgkey.Key{}) || len(waiting)+len(leftOut) > 0 {
				t.Errorf("%d sites, waiting %q, left out %v", c.sites, waiting, leftOut)
			}
			c.get(kindConnection, "liqo-tenant-cluster-b", "gw-cluster-b")
		})
}

// Rules that the gateway refuses are put again whenever rules change, because there may be room by
// then. The refusal is logged once.
func TestRefusedRulesAreLoggedOnce(t *testing.T) {
	objects := loadCapture(t, captures[0])
	full := (&spoilt{kind: KindFirewall, name: mssTable, path: "spec.table.name", value: "good"}).object(t, objects, 5)
	full.Metadata.Name = "too-much"
	other := (&spoilt{kind: KindFirewall, name: mssTable, path: "spec.table.name", value: "first"}).object(
		t, objects, 6)
	other.Metadata.Name = "other"
	inCluster(t, append(objects, full, other), nil, func(c *cluster) {
		for i := range 5 {
			next := (&spoilt{kind: KindFirewall, name: mssTable, path: "spec.table.name", value: fmt.Sprint("changed-",
				i)}).object(t, objects, 6)
			next.Metadata.Name = "other"
			before := c.commits
			if c.update(next); c.commits == before {
				t.Fatal("nothing has changed")
			}
		}
		if n := strings.Count(c.log.String(), "rules are refused"); n != 1 {
			t.Errorf("logged %d times\n%s", n, &c.log)
		}
	})
}

// A busyGateway calls a function while it applies rules.
type busyGateway struct {
	*cluster
	meanwhile func()
}

func (g busyGateway) Put(key rules.Key, r rules.Resource) error {
	g.meanwhile()
	return g.cluster.Put(key, r)
}

// While a gateway applies rules, status requests are answered and watches continue. Rules are not
// reported as applied before they are.
func TestStatusWhileTheGatewayWorks(t *testing.T) {
	objects := loadCapture(t, captures[0])
	log := logrus.New()
	log.SetOutput(io.Discard)
	s := NewSource(nil, Identity{Self: gatewayOf("cluster-b"), Base: baseOf("cluster-b")}, logrus.NewEntry(log))
	sinks := map[string]kube.Sink{}
	for _, set := range s.sets() {
		sinks[set.Name] = kube.Sink{Loop: s.loop, Set: set}
		var list []any
		for _, o := range objects {
			if o.Kind == set.Name {
				list = append(list, unstructuredOf(t, o))
			}
		}
		need.NoError(t, sinks[set.Name].Replace(list, ""))
	}
	late := (&spoilt{kind: KindFirewall, name: mssTable, path: "spec.table.name", value: "late"}).object(t, objects, 6)
	late.Metadata.Name = "late"
	asked := false
	g := busyGateway{&cluster{t: t, fakeGateway: *newFakeGateway()}, func() {
		if asked {
			return
		}
		asked = true
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.Ready()
			s.Resources()
			need.NoError(t, sinks[late.Kind].Add(unstructuredOf(t, late)))
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Error("requests for the status wait while the gateway applies rules")
		}
	}}
	w := s.apply(g)
	if w == nil || !asked {
		t.Fatal("nothing was put")
	}
	if applied, ok := w.verdicts[late.Key()]; ok {
		t.Errorf("rules that the gateway does not have are reported as applied: %t", applied)
	}
	if w = s.apply(g); !w.verdicts[late.Key()] {
		t.Error("rules that the gateway has are not reported as applied")
	}
}

// The status says what is missing, and why a resource is left out.
func TestResourcesInStatus(t *testing.T) {
	objects := loadCapture(t, captures[0])
	bad := allSpoilt[4].object(t, objects, 4)
	objects = slices.DeleteFunc(objects, func(o *Object) bool { return o.Kind == KindPublicKey })
	inCluster(t, append(objects, bad), nil, func(c *cluster) {
		waiting, leftOut := c.source.Resources()
		if !slices.Equal(waiting, []string{"no PublicKey of cluster cluster-b"}) || len(leftOut) != 1 ||
			!strings.HasPrefix(leftOut[bad.Key()], "spec.table.family: ") {
			t.Errorf("waiting %q, left out %v", waiting, leftOut)
		}
	})
}
