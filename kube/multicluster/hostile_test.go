package multicluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"culvert/gateway/exports"
	"culvert/integration/need"
	"culvert/kube/mcs"
	"culvert/kube/objects"
)

// A siege is a cluster whose peers, or whoever has taken their gateways over here, say anything.
type siege struct {
	*world
	*rand.Rand
	imports, exports map[string][]string // spec.services of the Peerings
	turned           map[string]string   // another peer's ID in a Peering
	heard            map[string][]byte   // lists, as JSON
	foreign          map[string]bool     // RESOURCE NAMESPACE/NAME that others have made
	there            map[string]bool     // namespaces
	unread           bool                // the last list is unreadable, so that one before it counts
}

var (
	siegeNamespaces = []string{"shop", "pay", "kube-system", "culvert", "gone"}
	siegeNames      = []string{"web", "db", "kube-dns", "kubernetes", "web-0", "a", "0a"}
	siegePeers      = []string{"milan", "turin"}
	siegeTexts      = []string{"", "http", "a/b", "..", "Web", "web\n", "web\x00", "-a", "a-", "é", "\xff\xfe", "kube-system/x",
		strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("b", 254), "*", "{}", "web.shop", "$(id)", "10-244-1-5"}
	siegeAddresses = []string{"10.244.1.5", "10.244.1.6", "10.244.255.255", "10.244.0.0", "10.70.0.0", "10.70.0.1",
		"10.61.1.5", "10.62.1.5", "10.71.0.1", "10.80.1.1", "10.96.0.1", "127.0.0.1", "169.254.1.1", "224.0.0.1",
		"255.255.255.255", "0.0.0.0", "8.8.8.8", "::ffff:10.244.1.5", "fe80::1", "fe80::1%eth0", "::1", "fd00::1", ""}
)

func pick[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

// text is a good one, or any.
func (s *siege) text(good ...string) string {
	switch s.IntN(100) {
	case 0:
		return pick(s.Rand, siegeTexts...)
	case 1:
		b := make([]byte, s.IntN(80))
		for i := range b {
			b[i] = byte(s.IntN(256))
		}
		return string(b)
	}
	return pick(s.Rand, good...)
}

func (s *siege) ports() (all []any) {
	names, numbers := []string{"http", "dns", "x", ""}, []int{80, 53, 8080, 65535}
	for i := range s.IntN(4) {
		name, number := names[i%3], numbers[s.IntN(4)/2+i%3]
		if s.IntN(20) == 0 {
			name, number = pick(s.Rand, names...), pick(s.Rand, append(numbers, 0)...)
		}
		all = append(all, map[string]any{"name": s.text(name), "protocol": s.text("TCP", "TCP", "UDP", "SCTP"),
			"port": number, "appProtocol": s.text("", "kubernetes.io/h2c")})
	}
	if s.IntN(100) == 0 {
		for i := range 150 {
			all = append(all, map[string]any{"name": fmt.Sprint("p", i), "protocol": "TCP", "port": 1000 + i})
		}
	}
	return all
}

func (s *siege) endpoints() (all []any) {
	for range s.IntN(4) {
		var addresses []any
		for range s.IntN(5) {
			addresses = append(addresses, map[string]any{"ip": s.address(), "host": s.text("", "web-0", "web-1"),
				"state": s.text("", "", "notReady", "serving", "terminating")})
		}
		if s.IntN(20) == 0 {
			for range 250 {
				addresses = append(addresses, map[string]any{"ip": fmt.Sprintf("10.244.%d.%d", s.IntN(3), s.IntN(256))})
			}
		}
		all = append(all, map[string]any{"ports": s.ports(), "addresses": addresses})
	}
	return all
}

func (s *siege) address() string {
	if s.IntN(2) == 0 {
		return fmt.Sprintf("10.244.%d.%d", s.IntN(4), s.IntN(256))
	}
	return pick(s.Rand, siegeAddresses...)
}

func (s *siege) texts(values ...string) map[string]any {
	all := map[string]any{}
	for range s.IntN(5) {
		all[s.text("tier", "example.org/tier", "kubernetes.io/x", mcs.LabelManaged, mcs.LabelService, "x.k8s.io/y",
			"culvert.io/z", annotationDerived)] = s.text(values...)
	}
	if s.IntN(30) == 0 {
		for i := range 100 {
			all[fmt.Sprint("k", i)] = strings.Repeat("v", s.IntN(2*maxText))
		}
	}
	return all
}

// list is what a peer, or its gateway here, may put into PeerExports.
func (s *siege) list() []byte {
	list := []any{}
	for range s.IntN(12) {
		x := map[string]any{"namespace": s.text(siegeNamespaces...), "name": s.text(siegeNames...),
			"type": s.text(exports.ClusterSetIP, exports.Headless), "ports": s.ports(), "labels": s.texts("front", "back"),
			"annotations": s.texts("front", "back"), "sessionAffinity": s.text("", "None"),
			"internalTrafficPolicy": s.text("", "Cluster", "Local"), "trafficDistribution": s.text("", "PreferClose"),
			"created": pick(s.Rand, "2026-11-29T17:00:01Z", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z",
				"2026-11-29T17:00:05Z"), "endpoints": s.endpoints()}
		switch s.IntN(8) {
		case 0:
			x["sessionAffinitySeconds"] = pick(s.Rand, -1, 1, 86401)
		case 1:
			x["sessionAffinity"], x["sessionAffinitySeconds"] = "ClientIP", pick(s.Rand, 0, 1, 10800, 86400, 86401)
		case 2:
			x["created"] = "0001-01-01T00:00:00Z"
		}
		list = append(list, x)
		if s.IntN(10) == 0 {
			list = append(list, x)
		}
	}
	if s.IntN(100) == 0 {
		for i := range 10_000 {
			list = append(list, map[string]any{"namespace": "shop", "name": fmt.Sprint("n", i), "type": "Headless",
				"created": "2026-11-29T17:00:01Z"})
		}
	}
	b, err := json.Marshal(list)
	need.NoError(s.t, err)
	return b
}

// tell has the gateway of a peer write a list.
func (s *siege) tell(name string, list []byte) {
	u := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": name},
		"heard": "2026-11-29T18:00:00Z", "services": json.RawMessage(list)}}
	h := readHeard(u)
	s.heard[name], s.unread = list, h.fault != ""
	s.PutHeard(name, h)
}

func (s *siege) put(name string, n int) {
	services := fmt.Sprintf("services: {export: %s, import: %s}", texts(s.exports[name]), texts(s.imports[name]))
	text := strings.Replace(fmt.Sprintf(peeringText, name, n), `services: {export: ["*"], import: ["*"]}`, services, 1)
	if peer := s.turned[name]; peer != "" {
		text = strings.Replace(text, "peer: "+name, "peer: "+peer, 1)
	}
	s.peering(name, text)
}

func texts(all []string) string {
	b, _ := json.Marshal(append([]string{}, all...)) // there is no error
	return string(b)
}

// step lets something happen.
func (s *siege) step() string {
	i := s.IntN(len(siegePeers))
	peer := siegePeers[i]
	switch s.IntN(14) {
	default:
		s.tell(peer, s.list())
		return peer + " tells a list"
	case 0:
		s.tell(peer, []byte("[]"))
		return peer + " withdraws all"
	case 1:
		s.imports[peer] = pick(s.Rand, []string{"*"}, []string{"shop"}, []string{"pay", "kube-system"}, nil)
		s.exports[peer] = pick(s.Rand, []string{"*"}, []string{"shop"}, nil)
		s.put(peer, i+1)
		return peer + ": other namespaces"
	case 2:
		s.PutPeering(peer, nil)
		delete(s.heard, peer)
		s.PutHeard(peer, nil)
		s.settle()
		s.put(peer, i+1)
		return peer + " has left and joined"
	case 3:
		namespace := pick(s.Rand, siegeNamespaces...)
		s.there[namespace] = !s.there[namespace]
		if s.PutNamespace(namespace, s.there[namespace]); !s.there[namespace] {
			s.empty(namespace)
		}
		return fmt.Sprint("namespace ", namespace, " is there: ", s.there[namespace])
	case 4:
		s.turned["turin"] = pick(s.Rand, "", "milan")
		s.put("turin", 2)
		return "turin is called " + s.turned["turin"]
	case 5:
		if name := pick(s.Rand, siegeNames...); s.there["shop"] {
			s.export(name, pick(s.Rand, "{clusterIP: 10.96.3.3, "+webPorts+"}", "{clusterIP: None, "+webPorts+"}",
				"{type: ExternalName, externalName: a.example}"), s.IntN(9), fmt.Sprintf("10.244.3.%d", s.IntN(200)))
			return "we export " + name
		}
		return "nothing"
	case 6:
		name := types.NamespacedName{Namespace: "shop", Name: pick(s.Rand, siegeNames...)}
		delete(s.State.exports, name)
		s.touch(name)
		return "we do not export " + name.Name
	case 7:
		name := types.NamespacedName{Namespace: "shop", Name: pick(s.Rand, siegeNames...)}
		if u := s.State.imports[name]; s.there["shop"] && (u == nil || !managed(u)) {
			s.putImport(name, object(s.t, fmt.Sprintf(
				"metadata: {name: %q, namespace: shop, resourceVersion: f%d}\nspec: {type: Headless, ports: []}",
				name.Name, s.IntN(1000))))
			s.foreign["serviceimports "+name.String()] = true
			return "another ServiceImport " + name.Name
		}
		return "nothing"
	case 8:
		name := types.NamespacedName{Namespace: "shop", Name: pick(s.Rand, siegeNames...)}
		called := types.NamespacedName{Namespace: "shop", Name: derivedName(name)}
		if s.derived[called] == nil && s.there["shop"] {
			s.foreign["services "+called.String()] = true
		}
		return "another Service is called as one of ours"
	case 9:
		s.alone()
		return "nothing of others is there"
	}
}

// alone removes what others have made.
func (s *siege) alone() {
	for key := range s.foreign {
		if resource, name, _ := strings.Cut(key, " "); resource == "serviceimports" {
			s.putImport(keyed(name), nil)
		}
		delete(s.foreign, key)
	}
	s.touchAll(func(types.NamespacedName) bool { return true })
}

// empty removes all objects of a namespace that goes.
func (s *siege) empty(namespace string) {
	gone := func(name types.NamespacedName) bool { return name.Namespace == namespace }
	for name := range s.State.imports {
		if gone(name) {
			s.putImport(name, nil)
		}
	}
	for name := range s.derived {
		if gone(name) {
			s.putDerived(name, nil)
		}
	}
	for name := range s.ours.all {
		if gone(name) {
			s.dropOurs(name)
		}
	}
	maps.DeleteFunc(s.State.exports, func(name types.NamespacedName, _ *mcs.Export) bool { return gone(name) })
	maps.DeleteFunc(s.foreign, func(key string, _ bool) bool { return strings.Contains(key, " "+namespace+"/") })
}

// judgeWrite fails unless a write is one that the cluster's administrator has allowed, and that the
// API server takes. It returns false if the object is somebody else's.
func (s *siege) judgeWrite(x *Write) bool {
	u := x.Object
	name := types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}
	bad := func(format string, args ...any) {
		s.t.Errorf("%s %s %s: %s", x.Verb, x.Resource.Resource, name, fmt.Sprintf(format, args...))
	}
	if !s.there[name.Namespace] {
		bad("its namespace is not there")
	}
	switch x.Resource {
	case objects.ServiceExports:
		if x.Verb != "update status" {
			bad("that is not ours to do")
		}
		return true
	case objects.ServiceImports, objects.Services, objects.EndpointSlices:
	default:
		bad("no such kind is ours")
	}
	if s.foreign[x.Resource.Resource+" "+name.String()] {
		if x.Verb != "create" {
			bad("it is somebody else's")
		}
		return false
	}
	if x.Verb == "delete" {
		if u.GetUID() == "" {
			bad("without a UID it may be somebody else's")
		}
		return true
	}
	if !managed(u) {
		bad("it has no label of ours")
	}
	if !s.admits(name.Namespace) {
		bad("nobody admits its namespace")
	}
	s.judgeObject(u, bad)
	return true
}

// admits reports whether any Peering lets Services of its peer, or ours, into a namespace.
func (s *siege) admits(namespace string) bool {
	for _, of := range []map[string][]string{s.imports, s.exports} {
		for _, all := range of {
			if slices.Contains(all, namespace) || slices.Contains(all, "*") && !strings.HasPrefix(namespace, "kube-") {
				return true
			}
		}
	}
	return false
}

// judgeObject has the rules of the API server about what a peer might influence.
func (s *siege) judgeObject(u *unstructured.Unstructured, bad func(string, ...any)) {
	b, err := json.Marshal(u.Object)
	need.NoError(s.t, err)
	if len(b) > 1<<20 {
		bad("it has %d bytes", len(b))
	}
	if fault := validation.IsDNS1123Subdomain(u.GetName()); len(fault) > 0 {
		bad("%q", fault)
	}
	size := 0
	for k, v := range u.GetAnnotations() {
		size += len(k) + len(v)
		if fault := validation.IsQualifiedName(strings.ToLower(k)); len(fault) > 0 {
			bad("annotation %q: %q", k, fault)
		}
	}
	if size > 256<<10 {
		bad("its annotations have %d bytes", size)
	}
	for k, v := range u.GetLabels() {
		if fault := append(validation.IsQualifiedName(k), validation.IsValidLabelValue(v)...); len(fault) > 0 {
			bad("label %q: %q: %q", k, v, fault)
		}
	}
	var o struct {
		Spec struct {
			Type, SessionAffinity, InternalTrafficPolicy, TrafficDistribution string
			Ports                                                             []exports.Port
			ExternalIPs                                                       []string
			SessionAffinityConfig                                             struct {
				ClientIP struct{ TimeoutSeconds int }
			}
		}
		AddressType string
		Ports       []exports.Port
		Endpoints   []endpointPart
	}
	need.NoError(s.t, json.Unmarshal(b, &o))
	spec := &o.Spec
	names, places := map[string]bool{}, map[string]bool{}
	for _, p := range append(o.Ports, spec.Ports...) {
		place := fmt.Sprint(p.Protocol, p.Port)
		if p.Port == 0 || p.Name != "" && len(validation.IsDNS1123Label(p.Name)) > 0 || names[p.Name] ||
			len(spec.Ports) > 0 && places[place] || !slices.Contains([]string{"TCP", "UDP", "SCTP"}, p.Protocol) ||
			p.AppProtocol != "" && len(validation.IsQualifiedName(p.AppProtocol)) > 0 ||
			p.Name == "" && len(spec.Ports) > 1 {
			bad("port %+v of %v %v", p, o.Ports, spec.Ports)
		}
		names[p.Name], places[place] = true, true
	}
	switch u.GetKind() {
	case "Service":
		if spec.Type != "ClusterIP" || len(spec.ExternalIPs) > 0 || len(spec.Ports) == 0 {
			bad("a Service of type %s with %d ports", spec.Type, len(spec.Ports))
		}
		fallthrough
	case mcs.KindImport:
		if t := spec.SessionAffinityConfig.ClientIP.TimeoutSeconds; spec.SessionAffinity == "ClientIP" &&
			(t < 1 || t > 86400) || spec.SessionAffinity != "ClientIP" && (spec.SessionAffinity != "None" || t != 0) ||
			!slices.Contains([]string{"", "Cluster", "Local"}, spec.InternalTrafficPolicy) ||
			!slices.Contains(distributions, spec.TrafficDistribution) {
			bad("%+v", spec)
		}
	case "EndpointSlice":
		s.judgeEndpoints(u, o.Endpoints, bad)
	}
}

// judgeEndpoints: all addresses are of the cluster that an EndpointSlice names.
func (s *siege) judgeEndpoints(u *unstructured.Unstructured, all []endpointPart, bad func(string, ...any)) {
	if len(all) > maxSlice || len(all) == 0 {
		bad("it has %d endpoints", len(all))
	}
	cluster := u.GetLabels()[mcs.LabelCluster]
	var within []netip.Prefix
	switch cluster {
	case "milan", "turin":
		n := slices.Index(siegePeers, cluster) + 1
		within = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.6%d.0.0/16", n)),
			netip.MustParsePrefix(fmt.Sprintf("10.7%d.0.0/24", n))}
		if s.turned["turin"] == "milan" && cluster == "milan" { // turin, if milan has left
			within = append(within, netip.MustParsePrefix("10.62.0.0/16"), netip.MustParsePrefix("10.72.0.0/24"))
		}
	case "rome":
		within = []netip.Prefix{netip.MustParsePrefix("10.244.3.0/24")}
	default:
		bad("of cluster %q", cluster)
	}
	for _, e := range all {
		a, err := netip.ParseAddr(e.Addresses[0])
		if err != nil || len(e.Addresses) != 1 || !a.Is4() ||
			slices.Contains([]string{"10.71.0.0", "10.72.0.0"}, a.String()) ||
			!slices.ContainsFunc(within, func(p netip.Prefix) bool { return p.Contains(a) }) {
			bad("address %q of %s", e.Addresses, cluster)
		}
		if len(validation.IsDNS1123Label(e.Hostname)) > 0 {
			bad("host name %q", e.Hostname)
		}
	}
}

// all returns what clients see of each name.
func (s *siege) all() string {
	var lines []string
	for name, u := range s.State.imports {
		if managed(u) {
			spec := plain(u.Object["spec"]).(map[string]any)
			_, addressed := spec["ips"]
			delete(spec, "ips")
			lines = append(lines, fmt.Sprint(name, " ", addressed, spec, u.GetLabels(), u.GetAnnotations()))
		}
	}
	for name, u := range s.derived {
		spec := plain(u.Object["spec"]).(map[string]any)
		delete(spec, "clusterIP")
		delete(spec, "clusterIPs")
		lines = append(lines, fmt.Sprint(name, " ", spec))
	}
	for _, x := range s.ours.all {
		for _, e := range x.group.Addresses {
			lines = append(lines, fmt.Sprint(x.of, " ", x.cluster, " ", x.derived != "", " ", e, " ", x.group.Ports))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// anew returns the same cluster as a new process derives it from what is there of others.
func (s *siege) anew() *siege {
	n := *s
	n.world = &world{State: NewState(), t: s.t, now: s.now}
	for name := range s.there {
		n.PutNamespace(name, s.there[name])
	}
	for i, name := range siegePeers {
		n.put(name, i+1)
	}
	n.heard = map[string][]byte{}
	for name, list := range s.heard {
		n.tell(name, list)
	}
	n.services, n.slices = s.services, s.slices
	for name, e := range s.State.exports {
		n.State.exports[name] = e
		n.touch(name)
	}
	n.settle()
	return &n
}

// TestSiege: whatever peers, and gateways that somebody has taken over, write into PeerExports,
// what is written here is in namespaces that are admitted, valid, about addresses of the peer, and
// touches nobody else's objects. It ends, and a new process comes to the same.
func TestSiege(t *testing.T) {
	seeds, steps := uint64(30), 60
	if os.Getenv("CULVERT_LONG") != "" {
		seeds = 3000
	}
	writes, names := 0, 0
	for seed := range seeds {
		s := &siege{world: rome(t), Rand: rand.New(rand.NewPCG(seed, 41)), heard: map[string][]byte{},
			imports: map[string][]string{"milan": {"*"}, "turin": {"*"}}, turned: map[string]string{},
			exports: map[string][]string{"milan": {"*"}, "turin": {"*"}}, foreign: map[string]bool{},
			there: map[string]bool{"shop": true, "pay": true, "kube-system": true, "culvert": true}}
		for name := range s.there {
			s.PutNamespace(name, true)
		}
		s.check = s.judgeWrite
		var happened []string
		for n := range steps {
			happened = append(happened, s.step())
			s.settle()
			if s.now = s.now.Add(time.Second); n%10 == 9 {
				writes += len(s.writes)
				s.judgeState()
			}
			if t.Failed() {
				t.Fatalf("seed %d: %q", seed, happened)
			}
		}
		names += len(s.State.imports)
	}
	if writes == 0 || names == 0 {
		t.Errorf("%d writes, %d ServiceImports", writes, names)
	}
	t.Logf("%d writes", writes)
}

// judgeState: all is done, and a new process makes the same of what is there.
func (s *siege) judgeState() {
	for _, all := range s.Faults() {
		for _, text := range all {
			if len(text) > 2000 {
				s.t.Errorf("a fault of %d bytes: %.200s", len(text), text)
			}
		}
	}
	s.alone()
	s.settle()
	s.writes = nil
	s.touchAll(func(types.NamespacedName) bool { return true })
	if s.settle(); len(s.writes) > 0 {
		s.t.Errorf("all is done, and then %.500q", s.writes)
	}
	if is, want := s.all(), s.anew().all(); is != want && !s.unread {
		s.t.Errorf("there is\n%s\n\nand a new process makes\n%s", is, want)
	}
}
