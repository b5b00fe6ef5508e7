package peering

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	kubetesting "k8s.io/client-go/testing"

	"culvert/gateway/exports"
	"culvert/integration/need"
	"culvert/kube"
)

func told(namespace, name, address string, ports ...exports.Port) *exports.Service {
	if ports == nil {
		ports = []exports.Port{{Name: "http", Protocol: "TCP", Port: 80}}
	}
	return &exports.Service{Namespace: namespace, Name: name, Type: exports.Labelled, Ports: ports,
		Endpoints: []exports.Group{{Addresses: []exports.Endpoint{{IP: netip.MustParseAddr(address)}}}}}
}

// importRole is the Role that lets rome's gateway write imports.
func importRole(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	return object(t, `{metadata: {name: culvert-imports-milan, namespace: milan, uid: "5"}}`)
}

// TestImport: a Service that the peer exports gets a name in one namespace, and the address under
// which this cluster sees it.
func TestImport(t *testing.T) {
	p := readIn(t, "peer: milan", "peer: milan\n  imports: milan")
	if p.Imports != "milan" || len(p.Faults) > 0 {
		t.Fatalf("%q %q", p.Imports, p.Faults)
	}
	ports := []exports.Port{{Name: "dns", Protocol: "UDP", Port: 53}, {Name: "dns-tcp", Protocol: "TCP", Port: 53},
		{Name: "s", Protocol: "SCTP", Port: 9}}
	all, faults := p.imports([]*exports.Service{told("shop", "web", "10.70.0.9"), told("kube-system", "dns",
		"10.70.0.255", ports...), told("a", "one", "10.70.0.1", exports.Port{Protocol: "TCP", Port: 1})})
	if len(faults) > 0 || len(all) != 3 {
		t.Fatalf("%q %v", faults, all)
	}
	if x := all["web-shop"]; x.at.String() != "10.71.0.9" || x.of != "shop/web" {
		t.Errorf("%+v", x)
	}
	x := all["dns-kube-system"]
	service := x.service("milan", importRole(t))
	slice := x.slice("milan", service, false)
	want := `{"ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack","ports":[{"name":"dns","protocol":"UDP","port":53,"targetPort":53},{"name":"dns-tcp","protocol":"TCP","port":53,"targetPort":53},{"name":"s","protocol":"SCTP","port":9,"targetPort":9}],"type":"ClusterIP"}`
	if got := text(t, service.Object["spec"]); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got, want := text(t, slice.Object["endpoints"]),
		`[{"addresses":["10.71.0.255"],"conditions":{"ready":true}}]`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if service.GetName() != "dns-kube-system" || service.GetNamespace() != "milan" || slice.GetNamespace() != "milan" ||
		slice.GetLabels()[labelService] != "dns-kube-system" {
		t.Errorf("%v %v", service, slice)
	}
	if !x.sameService(service) || !x.sameSlice(slice) || !x.sameService(x.updated(service, importRole(t))) ||
		all["web-shop"].sameService(service) || all["web-shop"].sameSlice(slice) {
		t.Error("the objects of an import are not recognised")
	}
}

// toldBoth is a Service of the peer with two addresses.
func toldBoth(name, first, second string) *exports.Service {
	s := told("shop", name, first)
	s.Endpoints[0].Addresses = append(s.Endpoints[0].Addresses, exports.Endpoint{IP: netip.MustParseAddr(second)})
	return s
}

// TestImportFamilies: a Service has the families of the peer's, as far as the Peering does. A
// second one comes and goes at the same Service; if the first one goes, there is another Service.
func TestImportFamilies(t *testing.T) {
	p := readIn(t, dual...)
	for _, lie := range []*exports.Service{toldBoth("web", "10.70.0.9", "fd71::9"), toldBoth("web", "10.70.0.9", "fd70::"),
		toldBoth("web", "fd70::9", "fd70::8"), told("shop", "web", "::ffff:10.70.0.9"), told("shop", "web", "fe80::1%eth0")} {
		if all, faults := p.imports([]*exports.Service{lie}); len(all) > 0 || len(faults) != 1 {
			t.Errorf("%v: %v, %q", lie.Endpoints, all, faults)
		}
	}
	if all, faults := readIn(t).imports([]*exports.Service{toldBoth("web", "10.70.0.9", "fd70::9")}); len(faults) > 0 ||
		all["web-shop"].at.String() != "10.71.0.9" {
		t.Errorf("a Peering of IPv4: %v, %q", all, faults)
	}
	inCluster(t, func(t *testing.T, c *cluster) {
		c.limit(1000)
		u := object(t, romeToMilan, dual...)
		u.SetGeneration(4)
		need.NoError(t, unstructured.SetNestedField(u.Object, "imported", "spec", "imports"))
		c.update(KindPeering, u)
		last := ""
		for _, step := range []struct {
			told *exports.Service
			same bool // the Service is the one before
			want string
		}{
			{told("shop", "web", "10.70.0.9"), false, `["IPv4"] "SingleStack" IPv4 10.71.0.9`},
			{toldBoth("web", "10.70.0.9", "fd70::9"), true, `["IPv4"] "PreferDualStack" IPv4 10.71.0.9 IPv6 fd71::9`},
			{told("shop", "web", "10.70.0.9"), true, `["IPv4"] "SingleStack" IPv4 10.71.0.9`},
			{told("shop", "web", "fd70::9"), false, `["IPv6"] "SingleStack" IPv6 fd71::9`},
			{toldBoth("web", "10.70.0.9", "fd70::9"), true, `["IPv6"] "PreferDualStack" IPv4 10.71.0.9 IPv6 fd71::9`},
			{told("shop", "web", "10.70.0.9"), false, `["IPv4"] "SingleStack" IPv4 10.71.0.9`},
		} {
			c.hear(step.told)
			uid, _ := c.imported("web-shop")
			o, err := c.Tracker().Get(paths[setImported], "imported", "web-shop")
			need.NoError(t, err)
			var spec struct{ IPFamilies, IPFamilyPolicy json.RawMessage }
			readPart(o.(*unstructured.Unstructured), "spec", &spec)
			got := fmt.Sprintf("%s %s", spec.IPFamilies, spec.IPFamilyPolicy)
			all, err := c.FakeDynamicClient.Resource(paths[setImportedSlices]).List(t.Context(), metav1.ListOptions{})
			need.NoError(t, err)
			for i := range all.Items {
				var endpoints []struct{ Addresses []string }
				readPart(&all.Items[i], "endpoints", &endpoints)
				got += fmt.Sprintf(" %s %s", all.Items[i].Object["addressType"], endpoints[0].Addresses[0])
			}
			if got != step.want || (uid == last) != step.same {
				t.Errorf("%v: %s, the Service is the one before: %t; want %s, %t", step.told.Endpoints, got,
					uid == last, step.want, step.same)
			}
			last = uid
		}
		if got := c.condition(Imported); got.Status != "True" {
			t.Errorf("%+v", got)
		}
		c.all()
		c.hear(told("shop", "web", "10.70.0.9"))
		if _, _, n := c.all(); n > 0 {
			t.Errorf("what has not changed is written %d times", n)
		}
	})
}

// TestImportPutRight: changes that others make to an import are undone, and the Service keeps the
// address that the API server has given it.
func TestImportPutRight(t *testing.T) {
	p := readIn(t)
	all, _ := p.imports([]*exports.Service{told("shop", "web", "10.70.0.9")})
	x := all["web-shop"]
	stored := object(t,
		`{apiVersion: v1, kind: Service, metadata: {name: web-shop, namespace: milan, resourceVersion: "7", annotations: {culvert.io/exported-as: shop/web},
		ownerReferences: [{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, name: culvert-imports-milan, uid: "5"}]},
		spec: {clusterIP: 10.96.0.7, clusterIPs: [10.96.0.7], ports: [{name: http, protocol: TCP, port: 80, targetPort: 80}]}}`)
	if !x.sameService(stored) {
		t.Fatal("as it was made")
	}
	for _, change := range []func(u *unstructured.Unstructured, spec map[string]any){
		func(_ *unstructured.Unstructured, spec map[string]any) {
			spec["selector"] = map[string]any{"app": "other"}
		},
		func(_ *unstructured.Unstructured, spec map[string]any) { spec["ports"] = []any{} },
		func(_ *unstructured.Unstructured, spec map[string]any) {
			spec["ports"].([]any)[0].(map[string]any)["targetPort"] = "http"
		},
	} {
		u := &unstructured.Unstructured{Object: object(t, text(t, stored.Object)).Object}
		change(u, u.Object["spec"].(map[string]any))
		if x.sameService(u) {
			t.Errorf("a changed Service counts as unchanged: %v", u.Object)
		}
		next := x.updated(u, importRole(t))
		if got := text(t, next.Object["spec"]); !x.sameService(next) ||
			!strings.Contains(got, `"clusterIP":"10.96.0.7"`) || next.GetResourceVersion() != "7" {
			t.Errorf("the restored Service is %s, want it as it was made, with its clusterIP and resourceVersion", got)
		}
	}
	stored.SetAnnotations(map[string]string{annotationOf: "shop/other", "example.org/owner": "us"})
	if next := x.updated(stored, importRole(t)); !x.sameService(next) || next.GetAnnotations()["example.org/owner"] !=
		"us" || stored.GetAnnotations()[annotationOf] != "shop/other" {
		t.Errorf("annotations %v of %v", next.GetAnnotations(), stored.GetAnnotations())
	}
	for _, endpoints := range []string{"[]", "[{addresses: [10.71.0.8]}]",
		"[{addresses: [10.71.0.9], conditions: {ready: false}}]", "[{addresses: [10.71.0.9, 10.71.0.8]}]",
		"[{addresses: [10.71.0.9]}, {addresses: [203.0.113.1]}]"} {
		u := object(t,
			fmt.Sprintf(`{metadata: {labels: {kubernetes.io/service-name: web-shop}}, ports: [{name: http, protocol: TCP, port: 80}], endpoints: %s}`, endpoints))
		if x.sameSlice(u) {
			t.Errorf("a slice with endpoints %s counts as unchanged", endpoints)
		}
		if !x.sameSlice(x.fill(u)) {
			t.Errorf("a slice with endpoints %s is not restored", endpoints)
		}
	}
}

// TestLyingPeer: a Service with a claim that a peer may not make is left out with the reason, and
// others are imported.
func TestLyingPeer(t *testing.T) {
	port := func(name, protocol string, number uint16) exports.Port {
		return exports.Port{Name: name, Protocol: protocol, Port: number}
	}
	long := strings.Repeat("x", 40)
	ports := make([]exports.Port, maxPorts)
	for i := range ports {
		ports[i] = port(fmt.Sprint("p", i), "TCP", uint16(1+i))
	}
	for _, c := range []struct {
		lie  *exports.Service
		want string
	}{
		{told("shop", "Web", "10.70.0.9"), `the peer's Service "shop/Web": its name or its namespace is no DNS label`},
		{told("../kube-system", "web", "10.70.0.9"), `the peer's Service "../kube-system/web": its name or`},
		{told("shop", "web.default", "10.70.0.9"), "is no DNS label"},
		{told("shop", "", "10.70.0.9"), "is no DNS label"},
		{told("shop", "web\n", "10.70.0.9"), `"shop/web\n": its name`},
		{told(long, long, "10.70.0.9"), "has 81 characters; at most 63 are possible"},
		{told("shop", "good", "10.70.0.8"), "good-shop would be its name here, as that of shop/good is"},
		{told("a-shop", "x", "10.71.0.9"),
			"10.71.0.9 is not of its cluster's external CIDR, spec.remote.externalCIDR.cidr"},
		{told("shop", "web", "10.96.0.1"), "10.96.0.1 is not of"},
		{told("shop", "web", "10.244.0.1"), "10.244.0.1 is not of"},
		{told("shop", "web", "::1"), "::1 is not of"},
		{told("shop", "web", "::ffff:10.70.0.9"), "is not of"},
		{told("shop", "web", "10.70.0.0"), "10.70.0.0 stands for all that are unknown there"},
		{told("shop", "web", "10.70.0.9", port("", "ICMP", 80)), `protocol "ICMP" is not TCP, UDP or SCTP`},
		{told("shop", "web", "10.70.0.9", port("", "TCP", 0)), "0 is no port"},
		{told("shop", "web", "10.70.0.9", port("A", "TCP", 80)), `"A", the name of a port, is no DNS label`},
		{told("shop", "web", "10.70.0.9", port("", "TCP", 80), port("b", "TCP", 81)), "one of several ports has no name"},
		{told("shop", "web", "10.70.0.9", port("a", "TCP", 80), port("a", "UDP", 81)), `port "a", 81, is there twice`},
		{told("shop", "web", "10.70.0.9", port("a", "TCP", 80), port("b", "TCP", 80)), `port "b", 80, is there twice`},
		{told("shop", "web", "10.70.0.9", []exports.Port{}...), "it has no ports"},
		{told("shop", "web", "10.70.0.9", ports...), "the peer exports more than 500 ports"},
		{&exports.Service{Namespace: "shop", Name: "web", Type: exports.Labelled}, "it has no address"},
		{toldBoth("web", "10.70.0.9", "10.70.0.8"), "10.70.0.8 is its second address of one family"},
	} {
		p := readIn(t)
		all, faults := p.imports([]*exports.Service{told("shop", "good", "10.70.0.7"), c.lie})
		if len(faults) != 1 || !strings.Contains(faults[0], c.want) {
			t.Errorf("%q, want %q", faults, c.want)
		}
		if len(all) != 1 || all["good-shop"].at.String() != "10.71.0.7" {
			t.Errorf("%q: imported %v", c.want, all)
		}
	}
	p := readIn(t, "    externalCIDR: {cidr: 10.70.0.0/24, remap: 10.71.0.0/24}\n", "")
	all, faults := p.imports([]*exports.Service{told("shop", "web", "10.70.0.9")})
	if len(all) > 0 || len(faults) != 1 {
		t.Errorf("without an external CIDR: %v, %q", all, faults)
	}
	if p := readIn(t, "peer: milan", "peer: milan\n  imports: a/b"); !slices.ContainsFunc(p.Faults,
		func(s string) bool { return strings.HasPrefix(s, "spec.imports: ") }) {
		t.Errorf("%q", p.Faults)
	}
}

// TestImportOvertaken: what the watch has told while a request was on its way is newer than its
// answer, and stays. Otherwise each further request would be refused as a conflict, for no watch
// tells the same twice.
func TestImportOvertaken(t *testing.T) {
	p := readIn(t)
	all, _ := p.imports([]*exports.Service{told("shop", "web", "10.70.0.9")})
	x, key := all["web-shop"], "milan/web-shop"
	version := func(n int) *unstructured.Unstructured {
		u := x.service("milan", importRole(t))
		u.SetResourceVersion(fmt.Sprint(n))
		return u
	}
	for _, c := range []struct {
		verb     string
		was, new *unstructured.Unstructured // nil: none
		want     string                     // version that is kept; "" = none
	}{
		{"create", nil, nil, "2"}, {"create", nil, version(3), "3"}, {"update", version(1), nil, "2"},
		{"update", version(1), version(3), "3"},
		{"delete", version(1), nil, ""}, {"delete", version(1), version(3), "3"},
	} {
		client := &cluster{FakeDynamicClient: fake.NewSimpleDynamicClient(runtime.NewScheme())}
		s := NewGatewaySource(client, Self{Name: "milan"}, NodeNamespace, quiet())
		j := &job{importer: &s.services.importer, ctx: t.Context(), now: start, x: s.services,
			services: map[string]*unstructured.Unstructured{}}
		if c.was != nil {
			s.services.services[key], j.services[key] = c.was, c.was
		}
		client.PrependReactor(c.verb, "services", func(kubetesting.Action) (bool, runtime.Object, error) {
			if c.new != nil { // the watch is faster
				s.services.services[key] = c.new
			}
			return true, version(2), nil
		})
		if c.verb == "delete" {
			j.remove("elsewhere", nil, true)
		} else {
			j.put(c.verb, setImported, x, version(1))
		}
		got := ""
		if u := s.services.services[key]; u != nil {
			got = u.GetResourceVersion()
		}
		if got != c.want || j.fault != "" {
			t.Errorf("%s, overtaken %t: version %q is kept, want %q; %s", c.verb, c.new != nil, got, c.want, j.fault)
		}
	}
}

// TestImportLost: somebody deletes an import that the gateway has just made, before a watch shows
// it. A list without it says so, or the gateway would never make it again.
func TestImportLost(t *testing.T) {
	p := readIn(t)
	all, _ := p.imports([]*exports.Service{told("shop", "web", "10.70.0.9")})
	x := all["web-shop"]
	client := &cluster{FakeDynamicClient: fake.NewSimpleDynamicClient(runtime.NewScheme())}
	s := NewGatewaySource(client, Self{Name: "milan"}, NodeNamespace, quiet())
	j := &job{importer: &s.services.importer, ctx: t.Context(), now: start, x: s.services}
	of := j.put("create", setImported, x, x.service("milan", importRole(t)))
	if of == nil || j.put("create", setImportedSlices, x, x.slice("milan", of, false)) == nil ||
		len(s.services.services) != 1 || len(s.services.slices) != 1 {
		t.Fatalf("%v, %v, %v; %s", of, s.services.services, s.services.slices, j.fault)
	}
	for _, set := range s.services.sets() {
		need.NoError(t, kube.Sink{Loop: s.loop, Set: set}.Replace(nil, ""))
	}
	if n := len(s.services.services) + len(s.services.slices); n != 0 {
		t.Errorf("the gateway still takes %d objects for there", n)
	}
}

func quiet() *logrus.Entry {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return logrus.NewEntry(log)
}

// bait is a Service of somebody who may write in the namespace evil: it looks like an import.
const bait = `{apiVersion: v1, kind: Service, metadata: {name: bait, namespace: evil, labels: {culvert.io/imported-by: milan},
	ownerReferences: [{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, name: culvert-imports-milan, uid: x}]}}`

// TestBait: objects elsewhere that look like imports, and one import that is refused, keep no other
// import away. Nobody is told to give the gateway rights where the bait is.
func TestBait(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		c.create(setImported, bait)
		c.create(setImported, strings.NewReplacer("name: bait", "name: label", "ownerReferences", "x").Replace(bait))
		c.create(setImported, strings.NewReplacer("name: bait", "name: mine", "namespace: evil", "namespace: imported",
			"ownerReferences", "x").Replace(bait))
		refused, quota := 0, true
		c.PrependReactor("*", "services", func(a kubetesting.Action) (bool, runtime.Object, error) {
			if a.GetVerb() == "list" || a.GetVerb() == "watch" || a.GetNamespace() == "imported" &&
				!(a.GetVerb() == "create" && quota) {
				return false, nil, nil
			}
			refused++
			quota = quota && a.GetNamespace() != "imported"
			return true, nil, apierrors.NewForbidden(paths[setImported].GroupResource(), "", errors.New("not allowed"))
		})
		c.imports("imported", 4)
		c.hear(told("shop", "first", "10.70.0.8"), told("shop", "web", "10.70.0.9"))
		synctest.Wait()
		if _, err := c.Tracker().Get(paths[setImportedSlices], "imported", "web-shop"); err != nil {
			t.Errorf("another import does not come: %v", err)
		}
		if got := c.condition(Imported); got.Reason != "Refused" || !strings.Contains(got.Message,
			"Service imported/first-shop") || !strings.HasSuffix(got.Message, "not allowed") {
			t.Errorf("%+v", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := c.condition(Imported); got.Status != "True" {
			t.Errorf("a minute later: %+v", got)
		}
		for _, key := range []string{"evil/bait", "evil/label", "imported/mine"} {
			namespace, name, _ := strings.Cut(key, "/")
			if _, err := c.Tracker().Get(paths[setImported], namespace, name); err != nil {
				t.Error(err)
			}
		}
		if refused > 2 {
			t.Errorf("%d refused requests in a minute, want one for each cause", refused)
		}
	})
}

// imported returns the uid of an imported Service, and whether it has an EndpointSlice; "" = none.
func (c *cluster) imported(name string) (uid string, served bool) {
	o, err := c.Tracker().Get(paths[setImported], "imported", name)
	if err != nil {
		return "", false
	}
	_, err = c.Tracker().Get(paths[setImportedSlices], "imported", name)
	return string(o.(*unstructured.Unstructured).GetUID()), err == nil
}

// services returns how many Services there are.
func (c *cluster) services() int {
	c.t.Helper()
	all, err := c.FakeDynamicClient.Resource(paths[setImported]).List(c.t.Context(), metav1.ListOptions{})
	need.NoError(c.t, err)
	return len(all.Items)
}

// limit makes an API server that gives each new object a uid, and has ClusterIPs for so many
// Services.
func (c *cluster) limit(most int) {
	made, there := 0, 0 // reactors are called one at a time
	c.PrependReactor("create", "*", func(a kubetesting.Action) (bool, runtime.Object, error) {
		if made++; a.GetResource() == paths[setImported] {
			if there == most {
				return true, nil, apierrors.NewInternalError(
					errors.New("failed to allocate a serviceIP: range is full"))
			}
			there++
		}
		a.(kubetesting.CreateAction).GetObject().(*unstructured.Unstructured).SetUID(types.UID(fmt.Sprint(made)))
		return false, nil, nil
	})
	c.PrependReactor("delete", "services", func(kubetesting.Action) (bool, runtime.Object, error) {
		there--
		return false, nil, nil
	})
}

// TestImportReturns: an import without its export serves nobody, and keeps its ClusterIP for
// holdTime.
func TestImportReturns(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		c.limit(1000)
		web, api := told("shop", "web", "10.70.0.9"), told("shop", "api", "10.70.0.8")
		c.imports("imported", 4)
		c.hear(web, api)
		first, served := c.imported("web-shop")
		if first == "" || !served {
			t.Fatalf("imported: %q, %t", first, served)
		}
		c.hear(api)
		if uid, served := c.imported("web-shop"); uid != first || served {
			t.Errorf("2 s after it has gone: %q, served %t", uid, served)
		}
		web = told("shop", "web", "10.70.0.10")
		c.hear(web, api)
		if uid, served := c.imported("web-shop"); uid != first || !served {
			t.Errorf("it has returned: %q, served %t; it was %q", uid, served, first)
		}
		c.hear(api)
		time.Sleep(holdTime - 10*time.Second)
		synctest.Wait()
		if uid, _ := c.imported("web-shop"); uid != first {
			t.Errorf("before %v: %q", holdTime, uid)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if uid, _ := c.imported("web-shop"); uid != "" {
			t.Errorf("after %v: %q is still there", holdTime, uid)
		}
		if uid, served := c.imported("api-shop"); uid == "" || !served {
			t.Errorf("the other one: %q, %t", uid, served)
		}
		if got := c.condition(Imported); got.Status != "True" {
			t.Errorf("%+v", got)
		}
		c.hear(web)
		c.rests.Store(true)
		time.Sleep(2 * holdTime)
		c.rests.Store(false)
		c.hear(web)
		if uid, _ := c.imported("api-shop"); uid == "" {
			t.Errorf("another gateway was active, and an import that had gone just before is not kept")
		}
		c.imports("", 5)
		time.Sleep(2 * kube.Tick)
		synctest.Wait()
		for _, name := range []string{"web-shop", "api-shop"} {
			if uid, _ := c.imported(name); uid != "" {
				t.Errorf("nothing is to be imported, and %s stays", name)
			}
		}
	})
}

// many are exports of a peer.
func many(name string, n int) (all []*exports.Service) {
	for i := range n {
		all = append(all, told("shop", fmt.Sprintf("%s%03d", name, i), "10.70.0.9"))
	}
	return all
}

// TestImportShare: a peer's imports have a quarter of the ClusterIPs at most, with those that are
// held. What was imported first stays.
func TestImportShare(t *testing.T) {
	for name, test := range map[string]struct {
		ranges string
		want   int
	}{
		"a small range": {"{spec: {cidrs: [10.96.0.0/26, 'fd00::/108']}, metadata: {name: kubernetes}}", 16},
		"a range within": {"{spec: {cidrs: [10.96.0.0/27, 10.96.0.0/26, 10.96.0.0/26]}, metadata: {name: kubernetes}}",
			16},
		"IPv6 alone":    {"{spec: {cidrs: ['fd00::/122']}, metadata: {name: kubernetes}}", 16},
		"a tiny range":  {"{spec: {cidrs: [10.96.0.0/31]}, metadata: {name: kubernetes}}", 1},
		"a large range": {"{spec: {cidrs: [10.96.0.0/12]}, metadata: {name: kubernetes}}", 40},
		"no right":      {"", 40},
	} {
		inCluster(t, func(t *testing.T, c *cluster) {
			c.limit(1000)
			if test.ranges == "" {
				c.PrependReactor("list", "servicecidrs", func(kubetesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewForbidden(paths[kindServiceCIDR].GroupResource(), "",
						errors.New("not allowed"))
				})
			} else {
				c.create(kindServiceCIDR, test.ranges)
			}
			foreign := test.want // somebody else's Services, which look like imports
			for n := range foreign {
				c.create(setImported, strings.Replace(bait, "name: bait", fmt.Sprint("name: bait", n), 1))
			}
			c.PrependReactor("delete", "services", func(a kubetesting.Action) (bool, runtime.Object, error) {
				return a.GetNamespace() == "evil", nil, apierrors.NewForbidden(paths[setImported].GroupResource(), "",
					errors.New("not allowed"))
			})
			c.imports("imported", 4)
			c.hear(told("shop", "web", "10.70.0.8"))
			c.hear(append(many("bait", 39), told("shop", "web", "10.70.0.8"))...)
			if n := c.services() - foreign; n != test.want {
				t.Errorf("%s: %d Services are imported, want %d", name, n, test.want)
			}
			if web, served := c.imported("web-shop"); web == "" || !served {
				t.Errorf("%s: what came first: %q, %t", name, web, served)
			}
			want := fmt.Sprintf(
				"%d of the peer's Services are not imported: they may have %d ClusterIPs, a quarter of the cluster's;",
				40-test.want, test.want)
			if got := c.condition(Imported); (test.want < 40) != strings.HasPrefix(got.Message, want) {
				t.Errorf("%s: %+v, want %q", name, got, want)
			}
			for i := range 3 { // what is held makes room
				c.hear(many(fmt.Sprint("again", i), 20)...)
			}
			if n := c.services() - foreign; test.want < 40 && n != test.want || n > exports.MaxServices {
				t.Errorf("%s: %d Services after changes", name, n)
			}
			if uid, served := c.imported("again2000-shop"); uid == "" || !served {
				t.Errorf("%s: after changes, what is held makes no room", name)
			}
		})
	}
}

// TestImportFull: when the cluster has no ClusterIP left, the condition says so, few requests are
// made, and no address is held.
func TestImportFull(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		c.limit(10)
		c.imports("imported", 4)
		c.hear(many("web", 5)...)
		c.hear(append(many("web", 3), many("api", 20)...)...)
		time.Sleep(2 * retryFull)
		synctest.Wait()
		want := "the cluster has no ClusterIP left for 13 of the peer's Services: add a ServiceCIDR, or delete Services"
		if got := c.condition(Imported); got.Message != want {
			t.Errorf("%+v", got)
		}
		c.all()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if _, _, n := c.all(); n > 11 {
			t.Errorf("%d requests in ten minutes", n)
		}
		c.hear(many("web", 3)...)
		if got := c.condition(Imported); got.Status != "True" {
			t.Errorf("with room again: %+v", got)
		}
	})
}
