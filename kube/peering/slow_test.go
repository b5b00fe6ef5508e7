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
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"

	"culvert/integration/need"
	"culvert/integration/need/slowapi"
	"culvert/kube"
)

const slow = int64(3 * time.Second)

// sends reports whether the gateway's configuration has a node at an address.
func (c *cluster) sends(to string) bool {
	at := netip.MustParseAddr(to)
	config := c.config.Load()
	for i := range config.Geneve.Nodes {
		if config.Geneve.Nodes[i].Underlay == at {
			return true
		}
	}
	return false
}

// TestSlowAPIServer: while the API server takes three seconds for each write, a node's new address
// is effective within one, and the status that is written at the end is the newest. A standby
// writes nothing.
func TestSlowAPIServer(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		c.slow.Delay.Store(slow)
		for n := range 5 {
			c.update(KindTunnelNode, object(t, fmt.Sprintf(tunnelText, 1), "10.244.1.1", fmt.Sprintf("nonsense-%d", n),
				"ready: true", "ready: false, message: x"))
			time.Sleep(500 * time.Millisecond)
		}
		address := ""
		for n := range 10 {
			address = fmt.Sprintf("172.18.0.%d", n+20)
			c.update(KindTunnelNode, object(t, fmt.Sprintf(tunnelText, 2), "172.18.0.2", address, "ready: true",
				fmt.Sprintf("ready: false, message: no room %d", n)))
			time.Sleep(time.Second)
			if synctest.Wait(); !c.sends(address) {
				t.Errorf("a second after node2 has moved to %s, the gateway sends to %+v", address,
					c.config.Load().Geneve.Nodes)
			}
		}
		c.update(KindTunnelNode, object(t, fmt.Sprintf(tunnelText, 1)))
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := c.condition(NodesReady).Message; got != "node node2: no room 9" {
			t.Errorf("at the end the status says %q", got)
		}
		if _, events := c.written(); events != 5 {
			t.Errorf("%d Events about 5 faults", events)
		}
		c.rests.Store(true)
		c.source.Wake()
		for n := range 10 {
			c.update(KindTunnelNode, object(t, fmt.Sprintf(tunnelText, 2), "172.18.0.2", fmt.Sprintf("nonsense-%d", n)))
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if statuses, events := c.written(); statuses+events > 0 {
			t.Errorf("a standby wrote %d statuses and %d Events", statuses, events)
		}
	})
}

// TestLastStatus: a gateway that ends says so, even if it is just writing another status, and if
// somebody else has changed the Peering.
func TestLastStatus(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		conflicts := 0
		c.PrependReactor("update", "peerings", func(kubetesting.Action) (bool, runtime.Object, error) {
			if conflicts++; conflicts > 1 {
				return false, nil, nil
			}
			return true, nil, apierrors.NewConflict(paths[KindPeering].GroupResource(), "milan", errors.New("changed"))
		})
		c.slow.Delay.Store(int64(500 * time.Millisecond))
		c.update(KindTunnelNode, object(t, fmt.Sprintf(tunnelText, 2), "ready: true", "ready: false, message: no room"))
		time.Sleep(200 * time.Millisecond) // it writes
		c.source.End()
		c.stop()
		if got := c.condition(Connected); got.Reason != "GatewayStopped" || conflicts < 2 {
			t.Errorf("at the end: %+v after %d writes", got, conflicts)
		}
	})
}

// TestSlowAPIServerOfAgent: the same of a node. Of a Peering that has another problem all the time,
// few Events are written.
func TestSlowAPIServerOfAgent(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		c.update(KindTunnelNode, object(t, fmt.Sprintf(tunnelText, 2), "name: node2", "name: node2, uid: u-tunnel"))
		log := logrus.New()
		log.SetOutput(io.Discard)
		api := &slowapi.Client{Interface: c}
		s, m := NewNodeSource(api, "node2", "culvert", NodeNamespace, nil, logrus.NewEntry(log)), &machine{}
		ctx, cancel := context.WithCancel(t.Context())
		var tasks sync.WaitGroup
		tasks.Go(func() { s.Run(ctx, m) })
		defer tasks.Wait()
		defer cancel()
		time.Sleep(5 * time.Second)
		api.Delay.Store(slow)
		spoil := func(n int) {
			c.update(KindTunnelNode, object(t, fmt.Sprintf(tunnelText, 2), "name: node2", "name: node2, uid: u-tunnel",
				"ready: true", fmt.Sprintf("ready: false, message: %d", n)))
			u := object(t, romeToMilan, "10.61.0.0/16", fmt.Sprintf("10.%d.0.0/16", 100+n))
			u.Object["status"] = c.peering().Object["status"]
			c.update(KindPeering, u)
			bad := object(t, romeToMilan, "name: milan", "name: turin", "role: Client", fmt.Sprintf("role: role-%d", n),
				"u-milan", "u-turin")
			if n == 0 {
				if err := c.Tracker().Create(paths[KindPeering], bad, "culvert"); err != nil {
					t.Fatal(err)
				}
				return
			}
			c.update(KindPeering, bad)
		}
		c.written()
		for n := range 40 {
			spoil(n)
			time.Sleep(time.Second)
			synctest.Wait()
			want := netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", 100+n))
			if p := *m.peers.Load(); len(p) != 1 || !slices.Contains(p[0].Remote, want) {
				t.Errorf("a second after the Peering has changed, the routes are %+v", p)
			}
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		events := 0
		for _, a := range c.Actions() {
			if x, ok := a.(kubetesting.CreateAction); ok && a.GetResource().Resource == "events" &&
				strings.HasPrefix(fmt.Sprint(x.GetObject().(*unstructured.Unstructured).Object["message"]), "turin: ") {
				events++
			}
		}
		if events < kube.FaultsAtOnce || events > kube.FaultsAtOnce+5 {
			t.Errorf("%d Events about 40 problems of one Peering", events)
		}
	})
}

// TestRefusedConfiguration: a gateway that refuses a configuration gets it again when something has
// changed, and once a minute.
func TestRefusedConfiguration(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		c.refuses.Store(true)
		for n := range int64(3) {
			c.update(KindTunnelNode, object(t, fmt.Sprintf(tunnelText, 2), "172.18.0.2",
				fmt.Sprintf("172.18.0.%d", 20+n)))
			time.Sleep(30 * time.Second)
			synctest.Wait()
			if got := c.refused.Load(); got != n+1 {
				t.Fatalf("%d attempts of %d configurations", got, n+1)
			}
		}
		c.refuses.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := c.condition(Accepted); c.refused.Load() != 3 || got.Status != "True" {
			t.Errorf("a minute later: %d attempts, %+v", c.refused.Load(), got)
		}
	})
}

// TestSlowLists: at its start a gateway waits for slow lists of Services, and not for those that
// the API server refuses.
func TestSlowLists(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		log := logrus.New()
		log.SetOutput(io.Discard)
		s := NewGatewaySource(nil, rome(t).self, NodeNamespace, logrus.NewEntry(log))
		needs := func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return slices.Contains(s.services.needs(), setExported)
		}
		list := func(err error) { s.loop.Causes.Log(t.Context(), "list", "services", err) }
		needs()
		time.Sleep(time.Hour)
		if !needs() {
			t.Error("a slow list is not awaited")
		}
		list(errors.New("connection refused"))
		if !needs() {
			t.Error("a list is not awaited while the API server is away")
		}
		list(apierrors.NewForbidden(paths[setExported].GroupResource(), "", nil))
		if needs() {
			t.Error("a refused list is awaited")
		}
		if list(nil); !needs() {
			t.Error("a list that is allowed again is not awaited")
		}
	})
}
