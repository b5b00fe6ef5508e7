package peering

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/gateway/config"
	"culvert/gateway/exports"
	"culvert/kube"
	"culvert/kube/mcs"
	"culvert/kube/service"
)

// sharing returns rome's gateway, which lets milan hear of the ServiceExports of some namespaces.
func sharing(t testing.TB, namespaces string) *Gateway {
	g := rome(t)
	g.put(readIn(t, "peer: milan", "peer: milan\n  services: {export: ["+namespaces+"]}"))
	store(g, g.Plan())
	g.sharesKnown = true
	return g
}

// have adds an object to those of a gateway.
func have(t testing.TB, g *Gateway, text string, replace ...string) *unstructured.Unstructured {
	t.Helper()
	u := object(t, text, replace...)
	key := kube.KeyOf(u)
	switch u.GetKind() {
	case kindServiceExport:
		table[*mcs.Export](g.serviceExports).set(key, readServiceExport(u))
		g.slices.wanted[service.Name{Namespace: u.GetNamespace(), Name: u.GetName()}] = true
	case kindService:
		offers{g}.set(key, readOffer(u))
	case kindSlice:
		g.slices.set(key, readSlice(u))
	}
	return u
}

const (
	webExport = `
apiVersion: multicluster.x-k8s.io/v1beta1
kind: ServiceExport
metadata: {name: web, namespace: shop, creationTimestamp: "2026-11-24T12:00:00Z"}
spec: {exportedLabels: {tier: front}, exportedAnnotations: {a/b: c}}
`
	webService = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, creationTimestamp: "2026-11-23T12:00:00Z", labels: {own: "1"}}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], internalTrafficPolicy: Cluster, trafficDistribution: PreferClose, sessionAffinity: ClientIP,
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}},
  ports: [{name: http, port: 80, protocol: TCP, targetPort: web, appProtocol: http}, {name: dns, port: 53, protocol: UDP}]}
`
	webSlice = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints:
- {addresses: [10.244.1.5], conditions: {ready: true}, zone: a, nodeName: node1}
- {addresses: [10.244.1.4], hostname: web-0, conditions: {ready: false}}
- {addresses: [10.244.1.6], conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [10.244.1.7], conditions: {ready: false, serving: false, terminating: true}}
- {addresses: [10.244.1.8]}
`
)

// TestShare: the peer hears of a ServiceExport what its Service and its EndpointSlices say.
func TestShare(t *testing.T) {
	g := sharing(t, "shop")
	for _, text := range []string{webExport, webService, webSlice} {
		have(t, g, text)
	}
	addr, port := netip.MustParseAddr, []exports.Port{{Name: "http", Protocol: "TCP", Port: 8080}}
	want := &exports.Service{Namespace: "shop", Name: "web", Type: exports.ClusterSetIP,
		Created: time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC),
		Ports: []exports.Port{{Name: "http", Protocol: "TCP", Port: 80, AppProtocol: "http"}, {Name: "dns",
			Protocol: "UDP", Port: 53}},
		Affinity: "ClientIP", AffinityFor: 60, InternalTrafficPolicy: "Cluster", TrafficDistribution: "PreferClose",
		Labels: map[string]string{"tier": "front"}, Annotations: map[string]string{"a/b": "c"},
		Endpoints: []exports.Group{{Ports: port, Addresses: []exports.Endpoint{
			{IP: addr("10.244.1.4"), Host: "web-0", State: exports.NotReady}, {IP: addr("10.244.1.5")},
			{IP: addr("10.244.1.6"), State: exports.Serving}, {IP: addr("10.244.1.7"), State: exports.Terminating},
			{IP: addr("10.244.1.8")}}}}}
	d := g.Plan()
	if len(d.Shared) != 1 || !reflect.DeepEqual(d.Shared[0], want) || len(d.ExportFaults) > 0 {
		t.Fatalf("%s\nwant %s; %q", text(t, d.Shared), text(t, want), d.ExportFaults)
	}
	if again := g.Plan(); again.Shared[0] != d.Shared[0] {
		t.Error("what has not changed is made anew")
	}
	have(t, g, webSlice, "name: web-1", "name: web-2", "port: 8080", "port: 9090", "10.244.1.5", "10.244.2.5",
		"10.244.1.8", "10.244.1.5")
	have(t, g, webSlice, "name: web-1", "name: web-3", "10.244.1.6", "10.244.2.6", "IPv4", "IPv4")
	have(t, g, webSlice, "name: web-1", "name: web-6", "IPv4", "IPv6", "10.244.1.", "fd00::")
	if d := g.Plan(); len(d.Shared[0].Endpoints) != 2 || len(d.Shared[0].Endpoints[0].Addresses) != 6 ||
		len(d.Shared[0].Endpoints[1].Addresses) != 5 {
		t.Errorf("slices with two sets of ports: %s", text(t, d.Shared))
	}
	have(t, g, webService, "clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10]", "clusterIP: None, clusterIPs: [None]")
	if d := g.Plan(); len(d.Shared) != 1 || d.Shared[0].Type != exports.Headless {
		t.Errorf("headless: %s", text(t, d.Shared))
	}
	for name, change := range map[string]func(){
		"an ExternalName": func() { have(t, g, webService, "clusterIP: 10.96.0.10,", "type: ExternalName,") },
		"another peer": func() {
			have(t, g, webExport, "namespace: shop,",
				"namespace: shop, annotations: {culvert.io/export-to: 'paris, vienna'},")
		},
		"no namespace":   func() { g.good.Services.Export = []string{"pay"} },
		"a deleted one":  func() { delete(g.serviceExports, "shop/web") },
		"none at all":    func() { g.good.Services.Export = nil },
		"without slices": func() { g.slices.forget(service.Name{Namespace: "shop", Name: "web"}) },
	} {
		have(t, g, webExport)
		have(t, g, webService)
		g.good.Services.Export = []string{"*"}
		if d := g.Plan(); len(d.Shared) != 1 {
			t.Fatalf("before %s: %s", name, text(t, d.Shared))
		}
		if change(); len(g.Plan().Shared) != 0 || g.Plan().Shared == nil {
			t.Errorf("%s: %s", name, text(t, g.Plan().Shared))
		}
		have(t, g, webExport, "namespace: shop,",
			"namespace: shop, annotations: {culvert.io/export-to: 'paris, milan'},")
		have(t, g, webSlice)
	}
}

// TestShareUnknown: nothing is told before all is known, and what is told stays while more becomes
// known.
func TestShareUnknown(t *testing.T) {
	g := sharing(t, "shop")
	for _, text := range []string{webExport, webService, webSlice} {
		have(t, g, text)
	}
	have(t, g, webExport, "name: web", "name: api")
	have(t, g, webService, "name: web", "name: api")
	g.sharesKnown = false
	if d := g.Plan(); d.Shared != nil {
		t.Errorf("before ServiceExports are known: %s", text(t, d.Shared))
	}
	g.sharesKnown = true
	api := service.Name{Namespace: "shop", Name: "api"}
	delete(g.slices.wanted, api)
	if d := g.Plan(); d.Shared != nil || !g.sharing[api] {
		t.Errorf("before the EndpointSlices of one are known: %s", text(t, d.Shared))
	}
	g.slices.begin(api)
	g.slices.began()()
	if d := g.Plan(); len(d.Shared) != 2 {
		t.Errorf("with all: %s", text(t, d.Shared))
	}
	g.slices.forget(api)
	if d := g.Plan(); len(d.Shared) != 1 || d.Shared[0].Name != "web" {
		t.Errorf("while one more becomes known: %s", text(t, d.Shared))
	}
	g.sharesRefused = true
	if d := g.Plan(); len(d.ExportFaults) != 1 || !strings.HasPrefix(d.ExportFaults[0], "spec.services.export: ") {
		t.Errorf("%q", d.ExportFaults)
	}
}

// TestShareLimits: what is too much is left out with the reason, and a namespace that has too much
// takes nothing from another. A list that a gateway tells keeps the limits.
func TestShareLimits(t *testing.T) {
	g := sharing(t, "'*'")
	add := func(namespace string, n, endpoints int, replace ...string) {
		for i := range n {
			name := fmt.Sprintf("web%d", i)
			at := []string{"name: web", "name: " + name, "namespace: shop", "namespace: " + namespace}
			have(t, g, webExport, append(at, replace...)...)
			have(t, g, webService, at...)
			if endpoints == 0 {
				continue
			}
			u := object(t, webSlice, "name: web-1", "name: "+name+"-1", "namespace: shop", "namespace: "+namespace,
				"service-name: web", "service-name: "+name)
			var all []any
			for k := range endpoints {
				all = append(all, map[string]any{"addresses": []any{fmt.Sprintf("10.244.%d.%d", k>>8, k&255)}})
			}
			u.Object["endpoints"] = all
			g.slices.set(kube.KeyOf(u), readSlice(u))
		}
	}
	told := func(d *Plan) map[string]int {
		n := map[string]int{}
		endpoints, size := 0, 0
		for _, s := range d.Shared {
			n[s.Namespace]++
			size += s.Size()
			for _, g := range s.Endpoints {
				endpoints += len(g.Addresses)
			}
		}
		if len(d.Shared) > exports.MaxServices || endpoints > exports.MaxEndpoints || size > exports.MaxSize {
			t.Errorf("%d Services, %d endpoints, %d bytes", len(d.Shared), endpoints, size)
		}
		return n
	}
	fault := func(d *Plan, part string) bool {
		return slices.ContainsFunc(d.ExportFaults, func(s string) bool { return strings.Contains(s, part) })
	}
	add("small", 10, 5)
	add("greedy", 600, 0)
	d := g.Plan()
	if n := told(d); n["small"] != 10 || n["greedy"] != 490 || !fault(d, "at most 500 may be exported, which") {
		t.Errorf("%v, %.3q", n, d.ExportFaults)
	}
	clear(g.serviceExports)
	add("small", 10, 5)
	add("greedy", 30, 1000)
	d = g.Plan()
	if n := told(d); n["small"] != 10 || n["greedy"] != 19 || !fault(d,
		"it has 1000 endpoints, and others 19050; at most 20000 may be exported, which namespaces share") {
		t.Errorf("%v, %.3q", n, d.ExportFaults)
	}
	if kept := len(g.slices.counted); kept != 11 {
		t.Errorf("of %d Services only the number of endpoints is kept", kept)
	}
	clear(g.serviceExports)
	add("small", 10, 5)
	add("large", 20, 5, "a/b: c", "a/b: "+strings.Repeat("x", 100_000))
	d = g.Plan()
	if n := told(d); n["small"] != 10 || n["large"] != 13 || !fault(d, "bytes, and of others") {
		t.Errorf("%v, %.3q", n, d.ExportFaults)
	}
	clear(g.serviceExports)
	labels := map[string]string{}
	for i := range exports.MaxTexts + 1 {
		labels[fmt.Sprint("l", i)] = ""
	}
	all, err := json.Marshal(labels)
	if err != nil {
		t.Fatal(err)
	}
	have(t, g, webExport, "{tier: front}", string(all))
	have(t, g, webService)
	have(t, g, webSlice)
	d = g.Plan()
	if len(d.Shared) > 0 || !fault(d, "ServiceExport shop/web: a Service with more than 100 labels or annotations") {
		t.Errorf("%v, %q", told(d), d.ExportFaults)
	}
	have(t, g, webExport)
	have(t, g, webSlice, "10.244.1.5", "172.18.0.2")
	d = g.Plan()
	if len(d.Shared) != 1 || len(d.Shared[0].Endpoints[0].Addresses) != 4 || !fault(d,
		"ServiceExport shop/web: its endpoint 172.18.0.2 is not in spec.local.podCIDRs of Peering milan, and left") {
		t.Errorf("%s, %q", text(t, d.Shared), d.ExportFaults)
	}
}

// TestAdmitShared: with spec.admit: Exports, the peer may open connections to the endpoints of
// ServiceExports, each once, and to what is exported by label, and to nothing else.
func TestAdmitShared(t *testing.T) {
	g := sharing(t, "shop")
	for _, text := range []string{webExport, webService, webSlice} {
		have(t, g, text)
	}
	have(t, g, webExport, "name: web", "name: api")
	have(t, g, webService, "name: web", "name: api")
	have(t, g, webSlice, "name: web-1", "name: api-1", "service-name: web", "service-name: api", "ports: [{name: http,",
		"ports: [{name: all}, {name: icmp, port: 7, protocol: ICMP}, {name: dns, port: 53, protocol: UDP}, {name: http,",
		"10.244.1.8", "203.0.113.9")
	if d := g.Plan(); d.Admitted != nil || len(d.Config(base()).Exports) > 0 {
		t.Errorf("without spec.admit: %v", d.Admitted)
	}
	g.good.Admit = config.AdmitExports
	d := g.Plan()
	c := d.Config(d.Peering.Base(base()))
	got := map[string]bool{}
	for _, x := range c.Exports {
		got[fmt.Sprint(x.Prefix, " ", x.Protocol, " ", x.Port)] = true
	}
	want := map[string]bool{}
	for k := 4; k <= 8; k++ {
		want[fmt.Sprintf("10.244.1.%d/32 6 8080", k)] = true
		if k < 8 {
			want[fmt.Sprintf("10.244.1.%d/32 17 53", k)] = true
		}
	}
	if err := config.Check(c); err != nil || !maps.Equal(got, want) || len(c.Exports) != len(want) {
		t.Errorf("%v: %v, want %v", err, c.Exports, want)
	}
	g.sharesKnown = false
	if d = g.Plan(); len(d.Admitted) != len(want) {
		t.Errorf("while ServiceExports are not known: %v", d.Admitted)
	}
	g.sharesKnown = true
	delete(g.serviceExports, "shop/api")
	if d = g.Plan(); len(d.Admitted) != 5 {
		t.Errorf("after one has been withdrawn: %v", d.Admitted)
	}
}

// TestServicesOfPeering: spec.services names namespaces, or all of them but those of Kubernetes.
func TestServicesOfPeering(t *testing.T) {
	p := readIn(t, "peer: milan", "peer: milan\n  services: {export: [shop, kube-system], import: ['*']}")
	if len(p.Faults) > 0 || !p.Exports("shop") || !p.Exports("kube-system") || p.Exports("pay") ||
		!p.ImportsInto("shop") || p.ImportsInto("kube-system") {
		t.Errorf("%+v, %q", p.Services, p.Faults)
	}
	if p = readIn(t); p.Exports("shop") || p.ImportsInto("shop") {
		t.Error("without spec.services, something is exported or imported")
	}
	p = readIn(t, "peer: milan", "peer: milan\n  services: {export: ['shop.a'], import: ['*x']}")
	if len(p.Faults) != 2 || !strings.HasPrefix(p.Faults[0], "spec.services.export[0]: ") ||
		!strings.HasPrefix(p.Faults[1], "spec.services.import[0]: ") {
		t.Errorf("%q", p.Faults)
	}
}

// BenchmarkShare is the work for a changed EndpointSlice among 500 Services with 20,000 endpoints.
func BenchmarkShare(b *testing.B) {
	g := sharing(b, "shop")
	part := func(i, first int) {
		name := fmt.Sprintf("web%d", i)
		u := object(b, webSlice, "name: web-1", "name: "+name+"-1", "service-name: web", "service-name: "+name)
		var all []any
		for k := range exports.MaxEndpoints / exports.MaxServices {
			all = append(all, map[string]any{"addresses": []any{fmt.Sprintf("10.244.%d.%d", i&255, (first+k)&255)}})
		}
		u.Object["endpoints"] = all
		g.slices.set(kube.KeyOf(u), readSlice(u))
	}
	for i := range exports.MaxServices {
		name := fmt.Sprintf("web%d", i)
		have(b, g, webExport, "name: web", "name: "+name)
		have(b, g, webService, "name: web", "name: "+name)
		part(i, 0)
	}
	x := exports.New(exports.MaxDatagram)
	for i := 0; b.Loop(); i++ {
		part(i%exports.MaxServices, i)
		d := g.Plan()
		x.Tell(slices.Concat(d.Exports, d.Shared))
		if len(d.Shared) != exports.MaxServices {
			b.Fatalf("%d Services", len(d.Shared))
		}
	}
}

// TestShareFamilies: the peer hears of a Service in the families that the Peering carries, and of
// one that has none of them, only this side does, and why not.
func TestShareFamilies(t *testing.T) {
	six := strings.NewReplacer("web-1", "web-6", "IPv4", "IPv6", "10.244.1.", "fd00:244::")
	for name, c := range map[string]struct {
		families, carried []string // of the Service; what makes the Peering carry them
		want, fault       string
	}{
		"all of both":         {[]string{"IPv6", "IPv4"}, dual, "[IPv4 IPv6] 10", ""},
		"a Service of IPv4":   {[]string{"IPv4"}, dual, "[] 5", ""},
		"a Service of IPv6":   {[]string{"IPv6"}, dual, "[IPv6] 5", ""},
		"a Peering of IPv4":   {[]string{"IPv6", "IPv4"}, nil, "[] 5", ""},
		"nothing in common":   {[]string{"IPv6"}, nil, "", "ServiceExport shop/web: the Service's spec.ipFamilies: Peering milan carries none of them between pods"},
		"an older API server": {nil, dual, "[] 5", ""},
	} {
		g := rome(t)
		p := readIn(t, append([]string{"peer: milan", "peer: milan\n  services: {export: [shop]}"}, c.carried...)...)
		g.put(p)
		g.sharesKnown = true
		have(t, g, webExport)
		have(t, g, webService, "clusterIPs: [10.96.0.10]", "ipFamilies: ["+strings.Join(c.families, ", ")+"]")
		have(t, g, webSlice)
		have(t, g, six.Replace(webSlice))
		d := g.Plan()
		got := ""
		for _, s := range d.Shared {
			got = fmt.Sprint(s.Families, " ", len(s.Endpoints[0].Addresses))
		}
		if fault := strings.Join(d.ExportFaults, "; "); got != c.want || fault != c.fault {
			t.Errorf("%s: %q, %q; want %q, %q", name, got, fault, c.want, c.fault)
		}
	}
}
