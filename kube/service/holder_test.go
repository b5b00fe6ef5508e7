package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"

	"culvert/gateway/node/services"
	"culvert/gateway/node/services/steer"
	"culvert/integration/need"
	"culvert/kube/objects"
)

// An electorate is the nodes of a cluster that may announce an address. The API server refuses the
// writes of some of them.
type electorate struct {
	*cluster
	mu      sync.Mutex
	deaf    map[string]bool // whose writes are refused; "": all
	members map[string]*member
	broken  string // node that cannot serve
	taken   string // node whose kernel leads the address elsewhere
}

type member struct {
	answers string
	end     func()
}

const announcedAddress = "203.0.113.7"

// inElectorate calls f with n nodes that serve a Service.
func inElectorate(t *testing.T, nodes int, f func(*electorate)) {
	t.Helper()
	e := &electorate{deaf: map[string]bool{}, members: map[string]*member{}}
	objects := []*Object{balanced(t, "web", "", 80, announcedAddress), aSlice(t, "web", "web", webPort,
		"{addresses: [10.244.0.1]}")}
	for i := range nodes {
		objects = append(objects, namedNode(t, i+1, "", ""))
	}
	inCluster(t, func(c *cluster) {
		e.cluster = c
		c.api.PrependReactor("*", "leases", func(a kubetesting.Action) (bool, runtime.Object, error) {
			e.mu.Lock()
			defer e.mu.Unlock()
			deaf := e.deaf[""]
			if a, ok := a.(kubetesting.PatchAction); ok {
				deaf = deaf || e.deaf[strings.TrimPrefix(a.GetName(), leasePrefix)]
			}
			return deaf, nil, apierrors.NewInternalError(errors.New("away"))
		})
	}, func(*cluster) {
		for i := range nodes {
			e.join(fmt.Sprintf("n%d", i+1))
		}
		defer func() {
			for _, m := range e.members {
				m.end()
			}
		}()
		f(e)
	}, objects...)
}

// join starts a node.
func (e *electorate) join(name string) {
	base := aBase()
	base.Announce = anAnnouncer(e.t, name, nil).base.Announce
	s := NewSource(e.api, All, name, leaseNamespace, base, logrus.NewEntry(e.logger))
	ctx, cancel := context.WithCancel(e.t.Context())
	m, done := &member{}, make(chan struct{})
	m.end = func() { cancel(); <-done }
	e.mu.Lock()
	e.members[name] = m
	e.mu.Unlock()
	go func() {
		defer close(done)
		s.Run(ctx, func(c *services.Config) error {
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.broken == name {
				return errors.New("no TUN device")
			}
			if e.taken == name && slices.ContainsFunc(c.Services,
				func(s services.Service) bool { return len(s.LoadBalancerIPs) > 0 }) {
				return &steer.ConflictError{Addresses: addr(announcedAddress)}
			}
			m.answers = fmt.Sprint(c.Answers)
			return nil
		})
	}()
}

// leave stops a node, either like SIGTERM or like SIGKILL, which leaves its Lease.
func (e *electorate) leave(name string, kill bool) {
	e.mu.Lock()
	m := e.members[name]
	delete(e.members, name)
	e.deaf[name] = kill
	e.mu.Unlock()
	m.end()
	e.mu.Lock()
	delete(e.deaf, name)
	e.mu.Unlock()
}

func (e *electorate) setDeaf(name string, deaf bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.deaf[name] = deaf
}

// setBroken makes one node, or none, refuse its Services.
func (e *electorate) setBroken(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.broken = name
}

// owners returns the nodes that answer for the address.
func (e *electorate) owners() (all []string) {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, m := range e.members {
		if m.answers == "["+announcedAddress+"]" {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// stays fails unless these owners keep the address for some time.
func (e *electorate) stays(when string, d time.Duration, owners ...string) {
	e.t.Helper()
	for range d / (50 * time.Millisecond) {
		time.Sleep(50 * time.Millisecond) // in virtual time: see inElectorate
		if got := e.owners(); !slices.Equal(got, owners) {
			e.t.Fatalf("%s: %v own the address, want %v\n%s", when, got, owners, &e.log)
		}
	}
}

// until waits until these nodes own the address, and returns how long that takes.
func (e *electorate) until(when string, owners ...string) time.Duration {
	e.t.Helper()
	began := time.Now()
	defer func() {
		if e.t.Failed() {
			e.t.Log(&e.log)
		}
	}()
	need.Eventually(e.t, time.Minute, when, func() error {
		if got := e.owners(); !slices.Equal(got, owners) {
			return fmt.Errorf("%v own the address, want %v", got, owners)
		}
		return nil
	})
	return time.Since(began)
}

// renewed returns when a node has renewed its Lease last.
func (e *electorate) renewed(name string) time.Time {
	e.t.Helper()
	o, err := e.api.Tracker().Get(objects.Leases, leaseNamespace, leasePrefix+name)
	need.NoError(e.t, err)
	text, _, _ := unstructured.NestedString(o.(*unstructured.Unstructured).Object, "spec", "renewTime")
	at, err := time.Parse(time.RFC3339Nano, text)
	need.NoError(e.t, err)
	return at
}

// order returns the nodes in the order in which they should own the address.
func order(nodes ...string) []string {
	var all []string
	for left := slices.Clone(nodes); len(left) > 0; {
		next := (&metalLB{speakers: left}).owner(announcedAddress, false, []string{"n true true"})
		all = append(all, next)
		left = slices.DeleteFunc(left, func(n string) bool { return n == next })
	}
	return all
}

// TestLeases: the first node by its hash owns the address. If it is killed, the next one takes over
// within a second of the end of its Lease, and not before. If it leaves, the next one takes over at
// once. When the first one is back, it owns the address again.
func TestLeases(t *testing.T) {
	all := order("n1", "n2", "n3")
	inElectorate(t, 3, func(e *electorate) {
		e.until("at the start", all[0])
		e.stays("in peace", time.Minute, all[0])
		for range 4 { // at various times between two renewals
			e.leave(all[0], true)
			if took := e.until("after a kill", all[1]); took > leaseDuration+time.Second {
				t.Errorf("the next one takes over %v after a kill, want at most %v", took, leaseDuration+time.Second)
			}
			if late := time.Since(e.renewed(all[0]).Add(leaseDuration)); late < 0 || late > time.Second {
				t.Errorf("the next one owns the address %v after the Lease of the first has ended, want 0 to 1s", late)
			}
			e.join(all[0])
			if took := e.until("when it is back", all[0]); took > time.Second {
				t.Errorf("the first one owns the address again after %v, want at most 1s", took)
			}
			e.stays("when it is back", 700*time.Millisecond, all[0])
		}
		e.leave(all[0], false)
		if took := e.until("after the end", all[1]); took > 200*time.Millisecond {
			t.Errorf("the next one takes over %v after the first has released its Lease, want at most 200ms", took)
		}
		e.leave(all[1], false)
		e.until("after the second's end", all[2])
		e.put(namedNode(t, 9, "", ""))
		e.join(all[0])
		e.until("the first is back", all[0])
		excluded := namedNode(t, int(all[0][1]-'0'),
			", labels: {node.kubernetes.io/exclude-from-external-load-balancers: 'true'}", "")
		e.put(excluded)
		if took := e.until("the first is excluded", all[2]); took > 200*time.Millisecond {
			t.Errorf("the next one takes over %v after the first was excluded, want at most 200ms", took)
		}
	})
}

// TestLeasesUnable: a node whose kernel refuses an address writes that into its Lease. The next
// node owns the address until the first one can have it.
func TestLeasesUnable(t *testing.T) {
	all := order("n1", "n2", "n3")
	inElectorate(t, 3, func(e *electorate) {
		e.until("at the start", all[0])
		says := func(want string) {
			t.Helper()
			o, err := e.api.Tracker().Get(objects.Leases, leaseNamespace, leasePrefix+all[0])
			need.NoError(t, err)
			if got := o.(*unstructured.Unstructured).GetAnnotations()[annotationUnable]; got != want {
				t.Errorf("the Lease says %q, want %q", got, want)
			}
		}
		take := func(name string) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.taken = name
		}
		take(all[0])
		e.put(balanced(t, "web", ", externalIPs: [198.51.100.9]", 80, announcedAddress)) // so that the kernel is asked
		if took := e.until("the first cannot", all[1]); took > time.Second {
			t.Errorf("the next one takes over %v after the kernel of the first refuses the address, want at most 1s",
				took)
		}
		says(announcedAddress + "/32")
		e.stays("the first cannot", 5*forgive, all[1])
		says(announcedAddress + "/32")
		// While the node can serve nothing new, its Services and its Lease stay as they are.
		e.setBroken(all[0])
		e.stays("the first cannot serve anything new", 2*forgive, all[1])
		says(announcedAddress + "/32")
		e.setBroken("")
		e.stays("the first cannot, as before", 2*forgive, all[1])
		// A Lease that somebody deletes says nothing about what its node can serve.
		need.NoError(t, e.api.Tracker().Delete(objects.Leases, leaseNamespace, leasePrefix+all[0]))
		synctest.Wait()
		e.put(aSlice(t, "web", "web", webPort, "{addresses: [10.244.0.2]}"))
		e.stays("the Lease is deleted", 20*time.Second, all[1])
		says(announcedAddress + "/32")
		take("")
		if took := e.until("the first can", all[0]); took > forgive+time.Second {
			t.Errorf("the first one owns the address %v after its kernel accepts it, want at most %v", took,
				forgive+time.Second)
		}
		says("")
		e.stays("the first can", 2*forgive, all[0])
	})
}

// TestLeasesAway: while the API server is away, addresses stay where they are, and after that until
// all nodes have had time to renew their Leases.
func TestLeasesAway(t *testing.T) {
	all := order("n1", "n2", "n3")
	inElectorate(t, 3, func(e *electorate) {
		e.until("at the start", all[0])
		for _, d := range []time.Duration{2 * time.Second, 7 * time.Second, 20 * time.Second, time.Hour} {
			e.setDeaf("", true)
			e.stays("away", d, all[0])
			e.setDeaf("", false)
			e.stays("back", 20*time.Second, all[0])
		}
		// A node that only the API server cannot hear keeps the address, beside the next one.
		e.setDeaf(all[0], true)
		both := slices.Sorted(slices.Values(all[:2]))
		e.until("the first is not heard", both...)
		e.stays("the first is not heard", 20*time.Second, both...)
		e.setDeaf(all[0], false)
		e.until("the first is heard again", all[0])
	})
}

// TestLeaseWaits: a node that cannot serve yet holds no Lease, so others answer in its place.
func TestLeaseWaits(t *testing.T) {
	all := order("n1", "n2")
	inElectorate(t, 2, func(e *electorate) {
		e.until("at the start", all[0])
		e.leave(all[0], true)
		e.setBroken(all[0])
		e.join(all[0])
		e.until("the first cannot serve", all[1])
		e.stays("the first cannot serve", 20*time.Second, all[1])
		e.setBroken("")
		if took := e.until("it can again", all[0]); took > 2*time.Second {
			t.Errorf("the first one owns the address %v after it can serve, want at most 2s", took)
		}
	})
}

// TestLeaseRights: with announce, a node uses the rights that the manifest grants, in the namespace
// of the Leases alone, and writes only its own Lease; without, it asks for no Lease. A Lease is
// deleted with its Node.
func TestLeaseRights(t *testing.T) {
	inElectorate(t, 1, func(e *electorate) {
		e.until("at the start", "n1")
		o, err := e.api.Tracker().Get(objects.Leases, leaseNamespace, leasePrefix+"n1")
		need.NoError(t, err)
		u := o.(*unstructured.Unstructured)
		if refs := u.GetOwnerReferences(); len(refs) != 1 || refs[0].Kind != "Node" || refs[0].Name != "n1" ||
			refs[0].UID != "u-n1" {
			t.Errorf("the owners of the Lease are %v, want Node n1", refs)
		}
		if u.GetLabels()[leaseLabel] != leaseApp {
			t.Errorf("the Lease has labels %v, want %s=%s", u.GetLabels(), leaseLabel, leaseApp)
		}
		time.Sleep(time.Minute)
		asked := map[string]int{}
		for _, a := range e.api.Actions() {
			if a.GetResource() == objects.Leases {
				asked[a.GetVerb()]++
				if a.GetNamespace() != leaseNamespace {
					t.Errorf("%s of a Lease in namespace %q, want %q", a.GetVerb(), a.GetNamespace(), leaseNamespace)
				}
			}
		}
		if asked["patch"] < 19 || asked["patch"] > 22 || asked["create"] != 1 {
			t.Errorf("requests about Leases in a minute: %v, want 19 to 22 patches and one create", asked)
		}
		// which is told in an Event
		e.put(aService(t, "bad", "clusterIP: 10.96.0.20, ports: [{port: 80, protocol: DCCP}]"))
		time.Sleep(time.Second)
		e.requireRights()
	})
	text, err := os.ReadFile("../manifests/services.yaml")
	need.NoError(t, err)
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		if strings.Contains(document, "resources: [leases]") && !strings.Contains(document,
			"kind: Role\nmetadata:\n  name: culvert-node\n  namespace: culvert-leases\n") {
			t.Errorf("rights to Leases are not only in the Role of their namespace:\n%s", document)
		}
	}
	if !strings.Contains(string(text), "--lease-namespace=culvert-leases") {
		t.Error("the manifest's nodes do not keep their Leases in namespace culvert-leases")
	}
	inCluster(t, nil, func(c *cluster) {
		c.last()
		for _, a := range c.api.Actions() {
			if a.GetResource() == objects.Leases {
				t.Errorf("without announce, a node makes the request %s %s", a.GetVerb(), objects.Leases.Resource)
			}
		}
		base := aBase()
		base.Announce = anAnnouncer(t, selfName, nil).base.Announce
		if err := c.Rebase(t.Context(), base); err == nil || !strings.Contains(err.Error(), "services.announce") {
			t.Errorf("services.announce changes while a node runs: %v, want an error", err)
		}
	}, aNode(t), aService(t, "web", web))
}
