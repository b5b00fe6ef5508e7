package peering

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/gateway/config"
	"culvert/integration/need"
	"culvert/kube"
	"culvert/kube/service"
	"culvert/nat"
)

// A model has the objects of a cluster as the API server has them.
type model struct {
	t       *testing.T
	r       *rand.Rand
	objects map[string]map[string]*unstructured.Unstructured // by kind and key
	peering *Peering
	claims  []claim // of pods, in the order in which they came
}

type claim struct {
	address netip.Addr
	key     string
	node    string
}

// see notes the claims of a pod as the API server has it now.
func (m *model) see(key string) {
	var p *pod
	if u := m.objects[kindPod][key]; u != nil {
		p = readPod(u)
	}
	m.claims = slices.DeleteFunc(m.claims, func(c claim) bool {
		return c.key == key && (p == nil || p.node != c.node || !slices.Contains(p.addresses, c.address))
	})
	for i := 0; p != nil && i < len(p.addresses); i++ {
		if c := (claim{p.addresses[i], key, p.node}); !slices.Contains(m.claims, c) {
			m.claims = append(m.claims, c)
		}
	}
}

// watched is a GatewaySource without an API server, with the sinks of its watches.
func (m *model) watched() (*GatewaySource, map[string]kube.Sink) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	s := NewGatewaySource(nil, rome(m.t).self, NodeNamespace, logrus.NewEntry(log))
	s.state.exportsKnown, s.state.nodesKnown, s.state.othersKnown = true, true, true
	for n := 1; n <= 4; n++ {
		s.state.slices.wanted[service.Name{Namespace: "shop", Name: fmt.Sprint("web", n)}] = true
	}
	all, pods := s.sets()
	all = append(all[1:], pods, s.services.sets()[0], into(kindSlice, "", s.state.slices, readSlice))
	sinks := map[string]kube.Sink{}
	for _, w := range all {
		sinks[w.Name] = kube.Sink{Loop: s.loop, Set: w}
	}
	return s, sinks
}

// one returns the key of an object at random, and the object as it may be.
func (m *model) one(kind string) (key string, u *unstructured.Unstructured) {
	n, yes := 1+m.r.IntN(4), m.r.IntN(4) > 0
	name := map[bool]string{true: "node" + fmt.Sprint(n), false: "none"}
	var text string
	switch kind {
	case kindNode:
		key, text = name[true],
			fmt.Sprintf(`{metadata: {name: node%d}, spec: {podCIDRs: [10.244.%d.0/24]}, status: {addresses: [{address: 172.18.0.%[1]d}]}}`, n, m.r.IntN(5))
	case KindTunnelNode:
		key, text = NodeNamespace+"/"+name[true],
			fmt.Sprintf(`{metadata: {name: node%[1]d, namespace: %[2]s}, spec: {local: 10.244.%[1]d.1, remote: 172.18.0.%[3]d},
			status: {peerings: [{name: milan, ready: %[4]t, message: no room}]}}`, n, NodeNamespace, 1+m.r.IntN(5), yes)
	case kindPod:
		n := m.r.IntN(12)
		key = fmt.Sprint("shop/pod", n)
		phase := []string{"Pending", "Running", "Running", "Succeeded"}[m.r.IntN(4)]
		text = fmt.Sprintf(`{metadata: {name: pod%d, namespace: shop}, spec: {nodeName: %s, hostNetwork: %t}, status: {phase: %s, podIPs: [{ip: 10.244.9.%d}, {ip: "fd00::1"}, {ip: 10.%d.9.1}]}}`,
			n, name[yes], m.r.IntN(6) == 0, phase, m.r.IntN(8), 243+m.r.IntN(2))
	case setExported:
		key = fmt.Sprint("shop/web", n)
		text = fmt.Sprintf(`{metadata: {name: web%d, namespace: shop, labels: {culvert/export: "%t"}}, spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{port: 80, protocol: TCP}]}}`, n, yes)
	case kindSlice:
		key = fmt.Sprint("shop/web-", n)
		text = fmt.Sprintf(`{metadata: {name: web-%d, namespace: shop, labels: {kubernetes.io/service-name: web%d}}, addressType: IPv4, ports: [{name: "", port: 8080, protocol: TCP}],
			endpoints: [{addresses: [10.244.9.%d], conditions: {ready: %t}}]}`, n, 1+m.r.IntN(4), m.r.IntN(8), yes)
	}
	return key, object(m.t, text)
}

// afresh returns the plan that a gateway makes of all objects when it starts.
func (m *model) afresh() *Plan {
	s, sinks := m.watched()
	for kind, w := range sinks {
		var list []any
		for _, key := range slices.Sorted(maps.Keys(m.objects[kind])) {
			u := m.objects[kind][key].DeepCopy()
			w.Trim(u)
			list = append(list, u)
		}
		need.NoError(m.t, w.Replace(list, ""))
	}
	s.state.put(m.peering)
	return s.state.Plan()
}

// pods returns each node's pods: who has claimed an address first has it.
func (m *model) pods() map[string][]netip.Prefix {
	all, seen := map[string][]netip.Prefix{}, map[netip.Addr]bool{}
	for _, c := range m.claims {
		inside := slices.ContainsFunc(m.peering.Pods, func(p netip.Prefix) bool { return p.Contains(c.address) })
		if inside && !seen[c.address] {
			all[c.node] = append(all[c.node], netip.PrefixFrom(c.address, 32))
		}
		seen[c.address] = true
	}
	for _, list := range all {
		slices.SortFunc(list, netip.Prefix.Compare)
	}
	return all
}

// TestEventsAreLists: after any sequence of events, the plan is the same as that from lists of all
// objects, but for who has claimed a pod's address first.
func TestEventsAreLists(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	m := &model{t: t, r: rand.New(rand.NewPCG(seed, 0)), objects: map[string]map[string]*unstructured.Unstructured{},
		peering: readIn(t, "mtu: 1400", "podsFrom: Pods")}
	s, sinks := m.watched()
	kinds := slices.Sorted(maps.Keys(sinks))
	for _, kind := range kinds {
		m.objects[kind] = map[string]*unstructured.Unstructured{}
	}
	connected, exported, two := 0, 0, 0
	for round := range 3000 {
		kind := kinds[m.r.IntN(len(kinds))]
		if m.r.IntN(3) == 0 {
			kind = kindPod
		}
		key, u := m.one(kind)
		set := sinks[kind]
		switch m.r.IntN(12) {
		case 0, 1, 2:
			if was := m.objects[kind][key]; was != nil {
				delete(m.objects[kind], key)
				need.NoError(t, set.Delete(was.DeepCopy()))
				m.see(key)
			}
		case 3: // the watch has ended, and what is there is listed
			for range 3 {
				delete(m.objects[kind], key)
				key, u = m.one(kind)
				m.objects[kind][key] = u
			}
			var list []any
			for _, o := range m.objects[kind] {
				c := o.DeepCopy()
				if m.r.IntN(2) == 0 {
					set.Trim(c)
				}
				list = append(list, c)
			}
			need.NoError(t, set.Replace(list, ""))
			if kind == kindPod { // what has gone is noticed last
				for _, key := range slices.Sorted(maps.Keys(m.objects[kind])) {
					m.see(key)
				}
				for _, c := range slices.Clone(m.claims) {
					m.see(c.key)
				}
			}
		case 4: // other pod CIDRs, or who says where pods are
			change := [][]string{{"mtu: 1400", "podsFrom: Pods"}, {"mtu: 1400", "podsFrom: Nodes"},
				{"mtu: 1400", "podsFrom: Pods", "[10.244.0.0/16]", "[10.244.0.0/16, 10.243.0.0/16]"}}
			p := readIn(t, change[m.r.IntN(len(change))]...)
			p.Status, m.peering = m.peering.Status, p
		default:
			m.objects[kind][key] = u
			need.NoError(t, set.Add(u.DeepCopy()))
			if kind == kindPod {
				m.see(key)
			}
		}
		s.state.put(m.peering)
		got, want := s.state.Plan(), m.afresh()
		pods := m.pods()
		for i, d := range []*Plan{got, want} { // whose order follows from no name
			slices.Sort(d.Faults)
			for k := range d.Nodes {
				n := &d.Nodes[k]
				if i == 0 && m.peering.FollowPods && !slices.Equal(n.PodCIDRs, pods[n.Name]) {
					t.Fatalf("round %d, %s %s: %s has %v, want %v", round, kind, key, n.Name, n.PodCIDRs, pods[n.Name])
				}
				if two = max(two, len(n.PodCIDRs)); m.peering.FollowPods {
					n.PodCIDRs = nil
				}
			}
			if m.peering.FollowPods {
				d.Faults = slices.DeleteFunc(d.Faults, func(s string) bool {
					return strings.Contains(s, "which had it first")
				})
				clear(d.disputed)
				for k := range d.Status.Nodes {
					d.Status.Nodes[k].Disputed = false
				}
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("round %d, %s %s:\n%s\nwant\n%s", round, kind, key, text(t, got), text(t, want))
		}
		connected, exported = max(connected, len(got.Nodes)), max(exported, len(got.Services))
		if m.r.IntN(2) == 0 {
			p := *m.peering
			p.Status, m.peering = got.Status, &p
		}
	}
	if connected < 3 || exported < 3 || two < 2 {
		t.Errorf("at most %d nodes with %d pods, %d Services: too few to compare", connected, two, exported)
	}
	left := slices.ContainsFunc(slices.Collect(maps.Keys(s.state.pods.claims)), func(a netip.Addr) bool {
		return len(s.state.pods.claims[a]) == 0
	})
	for _, kind := range kinds {
		need.NoError(t, sinks[kind].Replace(nil, ""))
	}
	if x := s.state.pods; left || len(x.claims)+len(x.contested)+len(x.nodes)+len(x.pods)+
		len(s.state.slices.services) > 0 {
		t.Errorf("without objects: %v", x)
	}
}

// TestPodsShare: a change of a pod replaces the list of its own node. All other lists stay the same
// slices, which cost nothing to compare.
func TestPodsShare(t *testing.T) {
	x, cidrs := newPodIndex(), []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	at := func(node string, a string) *pod {
		return &pod{node: node, addresses: []netip.Addr{netip.MustParseAddr(a)}}
	}
	x.set("a", at("node1", "10.244.1.1"))
	x.set("b", at("node2", "10.244.2.1"))
	one, two := x.of("node1", cidrs), x.of("node2", cidrs)
	x.set("c", at("node2", "10.244.2.2"))
	if again := x.of("node1", cidrs); &again[0] != &one[0] {
		t.Error("node1 has another list")
	}
	if len(two) != 1 || strings.Join(strings.Fields(fmt.Sprint(x.of("node2", cidrs))),
		"") != "[10.244.2.1/3210.244.2.2/32]" {
		t.Errorf("%v, then %v", two, x.of("node2", cidrs))
	}
}

// thief is a gateway with Pods, where a pod of node1 claims the address of an older or a younger
// one of node2, with a name that comes first.
func thief(t *testing.T, victim, lie string) (s *GatewaySource, has func() string) {
	m := &model{t: t, objects: map[string]map[string]*unstructured.Unstructured{}, peering: readIn(t, "mtu: 1400",
		"podsFrom: Pods")}
	s, sinks := m.watched()
	s.state.nodes, s.state.tunnels = rome(t).nodes, rome(t).tunnels
	m.peering.Status = rome(t).peering.Status
	s.state.put(m.peering)
	pods := sinks[kindPod]
	at := func(key, node, created, ip string) *unstructured.Unstructured {
		namespace, name, _ := strings.Cut(key, "/")
		return object(t,
			fmt.Sprintf("{metadata: {name: %s, namespace: %s, creationTimestamp: %q}, spec: {nodeName: %s}, status: {phase: Running, podIPs: [{ip: %s}]}}",
				name, namespace, created, node, ip))
	}
	need.NoError(t, pods.Replace([]any{at("aaa/thief", "node1", lie, "10.244.9.1"),
		at("shop/victim", "node2", victim, "10.244.9.2")}, ""))
	return s, func() string {
		d := s.state.Plan()
		store(s.state, d)
		for _, n := range d.Nodes {
			if slices.Contains(n.PodCIDRs, netip.MustParsePrefix("10.244.9.2/32")) {
				return n.Name + ": " + strings.Join(d.Faults, "; ")
			}
		}
		return "nobody"
	}
}

// TestPodTakesNoAddress: the pod that has an address first keeps it until it gives it up. Neither a
// name nor an age takes it, and a gateway that starts knows which node disputed it.
func TestPodTakesNoAddress(t *testing.T) {
	const old, young = "2026-11-23T11:00:00Z", "2026-11-23T12:00:00Z"
	lie := func(s *GatewaySource, ip string) {
		at := netip.MustParseAddr(ip)
		s.state.pods.set("aaa/thief", &pod{node: "node1", addresses: []netip.Addr{at}})
	}
	for _, created := range [][2]string{{old, young}, {young, old}} {
		s, has := thief(t, created[0], created[1])
		if got := has(); got != "node2: " {
			t.Fatal(got)
		}
		lie(s, "10.244.9.2")
		const want = "node2: Node node1: status.podIPs of its Pod aaa/thief: 10.244.9.2 is of Pod shop/victim on node node2, which had it first"
		if got := has(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if a := s.state.peering.Status.Nodes; !a[0].Disputed || a[1].Disputed {
			t.Errorf("%+v", a)
		}
		next, hasNext := thief(t, created[0], created[1]) // and the list shows the lie at once
		next.state.pods.set("shop/victim", nil)
		lie(next, "10.244.9.2")
		next.state.pods.set("shop/victim",
			&pod{node: "node2", addresses: []netip.Addr{netip.MustParseAddr("10.244.9.2")}})
		next.state.put(s.state.peering)
		if got := hasNext(); got != want {
			t.Errorf("the next gateway: %q, want %q", got, want)
		}
		s.state.pods.set("shop/victim", nil)
		if got := has(); got != "node1: " {
			t.Errorf("the victim has gone: %q", got)
		}
		if a := s.state.peering.Status.Nodes; a[0].Disputed {
			t.Errorf("%+v", a)
		}
	}
	s, has := thief(t, old, young) // the pods of a first list come by age
	s.state.pods = newPodIndex()
	w := into(kindPod, "", s.state.pods, readPod)
	var list []any
	for _, text := range []string{`{metadata: {name: thief, namespace: aaa, creationTimestamp: "` + young +
		`"}, spec: {nodeName: node1}, status: {podIPs: [{ip: 10.244.9.2}]}}`,
		`{metadata: {name: victim, namespace: shop, creationTimestamp: "` + old +
			`"}, spec: {nodeName: node2}, status: {podIPs: [{ip: 10.244.9.2}]}}`} {
		u := object(t, text)
		w.Trim(u)
		list = append(list, u)
	}
	need.NoError(t, kube.Sink{Loop: s.loop, Set: w}.Replace(list, ""))
	if got := has(); !strings.HasPrefix(got, "node2: ") {
		t.Errorf("by age: %q", got)
	}
}

// TestEndingPodDisputesNothing: an address whose pod ends may have a new pod already, on another
// node.
func TestEndingPodDisputesNothing(t *testing.T) {
	s, has := thief(t, "2026-11-23T11:00:00Z", "2026-11-23T12:00:00Z")
	a := []netip.Addr{netip.MustParseAddr("10.244.9.2")}
	s.state.pods.set("shop/victim", &pod{node: "node2", addresses: a, ending: true})
	s.state.pods.set("shop/next", &pod{node: "node1", addresses: a})
	if got := has(); got != "node2: " {
		t.Error(got)
	}
	s.state.pods.set("shop/victim", nil)
	if got := has(); got != "node1: " {
		t.Error(got)
	}
}

// BenchmarkPodChange is the work for a pod that gets other addresses, among 20,000 of 200 nodes,
// until packets have them, and what all of them need in memory.
func BenchmarkPodChange(b *testing.B) {
	const nodes, each = 200, 100
	for name, with := range map[string][]string{"IPv4": nil, "dual": dual} {
		b.Run(name, func(b *testing.B) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			g := rome(b)
			for n := 1; n <= nodes; n++ {
				g.nodes[fmt.Sprint("node", n)], g.tunnels[fmt.Sprint("node", n)] = nodeObject(b, n), tunnelObject(b, n)
			}
			g.put(readIn(b, append([]string{"peer: milan", "peer: milan\n  podsFrom: Pods"}, with...)...))
			put := func(i, generation int) string {
				n, at := 1+i%nodes, 1+i/nodes+generation%2*each
				p := &pod{node: fmt.Sprint("node", n), addresses: []netip.Addr{
					netip.AddrFrom4([4]byte{10, 244, byte(n), byte(at)})}}
				if with != nil {
					p.addresses = append(p.addresses, netip.MustParseAddr(fmt.Sprintf("fd00:244:0:%x::%x", n, at)))
				}
				g.pods.set(fmt.Sprint("default/pod", i), p)
				return p.node
			}
			for i := range nodes * each {
				put(i, 0)
			}
			store(g, g.Plan())
			base := base()
			derive := func() *config.Config {
				d := g.Plan()
				return d.Config(d.Peering.Base(base))
			}
			now := derive()
			links := config.Links{}.Assign(now.Geneve.Nodes)
			e, err := nat.New([16]byte{1}, now.NAT(links, 0))
			need.NoError(b, err)
			runtime.GC()
			runtime.ReadMemStats(&after)
			for i := 0; b.Loop(); i++ {
				node := put(i%(nodes*each), 1+i/(nodes*each))
				next := derive()
				m, alone := next.Amended(now, links)
				if !alone || len(m.Routes) != 1 || len(m.Routes[links.ByName[node]]) == 0 || !e.Reroute(m.Routes) {
					b.Fatalf("%t, %d routes", alone, len(m.Routes))
				}
				now = next
			}
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB")
			runtime.KeepAlive(e)
		})
	}
}
