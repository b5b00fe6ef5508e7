package multicluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"culvert/gateway/exports"
	"culvert/integration/need"
	"culvert/kube/mcs"
	"culvert/kube/objects"
	"culvert/kube/peering"
)

// A world is a State whose writes are obeyed at once, as by an API server without other clients.
type world struct {
	*State
	t       *testing.T
	now     time.Time
	version int
	writes  []string
	check   func(*Write) bool // if not nil, of each write
	has     []string          // families of Services; nil: IPv4
}

func object(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	need.NoError(t, yaml.Unmarshal([]byte(text), &u.Object))
	return u
}

const peeringText = `
metadata: {name: %[1]s, namespace: culvert, creationTimestamp: "2026-11-29T12:00:0%[2]dZ"}
spec:
  cluster: rome
  peer: %[1]s
  role: Server
  internalCIDR: 10.80.%[2]d.0/24
  local: {podCIDRs: [10.244.0.0/16], externalCIDR: 10.70.0.0/24}
  remote:
    podCIDRs: [{cidr: 10.244.0.0/16, remap: 10.6%[2]d.0.0/16}]
    externalCIDR: {cidr: 10.70.0.0/24, remap: 10.7%[2]d.0.0/24}
  services: {export: ["*"], import: ["*"]}
`

// rome is a cluster with the peers milan and turin and the namespaces shop and pay.
func rome(t *testing.T) *world {
	w := &world{State: NewState(), t: t, now: time.Date(2026, 11, 29, 18, 0, 0, 0, time.UTC)}
	for _, ns := range []string{"shop", "pay"} {
		w.PutNamespace(ns, true)
	}
	for i, name := range []string{"milan", "turin"} {
		w.peering(name, fmt.Sprintf(peeringText, name, i+1))
	}
	return w
}

func (w *world) peering(name, text string) {
	p := peering.PeeringOf(object(w.t, text))
	if len(p.Faults) > 0 {
		w.t.Fatal(p.Faults)
	}
	w.PutPeering(name, p)
}

// hear takes what a peer exports; the text has Services in YAML.
func (w *world) hear(peer, services string) {
	w.t.Helper()
	w.PutHeard(peer, readHeard(object(w.t, "{heard: \"2026-11-29T18:00:00Z\", services: ["+services+"]}")))
	w.settle()
}

// export makes a Service, its endpoints and its ServiceExport, created in the second of the number.
func (w *world) export(name, spec string, second int, addresses ...string) {
	w.t.Helper()
	at := types.NamespacedName{Namespace: "shop", Name: name}
	meta := fmt.Sprintf(
		"metadata: {name: %s, namespace: shop, generation: 1, creationTimestamp: \"2026-11-29T17:00:%02dZ\"}\n",
		name,
		second,
	)
	w.services[at] = mcs.ReadService(object(w.t, meta+"spec: "+spec))
	w.exports[at] = mcs.ReadExport(object(w.t, meta+"spec: {}"))
	family := "IPv4"
	if strings.Contains(strings.Join(addresses, ""), ":") {
		family = "IPv6"
	}
	x := mcs.ReadSlice(object(w.t, fmt.Sprintf(`
metadata: {name: %[1]s-abcde, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}}
addressType: %[3]s
ports: [{name: http, protocol: TCP, port: 8080}]
endpoints: [%[2]s]`, name, "{addresses: ["+strings.Join(addresses, "]}, {addresses: [")+"]}", family)))
	w.putSlice(types.NamespacedName{Namespace: "shop", Name: name + "-abcde"}, x)
	w.touch(at)
	w.settle()
}

// settle obeys all writes.
func (w *world) settle() {
	w.t.Helper()
	for {
		all, _ := w.take(func(task) bool { return true })
		if len(all) == 0 {
			return
		}
		for _, t := range all {
			for n := 0; ; n++ {
				if n == 1000 {
					w.t.Fatalf("%s needs write after write: %v", t.name, w.writes[len(w.writes)-5:])
				}
				next, _ := w.Next(t, w.now)
				if next == nil || !w.obey(next) {
					break
				}
			}
		}
	}
}

// obey does what a write asks for. It returns false if the API server would refuse it.
func (w *world) obey(x *Write) bool {
	if w.check != nil && !w.check(x) {
		return false
	}
	w.writes = append(w.writes, fmt.Sprintf("%s %s %s", x.Verb, x.Resource.Resource, x.Object.GetName()))
	w.version++
	u := &unstructured.Unstructured{Object: plain(x.Object.Object).(map[string]any)}
	u.SetResourceVersion(fmt.Sprint(w.version))
	if x.Verb == "create" {
		u.SetUID(types.UID(fmt.Sprint("u", w.version)))
	}
	if x.Resource == objects.Services && x.Verb != "delete" {
		w.allocate(u.Object["spec"].(map[string]any))
	}
	if was := w.ours.all[types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}]; was != nil &&
		x.Resource == objects.EndpointSlices {
		u.SetUID(was.meta.uid)
	}
	w.keep(x, u)
	return true
}

// allocate gives a Service its addresses, as an API server does.
func (w *world) allocate(spec map[string]any) {
	families, _ := spec["ipFamilies"].([]any)
	ips, _ := spec["clusterIPs"].([]any)
	has := w.has
	if has == nil {
		has = []string{"IPv4"}
	}
	if spec["ipFamilyPolicy"] == "SingleStack" && len(families) == 0 {
		families = []any{has[0]}
	}
	for _, f := range has {
		if spec["ipFamilyPolicy"] != "SingleStack" && !slices.Contains(families, any(f)) {
			families = append(slices.Clone(families), f)
		}
	}
	for i, f := range families {
		if i < len(ips) {
			continue
		}
		ip := fmt.Sprintf("10.96.%d.%d", w.version>>8&255, w.version&255)
		if f == "IPv6" {
			ip = fmt.Sprintf("fd00:96::%x", w.version)
		}
		ips = append(slices.Clone(ips), ip)
	}
	spec["ipFamilies"], spec["clusterIPs"], spec["clusterIP"] = families, ips, ips[0]
}

// seen returns the EndpointSlices of a name as CLUSTER ADDRESS:PORT texts, in order.
func (w *world) seen(name string) (all []string) {
	for _, x := range w.ours.of[types.NamespacedName{Namespace: "shop", Name: name}] {
		for _, e := range x.group.Addresses {
			for _, p := range x.group.Ports {
				all = append(
					all,
					strings.TrimSpace(fmt.Sprintf("%s %s:%d %s %s", x.cluster, e.IP, p.Port, e.Host, e.State)),
				)
			}
		}
	}
	slices.Sort(all)
	return all
}

func (w *world) serviceImport(name string) string {
	u := w.imports[types.NamespacedName{Namespace: "shop", Name: name}]
	if u == nil {
		return ""
	}
	b, err := yaml.Marshal(u.Object["spec"])
	need.NoError(w.t, err)
	return string(b)
}

func (w *world) condition(name, kind string) string {
	for _, c := range w.exports[types.NamespacedName{Namespace: "shop", Name: name}].Conditions {
		if c.Type == kind {
			return strings.TrimSpace(c.Status + " " + c.Reason + " " + c.Message)
		}
	}
	return ""
}

const (
	webPorts = "ports: [{name: http, protocol: TCP, port: 80}]"
	// web is what a peer exports as shop/web, created in a second, with endpoints.
	web = `{namespace: shop, name: web, type: ClusterSetIP, created: "2026-11-29T17:00:%02dZ", ` + webPorts + `,
		sessionAffinity: None, endpoints: [{ports: [{name: http, protocol: TCP, port: 8080}], addresses: [%s]}]}`
)

// TestImport: a Service of a peer gets a ServiceImport with an address, and endpoints as this
// cluster sees them; a changed endpoint costs one write; and all goes with the export.
func TestImport(t *testing.T) {
	w := rome(t)
	w.hear("milan", fmt.Sprintf(web, 1, "{ip: 10.244.1.5}, {ip: 10.244.1.6, host: web-0, state: notReady}"))
	wanted := []string{"milan 10.61.1.5:8080 10-244-1-5", "milan 10.61.1.6:8080 web-0 notReady"}
	if got := w.seen("web"); !slices.Equal(got, wanted) {
		t.Errorf("endpoints %q, want %q", got, wanted)
	}
	want := "ipFamilies:\n- IPv4\nips:\n- 10.96.0.2\nports:\n- name: http\n  port: 80\n  protocol: TCP\nsessionAffinity: None\ntype: ClusterSetIP\n"
	if got := w.serviceImport("web"); got != want {
		t.Errorf("ServiceImport %s\nwant %s", got, want)
	}
	w.writes = nil
	w.hear("milan", fmt.Sprintf(web, 1, "{ip: 10.244.1.5}, {ip: 10.244.1.6, host: web-0}"))
	if len(w.writes) != 1 || !strings.HasPrefix(w.writes[0], "update endpointslices ") {
		t.Errorf("a changed endpoint costs %q", w.writes)
	}
	w.hear("milan", "")
	if len(w.imports)+len(w.derived)+len(w.ours.all) > 0 {
		t.Errorf(
			"left: %d ServiceImports, %d Services, %d EndpointSlices",
			len(w.imports),
			len(w.derived),
			len(w.ours.all),
		)
	}
}

// TestNamespaces: a peer's Services come only where the Peering admits them and the namespace is.
func TestNamespaces(t *testing.T) {
	for _, c := range []struct {
		name, namespace, admits string
		want                    int
	}{
		{"all", "shop", `["*"]`, 1},
		{"named", "shop", "[shop]", 1},
		{"another", "shop", "[pay]", 0},
		{"none", "shop", "[]", 0},
		{"missing", "nowhere", `["*"]`, 0},
		{"of Kubernetes", "kube-system", `["*"]`, 0},
		{"of Kubernetes, named", "kube-system", "[kube-system]", 1},
	} {
		w := rome(t)
		w.PutNamespace("kube-system", true)
		w.peering(
			"milan",
			strings.Replace(fmt.Sprintf(peeringText, "milan", 1), `import: ["*"]`, "import: "+c.admits, 1),
		)
		w.hear(
			"milan",
			strings.Replace(fmt.Sprintf(web, 1, "{ip: 10.244.1.5}"), "namespace: shop", "namespace: "+c.namespace, 1),
		)
		if len(w.imports) != c.want {
			t.Errorf("%s: %d ServiceImports, want %d", c.name, len(w.imports), c.want)
		}
		w.PutNamespace(c.namespace, true)
		w.settle()
		if c.name == "missing" && len(w.imports) != 1 {
			t.Error("missing: nothing when the namespace is made later")
		}
	}
}

// TestLies: what a peer says that this cluster cannot have or should not believe is left out with a
// reason, and the rest stays.
func TestLies(t *testing.T) {
	good := fmt.Sprintf(web, 1, "{ip: 10.244.1.5}")
	with := func(old, new string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("no %q", old)
		}
		return strings.ReplaceAll(strings.Replace(good, old, new, 1), "name: web,", "name: bad,")
	}
	for name, c := range map[string]struct{ service, fault string }{
		"name":            {with("name: web,", `name: "a/b",`), "is no DNS label"},
		"type":            {with("ClusterSetIP", "ExternalName"), "neither ClusterSetIP nor Headless"},
		"no time":         {with(`created: "2026-11-29T17:00:01Z"`, `created: "0001-01-01T00:00:00Z"`), "time of its ServiceExport"},
		"protocol":        {with("protocol: TCP", "protocol: ICMP"), "is not TCP, UDP or SCTP"},
		"port 0":          {with("port: 80}", "port: 0}"), "0 is no port"},
		"our pod":         {with("10.244.1.5", "10.60.1.5"), "is in no CIDR of its cluster"},
		"loopback":        {with("10.244.1.5", "127.0.0.1"), "is in no CIDR of its cluster"},
		"link-local":      {with("10.244.1.5", "169.254.18.1"), "is in no CIDR of its cluster"},
		"unknown sources": {with("10.244.1.5", "10.70.0.0"), "stands for all that are unknown"},
		"host name":       {with("{ip: 10.244.1.5}", `{ip: 10.244.1.5, host: "a b"}`), "a host name or a state that is none"},
		"state":           {with("{ip: 10.244.1.5}", "{ip: 10.244.1.5, state: dead}"), "a host name or a state that is none"},
		"affinity":        {with("sessionAffinity: None", "sessionAffinity: Always"), "neither ClientIP nor None"},
	} {
		w := rome(t)
		w.hear("milan", good+", "+c.service)
		if got := w.seen("web"); len(got) != 1 {
			t.Errorf("%s: the good one has endpoints %q", name, got)
		}
		if got := w.seen("bad"); len(got) != 0 {
			t.Errorf("%s: endpoints %q", name, got)
		}
		if all := strings.Join(w.Faults()["milan"], "; "); !strings.Contains(all, c.fault) {
			t.Errorf("%s: faults %q, want %q", name, all, c.fault)
		}
	}
	w := rome(t)
	var many []string
	for i := range 10_000 {
		many = append(many, strings.Replace(good, "name: web,", fmt.Sprintf("name: w%d,", i), 1))
	}
	w.hear("milan", strings.Join(many, ","))
	if all := w.Faults()["milan"]; len(w.imports) != exports.MaxServices || len(all) != 1 ||
		!strings.Contains(all[0], "beyond the 500") {
		t.Errorf("of 10000 names %d are here; %q", len(w.imports), all)
	}
}

// TestMerge: the oldest export decides, ports are united, and all clusters come to one result.
func TestMerge(t *testing.T) {
	w := rome(t)
	w.export(
		"web",
		"{clusterIP: 10.96.3.3, sessionAffinity: None, ports: [{name: http, protocol: TCP, port: 80}, {name: dns, protocol: UDP, port: 53}]}",
		5,
		"10.244.3.3",
	)
	w.hear("milan", fmt.Sprintf(web, 9, "{ip: 10.244.1.5}"))
	if got := w.condition("web", "Conflict"); got != "True PortConflict rome has port http 80/TCP, dns 53/UDP, and its export is the oldest; milan differs (1 of 2 clusters)" {
		t.Errorf("Conflict is %q", got)
	}
	want := []string{"milan 10.61.1.5:8080 10-244-1-5", "rome 10.244.3.3:8080 10-244-3-3"}
	if got := w.seen("web"); !slices.Equal(got, want) {
		t.Errorf("endpoints %q, want %q", got, want)
	}
	// An older export with another port of that name wins, and nothing leads to the others' port.
	w.hear("turin", strings.Replace(fmt.Sprintf(web, 1, "{ip: 10.244.2.5}"), "port: 80}", "port: 81}", 1))
	if got := w.serviceImport("web"); !strings.Contains(got, "port: 81") || strings.Contains(got, "port: 80") ||
		!strings.Contains(got, "port: 53") {
		t.Errorf("ServiceImport %s", got)
	}
	if got, want := w.seen("web"), []string{"turin 10.62.2.5:8080 10-244-2-5"}; !slices.Equal(got, want) {
		t.Errorf("endpoints %q, want %q", got, want)
	}
	w.hear("turin", "")
	if got := w.seen("web"); !slices.Equal(got, want) {
		t.Errorf("after turin has gone: endpoints %q, want %q", got, want)
	}
	w.hear("milan", "")
	if got := w.condition("web", "Conflict"); got != "False NoConflicts" {
		t.Errorf("Conflict is %q", got)
	}
}

// TestKinds: a Service that becomes headless and back keeps nothing of what it was.
func TestKinds(t *testing.T) {
	w := rome(t)
	w.hear("milan", fmt.Sprintf(web, 1, "{ip: 10.244.1.5}"))
	w.hear("milan", strings.Replace(fmt.Sprintf(web, 1, "{ip: 10.244.1.5}"), "ClusterSetIP", "Headless", 1))
	if got := w.serviceImport("web"); strings.Contains(got, "ips:") || !strings.Contains(got, "Headless") ||
		!strings.Contains(got, "ipFamilies") {
		t.Errorf("headless ServiceImport %s", got)
	}
	if len(w.derived) != 0 || len(w.seen("web")) != 1 {
		t.Errorf("headless: %d derived Services, endpoints %q", len(w.derived), w.seen("web"))
	}
	w.hear("milan", fmt.Sprintf(web, 1, "{ip: 10.244.1.5}"))
	if got := w.serviceImport("web"); !strings.Contains(got, "ips:") || len(w.derived) != 1 {
		t.Errorf("ServiceImport %s, %d derived Services", got, len(w.derived))
	}
}

// TestForeign: a ServiceImport that somebody else has made stays as it is.
func TestForeign(t *testing.T) {
	w := rome(t)
	name := types.NamespacedName{Namespace: "shop", Name: "web"}
	w.imports[name] = object(t, "metadata: {name: web, namespace: shop}\nspec: {type: Headless, ports: []}")
	w.hear("milan", fmt.Sprintf(web, 1, "{ip: 10.244.1.5}"))
	if len(w.writes) > 0 {
		t.Errorf("writes %q", w.writes)
	}
	if _, fault := w.Next(task{name: name}, w.now); !strings.Contains(fault, "culvert has not made") {
		t.Errorf("fault %q", fault)
	}
	w.hear("milan", "")
	if len(w.writes) > 0 || w.imports[name] == nil {
		t.Errorf("writes %q", w.writes)
	}
}

// TestView: for each name people see who exports it and to whom, how many endpoints there are, and
// what is wrong. Without any name they see what to do first.
func TestView(t *testing.T) {
	w := rome(t)
	w.export("web", "{clusterIP: 10.96.3.3, sessionAffinity: None, "+webPorts+"}", 5, "10.244.3.3")
	w.export("name", "{type: ExternalName, externalName: a.example}", 5)
	w.export("six", "{clusterIP: 'fd00::1', ipFamilies: [IPv6], "+webPorts+"}", 5)
	w.export("typo", "{clusterIP: 10.96.3.4, ipFamilies: [IPv6, IPv4], "+webPorts+"}", 5)
	w.exports[types.NamespacedName{Namespace: "shop", Name: "typo"}].Peers = []string{"tuirn"}
	w.imports[types.NamespacedName{Namespace: "shop", Name: "mine"}] = object(t,
		"metadata: {name: mine, namespace: shop}\nspec: {type: Headless, ports: []}")
	empty := fmt.Sprintf(web, 1, "")
	other := func(replace ...string) string { return strings.NewReplacer(replace...).Replace(empty) }
	w.hear("milan", fmt.Sprintf(web, 9, "{ip: 10.244.1.5}, {ip: 10.244.1.6, state: notReady}")+", "+
		other("name: web", "name: db", "ClusterSetIP", "Headless", "namespace: shop", "namespace: pay", "addresses: []",
			"addresses: [{ip: 10.244.1.7}]"))
	w.hear("turin", other("port: 80}", "port: 81}")+", "+other("namespace: shop", "namespace: nowhere", "name: web",
		"name: far")+", "+other("name: web", "name: mine"))
	w.exports[types.NamespacedName{Namespace: "shop", Name: "web"}].Peers = []string{"milan"}
	v := w.view("")
	var lines []string
	for _, s := range v.Services {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %d %v %v %s", s.Name, s.Type, len(s.Addresses), s.To,
			s.Clusters, strings.Join(s.Notes, "; "))))
	}
	want := []string{
		"nowhere/far ClusterSetIP 0 [] [{turin 0 0}] is not imported: this cluster has no namespace nowhere",
		"pay/db Headless 0 [] [{milan 1 1}]",
		"shop/mine ClusterSetIP 0 [] [{turin 0 0}] ServiceImport shop/mine: another one is there that culvert has not made; " +
			"delete it",
		"shop/name  0 [] [] is not exported: spec.type: ExternalName is a name without endpoints",
		"shop/six ClusterSetIP 1 [milan turin] [{rome 0 0}]",
		"shop/typo ClusterSetIP 1 [] [{rome 0 0}] no peer hears of it: name one with which its namespace is shared in its " +
			"annotation culvert.io/export-to",
		"shop/web ClusterSetIP 1 [milan] [{milan 0 0} {rome 0 0} {turin 0 0}] PortConflict: turin has port http 81/TCP, " +
			"and its export is the oldest; milan and rome differ (2 of 3 clusters)",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	w.hear("turin", "")
	if all := w.view("").Services; fmt.Sprint(all[len(all)-1].Clusters) != "[{milan 1 2} {rome 1 1}]" {
		t.Errorf("%+v", all)
	}
	for want, of := range map[string]func(w *world) *View{
		"it is joined with no cluster: culvert join": func(w *world) *View { return NewState().view("") },
		"nothing is exported. To export ":            func(w *world) *View { return w.view("") },
		"it has no kind ServiceExport: ":             func(w *world) *View { return w.view(setExports) },
		"no Peering shares a namespace: ": func(w *world) *View {
			for i, name := range []string{"milan", "turin"} {
				w.peering(name, strings.ReplaceAll(fmt.Sprintf(peeringText, name, i+1), `["*"]`, "[]"))
			}
			return w.view("")
		},
		"Peering milan: Imported: does it run?": func(w *world) *View {
			w.peerings["milan"].Status.Conditions = []*peering.Condition{{Type: peering.Imported, Status: "False",
				Message: "does it run?"}}
			return w.view("")
		},
	} {
		if v := of(rome(t)); len(v.Notes) == 0 || !strings.HasPrefix(v.Notes[0], want) {
			t.Errorf("%q, want %q", v.Notes, want)
		}
	}
}

// TestSilence: as long as nothing has been heard of a peer, what is here of it stays; a Peering
// that is deleted takes it away.
func TestSilence(t *testing.T) {
	w := rome(t)
	w.hear("milan", fmt.Sprintf(web, 1, "{ip: 10.244.1.5}"))
	w.PutHeard("milan", &heard{})
	w.settle()
	if got := w.seen("web"); len(got) != 1 || w.serviceImport("web") == "" {
		t.Errorf("while the peer is silent: endpoints %q", got)
	}
	w.PutPeering("milan", nil)
	w.settle()
	if len(w.imports)+len(w.derived)+len(w.ours.all) > 0 {
		t.Error("something stays without the Peering")
	}
}

// TestLost: the endpoints of a peer that has been silent for half a minute are not ready as long as
// another cluster has one that is, and ready again once the peer answers.
func TestLost(t *testing.T) {
	w := rome(t)
	status := func(connected string) string {
		return fmt.Sprintf(peeringText, "milan", 1) + fmt.Sprintf("status: {conditions: [{type: Connected, status: %q, "+
			"lastTransitionTime: \"2026-11-29T18:00:00Z\"}]}\n", connected)
	}
	w.hear("milan", fmt.Sprintf(web, 1, "{ip: 10.244.1.5, host: a}, {ip: 10.244.1.6, host: b, state: serving}"))
	here, ready := "turin 10.62.1.5:8080 c", []string{"milan 10.61.1.5:8080 a", "milan 10.61.1.6:8080 b serving"}
	away := []string{"milan 10.61.1.5:8080 a notReady", "milan 10.61.1.6:8080 b notReady"}
	for _, x := range []struct {
		what, connected, turin string
		after                  time.Duration
		want                   []string
	}{
		{"alone", "False", "", time.Hour, ready},
		{"turin exports, too", "False", "{ip: 10.244.1.5, host: c}", time.Hour, append(slices.Clone(away), here)},
		{"turin's is not ready", "False", "{ip: 10.244.1.5, host: c, state: notReady}", time.Hour,
			append(slices.Clone(ready), here+" notReady")},
		{"it is again", "False", "{ip: 10.244.1.5, host: c}", time.Hour, append(slices.Clone(away), here)},
		{"milan answers", "True", "{ip: 10.244.1.5, host: c}", time.Hour, append(slices.Clone(ready), here)},
		{"a short silence", "False", "{ip: 10.244.1.5, host: c}", lostAfter - time.Second,
			append(slices.Clone(ready), here)},
		{"a longer one", "False", "{ip: 10.244.1.5, host: c}", lostAfter, append(slices.Clone(away), here)},
		{"milan alone", "False", "", lostAfter, ready},
	} {
		w.peering("milan", status(x.connected))
		w.now = time.Date(2026, 11, 29, 18, 0, 0, 0, time.UTC).Add(x.after)
		w.Lose(w.now)
		all := ""
		if x.turin != "" {
			all = fmt.Sprintf(web, 2, x.turin)
		}
		w.hear("turin", all)
		if got := w.seen("web"); !slices.Equal(got, x.want) {
			t.Errorf("%s: %q, want %q", x.what, got, x.want)
		}
	}
}

// TestClash: of two Peerings with one cluster, the older one's counts.
func TestClash(t *testing.T) {
	w := rome(t)
	w.peering("turin", strings.Replace(fmt.Sprintf(peeringText, "turin", 2), "peer: turin", "peer: milan", 1))
	w.hear("milan", fmt.Sprintf(web, 1, "{ip: 10.244.1.5}"))
	w.hear("turin", fmt.Sprintf(web, 1, "{ip: 10.244.1.5}"))
	if got, want := w.seen("web"), []string{"milan 10.61.1.5:8080 10-244-1-5"}; !slices.Equal(got, want) {
		t.Errorf("endpoints %q, want %q", got, want)
	}
	if all := w.Faults()["turin"]; len(all) != 1 ||
		!strings.Contains(all[0], "Peering milan has the Services of milan already") {
		t.Errorf("faults %q", all)
	}
}

// TestExportConditions: the status of a ServiceExport says why its Service is not exported.
func TestExportConditions(t *testing.T) {
	w := rome(t)
	w.export("web", "{clusterIP: 10.96.3.3, sessionAffinity: None, "+webPorts+"}", 5, "10.244.3.3")
	if v, r := w.condition("web", "Valid"), w.condition("web", "Ready"); v != "True Valid" || r != "True Exported" {
		t.Errorf("good: %q, %q", v, r)
	}
	w.export("name", "{type: ExternalName, externalName: a.example}", 5)
	if v := w.condition("name", "Valid"); !strings.HasPrefix(v, "False InvalidServiceType") ||
		w.serviceImport("name") != "" {
		t.Errorf("ExternalName: %q", v)
	}
	delete(w.services, types.NamespacedName{Namespace: "shop", Name: "web"})
	w.touch(types.NamespacedName{Namespace: "shop", Name: "web"})
	w.settle()
	if v := w.condition("web", "Valid"); !strings.HasPrefix(v, "False NoService") || w.serviceImport("web") != "" {
		t.Errorf("no Service: %q", v)
	}
}

// TestManyEndpoints: endpoints stay in their EndpointSlices, of at most 100, while others come and
// go, and a change of one writes one.
func TestManyEndpoints(t *testing.T) {
	w := rome(t)
	list := func(n, without int) string {
		var all []string
		for i := range n {
			if i != without {
				all = append(all, fmt.Sprintf("{ip: 10.244.%d.%d}", i/250, i%250+1))
			}
		}
		return fmt.Sprintf(web, 1, strings.Join(all, ","))
	}
	w.hear("milan", list(1000, -1))
	if len(w.ours.all) != 10 || len(w.seen("web")) != 1000 {
		t.Errorf("%d EndpointSlices, %d endpoints", len(w.ours.all), len(w.seen("web")))
	}
	for _, c := range []struct {
		name       string
		n, without int
		writes     int
	}{
		{"one less", 1000, 500, 1}, {"it is back", 1000, -1, 1},
		{"one more", 1001, -1, 1}, {"back to 1000", 1000, -1, 1},
	} {
		w.writes = nil
		if w.hear("milan", list(c.n, c.without)); len(w.writes) != c.writes {
			t.Errorf("%s: %d writes: %.300q", c.name, len(w.writes), w.writes)
		}
	}
}

// TestShareOfClusterIPs: the Services of a peer get a limited number of ClusterIPs, and those that
// have one keep it, whatever the order of the list. Headless ones need none.
func TestShareOfClusterIPs(t *testing.T) {
	w := rome(t)
	w.PutRoom(2)
	list := func(names ...string) string {
		var all []string
		for _, name := range names {
			text := strings.Replace(fmt.Sprintf(web, 1, "{ip: 10.244.1.5}"), "name: web,", "name: "+name+",", 1)
			if strings.HasPrefix(name, "none") {
				text = strings.Replace(text, "ClusterSetIP", "Headless", 1)
			}
			all = append(all, text)
		}
		return strings.Join(all, ",")
	}
	w.hear("milan", list("b", "c"))
	w.hear("milan", list("a", "b", "c", "none"))
	for name, want := range map[string]bool{"a": false, "b": true, "c": true, "none": true} {
		if got := w.serviceImport(name) != ""; got != want {
			t.Errorf("%s is imported: %t, want %t", name, got, want)
		}
	}
	if all := w.Faults()["milan"]; len(all) != 1 || !strings.HasPrefix(all[0], "1 of the peer's Services are not imported") {
		t.Errorf("faults %q", all)
	}
	w.hear("milan", list("a", "c", "none"))
	if w.serviceImport("a") == "" || w.serviceImport("b") != "" {
		t.Error("the ClusterIP that has become free is not used")
	}
}

// TestUnreadable: a list that cannot be read takes nothing away.
func TestUnreadable(t *testing.T) {
	w := rome(t)
	w.hear("milan", fmt.Sprintf(web, 1, "{ip: 10.244.1.5}"))
	bad := object(t, "{heard: \"2026-11-29T18:00:00Z\", services: 7}")
	w.PutHeard("milan", readHeard(bad))
	w.settle()
	if got := w.seen("web"); len(got) != 1 || len(w.Faults()["milan"]) != 1 {
		t.Errorf("after a good list: endpoints %q, faults %q", got, w.Faults()["milan"])
	}
	delete(w.peers, "milan") // a new process has heard nothing else
	w.PutHeard("milan", readHeard(bad))
	w.touch(types.NamespacedName{Namespace: "shop", Name: "web"})
	w.settle()
	if got := w.seen("web"); len(got) != 1 || len(w.Faults()["milan"]) != 1 {
		t.Errorf("after a start: endpoints %q, faults %q", got, w.Faults()["milan"])
	}
}

// TestOvertaken: the answer to a write does not replace what a watch has delivered since.
func TestOvertaken(t *testing.T) {
	w := rome(t)
	w.hear("milan", fmt.Sprintf(web, 1, "{ip: 10.244.1.5}"))
	name := types.NamespacedName{Namespace: "shop", Name: "web"}
	delete(w.imports[name].Object["spec"].(map[string]any), "ips")
	next, _ := w.Next(task{name: name}, w.now)
	if next == nil || next.Verb != "update" {
		t.Fatalf("%+v", next)
	}
	newer := w.imports[name].DeepCopy()
	newer.SetResourceVersion("99")
	w.imports[name] = newer
	if set := w.keep(next, next.Object); set != "" || w.imports[name] != newer {
		t.Errorf("%q; the older version is there", set)
	}
}

// TestFaultySpec: the gateway, which writes the Peering's status, decides neither which namespaces
// are written to nor which addresses are the peer's, also if the Peering's spec has a fault. The
// gateway can make one itself, with the peer's key as its own.
func TestFaultySpec(t *testing.T) {
	accepted := "{cluster: rome, peer: milan, role: Server, internalCIDR: 10.80.1.0/24, local: {podCIDRs: [10.244.0.0/16]}, " +
		"remote: {podCIDRs: [{cidr: 203.0.113.0/24}]}, services: {export: [shop], import: [kube-system]}}"
	const key = "l1DPz4bzvzGzMqlXdqYYWp2HV4OUGUkIlbiYzP6FkFY="
	good := strings.Replace(fmt.Sprintf(peeringText, "milan", 1), "role: Server", "role: Server\n  publicKey: "+key, 1)
	faulty := good + "\nstatus: {publicKey: " + key + ", accepted: " + accepted + "}"
	bad := strings.Replace(fmt.Sprintf(web, 1, "{ip: 203.0.113.9}"), "namespace: shop", "namespace: kube-system", 1)
	for _, before := range []string{"good", "none"} {
		w := rome(t)
		w.PutNamespace("kube-system", true)
		w.peering("milan", good)
		w.hear("milan", fmt.Sprintf(web, 1, "{ip: 10.244.1.5}"))
		if before == "none" { // another process goes on with what is there
			delete(w.peerings, "milan")
			delete(w.peers, "milan")
		}
		p := peering.PeeringOf(object(t, faulty))
		if len(p.Faults) == 0 || p.Accepted() == nil {
			t.Fatal("no fault, or nothing is accepted")
		}
		w.PutPeering("milan", p)
		w.hear("milan", fmt.Sprintf(web, 1, "{ip: 10.244.1.6}, {ip: 203.0.113.9}")+","+bad)
		want := map[string]string{"good": "milan 10.61.1.6:8080 10-244-1-6",
			"none": "milan 10.61.1.5:8080 10-244-1-5"}[before]
		if got := w.seen("web"); len(w.imports) != 1 || !slices.Equal(got, []string{want}) {
			t.Errorf("before %s: %d ServiceImports, endpoints %q, want %q", before, len(w.imports), got, want)
		}
		w.peering("milan", good)
		w.settle()
		if got := w.seen("web"); !slices.Equal(got, []string{"milan 10.61.1.6:8080 10-244-1-6"}) {
			t.Errorf("before %s, without the fault: endpoints %q", before, got)
		}
	}
}

// TestManyPorts: a peer can have no list of endpoints that takes long to lay out.
func TestManyPorts(t *testing.T) {
	w := rome(t)
	var groups []string
	for i := range 10_000 {
		groups = append(groups, fmt.Sprintf("{ports: [{name: http, protocol: TCP, port: %d}], addresses: [{ip: 10.244.1.5}]}", i+1))
	}
	began := time.Now()
	w.hear("milan", strings.Replace(fmt.Sprintf(web, 1, ""), "{ports: [{name: http, protocol: TCP, port: 8080}], addresses: []}",
		strings.Join(groups, ","), 1))
	if all := w.Faults()["milan"]; len(w.ours.all) != maxGroups || len(all) != 1 ||
		!strings.Contains(all[0], "more than 50 different lists of ports") {
		t.Errorf("%d EndpointSlices, %q", len(w.ours.all), all)
	}
	if took := time.Since(began); took > 20*time.Second { // a quarter of an hour without the limit
		t.Errorf("it takes %v", took)
	}
}

// TestTurns: what waits longest comes first, one task of a name at a time, and what is not due goes
// on waiting.
func TestTurns(t *testing.T) {
	s := NewState()
	name := func(n int) types.NamespacedName { return types.NamespacedName{Namespace: "shop", Name: fmt.Sprint(n)} }
	s.touchBy("milan", name(1))
	s.touchBy("turin", name(2))
	s.touchBy("milan", name(2))
	s.touch(name(3))
	s.touchBy("milan", name(1))
	got, more := s.take(func(t task) bool { return t.cause != "milan" })
	want := []task{{name(2), "turin", 2}, {name(3), local, 4}}
	if !slices.Equal(got, want) || more {
		t.Errorf("%v, more %t, want %v", got, more, want)
	}
	s.back(want[1])
	s.touch(name(3))
	s.touch(name(1))
	got, more = s.take(func(task) bool { return true })
	want = []task{{name(1), "milan", 1}, {name(2), "milan", 3}, want[1]}
	if !slices.Equal(got, want) || !more {
		t.Errorf("then %v, more %t, want %v", got, more, want)
	}
	got, more = s.take(func(task) bool { return true })
	if want = []task{{name(1), local, 7}}; !slices.Equal(got, want) || more {
		t.Errorf("at last %v, more %t, want %v", got, more, want)
	}
	if len(s.dirty) > 0 {
		t.Errorf("left: %v", s.dirty)
	}
}

// dual is a Peering that carries both families.
var dual = strings.NewReplacer(
	"internalCIDR: 10.80.1.0/24", "internalCIDRs: [10.80.1.0/24, 'fd80:1::/64']",
	"podCIDRs: [10.244.0.0/16]", "podCIDRs: [10.244.0.0/16, 'fd00:244::/56']",
	"remap: 10.61.0.0/16}]", "remap: 10.61.0.0/16}, {cidr: 'fd00:244::/56', remap: 'fd61::/56'}]",
).Replace(fmt.Sprintf(peeringText, "milan", 1))

// TestFamilies: a Service has the families in which its oldest export and this cluster have
// addresses, and each address leads to endpoints of its family. While families come and go, the
// address that stays is the same.
func TestFamilies(t *testing.T) {
	of := func(families, addresses string) string {
		return strings.Replace(fmt.Sprintf(web, 1, addresses), "sessionAffinity:", "ipFamilies: "+families+", sessionAffinity:", 1)
	}
	const four, six = "{ip: 10.244.1.5}", "{ip: 'fd00:244:0:1::5'}, {ip: 'fd00:244:0:1::'}"
	four4, six6 := "milan 10.61.1.5:8080 10-244-1-5", []string{"milan fd61:0:0:1::5:8080 fd00-244-0-1--5",
		"milan fd61:0:0:1:::8080 fd00-244-0-1--0"}
	w := rome(t)
	w.has = []string{"IPv6", "IPv4"}
	w.peering("milan", dual)
	ips := func() string {
		var spec struct{ IPs, IPFamilies []string }
		need.NoError(t, yaml.Unmarshal([]byte(w.serviceImport("web")), &spec))
		return fmt.Sprint(spec.IPFamilies, spec.IPs)
	}
	step := func(name, said, want string, endpoints ...string) {
		t.Helper()
		w.hear("milan", said)
		if got := ips(); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		if got := w.seen("web"); !slices.Equal(got, endpoints) {
			t.Errorf("%s: endpoints %q, want %q", name, got, endpoints)
		}
	}
	step("one that says nothing", fmt.Sprintf(web, 1, four), "[IPv4] [10.96.0.2]", four4)
	step("a second family", of("[IPv6, IPv4]", four+","+six), "[IPv4 IPv6] [10.96.0.2 fd00:96::6]",
		append([]string{four4}, six6...)...)
	slicesOf := func() (n int) {
		for _, x := range w.ours.all {
			for _, e := range x.group.Addresses {
				if e.IP.Is6() != x.v6 {
					t.Errorf("%s is in %+v", e.IP, x)
				}
			}
			n++
		}
		return n
	}
	if n := slicesOf(); n != 2 {
		t.Errorf("%d EndpointSlices, want one of each family", n)
	}
	if c := w.view("").Services[0].Clusters; fmt.Sprint(c) != "[{milan 2 2}]" {
		t.Errorf("pods of two addresses are counted as %v", c)
	}
	step("the second goes", of("[IPv4]", four), "[IPv4] [10.96.0.2]", four4)
	w.writes = nil
	step("another family alone", of("[IPv6]", six), fmt.Sprintf("[IPv6] [fd00:96::%x]", w.version+2), six6...)
	w.writes = nil
	step("as before", of("[IPv6]", six), ips(), six6...)
	if len(w.writes) > 0 {
		t.Errorf("what has not changed costs %q", w.writes)
	}
	step("headless", strings.Replace(of("[IPv6, IPv4]", four+","+six), "ClusterSetIP", "Headless", 1), "[IPv4 IPv6] []",
		append([]string{four4}, six6...)...)
	if faults := w.Faults()["milan"]; len(faults) > 0 {
		t.Errorf("faults %q", faults)
	}
	for said, fault := range map[string]string{
		of("[IPX]", four):                       "neither IPv4 nor IPv6",
		of("[IPv4]", six):                       "fd00:244:0:1::5 is of a family that its ipFamilies lack",
		of("[IPv6]", "{ip: 'fd00::5'}"):         "fd00::5 is in no CIDR of its cluster",
		of("[IPv6]", "{ip: 'fe80::1%eth0'}"):    "fe80::1%eth0 is in no CIDR of its cluster",
		of("[IPv6]", "{ip: '::ffff:10.0.0.1'}"): "is in no CIDR of its cluster",
	} {
		w.hear("milan", said)
		if all := strings.Join(w.Faults()["milan"], "; "); !strings.Contains(all, fault) || len(w.seen("web")) > 0 {
			t.Errorf("%s: %q, %q, want %q", said, all, w.seen("web"), fault)
		}
	}
	w.hear("milan", "")
	w.peering("milan", fmt.Sprintf(peeringText, "milan", 1))
	step("a Peering of IPv4", of("[IPv6, IPv4]", four), "[IPv4] ["+fmt.Sprintf("10.96.0.%d", w.version+2)+"]", four4)
	w.hear("milan", of("[IPv6]", ""))
	if all := strings.Join(w.Faults()["milan"], "; "); !strings.Contains(all, "carries none of its ipFamilies") {
		t.Errorf("IPv6 alone by a Peering of IPv4: %q", all)
	}
	w.hear("milan", "")
	w.has = []string{"IPv4"}
	w.peering("milan", dual)
	step("a cluster whose Services have IPv4", of("[IPv6, IPv4]", four+","+six),
		fmt.Sprintf("[IPv4] [10.96.0.%d]", w.version+2), four4)
}

// TestFamiliesOfTwo: the oldest export decides the families, and another one that lacks any is in
// conflict, and serves the others.
func TestFamiliesOfTwo(t *testing.T) {
	w := rome(t)
	w.has = []string{"IPv4", "IPv6"}
	w.peering("milan", dual)
	w.export("web", "{clusterIP: 10.96.3.3, ipFamilies: [IPv6], sessionAffinity: None, "+webPorts+"}", 5, "fd00:244::3")
	if got, want := w.seen("web"), []string{"rome fd00:244::3:8080 fd00-244--3"}; !slices.Equal(got, want) {
		t.Errorf("endpoints %q, want %q", got, want)
	}
	w.hear("milan", strings.Replace(fmt.Sprintf(web, 1, "{ip: 10.244.1.5}, {ip: 'fd00:244::5'}"), "sessionAffinity:",
		"ipFamilies: [IPv4, IPv6], sessionAffinity:", 1))
	want := []string{"milan 10.61.1.5:8080 10-244-1-5", "milan fd61::5:8080 fd00-244--5", "rome fd00:244::3:8080 fd00-244--3"}
	if got := w.seen("web"); !slices.Equal(got, want) {
		t.Errorf("endpoints %q, want %q", got, want)
	}
	if got := w.condition("web", "Conflict"); got != "True IPFamilyConflict milan has IPv4 and IPv6, and its export is "+
		"the oldest; rome differs (1 of 2 clusters)" {
		t.Errorf("Conflict is %q", got)
	}
	w.hear("milan", strings.Replace(fmt.Sprintf(web, 9, "{ip: 10.244.1.5}, {ip: 'fd00:244::5'}"), "sessionAffinity:",
		"ipFamilies: [IPv4, IPv6], sessionAffinity:", 1))
	if got, cond := w.seen("web"), w.condition("web", "Conflict"); !slices.Equal(got, want[1:]) ||
		cond != "False NoConflicts" {
		t.Errorf("endpoints %q, Conflict %q", got, cond)
	}
}
