package multicluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/dynamic/fake"
	kubetesting "k8s.io/client-go/testing"

	"culvert/gateway/exports"
	"culvert/integration/need"
	"culvert/kube/objects"
)

// An apiServer is one without other clients. It counts writes and their bytes.
type apiServer struct {
	*fake.FakeDynamicClient
	version, writes, bytes atomic.Int64
}

// withSource runs f in a bubble of time with a Source of rome, whose peers are milan and turin. The
// reactors come before the API server's own.
func withSource(t *testing.T, f func(*apiServer, *Source), reactors ...kubetesting.Reactor) {
	need.Bubble(t, func(t *testing.T) {
		kinds := map[schema.GroupVersionResource]string{objects.Events: "EventList"}
		for _, r := range []schema.GroupVersionResource{objects.ServiceExports, objects.ServiceImports,
			objects.Services, objects.EndpointSlices, objects.Peerings, objects.PeerExports,
			objects.Namespaces, objects.ServiceCIDRs} {
			kinds[r] = "List"
		}
		a := &apiServer{FakeDynamicClient: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)}
		a.PrependReactor("*", "*", func(do kubetesting.Action) (bool, runtime.Object, error) {
			var o runtime.Object
			switch do := do.(type) {
			case kubetesting.CreateActionImpl:
				o = do.Object
			case kubetesting.UpdateActionImpl:
				o = do.Object
			case kubetesting.DeleteActionImpl:
				a.writes.Add(1)
				return false, nil, nil
			case kubetesting.ListActionImpl:
				if do.Resource == objects.ServiceCIDRs {
					return true, nil, apierrors.NewNotFound(do.Resource.GroupResource(), "")
				}
				return false, nil, nil
			default:
				return false, nil, nil
			}
			u := o.(*unstructured.Unstructured)
			u.SetResourceVersion(fmt.Sprint(a.version.Add(1)))
			if u.GetUID() == "" {
				u.SetUID("u" + u.GetUID())
			}
			if b, err := json.Marshal(u.Object); err == nil && do.GetResource() != objects.PeerExports {
				a.writes.Add(1)
				a.bytes.Add(int64(len(b)))
			}
			return false, nil, nil
		})
		a.ReactionChain = append(reactors, a.ReactionChain...)
		add := func(r schema.GroupVersionResource, kind, text string) {
			u := object(t, text)
			u.SetAPIVersion(r.GroupVersion().String())
			u.SetKind(kind)
			u.SetResourceVersion(fmt.Sprint(a.version.Add(1)))
			need.NoError(t, a.Tracker().Create(r, u, u.GetNamespace()))
		}
		add(objects.Namespaces, "Namespace", "metadata: {name: shop}")
		for i, name := range []string{"milan", "turin"} {
			add(objects.Peerings, "Peering", fmt.Sprintf(peeringText, name, i+1))
			add(objects.PeerExports, "PeerExports", fmt.Sprintf("metadata: {name: %s, namespace: culvert}", name))
		}
		log := logrus.New()
		log.SetOutput(io.Discard)
		s := NewSource(a, "culvert", "pod", func() bool { return true }, logrus.NewEntry(log))
		ctx, cancel := context.WithCancel(t.Context())
		var tasks sync.WaitGroup
		defer tasks.Wait()
		defer cancel()
		tasks.Go(func() { s.Run(ctx) })
		f(a, s)
	})
}

// tell writes what a peer exports into its PeerExports.
func (a *apiServer) tell(t *testing.T, peer, services string) {
	t.Helper()
	u := object(t, fmt.Sprintf("{apiVersion: culvert.io/v1alpha1, kind: PeerExports, metadata: {name: %s, namespace: culvert}, "+
		"heard: \"2026-11-29T18:00:00Z\", services: [%s]}", peer, services))
	u.SetResourceVersion(fmt.Sprint(a.version.Add(1)))
	need.NoError(t, a.Tracker().Update(objects.PeerExports, u, "culvert"))
}

// endpoint returns the first address of a cluster's endpoints of shop/web.
func (s *Source) endpoint(cluster string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.state.ours.of[within("shop", "web")] {
		if x.cluster == cluster {
			return x.group.Addresses[0].IP.String()
		}
	}
	return ""
}

// TestPeerThatChangesAll: a peer that changes everything all the time has a limited number of bytes
// written, and another peer's change does not wait for that.
func TestPeerThatChangesAll(t *testing.T) {
	const seconds, burst, each = 30, 1_000_000, 25_000 // bytes, and a second
	withSource(t, func(a *apiServer, s *Source) {
		s.mu.Lock()
		s.budgets["milan"] = rate.NewLimiter(each, burst)
		s.mu.Unlock()
		s.limit.AllowN(time.Now(), writesFirst) // what is left for a start
		loud := func(n int) string {
			var all []string
			one := fmt.Sprintf(web, 1, fmt.Sprintf("{ip: 10.244.1.%d}", n%200+1))
			one = strings.Replace(one, "ClusterSetIP", []string{"ClusterSetIP", "Headless"}[n%2], 1)
			for i := range exports.MaxServices {
				all = append(all, strings.Replace(one, "name: web,", fmt.Sprintf("name: loud-%d, annotations: {a: %q},", i,
					strings.Repeat("x", 1000)), 1))
			}
			return strings.Join(all, ",")
		}
		slowest := time.Duration(0)
		for n := range seconds {
			a.tell(t, "milan", loud(n))
			a.tell(t, "turin", fmt.Sprintf(web, 1, fmt.Sprintf("{ip: 10.244.2.%d}", n%200+1)))
			want, began := fmt.Sprintf("10.62.2.%d", n%200+1), time.Now()
			for s.endpoint("turin") != want {
				if time.Since(began) > time.Minute {
					t.Fatalf("turin's change %d is not there after a minute", n)
				}
				time.Sleep(10 * time.Millisecond)
			}
			slowest = max(slowest, time.Since(began))
			time.Sleep(time.Second - min(time.Since(began), time.Second))
		}
		if slowest > 2*time.Second {
			t.Errorf("turin's slowest change takes %v", slowest)
		}
		if n, most := a.writes.Load(), int64(seconds*writesASec*11/10); n > most {
			t.Errorf("%d writes, want at most %d", n, most)
		}
		if n, most := a.bytes.Load(), int64(burst+(seconds+10)*each); n > most || n+least*a.writes.Load() < burst {
			t.Errorf("%d bytes, want at most %d", n, most)
		}
		t.Logf("%d writes of %d bytes; turin's slowest change takes %v", a.writes.Load(), a.bytes.Load(), slowest)
	})
}

// TestSharedName: what a peer that has used up its budget changes of a name waits for that budget,
// and neither delays nor is charged to another peer that changes the same name.
func TestSharedName(t *testing.T) {
	withSource(t, func(a *apiServer, s *Source) {
		loud := func(n int) string { // the oldest export, in 20 EndpointSlices
			var all []string
			for i := range 2000 {
				all = append(all, fmt.Sprintf("{ip: 10.244.%d.%d, state: %q}", 10+i/250, 1+i%250,
					[]string{exports.Ready, exports.NotReady}[n%2]))
			}
			return strings.Replace(fmt.Sprintf(web, 1, strings.Join(all, ",")), "name: web,",
				fmt.Sprintf("name: web, annotations: {a: \"%d %s\"},", n, strings.Repeat("x", 1000)), 1)
		}
		quiet := func(n int) string { return fmt.Sprintf(web, 2, fmt.Sprintf("{ip: 10.244.2.%d}", n+1)) }
		a.tell(t, "milan", loud(0))
		a.tell(t, "turin", quiet(0))
		time.Sleep(5 * time.Second)
		s.mu.Lock()
		s.budgets["milan"] = rate.NewLimiter(1, 1_000_000)
		s.budgets["milan"].ReserveN(time.Now(), 1_000_000)
		s.budgets["milan"].ReserveN(time.Now(), 1000) // for a quarter of an hour
		s.budgets["turin"] = rate.NewLimiter(0, 1_000_000)
		s.mu.Unlock()
		before, slowest := a.writes.Load(), time.Duration(0)
		const changes = 10
		for n := range changes {
			a.tell(t, "milan", loud(n+1))
			a.tell(t, "turin", quiet(n+1))
			began := time.Now()
			for s.endpoint("turin") != fmt.Sprintf("10.62.2.%d", n+2) {
				if time.Since(began) > time.Minute {
					t.Fatalf("turin's change %d is not there after a minute", n)
				}
				time.Sleep(10 * time.Millisecond)
			}
			slowest = max(slowest, time.Since(began))
			time.Sleep(time.Second)
		}
		if slowest > time.Second {
			t.Errorf("turin's slowest change takes %v", slowest)
		}
		if n := a.writes.Load() - before; n != changes {
			t.Errorf("%d writes for %d changes of turin's", n, changes)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if spent := 1_000_000 - s.budgets["turin"].Tokens(); spent > changes*2*least {
			t.Errorf("turin is charged %.0f bytes for %d changes", spent, changes)
		}
	})
}

// TestFamilyNotSupported: where Services of the cluster lack the only family of a Service, its
// ServiceImport says so, and the API server is asked seldom. Once they have it, the Service comes;
// if its oldest export has another family, too.
func TestFamilyNotSupported(t *testing.T) {
	of := func(families, address string) string {
		return strings.Replace(fmt.Sprintf(web, 1, "{ip: '"+address+"'}"), "sessionAffinity:",
			"ipFamilies: "+families+", sessionAffinity:", 1)
	}
	var supported atomic.Bool
	var refused atomic.Int64
	unlessSupported := func(do kubetesting.Action) (bool, runtime.Object, error) {
		u := do.(kubetesting.CreateAction).GetObject().(*unstructured.Unstructured)
		families, _, err := unstructured.NestedStringSlice(u.Object, "spec", "ipFamilies")
		need.NoError(t, err)
		if supported.Load() || families[0] == "IPv4" {
			ip := map[string]string{"IPv4": "10.96.0.9", "IPv6": "fd96::9"}[families[0]]
			spec := u.Object["spec"].(map[string]any)
			spec["clusterIP"], spec["clusterIPs"] = ip, []any{ip}
			return false, nil, nil
		}
		refused.Add(1)
		return true, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, u.GetName(), field.ErrorList{
			field.Invalid(field.NewPath("spec", "ipFamilies").Index(0), "IPv6", "not configured on this cluster")})
	}
	withSource(t, func(a *apiServer, s *Source) {
		p := object(t, dual)
		p.SetResourceVersion(fmt.Sprint(a.version.Add(1)))
		need.NoError(t, a.Tracker().Update(objects.Peerings, p, "culvert"))
		is := func() string {
			time.Sleep(roomEach + 10*time.Second)
			o, err := a.Tracker().Get(objects.ServiceImports, "shop", "web")
			need.NoError(t, err)
			u := o.(*unstructured.Unstructured)
			var status struct{ Conditions []objects.Condition }
			objects.ReadPart("status", objects.PartOf(u, "status"), &status)
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.why) > 0 {
				t.Errorf("it is also said that %v", s.why)
			}
			if len(status.Conditions) != 1 {
				return fmt.Sprint(status.Conditions)
			}
			return fmt.Sprint(status.Conditions[0].Status, " ", status.Conditions[0].Reason, " ", len(s.state.derived), " ",
				len(s.state.ours.all))
		}
		const no, yes = "False IPFamilyNotSupported 0 0", "True Ready 1 1"
		for _, step := range []struct {
			said, want string
			supported  bool
		}{
			{of("[IPv6]", "fd00:244:0:1::5"), no, false}, {of("[IPv4]", "10.244.1.5"), yes, false},
			{of("[IPv6]", "fd00:244:0:1::5"), no, false}, {of("[IPv6]", "fd00:244:0:1::5"), yes, true},
		} {
			supported.Store(step.supported)
			a.tell(t, "milan", step.said)
			if got := is(); got != step.want {
				t.Errorf("%s: %s, want %s", step.said, got, step.want)
			}
		}
		before := refused.Load()
		supported.Store(false)
		a.tell(t, "milan", "")
		time.Sleep(10 * time.Second)
		a.tell(t, "milan", of("[IPv6]", "fd00:244:0:1::6"))
		writes := a.writes.Load()
		for range 10 {
			is()
		}
		if n := refused.Load() - before; n < 5 || n > 15 {
			t.Errorf("%d requests are refused in ten minutes", n)
		}
		if n := a.writes.Load() - writes; n > 30 {
			t.Errorf("%d writes in ten minutes", n)
		}
	}, &kubetesting.SimpleReactor{Verb: "create", Resource: "services", Reaction: unlessSupported})
}
