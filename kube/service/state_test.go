package service

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"culvert/gateway/node/services"
	"culvert/kube/objects"
	"culvert/nat/rules"
)

// TestChoose: which endpoints a node uses depends on readiness, place and hints.
func TestChoose(t *testing.T) {
	end := func(n, more string) string { return "{addresses: [10.244.0." + n + "], " + more + "}" }
	for _, test := range []struct {
		name      string
		endpoints []string
		want      string
	}{
		{"ready by default", []string{end("1", "")}, "10.244.0.1:8080"},
		{"ready ones alone", []string{end("1", "conditions: {ready: true}"),
			end("2", "conditions: {ready: false, serving: false}")}, "10.244.0.1:8080"},
		{"of this node", []string{end("1", "nodeName: n1"), end("2", "nodeName: n2")},
			"10.244.0.1:8080 here, 10.244.0.2:8080"},
		{"terminating beside ready ones of other nodes", []string{
			end("1", "nodeName: n1, conditions: {ready: false, serving: true, terminating: true}"),
			end("2", "nodeName: n2"),
		}, "10.244.0.1:8080 local only here, 10.244.0.2:8080"},
		{"terminating beside ready ones", []string{
			end("1", "nodeName: n1, conditions: {ready: false, serving: true, terminating: true}"),
			end("2", "nodeName: n1"),
		}, "10.244.0.1:8080 leaving here, 10.244.0.2:8080 here"},
		{"terminating alone", []string{
			end("1", "nodeName: n2, conditions: {ready: false, serving: true, terminating: true}"),
			end("2", "conditions: {ready: false, serving: false, terminating: true}"),
		}, "10.244.0.1:8080"},
		{"neither ready nor terminating", []string{end("1", "conditions: {ready: false, serving: true}")},
			"10.244.0.1:8080 leaving"},
		{"zone", []string{
			end("1", "hints: {forZones: [{name: east}]}"), end("2", "hints: {forZones: [{name: west}]}"),
			end("3", "nodeName: n1, hints: {forZones: [{name: west}]}"),
		}, "10.244.0.1:8080, 10.244.0.2:8080 leaving, 10.244.0.3:8080 local only here"},
		{"zone without endpoints", []string{end("1", "hints: {forZones: [{name: west}]}")}, "10.244.0.1:8080"},
		{"zone, and one without a hint", []string{end("1", "hints: {forZones: [{name: west}]}"),
			end("2", "hints: {forZones: [{name: east}]}"), end("3", "")},
			"10.244.0.1:8080, 10.244.0.2:8080, 10.244.0.3:8080"},
		{"node before zone", []string{
			end("1", "hints: {forZones: [{name: east}], forNodes: [{name: n2}]}"),
			end("2", "hints: {forZones: [{name: west}], forNodes: [{name: n1}]}"),
		}, "10.244.0.1:8080 leaving, 10.244.0.2:8080"},
		{"node without endpoints, zone", []string{
			end("1", "hints: {forZones: [{name: east}], forNodes: [{name: n2}]}"),
			end("2", "hints: {forZones: [{name: west}], forNodes: [{name: n3}]}"),
		}, "10.244.0.1:8080, 10.244.0.2:8080 leaving"},
		{"hints of what is not ready", []string{end("1", "hints: {forZones: [{name: east}]}"),
			end("2", "hints: {forZones: [{name: west}]}"), end("3", "conditions: {ready: false, serving: false}")},
			"10.244.0.1:8080, 10.244.0.2:8080 leaving"},
	} {
		s := aState(t, All, aService(t, "web", web), aSlice(t, "web-1", "web", webPort, test.endpoints...))
		if got := endpoints(served(t, s.Config(), "shop/web:http", true)); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
		if told := texts(s); told != nil {
			t.Errorf("%s: %q", test.name, told)
		}
	}
}

// TestSlices: the slices of a Service are merged by port, protocol and family.
func TestSlices(t *testing.T) {
	dual := "clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, 'fd96::10'], ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}, {name: dns, port: 53, protocol: TCP}]"
	s := aState(t, All, aService(t, "web", dual),
		aSlice(t, "a", "web", webPort+", {name: dns, port: 5353, protocol: UDP}", "{addresses: [10.244.0.1]}",
			"{addresses: [10.244.0.2], conditions: {ready: false, serving: false}}"),
		aSlice(t, "b", "web", "{name: http, port: 8081}", "{addresses: [10.244.0.1]}", "{addresses: [10.244.0.2]}"),
		aSlice(t, "c", "web", webPort, "{addresses: [10.244.0.1], nodeName: n1}",
			"{addresses: [10.244.0.2], nodeName: n1}"),
		aSlice(t, "d", "web", webPort, "{addresses: ['fd24::1']}"),
		aSlice(t, "e", "other", webPort, "{addresses: [10.244.0.9]}"),
		aSlice(t, "f", "web", "{port: 1, protocol: TCP}, {name: http, protocol: TCP}, {name: http, port: 0}",
			"{addresses: [10.244.0.8]}"),
		object(t,
			"{kind: EndpointSlice, metadata: {namespace: shop, name: g, labels: {kubernetes.io/service-name: web}}, addressType: FQDN, ports: ["+webPort+"], endpoints: [{addresses: [example.org]}]}"),
	)
	c := s.Config()
	for _, want := range []struct {
		name string
		v4   bool
		all  string
	}{
		{"shop/web:http", true, "10.244.0.1:8080 here, 10.244.0.1:8081, 10.244.0.2:8080 here, 10.244.0.2:8081"},
		{"shop/web:http", false, "[fd24::1]:8080"},
		{"shop/web:dns", true, "10.244.0.1:5353"},
		{"shop/web:dns", false, ""},
	} {
		if got := endpoints(served(t, c, want.name, want.v4)); got != want.all {
			t.Errorf("%s: %s, want %s", want.name, got, want.all)
		}
	}
	if len(c.Services) != 6 {
		t.Errorf("%d ports", len(c.Services))
	}
	s.Delete(KindSlice, Name{"shop", "c"})
	if got := endpoints(served(t, s.Config(), "shop/web:http", true)); got !=
		"10.244.0.1:8080, 10.244.0.1:8081, 10.244.0.2:8081" {
		t.Errorf("without a slice: %s", got)
	}
	moved := aSlice(t, "b", "other", webPort, "{addresses: [10.244.0.1]}")
	s.Put(moved)
	if got := endpoints(served(t, s.Config(), "shop/web:http", true)); got != "10.244.0.1:8080" {
		t.Errorf("after a slice has gone to another Service: %s", got)
	}
	if told := texts(s); told != nil {
		t.Errorf("%q", told)
	}
}

// TestSpec: the fields of a Service are read.
func TestSpec(t *testing.T) {
	s := aState(t, All, object(t, `
kind: Service
metadata: {namespace: shop, name: web}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, "fd96::10"]
  ports: [{port: 80, nodePort: 30080}]
  externalIPs: [198.51.100.7, "2001:db8::7", 203.0.113.1]
  externalTrafficPolicy: Local
  internalTrafficPolicy: Local
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}
  loadBalancerSourceRanges: [" 192.0.2.0/24", 198.51.100.1/24]
  healthCheckNodePort: 32000
status: {loadBalancer: {ingress: [{ip: 203.0.113.1}, {ip: 203.0.113.2, ipMode: Proxy}, {ip: 203.0.113.3, ipMode: VIP}, {ip: "2001:db8::1"}, {hostname: example.org}]}}
`), aSlice(t, "a", "web", "{name: '', port: 8080}", "{addresses: [10.244.0.1], nodeName: n1}"))
	c := s.Config()
	if !slices.Equal(c.Addresses, addr("172.18.0.2", "fd18::2")) || c.Node != "n1" {
		t.Errorf("node %s at %v", c.Node, c.Addresses)
	}
	v4, v6 := served(t, c, "shop/web", true), served(t, c, "shop/web", false)
	want := services.Service{
		Name: "shop/web", Protocol: 6, ClusterIPs: addr("10.96.0.10"), Port: 80, NodePort: 30080,
		ExternalIPs:     addr("198.51.100.7"),
		LoadBalancerIPs: addr("203.0.113.1", "203.0.113.3"),
		SourceRanges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"),
			netip.MustParsePrefix("198.51.100.0/24")},
		Affinity: rules.AffinityClientIP, AffinityTimeout: time.Minute, ExternalLocal: true, InternalLocal: true,
	}
	requireService(t, v4, want, "10.244.0.1:8080 here")
	want.ClusterIPs, want.ExternalIPs, want.LoadBalancerIPs, want.SourceRanges = addr("fd96::10"), addr("2001:db8::7"),
		addr("2001:db8::1"), nil
	requireService(t, v6, want, "")
	if told := texts(s); told != nil {
		t.Errorf("%q", told)
	}
}

func requireService(t *testing.T, got *services.Service, want services.Service, all string) {
	t.Helper()
	if endpoints(got) != all {
		t.Errorf("%s: endpoints %s, want %s", want.Name, endpoints(got), all)
	}
	have := *got
	have.Endpoints = nil
	if x, y := show(have), show(want); x != y {
		t.Errorf("got\n%s, want\n%s", x, y)
	}
}

// TestServed: which Services are served depends on label, type and address.
func TestServed(t *testing.T) {
	labelled := func(name, labels, spec string) *Object {
		o := aService(t, name, spec)
		o.Metadata.Labels = map[string]string{}
		for _, l := range strings.Fields(labels) {
			key, value, _ := strings.Cut(l, "=")
			o.Metadata.Labels[key] = value
		}
		return o
	}
	at := func(n string) string {
		return "clusterIP: 10.96.0." + n + ", clusterIPs: [10.96.0." + n + "], ports: [{port: 80}]"
	}
	objects := []*Object{
		labelled("plain", "app=web", at("1")), labelled("ours", "service.kubernetes.io/service-proxy-name=culvert",
			at("2")),
		labelled("theirs", "service.kubernetes.io/service-proxy-name=other", at("3")),
		labelled("empty", "service.kubernetes.io/service-proxy-name=", at("4")),
		labelled("headless", "service.kubernetes.io/headless=", at("5")),
		labelled("none", "", "clusterIP: None, clusterIPs: [None], ports: [{port: 80}]"),
		labelled("named", "", "type: ExternalName, externalName: example.org, clusterIP: 10.96.0.7"),
		labelled("pending", "", "ports: [{port: 80}]"),
	}
	for mode, want := range map[Mode][]string{Labelled: {"shop/ours"}, All: {"shop/ours", "shop/plain"}} {
		var names []string
		for _, s := range aState(t, mode, objects...).Config().Services {
			names = append(names, s.Name)
		}
		if slices.Sort(names); !slices.Equal(names, want) {
			t.Errorf("%s: %v, want %v", mode, names, want)
		}
	}
	s := aState(t, Labelled, objects[1])
	s.Put(labelled("ours", "", at("2"))) // the label goes
	if n := len(s.Config().Services); n != 0 {
		t.Errorf("%d are served without the label", n)
	}
}

// TestOrderDoesNotMatter: the same objects give the same result in any order, with some put twice
// and some deleted again.
func TestOrderDoesNotMatter(t *testing.T) {
	objects := []*Object{
		aNode(t), aService(t, "web", web), aService(t, "web2", web+", externalIPs: [198.51.100.7]"),
		aService(t, "api",
			"clusterIP: 10.96.0.11, externalIPs: [198.51.100.7], ports: [{name: http, port: 80, nodePort: 30080}]"),
		aSlice(t, "web-1", "web", webPort, "{addresses: [10.244.0.1], nodeName: n1}"), aSlice(t, "web-2", "web",
			webPort, "{addresses: [10.244.0.1]}", "{addresses: [10.244.0.2]}"),
		aSlice(t, "api-1", "api", webPort, "{addresses: [10.244.0.3]}"),
	}
	objects[2].Metadata.Created = objects[2].Metadata.Created.Add(time.Hour)
	want := ""
	for turn := range len(objects) {
		s := NewState(All, selfName, aBase())
		for i := range objects {
			o := objects[(i*3+turn)%len(objects)]
			s.Put(o)
			if i%2 == 0 {
				s.Delete(o.Kind, Name{o.Metadata.Namespace, o.Metadata.Name})
				s.Put(o)
			}
		}
		c := s.Config()
		got := show(c) + strings.Join(texts(s), "\n")
		if want == "" {
			want = got
		}
		if got != want {
			t.Errorf("turn %d:\n%s\nwant\n%s", turn, got, want)
		}
	}
	if !strings.Contains(want,
		"Service/shop/web2: spec.clusterIPs[0]: port 80 is also that of shop/web, which is older") {
		t.Errorf("the younger Service is not named: %s", want)
	}
}

// TestPutSaysWhatChanges: changes that affect nothing are not applied.
func TestPutSaysWhatChanges(t *testing.T) {
	s := aState(t, All, aService(t, "web", web), aSlice(t, "a", "web", webPort, "{addresses: [10.244.0.1]}"))
	s.Config()
	for _, o := range []*Object{aService(t, "web", web), aSlice(t, "a", "web", webPort, "{addresses: [10.244.0.1]}"),
		aNode(t)} {
		o.Metadata.Labels = maps.Clone(o.Metadata.Labels)
		if o.Kind == KindService {
			o.Metadata.Labels = map[string]string{"new": "label"}
		}
		if s.Put(o) {
			t.Errorf("%s: the same again is a change", o.Kind)
		}
	}
	for _, o := range []*Object{aService(t, "web", web+", sessionAffinity: ClientIP"), aSlice(t, "a", "web", webPort,
		"{addresses: [10.244.0.2]}")} {
		if !s.Put(o) {
			t.Errorf("%s: another is no change", o.Kind)
		}
	}
	if got := served(t, s.Config(), "shop/web:http", true); endpoints(got) != "10.244.0.2:8080" ||
		got.Affinity != rules.AffinityClientIP {
		t.Errorf("%+v", got)
	}
}

// TestChecks: health checks count the ready addresses on this node.
func TestChecks(t *testing.T) {
	balanced := "type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 32000, clusterIP: 10.96.0.10, ports: [{name: http, port: 80}, {name: tls, port: 443}]"
	s := aState(t, All, aService(t, "web", balanced),
		aService(t, "cluster", strings.ReplaceAll(strings.Replace(balanced, "Local", "Cluster", 1), "0.10", "0.11")),
		aSlice(t, "a", "web", webPort+", {name: tls, port: 8443}", "{addresses: [10.244.0.1], nodeName: n1}",
			"{addresses: [10.244.0.2], nodeName: n2}",
			"{addresses: [10.244.0.3], nodeName: n1, conditions: {ready: false, serving: true, terminating: true}}",
			"{addresses: [10.244.0.4], nodeName: n1}"))
	s.Config()
	if got := s.Checks(); !slices.Equal(got, []Check{{Name{"shop", "web"}, true, 32000, 2}}) {
		t.Errorf("%v", got)
	}
}

// TestNode: name and addresses come from the Node, unless the file has addresses.
func TestNode(t *testing.T) {
	s := NewState(All, selfName, aBase())
	if w := s.Waiting(); w != "the Node n1" {
		t.Errorf("waits for %q", w)
	}
	s.Put(object(t,
		"{kind: Node, metadata: {name: n2}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}"))
	s.Put(object(t, "{kind: Node, metadata: {name: n1}}"))
	if w := s.Waiting(); w != "an address of the Node n1" {
		t.Errorf("waits for %q", w)
	}
	s.Put(object(t,
		"{kind: Node, metadata: {name: n1}, status: {addresses: [{type: ExternalIP, address: 198.51.100.2}]}}"))
	if c := s.Config(); s.Waiting() != "" || !slices.Equal(c.Addresses, addr("198.51.100.2")) {
		t.Errorf("waits for %q, addresses %v", s.Waiting(), c.Addresses)
	}
	base := aBase()
	base.Addresses = addr("172.18.0.9")
	s.Rebase(base)
	if c := s.Config(); !slices.Equal(c.Addresses, addr("172.18.0.9")) {
		t.Errorf("addresses %v", c.Addresses)
	}
}

// TestRefuse: addresses that the kernel routes elsewhere are left out, and nothing else is.
func TestRefuse(t *testing.T) {
	s := aState(t, All, aService(t, "web", web+", externalIPs: [198.51.100.7, 198.51.100.8]"))
	s.Config()
	if !s.Refuse(addr("198.51.100.7")) || s.Refuse(addr("198.51.100.7")) {
		t.Error("the same refusal is new twice, or never")
	}
	if got := served(t, s.Config(), "shop/web:http", true).ExternalIPs; !slices.Equal(got, addr("198.51.100.8")) {
		t.Errorf("%v", got)
	}
	if told := texts(s); !slices.Equal(told,
		[]string{"Service/shop/web: spec.externalIPs[0]: this node has another route to 198.51.100.7, or by it"}) {
		t.Errorf("%q", told)
	}
	s.Forgive()
	if got := served(t, s.Config(), "shop/web:http", true).ExternalIPs; len(got) != 2 {
		t.Errorf("%v after it is forgiven", got)
	}
}

// TestFamiliesStay: a running node keeps the families that it started with, whatever its Node or
// its file says. A refused change has no effect, so endpoints still change.
func TestFamiliesStay(t *testing.T) {
	node := func(addresses string) *Object {
		return object(t, "{kind: Node, metadata: {name: n1}, status: {addresses: ["+addresses+"]}}")
	}
	s := NewState(All, selfName, aBase())
	s.Put(node("{type: InternalIP, address: 172.18.0.2}"))
	first := s.Config()
	s.Put(node("{type: InternalIP, address: 172.18.0.4}, {type: InternalIP, address: 'fd18::4'}"))
	if c := s.Config(); !slices.Equal(c.Addresses, addr("172.18.0.4")) || first.Replaceable(c) != nil {
		t.Errorf("addresses %v", c.Addresses)
	}
	if told := texts(s); len(told) != 1 || !strings.Contains(told[0], "Node/n1: status.addresses: fd18::4") {
		t.Errorf("%q", told)
	}
	s.Put(node("{type: InternalIP, address: 'fd18::4'}"))
	if c := s.Config(); !slices.Equal(c.Addresses, addr("172.18.0.4")) {
		t.Errorf("addresses %v, when the first is gone", c.Addresses)
	}
	for what, change := range map[string]func(*services.Config){
		"interface": func(c *services.Config) { c.Interface = "culvert2" }, "MTU": func(c *services.Config) {
			c.MTU = 1400
		},
		"families": func(c *services.Config) { c.Addresses = addr("172.18.0.4", "fd18::4") },
	} {
		base := aBase()
		change(base)
		if s.Rebase(base) == nil || first.Replaceable(s.Config()) != nil {
			t.Errorf("another %s is taken", what)
		}
	}
}

// TestForeignAddresses: packets to an address of another Node or of the API server are not taken
// from it.
func TestForeignAddresses(t *testing.T) {
	balanced := aService(t, "web", "type: LoadBalancer, "+web+", externalIPs: [172.18.0.3, 198.51.100.9, 172.18.0.2]")
	balanced.Status = object(t, "{status: {loadBalancer: {ingress: [{ip: 172.18.0.3}, {ip: 203.0.113.9}]}}}").Status
	other := object(t,
		"{kind: Node, metadata: {name: n2}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}")
	s := aState(t, All, balanced)
	requireOutside := func(external, balancer []netip.Addr) {
		t.Helper()
		if got := served(t, s.Config(), "shop/web:http", true); !slices.Equal(got.ExternalIPs, external) ||
			!slices.Equal(got.LoadBalancerIPs, balancer) {
			t.Errorf("served at %v and %v, want %v and %v", got.ExternalIPs, got.LoadBalancerIPs, external, balancer)
		}
	}
	requireOutside(addr("198.51.100.9", "172.18.0.2"), addr("172.18.0.3", "203.0.113.9"))
	server := object(t,
		"{kind: EndpointSlice, metadata: {namespace: default, name: kubernetes, labels: {kubernetes.io/service-name: kubernetes}}, addressType: IPv4, "+
			"ports: [{name: https, port: 6443}], endpoints: [{addresses: [198.51.100.9]}]}")
	for _, o := range []*Object{other, server} {
		if !s.Put(o) || s.Put(o) {
			t.Errorf("%s: no change, or one twice", o.Kind)
		}
	}
	requireOutside(addr("172.18.0.2"), addr("203.0.113.9"))
	if told := texts(s); !slices.Equal(told,
		[]string{"Service/shop/web: spec.externalIPs[1]: 198.51.100.9 is the API server's"}) {
		t.Errorf("%q", told)
	}
	if !s.Delete(KindNode, Name{"", "n2"}) || !s.Delete(KindSlice, Name{"default", "kubernetes"}) {
		t.Error("a deletion is no change")
	}
	requireOutside(addr("198.51.100.9", "172.18.0.2"), addr("172.18.0.3", "203.0.113.9"))
}

// TestSocketsMode: sockets reserve no port, and do not serve SCTP.
func TestSocketsMode(t *testing.T) {
	s := aState(t, All, aService(t, "web", "type: NodePort, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], "+
		"ports: [{name: http, port: 80, nodePort: 61000}, {name: calls, port: 80, nodePort: 30080, protocol: SCTP}]"),
		aSlice(t, "web-1", "web", webPort, "{addresses: [10.244.0.1]}"))
	s.base.Mode = services.Sockets
	c := s.Config()
	places := c.Places(addr("172.18.0.2", "10.244.0.99"))
	if len(places) != 1 || places[0].At != netip.MustParseAddrPort("172.18.0.2:61000") {
		t.Errorf("places: %+v", places)
	}
	if got := texts(s); len(got) != 1 || !strings.Contains(got[0],
		"spec.ports[1].protocol: SCTP is not served by sockets") {
		t.Errorf("told: %q", got)
	}
}

// TestAnnotations: weights are by the nodes of endpoints, headers of the PROXY protocol for TCP.
// Both change without the slices.
func TestAnnotations(t *testing.T) {
	said := func(weights, proxy string) *Object {
		o := aService(t, "web", web[:len(web)-1]+", {name: dns, port: 53, protocol: UDP}]")
		o.Annotations = map[string]string{annotationWeights: weights, annotationProxy: proxy, "other/annotation": "v2"}
		return o
	}
	s := aState(t, All, said("", ""), aSlice(t, "web-1", "web", webPort,
		"{addresses: [10.244.0.1], nodeName: n1}", "{addresses: [10.61.0.2], nodeName: milan}",
		"{addresses: [10.244.0.3]}"))
	for _, test := range []struct {
		weights, proxy string
		want           []int // of the endpoints, by address; 0 means 1
		headers        bool
		told           string // by Event
	}{
		{"", "", []int{0, 0, 0}, false, ""},
		{"milan=3", "v2", []int{3, 0, 0}, true, ""},
		{"milan=1000, n1=2", "none", []int{1000, 2, 0}, false, ""},
		{"milan=0,n1=2", "", []int{0, 2, 0}, false, `metadata.annotations[culvert/endpoint-weights]: "milan=0" is not`},
		{"milan,=3,n1=1001", "", []int{0, 0, 0}, false, `"=3" is not`},
	} {
		if s.Put(said(test.weights, test.proxy)) != (test.weights != "" || test.proxy != "") {
			t.Errorf("%q, %q: a change is not reported, or one is reported without a change", test.weights, test.proxy)
		}
		x := served(t, s.Config(), "shop/web:http", true)
		var got []int
		for _, e := range x.Endpoints {
			got = append(got, e.Weight)
		}
		if !slices.Equal(got, test.want) || x.ProxyProtocol != test.headers {
			t.Errorf("%q, %q: weights %v, headers %v", test.weights, test.proxy, got, x.ProxyProtocol)
		}
		if served(t, s.Config(), "shop/web:dns", true).ProxyProtocol {
			t.Errorf("%q: headers for UDP", test.proxy)
		}
		if told := strings.Join(texts(s), ""); (told != "") != (test.told != "") || !strings.Contains(told, test.told) {
			t.Errorf("%q, %q: told %q", test.weights, test.proxy, told)
		}
	}
	u := unstructuredOf(t, said("", ""))
	u.SetAnnotations(map[string]string{annotationWeights: "milan=3"})
	if o := objects.Of(KindService, u); o.Annotations[annotationWeights] != "milan=3" {
		t.Errorf("of an object: %v", o)
	}
	s.Put(said("", "v1"))
	if left := s.Config().Services; len(left) > 0 {
		t.Errorf("headers of another version: %+v", left)
	}
	if told := strings.Join(texts(s), ""); !strings.Contains(told,
		`metadata.annotations[culvert/proxy-protocol]: "v1" is neither v2 nor none`) {
		t.Errorf("headers of another version: told %q", told)
	}
}
