package peering

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/gateway/exports"
	"culvert/integration/need"
)

// TestStandbyWritesNoImports: a gateway that was active and is not any more does not hear what the
// peer exports from then on, and leaves imports to the one that does. When it is active again it
// asks the peer, and changes nothing before that answers.
func TestStandbyWritesNoImports(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		peer := exports.New(0)
		c.peer.Store(peer)
		tell := func(names ...string) {
			var list []*exports.Service
			for _, name := range names {
				list = append(list, told("shop", name, "10.70.0.9"))
			}
			peer.Tell(list)
			peer.Reached()
			for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				datagrams, _ := peer.Due(time.Now())
				for _, b := range datagrams {
					c.source.services.exchange.Receive(b)
				}
			}
			synctest.Wait()
		}
		there := func(name string) bool {
			_, err := c.Tracker().Get(paths[setImported], "imported", name+"-shop")
			return err == nil
		}
		u := c.peering().DeepCopy()
		u.SetGeneration(4)
		need.NoError(t, unstructured.SetNestedField(u.Object, "imported", "spec", "imports"))
		c.update(KindPeering, u)
		tell("a", "b")
		if !there("a") || !there("b") {
			t.Fatal("nothing is imported")
		}
		c.rests.Store(true)
		time.Sleep(2 * time.Second)
		c.all()
		// by the active one, which the peer has told
		need.NoError(t, c.Tracker().Delete(paths[setImported], "imported", "a-shop"))
		time.Sleep(10 * time.Second)
		if _, _, n := c.all(); n > 0 || there("a") {
			t.Errorf("%d writes of a standby", n)
		}
		c.rests.Store(false)
		time.Sleep(10 * time.Second)
		if _, _, n := c.all(); n > 0 || there("a") {
			t.Errorf("%d writes before the peer has told", n)
		}
		if x := c.condition(Imported); x.Reason != "NothingHeard" {
			t.Errorf("%+v", x)
		}
		if datagrams, _ := c.source.services.exchange.Due(time.Now().Add(time.Hour)); len(datagrams) == 0 {
			t.Error("the peer is not asked")
		}
		if tell("b", "c"); there("a") || !there("b") || !there("c") {
			t.Errorf("a %t, b %t, c %t", there("a"), there("b"), there("c"))
		}
		c.rests.Store(true)
		time.Sleep(2 * time.Second)
		synctest.Wait() // a round that found another gateway active would forget the next list
		c.rests.Store(false)
		if tell("b", "c"); c.condition(Imported).Reason != "AllServices" { // the same list again
			t.Errorf("%+v", c.condition(Imported))
		}
	})
}
