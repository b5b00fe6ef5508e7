package integration

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"culvert/integration/need"
)

// TestKubeMulticlusterPace: with at most 200 changed EndpointSlices a second in milan, rome's own
// follow. It prints how long they take, and the CPU time and memory of gateways and of rome's
// culvert multicluster. On a quiet machine, of 12,000 changes of 20,000 endpoints, 99 of 100 must
// be there within a second.
func TestKubeMulticlusterPace(t *testing.T) {
	need.Long(t, "12,000 changes of endpoints")
	const rate, parts, each, services, seconds = 200, 2, 100, 100, 60
	isolated(t, func(t *testing.T) {
		first, second := newPeeringLabs(t)
		rome, milan := newMulticlusterLab(t, first), newMulticlusterLab(t, second)
		rome.meet(milan.peeringLab)
		milan.meet(rome.peeringLab)
		for _, m := range []*multiclusterLab{rome, milan} {
			m.share("shop")
			m.awaitCondition("Connected", "True")
		}
		name := func(n int) string { return fmt.Sprintf("shop-%d", n%services) }
		for i := range services {
			milan.apply(shop(name(i), nil, nil), serviceExport(name(i)))
			for part := range parts {
				milan.apply(sliceOf(name(i), part, i*parts*each+part*each, each))
			}
		}
		eventuallyWithin(t, 2*time.Minute, "all endpoints are in rome", func() error {
			for i := range services {
				if all, err := rome.endpoints(name(i)); err != nil || len(all) != parts*each {
					return fmt.Errorf("%s has %d, %v: %s", name(i), len(all), err, rome.controller.output())
				}
			}
			return nil
		})
		processes := map[string]*peerProcess{"milan's gateway": milan.gateway, "rome's gateway": rome.gateway,
			"rome's controller": rome.controller}
		spent := map[string]time.Duration{}
		for who, p := range processes {
			spent[who] = p.cpu(t)
		}
		var mu sync.Mutex
		var took []time.Duration
		var samples sync.WaitGroup
		tick := time.NewTicker(time.Second / rate)
		defer tick.Stop()
		began := time.Now()
		for n := range rate * seconds {
			<-tick.C
			milan.apply(sliceOf(name(n), 0, 50_000+n, 20))
			if n%20 != 0 {
				continue
			}
			written := time.Now()
			samples.Go(func() {
				for time.Since(written) < time.Minute {
					if newest, err := rome.newest(name(n)); err == nil && newest >= 50_000+n {
						break
					}
					time.Sleep(20 * time.Millisecond) // each look costs the API server time
				}
				mu.Lock()
				defer mu.Unlock()
				took = append(took, time.Since(written))
			})
		}
		all := time.Since(began)
		samples.Wait()
		slices.Sort(took)
		t.Logf("%d changes in %v: there after %v (half), %v (99 of 100), %v (all) of %d", rate*seconds, all,
			took[len(took)/2], took[len(took)*99/100], took[len(took)-1], len(took))
		for who, p := range processes {
			spent[who] = p.cpu(t) - spent[who]
			t.Logf("%s: %v of CPU, %s MiB resident, at most %s", who, spent[who], mebibytes(p.resident(t)),
				mebibytes(p.peak(t)))
			if who != "rome's controller" && (spent[who] > all/10 || p.peak(t) > 64<<20) {
				t.Errorf("%s takes more than a tenth of a CPU or 64 MiB", who)
			}
		}
		if slowest := took[len(took)*99/100]; slowest > followed {
			t.Errorf("99 of 100 changes are there after %v, want at most %v", slowest, followed)
		}
	}, kubernetes)
}

// newest returns the largest number of an endpoint of a multi-cluster Service, as endpointAddress
// has it.
func (m *multiclusterLab) newest(name string) (n int, err error) {
	var list struct{ Items []object }
	err = m.api.admin.request(http.MethodGet, kubePath("discovery.k8s.io/v1", "EndpointSlice", "shop", "")+
		"?labelSelector=multicluster.kubernetes.io/service-name="+name, "", nil, &list)
	for _, o := range list.Items {
		endpoints, _ := o["endpoints"].([]any)
		for _, e := range endpoints {
			for _, a := range e.(object)["addresses"].([]any) {
				addr, err := netip.ParseAddr(fmt.Sprint(a))
				need.NoError(m.t, err)
				b := addr.As4()
				n = max(n, int(b[2])<<8|int(b[3]))
			}
		}
	}
	return n, err
}
