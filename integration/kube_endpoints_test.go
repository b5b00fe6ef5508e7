package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"culvert/gateway/node/services"
	"culvert/integration/need"
	"culvert/kube/objects"
	"culvert/kube/service"
	"culvert/nat/rules"
)

// A kubeCase is the input of a node: a Service and its EndpointSlices.
type kubeCase struct {
	Node, Zone string
	Service    object
	Slices     []object
}

// A kubePort is the result for one port of a Service in one family, in the format of the program
// endpoints of integration/kubernetes.
type kubePort struct {
	Name, Protocol         string
	Port, NodePort         int
	ClusterIP              string
	External, Balanced     []string
	Sources                []string
	Affinity               string
	AffinitySeconds        int
	ExternalLocal          bool
	InternalLocal          bool
	HealthCheck, Here      int
	UsesCluster, UsesLocal bool
	Cluster, Local         []string
	Any                    bool
}

const (
	kubeSlicesShort = 30_000
	kubeSlicesLong  = 1_000_000
)

// TestKubeEndpoints compares culvert with kube-proxy's own functions for random Services and
// slices: which endpoints a node uses, and at which addresses and ports, under which policies.
func TestKubeEndpoints(t *testing.T) {
	binary := filepath.Join(os.Getenv(kubeAssetsEnv), "endpoints")
	needPrograms(t, []probe{{"kubernetes", func(testing.TB) error {
		_, err := os.Stat(binary)
		return err
	}}})
	many := kubeSlicesShort
	if os.Getenv(longEnv) != "" {
		many = kubeSlicesLong
	}
	judge := need.Command(t, binary)
	judge.Stderr = os.Stderr
	in, err := judge.StdinPipe()
	need.NoError(t, err)
	out, err := judge.StdoutPipe()
	need.NoError(t, err)
	need.NoError(t, judge.Start())
	t.Cleanup(func() { judge.Process.Kill() })
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	cases := make(chan *kubeCase, 1000)
	told := make(chan error, 1)
	go func() {
		defer close(cases)
		told <- sendCases(in, cases, many, seed)
	}()
	answers := json.NewDecoder(bufio.NewReaderSize(out, 1<<20))
	judged, ports, used := 0, 0, map[string]int{}
	for c := range cases {
		var want []kubePort
		need.NoError(t, answers.Decode(&want))
		got, err := c.ports()
		need.NoError(t, err)
		// The judge lists no endpoints for a policy that no address of the Service uses.
		for i := range want {
			if i < len(got) {
				got[i].UsesCluster, got[i].UsesLocal = want[i].UsesCluster, want[i].UsesLocal
				if !want[i].UsesCluster {
					got[i].Cluster = want[i].Cluster
				}
				if !want[i].UsesLocal {
					got[i].Local = want[i].Local
				}
			}
			for what, is := range map[string]bool{
				"cluster": len(want[i].Cluster) > 0, "local": len(want[i].Local) > 0, "nowhere": !want[i].Any,
				"elsewhere": want[i].Any && want[i].UsesLocal && len(want[i].Local) == 0,
				"local only": slices.ContainsFunc(want[i].Local, func(e string) bool {
					return !slices.Contains(want[i].Cluster, e)
				}),
			} {
				if is {
					used[what]++
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			text, _ := json.Marshal(c)
			t.Fatalf("kube-proxy -, culvert +:\n%s\nof %s", diff, text)
		}
		judged, ports = judged+len(c.Slices), ports+len(want)
	}
	need.NoError(t, <-told)
	if rest, err := io.ReadAll(io.MultiReader(answers.Buffered(), out)); err != nil || len(bytes.TrimSpace(rest)) > 0 {
		t.Errorf("after its last answer the judge says %q (%v)", rest, err)
	}
	if err := judge.Wait(); err != nil {
		t.Error(err)
	}
	t.Logf("%d slices, %d ports; ports with %v", judged, ports, used)
	for _, what := range []string{"cluster", "local", "nowhere", "elsewhere", "local only"} {
		if used[what] < ports/1000 {
			t.Errorf("%d of %d ports with %s: too few to say anything", used[what], ports, what)
		}
	}
	if judged < many {
		t.Errorf("%d slices judged, want at least %d", judged, many)
	}
}

// sendCases writes cases with many slices in all, each for the judge and for the test.
func sendCases(judge io.WriteCloser, test chan<- *kubeCase, many int, seed uint64) error {
	g := &kubeGenerator{rand.New(rand.NewPCG(seed, 0))}
	lines := json.NewEncoder(judge)
	for n := 0; n < many; {
		c := g.aCase()
		n += len(c.Slices)
		if err := lines.Encode(c); err != nil {
			return err
		}
		test <- c
	}
	return judge.Close()
}

// ports returns culvert's result for the case, in the judge's format and order.
func (c *kubeCase) ports() ([]kubePort, error) {
	s := service.NewState(service.All, c.Node, &services.Config{Ports: rules.PortRange{First: 61000, Last: 65534}})
	for _, o := range append([]object{c.Service, {
		"kind": "Node", "metadata": object{"name": c.Node, "labels": object{"topology.kubernetes.io/zone": c.Zone}},
		"status": object{"addresses": []object{{"type": "InternalIP", "address": "172.18.0.2"}}},
	}}, c.Slices...) {
		text, err := json.Marshal(o)
		if err != nil {
			return nil, err
		}
		x := &objects.Object{}
		if err := json.Unmarshal(text, x); err != nil {
			return nil, err
		}
		s.Put(x)
	}
	config := s.Config()
	if faults := s.Faults(); len(faults) > 0 {
		return nil, fmt.Errorf("culvert refuses what is well formed: %v", faults)
	}
	checks := map[bool]service.Check{}
	for _, check := range s.Checks() {
		checks[check.V4] = check
	}
	all := []kubePort{}
	for i := range config.Services {
		x := &config.Services[i]
		check := checks[x.ClusterIPs[0].Is4()]
		_, name, _ := strings.Cut(x.Name, ":")
		p := kubePort{
			Name: name, Protocol: map[uint8]string{6: "TCP", 17: "UDP", 132: "SCTP"}[x.Protocol], Port: int(x.Port),
			NodePort:  int(x.NodePort),
			ClusterIP: x.ClusterIPs[0].String(), External: texts(x.ExternalIPs), Balanced: texts(x.LoadBalancerIPs),
			Sources:  texts(x.SourceRanges),
			Affinity: "None", AffinitySeconds: int(x.AffinityTimeout.Seconds()), ExternalLocal: x.ExternalLocal,
			InternalLocal: x.InternalLocal,
			HealthCheck:   int(check.Port), Here: check.Endpoints, Cluster: []string{}, Local: []string{},
		}
		if x.Affinity == rules.AffinityClientIP {
			p.Affinity = "ClientIP"
		}
		for _, e := range x.Endpoints {
			at := netip.AddrPortFrom(e.Address, e.Port).String()
			if e.Eligibility == rules.EligibleAll {
				p.Cluster = append(p.Cluster, at)
			}
			if e.Node == c.Node && e.Eligibility != rules.EligibleNone {
				p.Local = append(p.Local, at)
			}
		}
		p.Any = len(p.Cluster) > 0
		slices.Sort(p.Cluster)
		slices.Sort(p.Local)
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b kubePort) int {
		return strings.Compare(a.ClusterIP+"\x00"+a.Name+"\x00"+a.Protocol, b.ClusterIP+"\x00"+b.Name+"\x00"+b.Protocol)
	})
	return all, nil
}

func texts[T fmt.Stringer](all []T) []string {
	list := []string{}
	for _, x := range all {
		list = append(list, x.String())
	}
	slices.Sort(list)
	return list
}

// A kubeGenerator makes Services and slices that an API server would accept.
type kubeGenerator struct{ *rand.Rand }

// one returns true once in n times, on average.
func (g *kubeGenerator) one(n int) bool { return g.IntN(n) == 0 }

func (g *kubeGenerator) of(list ...string) string { return list[g.IntN(len(list))] }

func (g *kubeGenerator) aCase() *kubeCase {
	c := &kubeCase{Node: "n1", Zone: g.of("east", "east", "")}
	spec := object{"clusterIP": "10.96.0.10", "clusterIPs": []string{"10.96.0.10"}, "ipFamilies": []string{"IPv4"},
		"sessionAffinity": "None"}
	switch g.IntN(4) {
	case 0:
		spec["clusterIPs"], spec["ipFamilies"] = []string{"10.96.0.10", "fd96::10"}, []string{"IPv4", "IPv6"}
	case 1:
		spec["clusterIP"], spec["clusterIPs"], spec["ipFamilies"] = "fd96::10", []string{"fd96::10"}, []string{"IPv6"}
	}
	kind := g.of("ClusterIP", "NodePort", "LoadBalancer")
	spec["type"] = kind
	spec["internalTrafficPolicy"] = g.of("Cluster", "Cluster", "Local")
	if kind != "ClusterIP" {
		spec["externalTrafficPolicy"] = g.of("Cluster", "Local")
	}
	if g.one(4) {
		spec["sessionAffinity"], spec["sessionAffinityConfig"] = "ClientIP",
			object{"clientIP": object{"timeoutSeconds": 1 + g.IntN(86400)}}
	}
	if g.one(4) {
		spec["externalIPs"] = []string{"198.51.100.7", "2001:db8::7"}[:1+g.IntN(2)]
		if kind == "ClusterIP" {
			spec["externalTrafficPolicy"] = g.of("Cluster", "Local")
		}
	}
	status := object{}
	if kind == "LoadBalancer" {
		if g.one(2) {
			status["loadBalancer"] = object{"ingress": []object{{"ip": "203.0.113.1"}, {"ip": "2001:db8::1"},
				{"ip": "203.0.113.2", "ipMode": g.of("VIP", "Proxy")}, {"hostname": "example.org"}}[:1+g.IntN(4)]}
		}
		if g.one(3) {
			spec["loadBalancerSourceRanges"] = []string{"192.0.2.0/24", " 2001:db8:1::/48"}[:1+g.IntN(2)]
		}
		if spec["externalTrafficPolicy"] == "Local" {
			spec["healthCheckNodePort"] = 32000
		}
	}
	ports := []object{
		{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"},
		{"name": "dns-tcp", "port": 53, "protocol": "TCP"}, {"name": "s", "port": 99, "protocol": "SCTP"},
	}[:1+g.IntN(4)]
	if kind != "ClusterIP" {
		for i := range ports {
			ports[i]["nodePort"] = 30000 + i
		}
	}
	spec["ports"] = ports
	c.Service = object{"kind": "Service", "metadata": object{"namespace": "shop", "name": "web"}, "spec": spec,
		"status": status}
	hints := g.IntN(6)
	for i := range g.IntN(4) {
		c.Slices = append(c.Slices, g.aSlice(i, hints))
	}
	return c
}

func (g *kubeGenerator) aSlice(i, manner int) object {
	kind, prefix := "IPv4", "10.244.0."
	if g.one(3) {
		kind, prefix = "IPv6", "fd24::"
	}
	ports := []object{
		{"name": "http", "port": 8080 + g.IntN(2), "protocol": "TCP"}, {"name": "dns", "port": 5353, "protocol": "UDP"},
		{"name": "dns-tcp", "port": 5353, "protocol": "TCP"},
		{"name": "s", "port": 99, "protocol": "SCTP"}, {"name": "other", "port": 1, "protocol": "TCP"},
	}
	g.Shuffle(len(ports), func(i, j int) { ports[i], ports[j] = ports[j], ports[i] })
	var endpoints []object
	for _, n := range g.Perm(8)[:g.IntN(5)] {
		// An endpoint in several slices must be the same in each; otherwise kube-proxy may take any
		// of them.
		if n += 10*i + 1; n == 10*i+8 {
			n = 99
		}
		endpoints = append(endpoints, g.anEndpoint(fmt.Sprintf("%s%d", prefix, n), n == 99, manner))
	}
	s := object{
		"kind": "EndpointSlice", "metadata": object{"namespace": "shop", "name": fmt.Sprintf("web-%d", i),
			"labels": object{"kubernetes.io/service-name": g.of("web", "web", "web", "web", "other")}},
		"addressType": kind, "ports": ports[:1+g.IntN(5)], "endpoints": endpoints,
	}
	return s
}

func (g *kubeGenerator) anEndpoint(address string, same bool, manner int) object {
	if same {
		return object{"addresses": []string{address}, "nodeName": "n1",
			"hints": object{"forZones": []object{{"name": "east"}}}}
	}
	e := object{"addresses": []string{address}}
	if !g.one(6) {
		e["nodeName"] = g.of("n1", "n2", "n3")
	}
	if !g.one(4) {
		conditions := object{}
		switch g.IntN(4) {
		case 0, 1:
			conditions["ready"] = true
		case 2:
			conditions = object{"ready": false, "serving": g.one(2), "terminating": !g.one(3)}
		case 3:
			conditions = object{"ready": g.one(2), "serving": g.one(2), "terminating": g.one(2)}
		}
		e["conditions"] = conditions
	}
	hints := object{}
	if manner > 1 && !g.one(10) {
		hints["forZones"] = []object{{"name": g.of("east", "west", "north")}, {"name": "south"}}[:1+g.IntN(2)]
	}
	if manner > 3 && !g.one(10) {
		hints["forNodes"] = []object{{"name": g.of("n1", "n2", "n3")}}
	}
	if len(hints) > 0 {
		e["hints"] = hints
	}
	return e
}
