package service

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"culvert/gateway/node/services"
)

// anAnnouncer is a State of a node that announces what is in 203.0.113.0/24 and fd99::/64.
func anAnnouncer(t testing.TB, self string, alive []string, objects ...*Object) *State {
	t.Helper()
	base := aBase()
	base.Announce = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("fd99::/64")}
	s := NewState(All, self, base)
	for _, o := range objects {
		s.Put(o)
	}
	s.SetAlive(alive)
	return s
}

// namedNode is a Node with more fields of metadata and status.
func namedNode(t testing.TB, i int, meta, status string) *Object {
	return object(t,
		fmt.Sprintf("{kind: Node, metadata: {name: n%d, uid: u-n%[1]d%s}, status: {addresses: [{type: InternalIP, address: 172.18.0.%[1]d}, {type: InternalIP, address: 'fd18::%[1]d'}]%[3]s}}", i, meta, status))
}

// balanced is a Service with addresses of a load balancer.
func balanced(t testing.TB, name, more string, port int, addresses ...string) *Object {
	o := aService(t, name,
		fmt.Sprintf("type: LoadBalancer, clusterIP: 10.96.0.%d, clusterIPs: [10.96.0.%[1]d, 'fd96::%[1]d'], ports: [{name: http, port: %[1]d, protocol: TCP}]%[2]s", port, more))
	var ingress []string
	for _, a := range addresses {
		ingress = append(ingress, fmt.Sprintf("{\"ip\": %q}", a))
	}
	o.Status = []byte(`{"loadBalancer": {"ingress": [` + strings.Join(ingress, ", ") + "]}}")
	return o
}

// A metalLB is a second implementation of how MetalLB's layer 2 mode chooses, from the text that
// users write.
type metalLB struct {
	speakers, unavailable, excluded []string
}

// owner returns the node that announces a Service whose first address is first; endpoints are "node
// ready serving".
func (m *metalLB) owner(first string, local bool, endpoints []string) string {
	var with []string
	for _, e := range endpoints {
		f := strings.Fields(e)
		if f[1] != "false" || f[2] == "true" {
			with = append(with, f[0])
		}
	}
	if len(with) == 0 {
		return ""
	}
	var hashes []string
	for _, n := range m.speakers {
		if slices.Contains(m.unavailable, n) || slices.Contains(m.excluded, n) || local && !slices.Contains(with, n) {
			continue
		}
		sum := sha256.Sum256([]byte(n + "#" + first))
		hashes = append(hashes, hex.EncodeToString(sum[:])+n)
	}
	if len(hashes) == 0 {
		return ""
	}
	return slices.Min(hashes)[2*sha256.Size:]
}

// Each address is announced by the node that MetalLB chooses, and by no other, on random nodes,
// Services and endpoints.
func TestAnnouncing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	some := func(all []string) (list []string) {
		for _, x := range all {
			if r.IntN(4) == 0 {
				list = append(list, x)
			}
		}
		return list
	}
	owned, nobodys, local := 0, 0, 0
	for range 1000 {
		var names []string
		for i := range 1 + r.IntN(6) {
			names = append(names, fmt.Sprintf("n%d", i+1))
		}
		m := &metalLB{unavailable: some(names), excluded: some(names)}
		for _, n := range names {
			if r.IntN(5) > 0 {
				m.speakers = append(m.speakers, n)
			}
		}
		var objects []*Object
		for i, n := range names {
			meta, status := "",
				", conditions: [{type: Ready, status: 'False'}, {type: NetworkUnavailable, status: 'False'}]"
			if slices.Contains(m.excluded, n) {
				meta = ", labels: {node.kubernetes.io/exclude-from-external-load-balancers: ''}"
			}
			if slices.Contains(m.unavailable, n) {
				status = ", conditions: [{type: NetworkUnavailable, status: 'True'}]"
			}
			objects = append(objects, namedNode(t, i+1, meta, status))
		}
		want := map[string]string{}
		for i := range 4 {
			name, four, six := fmt.Sprintf("s%d", i), fmt.Sprintf("203.0.113.%d", r.IntN(200)+i*10),
				fmt.Sprintf("fd99::%x", 1+r.IntN(1<<16-1))
			addresses := [][]string{{four}, {six}, {four, six}, {six, four}}[r.IntN(4)]
			if want[four] != "" || want[six] != "" {
				continue
			}
			policy, isLocal := "", r.IntN(2) == 0
			if isLocal {
				policy, local = ", externalTrafficPolicy: Local", local+1
			}
			var endpoints, said []string
			for j := range r.IntN(5) {
				n, ready, serving := names[r.IntN(len(names))], []string{"true", "false", "null"}[r.IntN(3)],
					[]string{"true", "false", "null"}[r.IntN(3)]
				said = append(said, n+" "+ready+" "+serving)
				endpoints = append(endpoints,
					fmt.Sprintf("{addresses: [10.244.0.%d], nodeName: %s, conditions: {ready: %s, serving: %s}}", j+1,
						n, ready, serving))
			}
			objects = append(objects, balanced(t, name, policy, 80+i, addresses...), aSlice(t, name, name, webPort,
				endpoints...))
			for _, a := range addresses {
				want[a] = m.owner(addresses[0], isLocal, said)
			}
		}
		r.Shuffle(len(objects), func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
		got := map[string]string{}
		for _, n := range names {
			for _, a := range anAnnouncer(t, n, m.speakers, objects...).Config().Answers {
				if other := got[a.String()]; other != "" {
					t.Errorf("%s is announced by %s and by %s", a, other, n)
				}
				got[a.String()] = n
			}
		}
		for a, n := range want {
			if got[a] != n {
				t.Errorf("%s is announced by %q, want %q: %v", a, got[a], n, m)
			}
			if n == "" {
				nobodys++
			} else {
				owned++
			}
		}
	}
	if owned < 1000 || nobodys < 100 || local < 100 {
		t.Errorf("%d addresses with an owner, %d without, %d Services with the Local policy: too few to say anything",
			owned, nobodys, local)
	}
}

// Services that share an address are announced by a node that may announce all of them or, if there
// is none, by one that may announce the oldest.
func TestAnnouncingShared(t *testing.T) {
	nodes := []*Object{namedNode(t, 1, "", ""), namedNode(t, 2, "", ""), namedNode(t, 3, "", "")}
	alive := []string{"n1", "n2", "n3"}
	const local = ", externalTrafficPolicy: Local"
	at := func(nodes ...string) (all []string) {
		for i, n := range nodes {
			all = append(all, fmt.Sprintf("{addresses: [10.244.0.%d], nodeName: %s}", i+1, n))
		}
		return all
	}
	for _, test := range []struct {
		name   string
		policy [2]string
		at     [2][]string
		among  []string
	}{
		{"both anywhere", [2]string{"", ""}, [2][]string{at("n1"), at("n2")}, alive},
		{"the younger at one", [2]string{"", local}, [2][]string{at("n1"), at("n2")}, []string{"n2"}},
		{"both at one", [2]string{local, local}, [2][]string{at("n1", "n3"), at("n2", "n3")}, []string{"n3"}},
		{"nowhere both", [2]string{local, local}, [2][]string{at("n1"), at("n2")}, []string{"n1"}},
		{"the older without endpoints", [2]string{local, local}, [2][]string{nil, at("n2")}, []string{"n2"}},
	} {
		objects := append(slices.Clone(nodes), balanced(t, "a", test.policy[0], 80, "203.0.113.7"),
			balanced(t, "b", test.policy[1], 81, "203.0.113.7"),
			aSlice(t, "a", "a", webPort, test.at[0]...), aSlice(t, "b", "b", webPort, test.at[1]...))
		var owners []string
		for _, n := range alive {
			if len(anAnnouncer(t, n, alive, objects...).Config().Answers) > 0 {
				owners = append(owners, n)
			}
		}
		if want := (&metalLB{speakers: test.among}).owner("203.0.113.7", false,
			[]string{"n1 true true"}); !slices.Equal(owners, []string{want}) {
			t.Errorf("%s: %v, want %s", test.name, owners, want)
		}
	}
}

// A node announces nothing that it does not serve, nothing outside the CIDRs, and nothing at all
// without CIDRs.
func TestAnnouncingServed(t *testing.T) {
	objects := []*Object{namedNode(t, 1, "", ""), balanced(t, "web", "", 80, "203.0.113.7", "198.51.100.7"),
		aSlice(t, "web", "web", webPort, "{addresses: [10.244.0.1]}")}
	s := anAnnouncer(t, selfName, []string{selfName}, objects...)
	if got := s.Config().Answers; !slices.Equal(got, addr("203.0.113.7")) {
		t.Errorf("%v", got)
	}
	s.Refuse(addr("203.0.113.7"))
	if got := s.Config().Answers; got != nil {
		t.Errorf("with an address that the kernel routes elsewhere: %v", got)
	}
	s.Forgive()
	if s.SetAlive([]string{selfName}) || !s.SetAlive(nil) {
		t.Error("the change is not reported")
	}
	if got := s.Config().Answers; got != nil {
		t.Errorf("without a Lease: %v", got)
	}
	s = aState(t, All, objects...)
	s.SetAlive([]string{selfName})
	if got := s.Config().Answers; got != nil {
		t.Errorf("without announce: %v", got)
	}
}

// A node that cannot answer for an address, for whatever reason, leaves it to the next one, and
// says so in its Lease in few words.
func TestAnnouncingUnable(t *testing.T) {
	nodes := []*Object{namedNode(t, 1, "", ""), namedNode(t, 2, "", "")}
	objects := append(nodes, balanced(t, "web", "", 80, "203.0.113.7", "fd99::7"), aSlice(t, "web-4", "web", webPort,
		"{addresses: [10.244.0.1]}"))
	alive := []string{"n1", "n2"}
	first := (&metalLB{speakers: alive}).owner("203.0.113.7", false, []string{"n1 true true"})
	second := "n1"
	if first == second {
		second = "n2"
	}
	require := func(when string, s *State, want ...string) {
		t.Helper()
		if got := s.Config().Answers; !slices.Equal(got, addr(want...)) {
			t.Errorf("%s, %s answers for %v, want %v", when, s.self, got, want)
		}
	}
	said := func(s *State, want string) {
		t.Helper()
		if got := writeCIDRs(s.Unable()); got != want {
			t.Errorf("%s says %q, want %q", s.self, got, want)
		}
		if back := readCIDRs(want); !slices.Equal(back, s.Unable()) {
			t.Errorf("%q is read as %v", want, back)
		}
	}
	a, b := anAnnouncer(t, first, alive, objects...), anAnnouncer(t, second, alive, objects...)
	require("at first", a, "203.0.113.7", "fd99::7")
	require("at first", b)
	said(a, "")

	a.Refuse(addr("203.0.113.7", "198.51.100.1")) // of which only one is announced
	require("refused", a, "fd99::7")
	said(a, "203.0.113.7/32")
	if !b.SetUnable(first, a.Unable()) || b.SetUnable(first, a.Unable()) {
		t.Error("the change is not reported")
	}
	require("refused", b, "203.0.113.7")
	a.Forgive()
	b.SetUnable(first, nil)
	require("forgiven", a, "203.0.113.7", "fd99::7")
	require("forgiven", b)

	only4 := aBase()
	only4.Announce, only4.Addresses = a.base.Announce, addr("172.18.0.2")
	four := NewState(All, first, only4)
	for _, o := range objects {
		four.Put(o)
	}
	four.SetAlive(alive)
	require("without IPv6", four, "203.0.113.7")
	said(four, "::/0")
	b.SetUnable(first, four.Unable())
	require("without IPv6", b, "fd99::7")

	// Without its cluster address, no port of a Service is served.
	a.Refuse(addr("10.96.0.80"))
	require("without the cluster address", a, "fd99::7")
	said(a, "203.0.113.7/32")
	b.SetUnable(first, a.Unable())
	require("without the cluster address", b, "203.0.113.7")
	a.Forgive()
	require("forgiven", a, "203.0.113.7", "fd99::7")
	said(a, "")
	b.SetUnable(first, nil)

	for i := range maxUnable + 1 {
		many := fmt.Sprintf("203.0.113.%d", 100+i)
		objects = append(objects, manyBalanced(t, i, many))
		a.Put(objects[len(objects)-1])
		b.Put(objects[len(objects)-1])
		a.Refuse(addr(many))
	}
	require("too many are refused", a, "fd99::7") // as others read it
	said(a, "0.0.0.0/0")
	b.SetUnable(first, a.Unable())
	require("too many are refused", b, "203.0.113.7")
	// If all nodes say so, the first one answers for what it serves.
	a.SetUnable(second, a.Unable())
	require("too many are refused by both", a, "203.0.113.7", "fd99::7")
	a.SetUnable(second, nil)
	require("the other's Lease is gone", a, "fd99::7")
	said(a, "0.0.0.0/0")
	if got := readCIDRs(strings.Repeat("203.0.113.7/32,x,", 1000)); len(got) != 2*maxUnable {
		t.Errorf("%d CIDRs of a Lease", len(got))
	}
}

// manyBalanced is one of many Services of one family, each with addresses of its own. They have no
// endpoints.
func manyBalanced(t testing.TB, i int, addresses ...string) *Object {
	o := balanced(t, fmt.Sprintf("many%d", i), "", 80, addresses...)
	o.Spec = fmt.Appendf(nil,
		`{"type": "LoadBalancer", "clusterIP": "10.97.%d.%d", "ports": [{"name": "http", "port": 80}]}`, i/256, i%256)
	return o
}

// An address that no node may announce, because all that could are excluded, is reported on its
// Service, and no other.
func TestAnnouncingExcluded(t *testing.T) {
	const label = ", labels: {node.kubernetes.io/exclude-from-external-load-balancers: ''}"
	endpoint := func(service string, node int) *Object {
		return aSlice(t, service+"-1", service, webPort,
			fmt.Sprintf("{addresses: [10.244.%d.5], nodeName: n%[1]d}", node))
	}
	s := anAnnouncer(t, "n1", []string{"n1", "n2"}, namedNode(t, 1, label, ""), namedNode(t, 2, "", ""),
		balanced(t, "any", "", 80, "203.0.113.7"), endpoint("any", 1),
		balanced(t, "here", ", externalTrafficPolicy: Local", 81, "203.0.113.8"), endpoint("here", 1),
		balanced(t, "none", "", 82, "203.0.113.9"), balanced(t, "elsewhere", "", 83, "198.51.100.7"),
		endpoint("elsewhere", 1))
	told := func(when string, want ...string) {
		t.Helper()
		s.Config()
		var got []string
		for key, r := range s.wrong {
			if text := strings.Join(r.what, "; "); strings.Contains(text, "nobody answers") && strings.Contains(text,
				"exclude-from-external-load-balancers") {
				got = append(got, strings.TrimPrefix(key, "announced shop/"))
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: told of %v, want %v", when, got, want)
		}
	}
	told("one node is excluded", "here")
	s.Put(namedNode(t, 2, label, ""))
	told("both are", "any", "here")
	s.Put(namedNode(t, 1, "", ""))
	told("one is not")
	s.Put(namedNode(t, 1, "", ", conditions: [{type: NetworkUnavailable, status: 'True'}]"))
	told("its network is unavailable", "any", "here")
	s.SetAlive(nil)
	told("no node is alive")
}

// A node answers for a limited number of addresses. Services that are left out get an Event, until
// there is room.
func TestAnnouncingTooMany(t *testing.T) {
	objects := []*Object{namedNode(t, 1, "", "")}
	for i := range services.MaxAnnounced + 1 {
		name := fmt.Sprintf("s%d", i)
		o := balanced(t, name, "", 80, fmt.Sprintf("fd99::%x", i+1))
		o.Spec = fmt.Appendf(nil,
			`{"type": "LoadBalancer", "clusterIP": "fd96::%x", "ports": [{"name": "http", "port": 80}]}`, i+1)
		objects = append(objects, o, aSlice(t, name, name, webPort, "{addresses: ['fd24::1']}"))
	}
	s := anAnnouncer(t, selfName, []string{selfName}, objects...)
	if n := len(s.Config().Answers); n != services.MaxAnnounced {
		t.Errorf("it answers for %d addresses", n)
	}
	want := []string{
		"Service/shop/s256: status.loadBalancer: nobody answers for fd99::101: one node does for 256 addresses at most"}
	if told := texts(s); !slices.Equal(told, want) {
		t.Errorf("%q, want %q", told, want)
	}
	s.Delete(KindService, Name{"shop", "s0"})
	if n := len(s.Config().Answers); n != services.MaxAnnounced || texts(s) != nil {
		t.Errorf("with room, it answers for %d addresses", n)
	}
	s.Put(objects[1])
	s.Config()
	if told := texts(s); !slices.Equal(told, want) {
		t.Errorf("again: %q", told)
	}
	two := objects[len(objects)-2]
	two.Status = []byte(`{"loadBalancer": {"ingress": [{"ip": "fd99::103"}, {"ip": "fd99::102"}]}}`)
	s.Put(two)
	s.Config()
	want = []string{
		"Service/shop/s256: status.loadBalancer: nobody answers for fd99::102: one node does for 256 addresses at most; status.loadBalancer: nobody answers for fd99::103: one node does for 256 addresses at most"}
	if told := texts(s); !slices.Equal(told, want) {
		t.Errorf("of two addresses: %q", told)
	}
}

// BenchmarkAnnouncing is an endpoint that changes where many nodes may announce many addresses.
func BenchmarkAnnouncing(b *testing.B) {
	var names []string
	var objects []*Object
	for i := range 200 {
		names = append(names, fmt.Sprintf("n%d", i+1))
	}
	for i := range 500 {
		name := fmt.Sprintf("s%d", i)
		o := balanced(b, name, "", 80, fmt.Sprintf("203.0.113.%d", i%256))
		if i > 255 {
			o = balanced(b, name, "", 80, fmt.Sprintf("fd99::%x", i))
		}
		objects = append(objects, o, aSlice(b, name, name, webPort, "{addresses: [10.244.0.1], nodeName: n1}"))
	}
	s := anAnnouncer(b, "n1", names, append(objects, namedNode(b, 1, "", ""))...)
	for i := 0; b.Loop(); i++ {
		s.Put(aSlice(b, "s0", "s0", webPort, fmt.Sprintf("{addresses: [10.244.0.%d], nodeName: n1}", 1+i%200)))
		s.Config()
	}
}
