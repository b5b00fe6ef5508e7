package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"culvert/integration/need"
)

const mcsVersion = "multicluster.x-k8s.io/v1beta1"

// serviceExports is the kind ServiceExport, as far as a gateway reads it.
func serviceExports() object {
	anything := object{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	return object{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": object{"name": "serviceexports.multicluster.x-k8s.io", "annotations": object{
			"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/issues/1645"}},
		"spec": object{"group": "multicluster.x-k8s.io", "scope": "Namespaced",
			"names": object{"kind": "ServiceExport", "listKind": "ServiceExportList", "plural": "serviceexports",
				"singular": "serviceexport"},
			"versions": []object{{"name": "v1beta1", "served": true, "storage": true,
				"schema": object{"openAPIV3Schema": anything}}}}}
}

func serviceExport(name string) object {
	return object{"apiVersion": mcsVersion, "kind": "ServiceExport", "metadata": object{"name": name,
		"namespace": "shop"}, "spec": object{"exportedLabels": object{"tier": "front"}}}
}

// sliceOf has n endpoints of a Service, from one on.
func sliceOf(name string, part, from, n int) object {
	var all []string
	for i := from; i < from+n; i++ {
		all = append(all, endpointAddress(i))
	}
	o := shopSlice(name, all...)
	o["metadata"].(object)["name"] = fmt.Sprintf("%s-%d", name, part)
	return o
}

// endpointAddress is the address of pod number i.
func endpointAddress(i int) string { return fmt.Sprintf("10.244.%d.%d", i>>8, i&255) }

// peerExports is the object into which the gateway writes what its peer exports.
func (p *peeringLab) peerExports() object {
	return object{"apiVersion": peeringVersion, "kind": "PeerExports", "metadata": object{"name": p.remote.name,
		"namespace": peeringNamespace}}
}

// awaitPeerExports waits until PeerExports has the Services, and returns how long that took.
func (p *peeringLab) awaitPeerExports(what string, has func(services []any) bool) time.Duration {
	p.t.Helper()
	began := time.Now()
	eventually(p.t, p.name+" has heard "+what, func() error {
		o, err := p.api.admin.get(p.peerExports())
		if all, _ := o["services"].([]any); err != nil || !has(all) {
			return fmt.Errorf("%v; %d Services; %s; gateway: %s", err, len(all), p.condition("Imported"),
				p.gateway.output())
		}
		return nil
	})
	return time.Since(began)
}

// endpointsIn returns the addresses of a Service's endpoints in PeerExports.
func endpointsIn(services []any, name string) (all []string) {
	for _, s := range services {
		if s := s.(object); s["name"] == name {
			groups, _ := s["endpoints"].([]any)
			for _, g := range groups {
				addresses, _ := g.(object)["addresses"].([]any)
				for _, a := range addresses {
					all = append(all, fmt.Sprint(a.(object)["ip"]))
				}
			}
		}
	}
	return all
}

// TestKubeServiceExports: what milan's ServiceExports export comes into rome's PeerExports within a
// second, 20,000 endpoints among it, and a changed one too. milan's cluster does not know the kind
// at first, and rome's object is not there. The gateways have no rights but those of the manifests.
func TestKubeServiceExports(t *testing.T) {
	const services, parts, each = 100, 2, 100 // 20,000 endpoints
	isolated(t, func(t *testing.T) {
		rome, milan := newPeeringLabs(t)
		milan.apply(namespace("shop"))
		for _, p := range []*peeringLab{rome, milan} {
			p.install()
		}
		milan.services, rome.services = object{"export": []string{"shop"}}, object{"import": []string{"*"}}
		for _, p := range []*peeringLab{rome, milan} {
			p.startGateway("gateway-1")
			for i := range kubeNodes {
				p.startAgent(i)
			}
		}
		rome.meet(milan)
		milan.meet(rome)
		milan.awaitCondition("Exported", "False Refused: spec.services.export: the API server has no ServiceExports")
		rome.awaitCondition("Imported", "False NoPeerExports")
		milan.apply(serviceExports())
		rome.apply(rome.peerExports())
		eventually(t, "ServiceExports are known", func() error { return milan.api.admin.apply(serviceExport("web")) })
		milan.apply(shop("web", nil, nil), sliceOf("web", 1, 300, 2))
		rome.awaitPeerExports("web", func(all []any) bool {
			return slices.Equal(endpointsIn(all, "web"), []string{"10.244.1.44", "10.244.1.45"})
		})
		rome.awaitCondition("Imported", "True")
		milan.awaitCondition("Exported", "True")
		stored := mustObject(t)(rome.api.admin.get(rome.peerExports()))
		s := stored["services"].([]any)[0].(object)
		if s["type"] != "ClusterSetIP" || field(s, "labels", "tier") != "front" || s["sessionAffinity"] != "None" ||
			len(s["ports"].([]any)) != 2 || s["created"] == nil || stored["heard"] == nil {
			t.Errorf("heard %v at %v", s, stored["heard"])
		}

		var slowest time.Duration
		for i := range 5 {
			milan.apply(sliceOf("web", 1, 400+i, 1))
			slowest = max(slowest, rome.awaitPeerExports("a change of web", func(all []any) bool {
				return slices.Equal(endpointsIn(all, "web"), []string{endpointAddress(400 + i)})
			}))
		}
		if t.Logf("a changed EndpointSlice is heard within %v", slowest); slowest > followed {
			t.Errorf("a changed EndpointSlice is heard after %v, want at most %v", slowest, followed)
		}

		began := time.Now()
		for i := range services {
			name := fmt.Sprintf("shop-%d", i)
			milan.apply(shop(name, nil, nil), serviceExport(name))
			for part := range parts {
				milan.apply(sliceOf(name, part, i*parts*each+part*each, each))
			}
		}
		need.NoError(t, milan.api.admin.delete(serviceExport("web")))
		written := time.Since(began)
		took := rome.awaitPeerExports("all", func(all []any) bool {
			return len(all) == services && len(endpointsIn(all, fmt.Sprintf("shop-%d", services-1))) == parts*each
		})
		t.Logf("20,000 endpoints are written in %v, and heard %v later; %s MiB resident, at most %s", written, took,
			mebibytes(milan.gateway.resident(t), rome.gateway.resident(t)),
			mebibytes(milan.gateway.peak(t), rome.gateway.peak(t)))
		testManyChanges(t, rome, milan)

		need.NoError(t, rome.api.admin.delete(rome.peerExports()))
		milan.services = object{"export": []string{"pay"}}
		with, _ := milan.keyed()
		milan.apply(with)
		rome.awaitCondition("Imported", "False NoPeerExports")
		rome.apply(rome.peerExports())
		rome.awaitPeerExports("nothing", func(all []any) bool { return all != nil && len(all) == 0 })
		for _, p := range []*peeringLab{rome, milan} {
			rights := []string{"get peerexports", "update peerexports"}
			if p == milan {
				rights = []string{"list serviceexports", "watch serviceexports"}
			}
			requireUsed(t, p.gatewayUser(), p.api.requested(t, p.gatewayUser()), rights...)
		}
		for _, verb := range []string{"get", "update", "list", "watch", "create", "delete", "patch"} {
			if rome.api.may(t, rome.gatewayUser(), verb, "culvert.io/peerexports", peeringNamespace) {
				t.Errorf("rome's gateway may %s the PeerExports of others", verb)
			}
		}
	}, kubernetes)
}

// testManyChanges: 200 changed EndpointSlices a second, of a list of 20,000 endpoints, cost neither
// gateway more than a tenth of a CPU.
func testManyChanges(t *testing.T, rome, milan *peeringLab) {
	const rate, seconds = 200, 10
	spent := []time.Duration{milan.gateway.cpu(t), rome.gateway.cpu(t)}
	var took []time.Duration
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	began := time.Now()
	for n := range rate * seconds {
		<-tick.C
		milan.apply(sliceOf(fmt.Sprintf("shop-%d", n%100), 0, 50_000+n, 20))
		if n%rate == 0 {
			took = append(took, rome.awaitPeerExports("one of many changes", func(all []any) bool {
				return slices.Contains(endpointsIn(all, fmt.Sprintf("shop-%d", n%100)), endpointAddress(50_000+n))
			}))
		}
	}
	all := time.Since(began)
	for i, p := range []*peeringLab{milan, rome} {
		if spent[i] = p.gateway.cpu(t) - spent[i]; spent[i] > all/10 {
			t.Errorf("%s's gateway takes %v of CPU in %v", p.name, spent[i], all)
		}
	}
	t.Logf("%d changes in %v: heard after %v; CPU of milan's and rome's gateways: %v", rate*seconds, all, took, spent)
}

func mebibytes(all ...int) (text string) {
	for i, n := range all {
		if i > 0 {
			text += " and "
		}
		text += fmt.Sprint(n >> 20)
	}
	return text
}
