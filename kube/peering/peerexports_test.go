package peering

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"

	"culvert/gateway/exports"
	"culvert/integration/need"
	"culvert/kube"
)

// exchanges sets spec.services.
func (c *cluster) exchanges(generation int64, export, imports []any) {
	c.t.Helper()
	u := c.peering().DeepCopy()
	u.SetGeneration(generation)
	need.NoError(c.t, unstructured.SetNestedField(u.Object, map[string]any{"export": export, "import": imports}, "spec",
		"services"))
	c.update(KindPeering, u)
}

// pass carries what the peer and the gateway tell each other for a time.
func (c *cluster) pass(peer *exports.Exchange, d time.Duration) {
	c.peer.Store(peer)
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		datagrams, _ := peer.Due(time.Now())
		for _, b := range datagrams {
			c.source.services.exchange.Receive(b)
		}
	}
	synctest.Wait()
}

// heard returns what PeerExports has.
func (c *cluster) heard() (all []*exports.Service, when string) {
	c.t.Helper()
	o, err := c.Tracker().Get(paths[kindPeerExports], "culvert", "milan")
	need.NoError(c.t, err)
	u := o.(*unstructured.Unstructured)
	b, err := json.Marshal(u.Object["services"])
	need.NoError(c.t, err)
	need.NoError(c.t, json.Unmarshal(b, &all))
	when, _ = u.Object["heard"].(string)
	return all, when
}

// asked returns how often PeerExports was read and written since the last call.
func (c *cluster) asked() (reads, writes int) {
	for _, a := range c.Actions() {
		if a.GetResource() == paths[kindPeerExports] && a.GetVerb() == "get" {
			reads++
		} else if a.GetResource() == paths[kindPeerExports] {
			writes++
		}
	}
	c.ClearActions()
	return reads, writes
}

// empty is PeerExports as somebody makes it.
const empty = `{apiVersion: culvert.io/v1alpha1, kind: PeerExports, metadata: {name: milan, namespace: culvert, uid: u}}`

// listed are n Services that the peer's ServiceExports let this cluster hear of, and one with the
// label.
func listed(n int, host string) []*exports.Service {
	all := []*exports.Service{told("shop", "labelled", "10.70.0.9")}
	for i := range n {
		all = append(all, &exports.Service{Namespace: "shop", Name: fmt.Sprint("web-", i), Type: exports.Headless,
			Created: start, Ports: []exports.Port{{Name: "http", Protocol: "TCP", Port: 80}},
			Endpoints: []exports.Group{{Addresses: []exports.Endpoint{{IP: told("", "", "10.244.9.9").
				Endpoints[0].Addresses[0].IP, Host: host}}}}})
	}
	return all
}

// TestPeerExports: what the peer tells comes into PeerExports once somebody makes it, also if
// somebody changes or deletes it, and nothing is written while nothing changes. The condition says
// why it is not there.
func TestPeerExports(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		peer := exports.New(0)
		peer.Tell(listed(2, ""))
		c.exchanges(4, nil, []any{"*"})
		c.pass(peer, time.Minute)
		if got := c.condition(Imported); got.Status != "False" || got.Reason != "NoPeerExports" {
			t.Errorf("without the object: %+v", got)
		}
		if reads, writes := c.asked(); reads < 10 || reads > 14 || writes > 0 {
			t.Errorf("without the object: %d reads and %d writes in a minute", reads, writes)
		}
		c.create(kindPeerExports, empty)
		require := func(what string, n int, host string) {
			t.Helper()
			all, when := c.heard()
			if len(all) != n || when == "" || slices.ContainsFunc(all, func(s *exports.Service) bool {
				return s.Type == exports.Labelled || s.Endpoints[0].Addresses[0].Host != host
			}) {
				t.Errorf("%s: %s, heard %q", what, text(t, all), when)
			}
			if got := c.condition(Imported); got.Status != "True" {
				t.Errorf("%s: %+v", what, got)
			}
		}
		c.pass(peer, retryPeerExports+time.Second)
		require("made", 2, "")
		c.asked()
		peer.Tell(listed(2, "a"))
		c.pass(peer, peerExportsPause)
		require("changed", 2, "a")
		if reads, writes := c.asked(); reads > 0 || writes != 1 {
			t.Errorf("%d reads and %d writes for a change", reads, writes)
		}
		c.pass(peer, 5*time.Minute)
		if reads, writes := c.asked(); reads > 10 || writes > 0 {
			t.Errorf("%d reads and %d writes while nothing changes", reads, writes)
		}
		c.update(kindPeerExports, object(t, empty))
		c.pass(peer, 2*checkPeerExports)
		require("emptied by somebody", 2, "a")
		need.NoError(t, c.Tracker().Delete(paths[kindPeerExports], "culvert", "milan"))
		peer.Tell(listed(3, "b"))
		c.pass(peer, 10*time.Second)
		if got := c.condition(Imported); got.Reason != "NoPeerExports" {
			t.Errorf("deleted: %+v", got)
		}
		c.create(kindPeerExports, empty)
		c.pass(peer, 10*time.Second)
		require("made again", 3, "b")
		peer.Tell(nil)
		c.pass(peer, 10*time.Second)
		require("nothing more is exported", 0, "")
		c.asked()
		c.exchanges(5, nil, nil)
		c.pass(peer, time.Second)
		peer.Tell(listed(3, "c"))
		c.pass(peer, time.Minute)
		if _, writes := c.asked(); writes > 0 {
			t.Errorf("%d writes of what no namespace wants", writes)
		}
	})
}

// TestPeerExportsPace: a peer that changes everything all the time has it written at most three
// times a second, and the last change is there within a second. A standby writes nothing.
func TestPeerExportsPace(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		c.create(kindPeerExports, empty)
		peer := exports.New(0)
		c.exchanges(4, nil, []any{"shop"})
		c.pass(peer, time.Second)
		c.asked()
		for i := range 1000 {
			peer.Tell(listed(2, fmt.Sprint("host-", i)))
			c.pass(peer, 10*time.Millisecond)
		}
		if _, writes := c.asked(); writes < 20 || writes > 27 {
			t.Errorf("%d writes in 10 s", writes)
		}
		peer.Tell(listed(2, "last"))
		c.pass(peer, time.Second)
		if all, _ := c.heard(); len(all) != 2 || all[0].Endpoints[0].Addresses[0].Host != "last" {
			t.Errorf("a second later: %s", text(t, all))
		}
		c.rests.Store(true)
		c.pass(peer, 2*time.Second)
		c.asked()
		peer.Tell(listed(2, "later"))
		c.pass(peer, time.Minute)
		if reads, writes := c.asked(); reads+writes > 0 {
			t.Errorf("a standby reads %d times and writes %d times", reads, writes)
		}
	})
}

// TestPeerExportsBudget: a peer cannot fill the API server's database by changing a long list all
// the time, and the last change is there soon after.
func TestPeerExportsBudget(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		c.create(kindPeerExports, empty)
		peer := exports.New(0)
		c.exchanges(4, nil, []any{"shop"})
		size := 0 // of a list
		long := func(host string) (all []*exports.Service) {
			for i := range 4 {
				x := *listed(i+1, host)[i+1]
				x.Annotations = map[string]string{}
				for k := range 4 {
					x.Annotations[fmt.Sprint("k", k)] = strings.Repeat("v", 60_000)
				}
				all = append(all, &x)
			}
			b, err := json.Marshal(all)
			need.NoError(t, err)
			size = len(b)
			return all
		}
		peer.Tell(long("h"))
		c.pass(peer, 5*time.Second)
		c.asked()
		const minutes = 4
		for i := range minutes * 60 * 2 {
			peer.Tell(long(fmt.Sprint("host-", i)))
			c.pass(peer, 500*time.Millisecond)
		}
		_, writes := c.asked()
		if most := kube.BudgetBurst + minutes*60*kube.BudgetRate + size; writes*size > most || writes*size < most/2 {
			t.Errorf("%d writes of %d bytes in %d minutes, want %d bytes at most", writes, size, minutes, most)
		}
		last := fmt.Sprint("host-", minutes*60*2-1)
		c.pass(peer, time.Duration(size/kube.BudgetRate+2)*time.Second)
		if all, _ := c.heard(); len(all) != 4 || all[0].Endpoints[0].Addresses[0].Host != last {
			t.Errorf("the last list is not there: %d Services", len(all))
		}
	})
}

// TestPeerExportsFlood: whatever a peer that has the key sends, at whatever rate, the gateway asks
// the API server as often as it says, and believes the peer's next true list.
func TestPeerExportsFlood(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		c.create(kindPeerExports, empty)
		peer := exports.New(0)
		c.exchanges(4, nil, []any{"shop"})
		peer.Tell(listed(3, "first"))
		c.pass(peer, time.Second)
		c.ClearActions()
		const seconds, each = 600, 2000 // datagrams a second
		r := rand.New(rand.NewPCG(41, 1))
		receive := c.source.services.exchange.Receive
		var heard [][]byte // datagrams to replay and to damage
		end := time.Now().Add(seconds * time.Second)
		for n := 0; time.Now().Before(end); n++ {
			if n%7 == 0 { // another list than a moment before
				peer.Tell(listed(3, fmt.Sprint("h", n)))
			}
			datagrams, _ := peer.Due(time.Now())
			heard = append(heard, datagrams...)
			heard = heard[max(0, len(heard)-200):]
			for range each / 100 {
				b := slices.Clone(heard[r.IntN(len(heard))])
				switch r.IntN(5) {
				case 0: // again
				case 1: // damaged
					b[r.IntN(len(b))] ^= byte(1 + r.IntN(255))
				case 2: // too short
					b = b[:r.IntN(len(b))]
				case 3: // one part of many, of a list that never ends
					b[5], b[8], b[9] = 0, 2, byte(r.IntN(256))
					b = append(b, make([]byte, r.IntN(1100))...)
				case 4: // anything
					for i := 6; i < len(b); i++ {
						b[i] = byte(r.IntN(256))
					}
				}
				receive(b)
			}
			for _, b := range datagrams {
				receive(b)
			}
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		requests := map[string]int{}
		for _, a := range c.Actions() {
			requests[a.GetVerb()+" "+a.GetResource().Resource+"/"+a.GetSubresource()]++
		}
		for what, n := range requests {
			most := seconds*5/2 + 2 // of PeerExports
			switch what {
			case "update peerings/status":
				most = seconds + 2
			case "create events/":
				most = kube.FaultsAtOnce + 2
			case "get peerexports/":
				most = 5
			}
			if n > most {
				t.Errorf("%s: %d times in %d s, want at most %d", what, n, seconds, most)
			}
		}
		t.Logf("%d datagrams a second: %v", each, requests)
		peer.Tell(listed(3, "last"))
		c.pass(peer, 5*time.Second)
		if all, _ := c.heard(); len(all) != 3 || all[0].Endpoints[0].Addresses[0].Host != "last" {
			t.Errorf("after the flood: %s", text(t, all))
		}
	})
}

// TestPeerExportsRefused: another writer comes between without harm; what the API server refuses,
// the condition names, and it is tried again.
func TestPeerExportsRefused(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		c.create(kindPeerExports, empty)
		var refuse atomic.Pointer[error]
		var once atomic.Bool
		c.PrependReactor("update", "peerexports", func(kubetesting.Action) (bool, runtime.Object, error) {
			why := refuse.Load()
			if why == nil {
				return false, nil, nil
			}
			if once.Load() {
				refuse.Store(nil)
			}
			return true, nil, *why
		})
		peer := exports.New(0)
		c.exchanges(4, nil, []any{"shop"})
		resource := paths[kindPeerExports].GroupResource()
		for _, x := range []struct {
			err    error
			reason string // of the condition; "": it is written at once
			part   string
		}{
			{apierrors.NewConflict(resource, "milan", errors.New("changed")), "", ""},
			{apierrors.NewForbidden(resource, "milan", errors.New("no")), "Forbidden", "culvert kube template --peering milan"},
			{errors.New("away"), "Unwritten", "requests to the API server fail"},
		} {
			once.Store(x.reason == "")
			refuse.Store(&x.err)
			peer.Tell(listed(1, strings.ToLower(x.reason)+"x"))
			c.pass(peer, 3*time.Second)
			got := c.condition(Imported)
			if got.Reason != x.reason && x.reason != "" || !strings.Contains(got.Message, x.part) {
				t.Errorf("%v: %+v", x.err, got)
			}
			refuse.Store(nil)
			if x.reason != "" {
				c.pass(peer, retryPeerExports+time.Second)
			}
			all, _ := c.heard()
			if len(all) != 1 || all[0].Endpoints[0].Addresses[0].Host != strings.ToLower(x.reason)+"x" ||
				c.condition(Imported).Status != "True" {
				t.Errorf("after %v: %s, %+v", x.err, text(t, all), c.condition(Imported))
			}
		}
	})
}

// TestShareInCluster: a cluster that does not know ServiceExports is no hindrance for others; once
// it knows them, the peer hears of them, and of a changed endpoint at once.
func TestShareInCluster(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		var known atomic.Bool
		c.PrependReactor("list", "serviceexports", func(kubetesting.Action) (bool, runtime.Object, error) {
			return !known.Load(), nil, apierrors.NewNotFound(paths[kindServiceExport].GroupResource(), "")
		})
		c.create(kindService, strings.Replace(webService, `own: "1"`, `culvert/export: "false"`, 1))
		c.create(kindSlice, webSlice)
		c.create(kindServiceExport, webExport)
		peer := exports.New(0)
		hears := func() []*exports.Service { all, _, _ := peer.Heard(); return all }
		c.pass(peer, 10*time.Second)
		if all, _, known := peer.Heard(); !known || len(all) > 0 {
			t.Errorf("nothing is exported: %s, %t", text(t, all), known)
		}
		c.exchanges(4, []any{"shop"}, nil)
		c.pass(peer, 10*time.Second)
		if got := c.condition(Exported); !strings.HasPrefix(got.Message, "spec.services.export: the API server has") {
			t.Errorf("without the kind: %+v", got)
		}
		known.Store(true)
		c.pass(peer, 10*time.Second)
		if all := hears(); len(all) != 1 || all[0].Name != "web" || len(all[0].Endpoints) != 1 ||
			len(all[0].Endpoints[0].Addresses) != 5 {
			t.Errorf("the peer has heard %s", text(t, all))
		}
		if got := c.condition(Exported); got.Status != "True" {
			t.Errorf("%+v", got)
		}
		c.update(kindSlice, object(t, webSlice, "10.244.1.8", "10.244.1.9"))
		c.pass(peer, 500*time.Millisecond)
		if all := hears(); len(all) != 1 || all[0].Endpoints[0].Addresses[4].IP.String() != "10.244.1.9" {
			t.Errorf("half a second after a change: %s", text(t, all))
		}
		need.NoError(t, c.Tracker().Delete(paths[kindServiceExport], "shop", "web"))
		c.pass(peer, 500*time.Millisecond)
		if all := hears(); len(all) > 0 {
			t.Errorf("half a second after it is withdrawn: %s", text(t, all))
		}
	})
}
