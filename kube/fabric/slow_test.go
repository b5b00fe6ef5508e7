package fabric

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/dynamic/fake"

	"culvert/gateway/node/links"
	"culvert/integration/need"
	"culvert/integration/need/slowapi"
	"culvert/kube"
	"culvert/kube/liqo"
	"culvert/kube/objects"
)

func init() {
	utilruntime.ErrorHandlers = nil // one of them counts on time that is no bubble's
}

// TestSlowAPIServer: while the API server takes three seconds for each write, a gateway's new
// address is effective within one second. Of a resource that has another fault all the time, few
// Events are written.
func TestSlowAPIServer(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		kinds := map[schema.GroupVersionResource]string{{Version: "v1", Resource: "events"}: "EventList"}
		resources := map[string]schema.GroupVersionResource{}
		for _, set := range new(Source).sets() {
			resources[set.Name], kinds[set.Resource] = set.Resource, set.Name+"List"
		}
		api := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
		put := func(o *objects.Object, change func(spec map[string]any)) {
			t.Helper()
			text, err := json.Marshal(o)
			need.NoError(t, err)
			u := &unstructured.Unstructured{}
			need.NoError(t, json.Unmarshal(text, &u.Object))
			if change != nil {
				change(u.Object["spec"].(map[string]any))
			}
			if api.Tracker().Update(resources[o.Kind], u, u.GetNamespace()) != nil {
				need.NoError(t, api.Tracker().Create(resources[o.Kind], u, u.GetNamespace()))
			}
		}
		var fabrics []*objects.Object
		for _, o := range captured(t) {
			if put(o, nil); o.Kind == liqo.KindFabric {
				fabrics = append(fabrics, o)
			}
		}
		slow := &slowapi.Client{Interface: api}
		slow.Delay.Store(int64(3 * time.Second))
		log, _ := test.NewNullLogger()
		s := NewSource(slow, "n1", logrus.NewEntry(log))
		var applied atomic.Pointer[[]links.Link]
		ctx, cancel := context.WithCancel(t.Context())
		var tasks sync.WaitGroup
		tasks.Go(func() { s.Run(ctx, func(l []links.Link) { applied.Store(&l) }) })
		defer tasks.Wait()
		defer cancel()
		time.Sleep(5 * time.Second)
		for n := range 40 {
			put(fabrics[0], func(spec map[string]any) { spec["gatewayIP"] = fmt.Sprint("nonsense-", n) })
			time.Sleep(100 * time.Millisecond)
			address := fmt.Sprintf("10.244.9.%d", n+1)
			put(fabrics[1], func(spec map[string]any) { spec["gatewayIP"] = address })
			time.Sleep(time.Second)
			synctest.Wait()
			if l := *applied.Load(); len(l) != 1 || l[0].Remote != netip.MustParseAddr(address) {
				t.Errorf("a second after the gateway has moved to %s, the links are %+v", address, l)
			}
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		written := 0
		for _, a := range api.Actions() {
			if a.GetVerb() == "create" && a.GetResource().Resource == "events" {
				written++
			}
		}
		if written < kube.FaultsAtOnce || written > kube.FaultsAtOnce+5 {
			t.Errorf("%d Events about 40 faults of one resource", written)
		}
	})
}
