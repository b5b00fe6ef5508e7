package peering

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/gateway/config"
	"culvert/gateway/exports"
	"culvert/integration/need"
	"culvert/kube"
	"culvert/kube/service"
	"culvert/nat/rules"
)

// exportWith adds a Service of the namespace shop to a gateway's objects.
func exportWith(t testing.TB, g *Gateway, name string, replace ...string) {
	t.Helper()
	u := object(t, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: shop, uid: u-%[1]s, creationTimestamp: "2026-11-23T12:00:00Z", labels: {culvert/export: "true"}}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{name: http, port: 80, protocol: TCP, targetPort: web}]}
`, name), replace...)
	g.exportsKnown = true
	table[*exported](g.exported).set(kube.KeyOf(u), readExported(u))
	g.slices.wanted[service.Name{Namespace: u.GetNamespace(), Name: u.GetName()}] = true
}

// endpointsOf adds an EndpointSlice of a Service, ready or not by address.
func endpointsOf(t testing.TB, g *Gateway, name string, ready map[string]bool, replace ...string) {
	t.Helper()
	var all []string
	for a, r := range ready {
		all = append(all, fmt.Sprintf("{addresses: [%s], conditions: {ready: %t}}", a, r))
	}
	slices.Sort(all)
	u := object(t, fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s-1, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [%s]
`, name, strings.Join(all, ", ")), replace...)
	s := readSlice(u)
	g.slices.wanted[s.Of] = true
	g.slices.set(kube.KeyOf(u), s)
}

// addresses returns the addresses of exports in the status, by name.
func addresses(d *Plan) map[string]string {
	all := map[string]string{}
	for _, e := range d.Status.Exports {
		all[e.Name] = e.Address
	}
	return all
}

// TestExport: a labelled Service gets an address of the external CIDR, is served there when the API
// server has the address, and its backends are its ready endpoints: pods, and nodes' own addresses
// by way of the node.
func TestExport(t *testing.T) {
	g := rome(t)
	exportWith(t, g, "web", "ports:",
		"sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}, ports:")
	endpointsOf(t, g, "web", map[string]bool{"10.244.1.5": true, "10.244.2.5": true, "10.244.2.6": false,
		"172.18.0.2": true, "203.0.113.9": true})
	d := g.Plan()
	at := addresses(d)["web"]
	if a, err := netip.ParseAddr(at); err != nil || !netip.MustParsePrefix("10.70.0.0/24").Contains(a) ||
		at == "10.70.0.0" {
		t.Fatalf("address %q", at)
	}
	if len(d.Services)+len(d.Exports) > 0 {
		t.Errorf("%v, %v before the address is stored", d.Services, d.Exports)
	}
	store(g, d)
	d = g.Plan()
	addr := netip.MustParseAddr
	want := []config.Service{{
		Name: "web-shop", Address: rules.PairOf(addr(at)), Port: 80, Protocol: 6, Affinity: rules.AffinityClientIP,
		AffinityTimeout: time.Minute,
		Backends: []config.Backend{{Address: addr("10.244.1.5"), Port: 8080}, {Address: addr("10.244.2.5"), Port: 8080},
			{Address: addr("172.18.0.2"), Port: 8080, Via: "node2"}},
	}}
	if !reflect.DeepEqual(d.Services, want) {
		t.Errorf("%+v\nwant %+v", d.Services, want)
	}
	if want := []*exports.Service{told("shop", "web", at)}; !reflect.DeepEqual(d.Exports, want) {
		t.Errorf("told %v, want %v", d.Exports, want)
	}
	if len(d.ExportFaults) != 1 || !strings.HasPrefix(d.ExportFaults[0],
		"Service shop/web: its endpoint 203.0.113.9 is neither in spec.local.podCIDRs") || len(d.Faults) > 0 {
		t.Errorf("%q, %q", d.ExportFaults, d.Faults)
	}
	if err := config.Check(d.Config(d.Peering.Base(base()))); err != nil {
		t.Error(err)
	}
	endpointsOf(t, g, "web", nil)
	if d = g.Plan(); len(d.Services) != 1 || d.Services[0].Backends != nil || addresses(d)["web"] != at {
		t.Errorf("without endpoints: %+v at %v", d.Services, addresses(d))
	}
	if err := config.Check(d.Config(d.Peering.Base(base()))); err != nil {
		t.Error(err)
	}
	delete(g.exported, "shop/web")
	if d = g.Plan(); len(d.Services)+len(d.Status.Exports) > 0 || d.Exports == nil || len(d.Exports) > 0 {
		t.Errorf("after the label has gone: %v, %v, told %v", d.Services, d.Status.Exports, d.Exports)
	}
}

// TestExportsKeepTheirOrder: another endpoint changes the backends of one Service and nothing else,
// although it changes whose turn it is.
func TestExportsKeepTheirOrder(t *testing.T) {
	g := rome(t)
	bank := []string{"namespace: shop", "namespace: bank"}
	exportWith(t, g, "web")
	exportWith(t, g, "till", bank...)
	endpointsOf(t, g, "web", map[string]bool{"10.244.1.5": true})
	endpointsOf(t, g, "till", map[string]bool{"10.244.1.6": true, "10.244.1.7": true}, bank...)
	store(g, g.Plan())
	before := g.Plan()
	endpointsOf(t, g, "web", map[string]bool{"10.244.1.5": true, "10.244.2.5": true, "10.244.2.6": true})
	after := g.Plan()
	if len(before.Exports) != 2 || !reflect.DeepEqual(before.Exports, after.Exports) {
		t.Errorf("told %v, then %v", before.Exports, after.Exports)
	}
	for i := range after.Services {
		if a, b := before.Services[i].Name, after.Services[i].Name; a != b {
			t.Errorf("Service %d was %s and is %s", i, a, b)
		}
	}
}

// TestExportFamilies: a Service has an address of each family that it and the external CIDRs have,
// with one number, and at each one the endpoints of that family. It keeps the number while families
// come and go.
func TestExportFamilies(t *testing.T) {
	const four, six = "10.96.0.10, clusterIPs: [10.96.0.10]", "'fd96::10', clusterIPs: ['fd96::10']"
	families := map[string]string{"four": four, "six": six, "both": "10.96.0.10, clusterIPs: [10.96.0.10, 'fd96::10']"}
	g := rome(t)
	for n := 1; n <= 2; n++ {
		g.nodes[fmt.Sprint("node", n)] = readNode(object(t, fmt.Sprintf(nodeText, n), fmt.Sprintf("podCIDRs: [10.244.%d.0/24]", n),
			fmt.Sprintf("podCIDRs: ['fd00:244:0:%d::/64', 10.244.%[1]d.0/24]", n)))
	}
	for name, ips := range families {
		exportWith(t, g, name, four, ips)
		endpointsOf(t, g, name, map[string]bool{"10.244.1.5": true})
		endpointsOf(t, g, name, map[string]bool{"'fd00:244:0:1::5'": true}, name+"-1", name+"-6", "addressType: IPv4",
			"addressType: IPv6")
	}
	told := func(p *Peering) (d *Plan, all map[string]string) {
		p.Status = g.peering.Status
		g.put(p)
		store(g, g.Plan())
		d, all = g.Plan(), map[string]string{}
		need.NoError(t, config.Check(d.Config(d.Peering.Base(base()))))
		for _, e := range d.Exports {
			for _, x := range e.Endpoints[0].Addresses {
				all[e.Name] += " " + x.IP.String()
			}
			if len(e.Ports) != 1 {
				t.Errorf("%s: ports %v", e.Name, e.Ports)
			}
		}
		for _, s := range d.Services {
			if len(s.Backends) != 1 || s.Backends[0].Address.Is6() != s.Address.V6.IsValid() {
				t.Errorf("%s at %s has %v", s.Name, s.Address, s.Backends)
			}
		}
		return d, all
	}
	d, alone := told(readIn(t))
	if len(alone) != 2 || alone["six"] != "" || len(d.ExportFaults) != 1 {
		t.Fatalf("by a Peering of IPv4: %v, %q", alone, d.ExportFaults)
	}
	at := func(name string) string { return fmt.Sprintf(" fd70::%x", d.Peering.exportNumber(alone[name][1:])) }
	want := map[string]string{"four": alone["four"], "both": alone["both"] + at("both")}
	d, got := told(readIn(t, dual...))
	if want["six"] = got["six"]; !reflect.DeepEqual(got, want) || !strings.HasPrefix(got["six"], " fd70::") ||
		len(d.ExportFaults)+len(d.Faults) > 0 {
		t.Errorf("%v, want %v; %q, %q", got, want, d.ExportFaults, d.Faults)
	}
	if a := addresses(d); " "+a["both"] != alone["both"] || " "+a["six"] != got["six"] {
		t.Errorf("status: %v", a)
	}
	d, got = told(readIn(t, strings.Split(strings.ReplaceAll(strings.Join(dual, "|"), "'fd70::/112']", "'fd70::/128']"), "|")...))
	const small = "Service shop/both: spec.local.externalCIDRs of Peering milan: fd70::/128 has no address number "
	if got["both"] != alone["both"] || got["four"] != alone["four"] ||
		!slices.ContainsFunc(d.ExportFaults, func(s string) bool { return strings.HasPrefix(s, small) }) {
		t.Errorf("a small CIDR of IPv6: %v, %q", got, d.ExportFaults)
	}
	if _, got = told(readIn(t)); !reflect.DeepEqual(got, alone) {
		t.Errorf("IPv6 is gone: %v, want %v", got, alone)
	}
}

// TestExportAddresses: a Service keeps its address when others are added or removed. If the status
// is lost, most Services get the same address again.
func TestExportAddresses(t *testing.T) {
	g := rome(t)
	for i := range 100 {
		exportWith(t, g, fmt.Sprint("web-", i))
	}
	d := g.Plan()
	first := addresses(d)
	store(g, d)
	for i := range 60 {
		exportWith(t, g, fmt.Sprint("api-", i), "2026-11-23T12:00:00Z", "2020-01-01T00:00:00Z") // older
	}
	delete(g.exported, "shop/web-7")
	d = g.Plan()
	used := map[string]bool{"10.70.0.0": true}
	for name, a := range addresses(d) {
		if used[a] {
			t.Errorf("%s gets %s, which another Service has", name, a)
		}
		if used[a] = true; strings.HasPrefix(name, "web") && a != first[name] {
			t.Errorf("%s has %s, want %s as before", name, a, first[name])
		}
	}
	if len(used) != 1+99+60 {
		t.Errorf("%d addresses", len(used))
	}
	before := addresses(d)
	store(g, d)
	p := *g.peering
	p.Status = Status{}
	g.put(&p)
	moved := 0
	for name, a := range addresses(g.Plan()) {
		if a != before[name] {
			moved++
		}
	}
	if moved > 80 {
		t.Errorf("after the status was lost, %d of 159 addresses differ, want at most 80", moved)
	}
	p.Status.Exports = []ExportStatus{{"shop", "web-1", "10.70.0.0"}, {"shop", "web-2", "10.99.0.5"},
		{"shop", "web-3", "10.70.0.9"}, {"shop", "web-4", "10.70.0.9"}, {"shop", "gone", "10.70.0.8"},
		{"shop", "web-5", "x"}}
	g.put(&p)
	if now := addresses(g.Plan()); now["web-1"] == "10.70.0.0" || now["web-2"] == "10.99.0.5" ||
		now["web-3"] != "10.70.0.9" || now["web-4"] == "10.70.0.9" || now["gone"] != "" {
		t.Errorf("%s", text(t, now))
	}
}

// TestExportRefused: a Service that cannot be exported is reported with its field. All others are
// exported, and nodes are served in any case.
func TestExportRefused(t *testing.T) {
	long := strings.Repeat("x", 60)
	for _, c := range []struct {
		name    string
		replace []string
		want    string
	}{
		{"headless", []string{"clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10]", "clusterIP: None"},
			"spec.clusterIP: a headless Service has no one address"},
		{"name", []string{"clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10]", "type: ExternalName"},
			"spec.type: ExternalName is a name without endpoints"},
		{"six", []string{"10.96.0.10, clusterIPs: [10.96.0.10]", "'fd00::1', clusterIPs: ['fd00::1']"},
			"spec.local.externalCIDR of Peering milan: missing, one of IPv6; exported Services have their addresses from it"},
		{"yes", []string{`"true"`, `"yes"`}, `metadata.labels[culvert/export]: "yes" is neither true nor false`},
		{long, nil, "metadata.name: " + long + "-shop is its name in the other cluster, and has 65 characters"},
		{"web-shop", []string{"namespace: shop", "namespace: a"}, ""},
		{"web", []string{"namespace: shop", "namespace: shop-a", "12:00:00Z", "12:00:01Z"},
			"metadata.name: in the other cluster it would be web-shop-a, as a/web-shop is"},
		{"ports", []string{"ports: [", "ports: [{name: bad, port: 70000}, "}, "spec.ports[0].port: 70000"},
	} {
		g := rome(t)
		exportWith(t, g, "good", "2026-11-23T12:00:00Z", "2026-01-01T00:00:00Z")
		if c.name == "web" {
			exportWith(t, g, "web-shop", "namespace: shop", "namespace: a")
		}
		exportWith(t, g, c.name, c.replace...)
		d := g.Plan()
		if got := strings.Join(d.ExportFaults, "\n"); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if addresses(d)["good"] == "" || len(d.Faults) > 0 || len(d.Nodes) != 2 {
			t.Errorf("%s: %v, faults %q, %d nodes", c.name, addresses(d), d.Faults, len(d.Nodes))
		}
	}
	g := rome(t)
	exportWith(t, g, "not", `"true"`, `"false"`)
	if d := g.Plan(); len(d.ExportFaults)+len(d.Status.Exports) > 0 {
		t.Errorf(`"false": %q, %v`, d.ExportFaults, d.Status.Exports)
	}
}

// TestExportFull: when no address is free, new Services wait, and the others keep their addresses.
func TestExportFull(t *testing.T) {
	g := rome(t)
	g.put(readIn(t, "externalCIDR: 10.70.0.0/24}", "externalCIDR: 10.70.0.0/30}"))
	for i := range 3 {
		exportWith(t, g, fmt.Sprint("web-", i))
	}
	d := g.Plan()
	if len(d.Status.Exports) != 3 || d.ExternalFull {
		t.Fatalf("%v, %q", d.Status.Exports, d.ExportFaults)
	}
	store(g, d)
	exportWith(t, g, "web-old", "2026-11-23T12:00:00Z", "2020-01-01T00:00:00Z")
	d = g.Plan()
	want := "Service shop/web-old: spec.local.externalCIDR of Peering milan: 10.70.0.0/30 has no address left"
	if !d.ExternalFull || !slices.Equal(d.ExportFaults, []string{want}) || len(d.Exports) != 3 {
		t.Errorf("%t %q %v", d.ExternalFull, d.ExportFaults, d.Exports)
	}
	g.put(readIn(t, ", externalCIDR: 10.70.0.0/24}", "}"))
	if d = g.Plan(); len(d.Status.Exports) > 0 || len(d.ExportFaults) != 4 || !strings.Contains(d.ExportFaults[0],
		"spec.local.externalCIDR of Peering milan: missing") {
		t.Errorf("%v %q", d.Status.Exports, d.ExportFaults)
	}
}

// TestExportTooMany: a list has at most maxPorts ports; Services that are exported already
// stay.
func TestExportTooMany(t *testing.T) {
	g := rome(t)
	g.put(readIn(t, "10.70.0.0/24}\n  remote", "10.70.0.0/22}\n  remote", "cidr: 10.70.0.0/24, remap: 10.71.0.0/24",
		"cidr: 10.90.0.0/24, remap: 10.71.0.0/24"))
	for i := range maxPorts {
		exportWith(t, g, fmt.Sprint("web-", i))
	}
	store(g, g.Plan())
	exportWith(t, g, "old", "2026-11-23T12:00:00Z", "2020-01-01T00:00:00Z")
	d := g.Plan()
	if len(d.Exports) != maxPorts || !slices.Equal(d.ExportFaults,
		[]string{
			"Service shop/old: spec.ports: 500 ports are exported already, and at most 500 may be, which namespaces share"}) {
		t.Errorf("%d exports, %q", len(d.Exports), d.ExportFaults)
	}
	exchange, peer := exports.New(0), exports.New(0)
	exchange.Tell(d.Exports)
	if list, fault, known := passed(exchange, peer, start); !known || fault != "" || len(list) != maxPorts {
		t.Errorf("the peer has heard %d exports, %q", len(list), fault)
	}
}

// passed returns what an Exchange has heard after another has told it everything.
func passed(from, to *exports.Exchange, now time.Time) ([]*exports.Service, string, bool) {
	for end := now.Add(10 * time.Second); now.Before(end); now = now.Add(10 * time.Millisecond) {
		for _, x := range []*exports.Exchange{from, to} {
			other := to
			if x == to {
				other = from
			}
			datagrams, _ := x.Due(now)
			for _, b := range datagrams {
				other.Receive(b)
			}
		}
	}
	return to.Heard()
}

// TestExportUnknown: until all lists are read, nothing is sent to the peer, and no address is
// released.
func TestExportUnknown(t *testing.T) {
	g := rome(t)
	exportWith(t, g, "web")
	store(g, g.Plan())
	before := addresses(g.Plan())
	g.exportsKnown = false
	clear(g.exported)
	if d := g.Plan(); !reflect.DeepEqual(addresses(d), before) || d.Exports != nil {
		t.Errorf("%v, told %v", addresses(d), d.Exports)
	}
}

// TestOnlyExportedSlices: of EndpointSlices, a gateway keeps those of exported Services alone,
// however many others there are. A Service that is exported later has its endpoints too, and those
// of others stay meanwhile.
func TestOnlyExportedSlices(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		slice := func(namespace, service string, n int) string {
			return fmt.Sprintf(`{metadata: {name: %[2]s-%[3]d, namespace: %[1]s, labels: {kubernetes.io/service-name: %[2]s}}, addressType: IPv4,
				ports: [{name: http, port: 8080, protocol: TCP}], endpoints: [{addresses: [10.244.1.%[3]d], conditions: {ready: true}}]}`, namespace, service, n)
		}
		labelled := func(name, value string) *unstructured.Unstructured {
			return object(t,
				fmt.Sprintf(`{metadata: {name: %s, namespace: shop, uid: u-%[1]s, labels: {culvert/export: "%s"}},
				spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{name: http, port: 80, protocol: TCP}]}}`, name, value))
		}
		for _, name := range []string{"web", "api", "other"} {
			need.NoError(t, c.Tracker().Create(paths[setExported], labelled(name, "false"), "shop"))
			for n := range 20 {
				c.create(kindSlice, slice("shop", name, n+1))
				c.create(kindSlice, slice("elsewhere", name, n+1))
			}
			synctest.Wait() // a simulated watch has room for 100 events
		}
		kept := func() string {
			time.Sleep(2 * relistInterval)
			synctest.Wait()
			c.source.mu.Lock()
			defer c.source.mu.Unlock()
			all := map[string]int{}
			for _, s := range c.source.state.slices.table {
				all[s.Of.Namespace+"/"+s.Of.Name]++
			}
			for _, s := range c.source.state.Plan().Services {
				all["served "+s.Name] = len(s.Backends)
			}
			return text(t, all)
		}
		for _, step := range []struct {
			do   func()
			want string
		}{
			{func() {}, `{}`},
			{func() { c.update(setExported, labelled("web", "true")) }, `{"served web-shop":20,"shop/web":20}`},
			{func() { c.update(setExported, labelled("api", "true")) },
				`{"served api-shop":20,"served web-shop":20,"shop/api":20,"shop/web":20}`},
			{func() {
				c.create(kindSlice, slice("shop", "api", 21))
				c.create(kindSlice, slice("shop", "other", 21))
			}, `{"served api-shop":21,"served web-shop":20,"shop/api":21,"shop/web":20}`},
			{func() { c.update(setExported, labelled("web", "false")) }, `{"served api-shop":21,"shop/api":21}`},
			{func() { c.update(setExported, labelled("web", "true")) },
				`{"served api-shop":21,"served web-shop":20,"shop/api":21,"shop/web":20}`},
			{func() {
				c.update(setExported, labelled("web", "false"))
				c.update(setExported, labelled("api", "false"))
			}, `{}`},
		} {
			step.do()
			if got := kept(); got != step.want {
				t.Errorf("kept: %s\nwant: %s", got, step.want)
			}
		}
		lists := func() (n int) {
			for _, a := range c.Actions() {
				if a.GetVerb() == "list" && a.GetResource() == paths[kindSlice] {
					n++
				}
			}
			c.ClearActions()
			return n
		}
		lists()
		for n := range 300 { // somebody exports something else all the time
			c.update(setExported, labelled("web", fmt.Sprint(n%2 == 0)))
			time.Sleep(100 * time.Millisecond)
		}
		if n := lists(); n > 32 {
			t.Errorf("EndpointSlices are listed %d times in 30 s", n)
		}
	})
}
