package election

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"culvert/gateway/role"
	"culvert/integration/need"
	"culvert/kube/objects"
)

// copier is a Replica that records its calls.
type copier struct {
	did      []string
	followed bool
}

func (c *copier) Flush(context.Context) error { return nil }
func (c *copier) Tell([]byte) int             { return 0 }
func (c *copier) Follow(at netip.AddrPort)    { c.did = append(c.did, "follow "+at.String()) }
func (c *copier) Followed() bool              { return c.followed }
func (c *copier) Whole(ctx context.Context) error {
	c.did = append(c.did, "whole")
	<-ctx.Done()
	return ctx.Err()
}
func (c *copier) Visit(_ context.Context, at netip.AddrPort, notice []byte) error {
	c.did = append(c.did, fmt.Sprintf("visit %v %s", at, notice))
	return nil
}

// TestCopy: a standby copies the pod that has the Lease, whoever else is or was there, and an
// active gateway that nobody copies visits another one.
func TestCopy(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		api := newAPI()
		for name, ip := range map[string]string{"a": "10.1.0.1", "b": "10.1.0.2", "c": "10.1.0.3", "d": "",
			"e": "10.1.0.5", "f": "10.1.0.6"} {
			p := pod(name, map[string]any{"component": "gateway", "gateway-name": "milan"})
			status := map[string]any{"podIP": ip}
			switch p.Object["status"] = status; name {
			case "e":
				p.SetLabels(map[string]string{"component": "gateway", "gateway-name": "rome"})
			case "f": // of a node that was shut down
				status["phase"] = "Failed"
			}
			if _, err := api.Resource(objects.Pods).Namespace(namespace).Create(t.Context(), p,
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		a, _ := newElector(api, "a")
		c, gatewayC := newElector(api, "c")
		a.ReplicaPort, c.ReplicaPort = 51841, 51841
		c.attempt(t.Context())
		a.attempt(t.Context())
		if gatewayC.is() != role.Active {
			t.Fatalf("c is %v, want active", gatewayC.is())
		}
		begin, knows := time.Now(), false
		learned := func() bool { return knows }
		one := &copier{}
		if a.CatchUp(t.Context(), one, learned); len(one.did) > 0 || time.Since(begin) != catchUpTime {
			t.Errorf("without rules, CatchUp makes the calls %q and takes %v, want none and %v", one.did,
				time.Since(begin), catchUpTime)
		}
		copies := func(e *Elector, one *copier, want ...string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), copyLook*3/2)
			defer cancel()
			if e.Copy(ctx, one, learned); !slices.Equal(one.did, want) {
				t.Errorf("Copy makes the calls %q, want %q", one.did, want)
			}
		}
		copies(a, &copier{})
		knows = true
		copies(a, &copier{}, "follow 10.1.0.3:51841")
		copies(c, &copier{followed: true})
		copies(c, &copier{}, `visit 10.1.0.2:51841 {"says":"mine","pod":"c","term":0}`)
		back := time.Now().Add(time.Second)
		api.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return time.Now().Before(back), nil, errors.New("away")
		})
		begin, one = time.Now(), &copier{}
		if a.CatchUp(t.Context(), one, learned); !slices.Equal(one.did, []string{"follow 10.1.0.3:51841", "whole"}) ||
			time.Since(begin) != catchUpTime {
			t.Errorf("while the API server is away at first, CatchUp makes the calls %q and takes %v, want follow, whole and %v", one.did, time.Since(begin), catchUpTime)
		}
	})
}

// TestAloneLook: an active gateway without another pod seldom looks for one, and tells one that
// comes of its Lease.
func TestAloneLook(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		api := newAPI(pod("a", map[string]any{"component": "gateway", "gateway-name": "milan"}))
		e, _ := newElector(api, "a")
		e.attempt(t.Context())
		api.ClearActions()
		one := &copier{}
		copies := func(lasts time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), lasts)
			defer cancel()
			e.Copy(ctx, one, func() bool { return true })
		}
		copies(4*aloneLook - copyLook/2)
		if n := len(api.Actions()); n != 4 || len(one.did) > 0 {
			t.Errorf("it makes %d requests and the calls %q, want 4 and none", n, one.did)
		}
		other := pod("b", map[string]any{"component": "gateway", "gateway-name": "milan"})
		other.Object["status"] = map[string]any{"podIP": "10.1.0.2"}
		_, err := api.Resource(objects.Pods).Namespace(namespace).Create(t.Context(), other, metav1.CreateOptions{})
		need.NoError(t, err)
		if copies(2 * aloneLook); len(one.did) == 0 || !strings.HasPrefix(one.did[0], "visit 10.1.0.2:") {
			t.Errorf("after another pod has come, it makes the calls %q, want a visit", one.did)
		}
	})
}

// TestGone: a standby does not wait for a holder of the Lease whose pod no longer exists, or has
// ended. It waits for one whose pod exists, and for one that is not a pod of its Deployment. It
// then owns the Lease by what owns its pod.
func TestGone(t *testing.T) {
	const lasts = 15 * time.Second
	for _, tt := range []struct {
		holder string
		waits  bool
	}{
		{"gw-milan-77aa-gone", false},
		{"gw-milan-77aa-gone_6f1c", false}, // of a kernel-based gateway
		{"gw-milan-77aa-ended", false},
		{"gw-milan-77aa-there", true},
		{"gw-milan-77aa-there_6f1c", true},
		{"gw-milan-77aa-orphan", true},
		{"gw-turin-77aa-gone", true},
		{"somebody", true},
	} {
		t.Run(tt.holder, func(t *testing.T) {
			need.Bubble(t, func(t *testing.T) {
				var all []runtime.Object
				for _, name := range []string{"gw-milan-5d9c-self", "gw-milan-77aa-there", "gw-milan-77aa-ended",
					"gw-milan-77aa-orphan"} {
					labels := map[string]any{"component": "gateway", "gateway-name": "milan"}
					if strings.HasSuffix(name, "orphan") {
						delete(labels, "component") // somebody debugs it; it still runs
					}
					p := pod(name, labels)
					set := name[:strings.LastIndexByte(name, '-')]
					p.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: set,
						UID: types.UID("of " + set), Controller: new(true)}})
					if strings.HasSuffix(name, "ended") {
						p.Object["status"] = map[string]any{"phase": "Failed"}
					}
					all = append(all, p)
				}
				l, err := writeLease(nil, namespace, leaseName, &metav1.OwnerReference{APIVersion: "apps/v1",
					Kind: "ReplicaSet", Name: "gw-milan-77aa", UID: "of gw-milan-77aa"},
					&role.Lease{Holder: tt.holder, Term: 4, Duration: lasts}, time.Now())
				need.NoError(t, err)
				other := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "other"}
				l.SetOwnerReferences(append(l.GetOwnerReferences(), other))
				api := newAPI(append(all, l)...)
				e, _ := newElector(api, "gw-milan-5d9c-self")
				e.Times.Lease, e.Retry = lasts, 2*time.Second
				ctx, stop := context.WithCancel(t.Context())
				var tasks sync.WaitGroup
				tasks.Go(func() { e.Run(ctx) })
				tasks.Go(func() { e.Copy(ctx, &copier{}, func() bool { return true }) })
				began := time.Now()
				await(t, e, role.Active)
				switch took := time.Since(began); {
				case tt.waits && took < lasts:
					t.Errorf("it takes the Lease after %v, want at least %v", took, lasts)
				case !tt.waits && took > 2*copyLook:
					t.Errorf("it takes the Lease after %v, want at most %v", took, 2*copyLook)
				}
				stop()
				tasks.Wait()
				u, err := api.Resource(objects.Leases).Namespace(namespace).Get(t.Context(), leaseName,
					metav1.GetOptions{})
				need.NoError(t, err)
				own := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "gw-milan-5d9c",
					UID: "of gw-milan-5d9c"}
				if is := u.GetOwnerReferences(); !slices.Equal(is, []metav1.OwnerReference{other, own}) ||
					storedLease(t, api).Term != 5 {
					t.Errorf("the Lease, term %d, belongs to %v, want term 5 of %v and %v", storedLease(t, api).Term,
						is, other, own)
				}
			})
		})
	}
}
