package integration

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"culvert/integration/need"
)

// kubeBack limits how long a gateway takes to catch up with an API server that is back.
const kubeBack = 5 * time.Second

// kubeAwayFor is how long an API server is away, or its watches are cut.
func kubeAwayFor() time.Duration {
	if os.Getenv(longEnv) != "" {
		return time.Minute
	}
	return 3 * time.Second
}

// kubeMapped2 is another external address that stands for the client of the cluster.
const kubeMapped2 = "10.70.0.6"

// testKubeAway kills the API server of rome and makes etcd forget old versions. Traffic continues.
// When the server is back, the gateway soon obeys what has changed while it could not watch.
func testKubeAway(t *testing.T, rome, milan *kubeLab) {
	p := newKubeProbes(t, rome, milan)
	held := holdPods(t, rome, milan, 20)
	api := rome.api
	old := rome.liqo.mapping("external-host", kubeMapped, rome.kubeEnd.client())
	another := rome.liqo.mapping("another", kubeMapped2, rome.kubeEnd.client())
	routes, err := api.admin.get(resource("RouteConfiguration", liqoNamespace, "node2-gw-node", nil))
	need.NoError(t, err)
	before := field(routes, "metadata", "resourceVersion").(string)

	api.relay.cut(true)
	need.NoError(t, api.admin.delete(old))
	rome.liqo.apply(another)
	rome.liqo.podsRun(&kubeNodes[1], rome.pod(&kubeNodes[1], 6))
	api.compact(t)
	api.server.cmd.Process.Kill()
	<-api.server.ended
	for away := time.Now(); time.Since(away) < kubeAwayFor(); {
		for _, one := range p.all() {
			one.await(t, "without API server", true, kubeSoon)
		}
		held("without API server")
	}
	api.startServer()
	api.requireExpired(t, "RouteConfiguration", before)
	api.relay.open()
	back := time.Now()
	another2 := kubeProbe{from: milan.pods[1], to: rome.seen(kubeMapped2)}
	p.mapping.await(t, "API server is back, mapping was deleted", false, kubeBack)
	p.in.await(t, "API server is back, pod was replaced", false, kubeBack)
	another2.await(t, "API server is back, mapping was made", true, kubeBack)
	rome.requireApplied(t, "API server is back, mapping was made", another, kubeBack)
	t.Logf("caught up %v after the API server was back", time.Since(back).Round(time.Millisecond))

	rome.liqo.apply(old)
	rome.liqo.podsRun(&kubeNodes[1], rome.pod(&kubeNodes[1], 5))
	need.NoError(t, api.admin.delete(another))
	for _, one := range p.all() {
		one.await(t, "all as it was", true, kubeSoon)
	}
	another2.await(t, "all as it was", false, kubeSoon)
	held("API server is back")
	rome.requireApplied(t, "all as it was", old, kubeSoon)
	rome.connected()
}

// testKubeCut cuts the watches of rome every second, while a mapping comes and goes.
func testKubeCut(t *testing.T, rome, milan *kubeLab) {
	p := newKubeProbes(t, rome, milan)
	held := holdPods(t, rome, milan, 20)
	mapping := rome.liqo.mapping("external-host", kubeMapped, rome.kubeEnd.client())
	others := slices.DeleteFunc(p.all(), func(one kubeProbe) bool { return one == p.mapping })
	cuts := 0
	for began := time.Now(); time.Since(began) < kubeAwayFor(); {
		if int(time.Since(began)/time.Second) >= cuts {
			rome.api.relay.cut(false)
			cuts++
			if cuts%2 == 0 {
				rome.liqo.apply(mapping)
			} else if err := rome.api.admin.delete(mapping); err != nil {
				t.Fatal(err)
			}
		}
		for _, one := range others {
			one.await(t, "watches are cut", true, kubeSoon)
		}
		held("watches are cut")
	}
	rome.api.relay.cut(false)
	last := time.Now()
	if cuts%2 == 0 {
		need.NoError(t, rome.api.admin.delete(mapping))
		p.mapping.await(t, "after the last cut", false, kubeBack)
	}
	rome.liqo.apply(mapping)
	p.mapping.await(t, "after the last cut", true, kubeBack)
	rome.requireApplied(t, "after the last cut", mapping, kubeBack)
	t.Logf("%d cuts; caught up %v after the last", cuts+1, time.Since(last).Round(time.Millisecond))
}

// The number of other writers of a resource that gateways share, and how often each writes.
const (
	kubeWriters = 20
	kubeWrites  = 3
)

// testKubeWriters lets others write the status of a resource that all gateways share, while
// somebody else removes the gateways' conditions, so that gateways write too. No condition may be
// lost.
func testKubeWriters(t *testing.T, rome *kubeLab, gateways ...*kubeLab) {
	shared := rome.liqo.mssClamping()
	writing, stop := sync.WaitGroup{}, make(chan struct{})
	for i := range kubeWriters {
		writing.Go(func() {
			host, said := fmt.Sprintf("gateway-%d", i), 0
			for said < kubeWrites {
				err := rome.rewrite(shared, func(conditions []any) ([]any, error) {
					conditions, own := others(conditions, host)
					if said > 0 && (len(own) != 1 || field(own[0].(object), "lastTransitionTime") !=
						kubeWriteTime(said)) {
						return nil, fmt.Errorf("%s wrote the time %s, and its conditions are %v", host,
							kubeWriteTime(said), own)
					}
					return append(conditions, object{"host": host, "type": "Applied", "status": "True",
						"lastTransitionTime": kubeWriteTime(said + 1)}), nil
				})
				if err != nil {
					t.Error(err)
					return
				}
				said++
			}
		})
	}
	taken, removing := 0, sync.WaitGroup{}
	removing.Go(func() {
		for {
			err := rome.rewrite(shared, func(conditions []any) ([]any, error) {
				before := len(conditions)
				for _, g := range gateways {
					conditions, _ = others(conditions, g.liqo.account())
				}
				taken += before - len(conditions)
				return conditions, nil
			})
			if err != nil {
				t.Error(err)
				return
			}
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond): // gateways write once they have seen it
			}
		}
	})
	writing.Wait()
	close(stop)
	removing.Wait()
	for _, g := range gateways {
		g.requireApplied(t, "after all have written", shared, kubeBack)
	}
	stored, err := rome.api.admin.get(shared)
	need.NoError(t, err)
	conditions, _ := field(stored, "status", "conditions").([]any)
	if want := kubeWriters + len(gateways); len(conditions) != want {
		t.Errorf("%d conditions, want %d", len(conditions), want)
	}
	for i := range kubeWriters {
		host := fmt.Sprintf("gateway-%d", i)
		rest, own := others(conditions, host)
		if conditions = rest; len(own) != 1 || field(own[0].(object), "lastTransitionTime") !=
			kubeWriteTime(kubeWrites) {
			t.Errorf("%s has conditions %v, want one with the time %s", host, own, kubeWriteTime(kubeWrites))
		}
	}
	if taken < len(gateways) {
		t.Errorf("%d conditions of gateways were removed, want at least %d", taken, len(gateways))
	}
	t.Logf("%d writers wrote %d times each, gateways %d times", kubeWriters, kubeWrites, taken)
}

func kubeWriteTime(n int) string { return time.Unix(int64(n), 0).UTC().Format(time.RFC3339) }

// others separates the conditions of a host from all others.
func others(conditions []any, host string) (rest, own []any) {
	for _, c := range conditions {
		if field(c.(object), "host") == host {
			own = append(own, c)
		} else {
			rest = append(rest, c)
		}
	}
	return rest, own
}

// rewrite changes the conditions of a resource, and tries again while others change them in
// between.
func (k *kubeLab) rewrite(o object, change func([]any) ([]any, error)) error {
	for {
		stored, err := k.api.admin.get(o)
		if err != nil {
			return err
		}
		conditions, _ := field(stored, "status", "conditions").([]any)
		if conditions, err = change(conditions); err != nil {
			return err
		}
		stored["status"] = object{"conditions": conditions}
		if err := k.api.admin.replaceStatus(stored); !isConflict(err) {
			return err
		}
	}
}

// requireApplied waits until a firewall or route resource has one condition of the gateway.
func (k *kubeLab) requireApplied(t *testing.T, what string, o object, limit time.Duration) {
	t.Helper()
	if kind := o["kind"]; kind != "FirewallConfiguration" && kind != "RouteConfiguration" {
		return
	}
	eventuallyWithin(t, limit, what+": condition", func() error {
		stored, err := k.api.admin.get(o)
		if err != nil {
			return err
		}
		conditions, _ := field(stored, "status", "conditions").([]any)
		if _, own := others(conditions, k.liqo.account()); len(own) != 1 ||
			field(own[0].(object), "type") != "Applied" || field(own[0].(object), "status") != "True" {
			return fmt.Errorf("conditions of %s: %v, want one, Applied True", k.liqo.account(), own)
		}
		return nil
	})
}
