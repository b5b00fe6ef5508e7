package terms

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"culvert/integration/need"
	"culvert/kube/peering"
)

// survey reads objects of a cluster.
func survey(t testing.TB, documents ...string) *Survey {
	t.Helper()
	s := &Survey{}
	for _, text := range documents {
		for _, document := range strings.Split(text, "\n---\n") {
			u := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(document), &u.Object); err != nil {
				t.Fatalf("%v in %s", err, document)
			}
			map[string]func(*unstructured.Unstructured){"Node": s.Node, "Pod": s.Pod, "Service": s.Service,
				"ServiceCIDR": s.ServiceCIDR,
				"IPPool":      s.IPPool, "Peering": s.Peering}[u.GetKind()](u)
		}
	}
	return s
}

// node is a Node; pods may be "".
func node(n int, address, pods string) string {
	return fmt.Sprintf(`{kind: Node, metadata: {name: node%d}, spec: {podCIDR: %q, podCIDRs: [%q]},
  status: {addresses: [{type: InternalIP, address: %s}], conditions: [{type: Ready, status: "True"}]}}`, n, pods,
		pods, address)
}

func pod(n, on int, address string) string {
	return fmt.Sprintf(`{kind: Pod, metadata: {name: pod%d, namespace: default}, spec: {nodeName: node%d}, status: {phase: Running, podIPs: [{ip: %s}]}}`, n, on, address)
}

const (
	serviceCIDR = `{kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [10.96.0.0/12, "fd00::/112"]}}`
	apiService  = `{kind: Service, metadata: {name: kubernetes, namespace: default}, spec: {clusterIPs: [10.96.0.1]}}`
	controllers = `{kind: Pod, metadata: {name: kube-controller-manager-n1, namespace: kube-system, labels: {component: kube-controller-manager}},
  spec: {hostNetwork: true, nodeName: n1, containers: [{command: [kube-controller-manager, --cluster-cidr=10.244.0.0/15, --service-cluster-ip-range=10.97.0.0/16]}]}}`
)

func parse(t testing.TB, texts ...string) (all []netip.Prefix) {
	t.Helper()
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func describe(all []Found) string {
	var texts []string
	for _, f := range all {
		texts = append(texts, fmt.Sprintf("%s (%s)", f.CIDR, f.Source))
	}
	return strings.Join(texts, ", ")
}

// virtual is a Node that stands for another cluster, with the address that a NodePort would prefer.
const virtual = `{kind: Node, metadata: {name: node9, labels: {liqo.io/type: virtual-node}},
  spec: {podCIDR: 10.9.0.0/24, podCIDRs: [10.9.0.0/24]}, status: {conditions: [{type: Ready, status: "True"}],
  addresses: [{type: ExternalIP, address: 203.0.113.9}, {type: InternalIP, address: 10.80.7.7}]}}`

// TestArchs: each architecture of nodes that run agents is found once.
func TestArchs(t *testing.T) {
	of := func(name, arch, labels string) string {
		return fmt.Sprintf("{kind: Node, metadata: {name: %s, labels: {%s}}, spec: {podCIDRs: [10.0.1.0/24]}, "+
			"status: {nodeInfo: {architecture: %q}}}", name, labels, arch)
	}
	c, err := survey(t, of("a", "arm64", ""), of("b", "amd64", ""), of("c", "arm64", ""), of("d", "", ""),
		of("e", "riscv64", "liqo.io/type: virtual-node"), serviceCIDR).Find("rome", Hints{})
	need.NoError(t, err)
	if want := []string{"arm64", "amd64"}; !slices.Equal(c.Archs, want) {
		t.Errorf("%q, want %q", c.Archs, want)
	}
}

func TestFind(t *testing.T) {
	nodes := node(1, "172.18.0.1", "10.244.1.0/24") + "\n---\n" + node(2, "172.18.0.2", "10.244.2.0/24")
	bare := node(1, "10.0.0.11", "") + "\n---\n" + node(2, "10.0.0.12", "")
	for _, c := range []struct {
		name                 string
		objects              []string
		hints                Hints
		pods, from, services string
		err                  string
	}{
		{name: "no Node", err: "there is no Node"},
		{name: "Nodes", objects: []string{nodes, apiService},
			pods: "10.244.0.0/16 (guessed: spec.podCIDRs of 2 Nodes are in it)", from: "Nodes",
			services: "10.96.0.0/16 (guessed: the addresses of Services are in it)"},
		{name: "one Node, ServiceCIDR", objects: []string{node(1, "172.18.0.1", "10.42.0.0/24"), serviceCIDR,
			apiService, pod(1, 1, "10.42.0.7")},
			pods: "10.42.0.0/16 (guessed: spec.podCIDRs of 1 Node are in it)", from: "Nodes",
			services: "10.96.0.0/12 (ServiceCIDR kubernetes)"},
		{name: "control plane in Pods", objects: []string{nodes, controllers, apiService}, from: "Nodes",
			pods:     "10.244.0.0/15 (--cluster-cidr of kube-controller-manager-n1)",
			services: "10.97.0.0/16 (--service-cluster-ip-range of kube-controller-manager-n1)"},
		{name: "nodes in the guess", objects: []string{node(1, "10.244.200.1", "10.244.1.0/24"), serviceCIDR},
			pods: "10.244.1.0/24 (spec.podCIDRs of a Node)", from: "Nodes",
			services: "10.96.0.0/12 (ServiceCIDR kubernetes)"},
		{name: "Calico", objects: []string{nodes, serviceCIDR,
			`{kind: IPPool, metadata: {name: default-ipv4-ippool}, spec: {cidr: 192.168.0.0/16}}`,
			`{kind: IPPool, metadata: {name: old}, spec: {cidr: 192.169.0.0/16, disabled: true}}`,
			pod(1, 1, "192.168.7.4")},
			pods: "192.168.0.0/16 (IPPool default-ipv4-ippool)", from: "Pods",
			services: "10.96.0.0/12 (ServiceCIDR kubernetes)"},
		{name: "the CNI has its own", objects: []string{nodes, controllers, serviceCIDR, pod(1, 1, "10.0.1.9"),
			pod(2, 2, "10.0.2.9")},
			pods: "10.0.0.0/16 (guessed: the addresses of 2 Pods are in it)", from: "Pods",
			services: "10.96.0.0/12 (ServiceCIDR kubernetes)"},
		{name: "pods among nodes", objects: []string{bare, serviceCIDR, pod(1, 1, "10.0.1.9")},
			err: "--pod-cidr: missing; pods such as 10.0.1.9 share"},
		{name: "pods among nodes, said", objects: []string{bare, serviceCIDR, pod(1, 1, "10.0.1.9")},
			hints: Hints{Pods: parse(t, "10.0.1.0/24")},
			pods:  "10.0.1.0/24 (--pod-cidr)", from: "Pods", services: "10.96.0.0/12 (ServiceCIDR kubernetes)"},
		{name: "nothing tells", objects: []string{bare, serviceCIDR}, err: "--pod-cidr: missing; neither"},
		{name: "IPv6 alone", objects: []string{node(1, "2001:db8::1", "fd00:244:1::/64"), serviceCIDR}, from: "Nodes",
			pods: "fd00:244:1::/56 (guessed: spec.podCIDRs of 1 Node are in it)", services: "fd00::/112 (ServiceCIDR kubernetes)"},
		{name: "Services said", objects: []string{nodes, serviceCIDR}, hints: Hints{Services: parse(t, "10.9.0.0/16")},
			pods: "10.244.0.0/16 (guessed: spec.podCIDRs of 2 Nodes are in it)", from: "Nodes",
			services: "10.9.0.0/16 (--service-cidr)"},
		{name: "pods where nobody is", objects: []string{nodes, serviceCIDR, pod(1, 1, "10.244.1.9")},
			hints: Hints{Pods: parse(t, "10.99.0.0/16")},
			err:   "--pod-cidr: no Node and no Pod has an address in 10.99.0.0/16; Node node1 has 10.244.1.0/24"},
		{name: "one of two is nobody's", objects: []string{nodes, serviceCIDR},
			hints: Hints{Pods: parse(t, "10.244.0.0/16", "10.99.0.0/16")},
			err:   "--pod-cidr: no Node and no Pod has an address in 10.99.0.0/16"},
		{name: "pods where nobody is, Calico", objects: []string{bare, serviceCIDR,
			`{kind: IPPool, metadata: {name: pool}, spec: {cidr: 192.168.0.0/16}}`},
			hints: Hints{Pods: parse(t, "192.169.0.0/16")},
			err:   "--pod-cidr: no Node and no Pod has an address in 192.169.0.0/16; IPPool pool has 192.168.0.0/16"},
		{name: "a pool beside those of Nodes", objects: []string{nodes, serviceCIDR,
			`{kind: IPPool, metadata: {name: pool}, spec: {cidr: 192.168.0.0/16}}`},
			hints: Hints{Pods: parse(t, "192.168.0.0/16")}, pods: "192.168.0.0/16 (--pod-cidr)", from: "Pods",
			services: "10.96.0.0/12 (ServiceCIDR kubernetes)"},
		{name: "nobody knows", objects: []string{bare, serviceCIDR}, hints: Hints{Pods: parse(t, "10.99.0.0/16")},
			pods: "10.99.0.0/16 (--pod-cidr)", from: "Pods", services: "10.96.0.0/12 (ServiceCIDR kubernetes)"},
		{name: "Services where none is", objects: []string{nodes, apiService},
			hints: Hints{Services: parse(t, "10.97.0.0/16")},
			err:   "--service-cidr: a Service has the address 10.96.0.1, which is in none of [10.97.0.0/16]"},
		{name: "a pod on another Node's CIDR", objects: []string{nodes, serviceCIDR, pod(1, 1, "10.244.2.9")},
			pods: "10.244.0.0/16 (guessed: spec.podCIDRs of 2 Nodes are in it)", from: "Pods",
			services: "10.96.0.0/12 (ServiceCIDR kubernetes)"},
		{name: "as before", objects: []string{nodes, serviceCIDR, peeringObject("turin", "10.80.0.0/22", "10.70.0.0/23",
			"10.61.0.0/16", "10.244.0.0/14")},
			pods: "10.244.0.0/14 (as Peering turin has it)", from: "Nodes",
			services: "10.96.0.0/12 (ServiceCIDR kubernetes)"},
		{name: "no longer as before", objects: []string{nodes, serviceCIDR, peeringObject("turin", "10.80.0.0/22",
			"10.70.0.0/23", "10.61.0.0/16", "10.244.0.0/23")},
			pods: "10.244.0.0/16 (guessed: spec.podCIDRs of 2 Nodes are in it)", from: "Nodes",
			services: "10.96.0.0/12 (ServiceCIDR kubernetes)"},
		{name: "virtual nodes", objects: []string{nodes, virtual, serviceCIDR, pod(1, 9, "10.71.3.4"),
			pod(2, 1, "10.244.1.9")},
			pods: "10.244.0.0/16 (guessed: spec.podCIDRs of 2 Nodes are in it)", from: "Nodes",
			services: "10.96.0.0/12 (ServiceCIDR kubernetes)"},
		{name: "virtual nodes alone", objects: []string{virtual}, err: "all Nodes are virtual ones"},
	} {
		found, err := survey(t, c.objects...).Find("rome", c.hints)
		if c.err != "" || err != nil {
			if err == nil || c.err == "" || !strings.HasPrefix(err.Error(), c.err) {
				t.Errorf("%s: %v, want %s", c.name, err, c.err)
			}
			continue
		}
		if pods, services := describe(found.Pods), describe(found.Services); pods != c.pods ||
			found.PodsFrom != c.from || services != c.services {
			t.Errorf("%s:\npods %s, want %s\nfrom %s, want %s\nservices %s, want %s", c.name, pods, c.pods,
				found.PodsFrom, c.from, services, c.services)
		}
	}
}

// peeringObject is a Peering of rome.
func peeringObject(peer, internal, external, seen, pods string) string {
	return fmt.Sprintf(`{apiVersion: culvert.io/v1alpha1, kind: Peering, metadata: {name: %s, namespace: culvert}, spec: {cluster: rome, peer: %[1]s, role: Server, internalCIDR: %s,
  local: {podCIDRs: [%s], externalCIDR: %s}, remote: {podCIDRs: [{cidr: 10.244.0.0/16, remap: %s}]}}}`, peer, internal,
		pods, external, seen)
}

// cluster is one with two Nodes, the pod CIDR 10.244.0.0/16 and more objects.
func cluster(t testing.TB, name, underlay string, more ...string) *Cluster {
	t.Helper()
	objects := append([]string{node(1, underlay+".1", "10.244.1.0/24"), node(2, underlay+".2", "10.244.2.0/24"),
		serviceCIDR, apiService}, more...)
	c, err := survey(t, objects...).Find(name, Hints{})
	need.NoError(t, err)
	return c
}

// good requires a spec that is valid in a Peering and overlaps nothing in its cluster.
func good(t *testing.T, c *Cluster, s *peering.Spec) {
	t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"kind": "Peering",
		"metadata": map[string]any{"name": s.Peer}, "spec": s}}
	p := peering.PeeringOf(u)
	faults := slices.DeleteFunc(p.Faults, func(f string) bool { return strings.HasPrefix(f, "spec.endpoint: missing") })
	if len(faults) > 0 {
		t.Errorf("%s: %q", c.Name, faults)
	}
	for _, taken := range c.newChooser(s.Peer, nil).taken {
		for _, seen := range slices.Concat(p.Seen(), p.Internal, p.External) {
			if taken.Prefix.Overlaps(seen) {
				t.Errorf("%s: %s overlaps %s (%s)", c.Name, seen, taken.Prefix, taken.Name)
			}
		}
	}
}

func TestPair(t *testing.T) {
	rome, milan := cluster(t, "rome", "172.18.0"), cluster(t, "milan", "172.19.0")
	specs, lines, err := Pair(rome, milan, "")
	need.NoError(t, err)
	good(t, rome, specs[0])
	good(t, milan, specs[1])
	for i, want := range []string{
		"Client Nodes 10.80.0.0/22 {[10.244.0.0/16] 10.70.0.0/23 []} [{10.244.0.0/16 10.61.0.0/16}] {10.70.2.0/23 }",
		"Server Nodes 10.80.0.0/22 {[10.244.0.0/16] 10.70.2.0/23 []} [{10.244.0.0/16 10.60.0.0/16}] {10.70.0.0/23 }",
	} {
		s := specs[i]
		if got := fmt.Sprint(s.Role, " ", s.PodsFrom, " ", s.InternalCIDR, " ", s.Local, " ", s.Remote.PodCIDRs, " ",
			*s.Remote.ExternalCIDR); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if got := lines[0][len(lines[0])-2]; got != (Line{"pods of milan", "10.244.0.0/16 as 10.61.0.0/16",
		"chosen: 10.244.0.0/16 overlaps pods of rome"}) {
		t.Error(got)
	}
}

// TestPairs: ten clusters with the same CIDRs are joined, each with each other. No end gets a CIDR
// of another end of its cluster.
func TestPairs(t *testing.T) {
	var all []*Cluster
	for i := range 10 {
		all = append(all, cluster(t, fmt.Sprint("c", i), fmt.Sprintf("172.%d.0", 16+i)))
	}
	given := map[*Cluster][]*peering.Spec{}
	for i, b := range all {
		for _, a := range all[:i] {
			specs, _, err := Pair(a, b, "")
			need.NoError(t, err)
			given[a], given[b] = append(given[a], specs[0]), append(given[b], specs[1])
		}
	}
	for c, specs := range given {
		if len(specs) != len(all)-1 {
			t.Fatalf("%s: %d ends", c.Name, len(specs))
		}
		for _, s := range specs {
			good(t, c, s)
		}
	}
}

// TestPairAgain: Peerings keep their ranges, even where others would be chosen today, and another
// Peering gets different ones.
func TestPairAgain(t *testing.T) {
	first := peeringObject("milan", "10.81.0.0/24", "10.79.0.0/24", "10.99.0.0/16", "10.244.0.0/16")
	rome, milan := cluster(t, "rome", "172.18.0", first), cluster(t, "milan", "172.19.0")
	specs, _, err := Pair(rome, milan, "")
	need.NoError(t, err)
	s := specs[0]
	if s.Role != "Server" || s.InternalCIDR != "10.81.0.0/24" || s.Local.ExternalCIDR != "10.79.0.0/24" ||
		s.Remote.PodCIDRs[0].Remap != "10.99.0.0/16" {
		t.Errorf("%+v", s)
	}
	turin := cluster(t, "turin", "172.20.0")
	if specs, _, err = Pair(turin, rome, ""); err != nil {
		t.Fatal(err)
	}
	good(t, rome, specs[1])
	good(t, turin, specs[0])
	if s = specs[1]; s.Remote.PodCIDRs[0].Remap == "10.99.0.0/16" || s.InternalCIDR == "10.81.0.0/24" ||
		s.Local.ExternalCIDR == "10.79.0.0/24" {
		t.Errorf("%+v", s)
	}
}

// TestProposeAvoids: no proposed range overlaps nodes, the networks around them, addresses of load
// balancers, other Peerings, or what the user names.
func TestProposeAvoids(t *testing.T) {
	objects := []string{node(1, "10.61.3.1", "10.0.1.0/24"), serviceCIDR,
		`{kind: Service, metadata: {name: shop}, spec: {clusterIPs: [10.100.0.1], externalIPs: [10.63.0.9]}, status: {loadBalancer: {ingress: [{ip: 10.62.0.7}]}}}`}
	c, err := survey(t, objects...).Find("rome", Hints{Pods: parse(t, "10.0.0.0/16"), Avoid: parse(t, "10.56.0.0/14",
		"10.60.0.0/16"), API: netip.MustParseAddr("10.80.0.9")})
	need.NoError(t, err)
	spec, _, err := c.Propose(Peer{Name: "milan", Pods: parse(t, "10.61.0.0/16", "10.20.0.0/16"),
		External: parse(t, "10.70.0.0/24"), Role: "Server"}, nil, nil)
	need.NoError(t, err)
	good(t, c, spec)
	remapped := spec.Remote.PodCIDRs[0].Remap
	if remapped != "10.48.0.0/16" || spec.Remote.PodCIDRs[1].Remap != "" || spec.InternalCIDR != "10.80.4.0/22" {
		t.Errorf("%+v", spec)
	}
}

// TestProposeFull: if no remap is free, the error names the CIDR.
func TestProposeFull(t *testing.T) {
	c := cluster(t, "rome", "172.18.0")
	_, _, err := c.Propose(Peer{Name: "milan", Pods: parse(t, "10.0.0.0/8"), Role: "Server"}, nil, nil)
	if want := "remap of 10.0.0.0/8, pods of milan: no private /8 is free in rome"; err == nil ||
		!strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestProposeAddsPods: a cluster that gets a second pod CIDR keeps the remap of the first.
func TestProposeAddsPods(t *testing.T) {
	rome := cluster(t, "rome", "172.18.0", peeringObject("milan", "10.80.0.0/22", "10.70.0.0/23", "10.59.0.0/16",
		"10.244.0.0/16"))
	spec, lines, err := rome.Propose(Peer{Name: "milan", Pods: parse(t, "10.244.0.0/16", "10.96.0.0/16"),
		Role: "Server"}, nil, nil)
	need.NoError(t, err)
	good(t, rome, spec)
	if r := spec.Remote.PodCIDRs; len(r) != 2 || r[0].Remap != "10.59.0.0/16" || r[1].Remap == "" {
		t.Errorf("%+v", r)
	}
	if got := lines[len(lines)-2]; got.Source != stands || got.Value != "10.244.0.0/16 as 10.59.0.0/16" {
		t.Error(lines)
	}
}

// TestProposeMachines: a peer's CIDR that its nodes or its gateway's endpoint are in is remapped,
// because packets to them would go into the tunnel.
func TestProposeMachines(t *testing.T) {
	cloud := func(name string) *Cluster {
		c, err := survey(t, node(1, "10.43.2.4", ""), serviceCIDR, pod(1, 1, "10.43.3.9")).Find(name,
			Hints{Pods: parse(t, "10.43.2.0/23")})
		need.NoError(t, err)
		return c
	}
	for _, c := range []struct {
		server         *Cluster
		endpoint, want string
	}{
		{cloud("milan"), "", "chosen: 10.43.2.0/23 overlaps node 10.43.2.4 of milan"},
		{cloud("milan"), "10.43.3.200:31840", "chosen: 10.43.2.0/23 overlaps the peer's endpoint, 10.43.3.200"},
		{cluster(t, "milan", "172.19.0"), "", "chosen: 10.244.0.0/16 overlaps pods of rome"},
	} {
		rome := cluster(t, "rome", "172.18.0")
		specs, lines, err := Pair(rome, c.server, c.endpoint)
		need.NoError(t, err)
		good(t, rome, specs[0])
		k := slices.IndexFunc(lines[0], func(l Line) bool { return l.What == "pods of milan" })
		if lines[0][k].Source != c.want || specs[0].Remote.PodCIDRs[0].Remap == "" {
			t.Errorf("%+v, want %s", lines[0][k], c.want)
		}
	}
	// the gateway of milan answers nodes of rome
	both, _, err := Pair(cluster(t, "rome", "172.18.0"), cloud("milan"), "")
	need.NoError(t, err)
	if both[1].Remote.PodCIDRs[0].Remap != "" {
		t.Errorf("%+v: nothing of rome is in its pods' CIDR", both[1].Remote)
	}
}

// TestProposeShows: the user sees the endpoint that a message names, and is warned of addresses
// that somebody owns.
func TestProposeShows(t *testing.T) {
	rome := cluster(t, "rome", "172.18.0")
	_, lines, err := rome.Propose(Peer{Name: "milan", Pods: parse(t, "140.82.112.0/20", "10.9.0.0/16", "100.64.0.0/16",
		"11.0.0.0/8"), External: parse(t, "203.0.113.0/24"),
		Role: "Client", Endpoint: "192.0.2.7:51840"}, nil, nil)
	need.NoError(t, err)
	var got []string
	for _, l := range lines[len(lines)-6:] {
		got = append(got, l.What+" "+l.Value+" "+l.Source)
	}
	const public = " as it is PUBLIC: nothing here will reach its owners any more"
	if want := []string{"endpoint of milan 192.0.2.7:51840 by which its gateway is reached",
		"pods of milan 140.82.112.0/20" + public, "pods of milan 10.9.0.0/16 as it is nothing here overlaps it",
		"pods of milan 100.64.0.0/16 as it is nothing here overlaps it", "pods of milan 11.0.0.0/8" + public,
		"external of milan 203.0.113.0/24" + public}; !slices.Equal(got, want) {
		t.Errorf("%q\nwant\n%q", got, want)
	}
}

func TestProposeAnotherPair(t *testing.T) {
	rome := cluster(t, "rome2", "172.18.0", peeringObject("milan", "10.80.0.0/22", "10.70.0.0/23", "10.99.0.0/16",
		"10.244.0.0/16"))
	if _, _, err := rome.Propose(Peer{Name: "milan", Role: "Server"}, nil, nil); err == nil ||
		!strings.Contains(err.Error(), "joins rome with milan") {
		t.Error(err)
	}
}

// TestProposeNodesOutside: a Peering that takes pods' addresses from Nodes gets no pod CIDRs that
// contradict these.
func TestProposeNodesOutside(t *testing.T) {
	objects := []string{node(1, "172.18.0.1", "10.244.1.0/24"), node(2, "172.18.0.2", "10.244.2.0/24"), serviceCIDR}
	const half = "10.244.1.0/24"
	for _, c := range []struct{ peering, want string }{
		{serviceCIDR, ""}, // a new Peering takes pods' addresses from Pods then
		{peeringObject("milan", "10.80.0.0/22", "10.70.0.0/23", "10.99.0.0/16", "10.244.0.0/16"),
			"--pod-cidr: Node node2 has pods outside 10.244.1.0/24, and Peering milan"},
	} {
		rome, err := survey(t, append(objects, c.peering)...).Find("rome", Hints{Pods: parse(t, half)})
		need.NoError(t, err)
		_, _, err = rome.Propose(Peer{Name: "milan", Role: "Server"}, nil, nil)
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// TestRemapsStay: a CIDR of the peer that comes back is seen as before, whatever was in between,
// and no other peer gets what it had.
func TestRemapsStay(t *testing.T) {
	notes := ""
	spec := &peering.Spec{}
	propose := func(pods string) string {
		t.Helper()
		old := ""
		if spec.Cluster != "" {
			r := spec.Remote.PodCIDRs[0]
			old = fmt.Sprintf(`{apiVersion: culvert.io/v1alpha1, kind: Peering, metadata: {name: milan, namespace: culvert, annotations: {culvert.io/remaps: %q}},
  spec: {cluster: rome, peer: milan, role: Server, internalCIDR: %s, local: {podCIDRs: [10.244.0.0/16], externalCIDR: %s},
    remote: {podCIDRs: [{cidr: %s, remap: %q}], externalCIDR: {cidr: 10.79.0.0/24}}}}`, notes, spec.InternalCIDR,
				spec.Local.ExternalCIDR, r.CIDR, r.Remap)
		}
		more := []string{serviceCIDR}
		if old != "" {
			more = append(more, old)
		}
		rome := cluster(t, "rome", "172.18.0", more...)
		var err error
		spec, _, err = rome.Propose(Peer{Name: "milan", Pods: parse(t, pods), External: parse(t, "10.79.0.0/24"),
			Role: "Server"}, nil, nil)
		need.NoError(t, err)
		good(t, rome, spec)
		notes = rome.Notes(spec, "", "")[GivenAnnotation]
		if old == "" {
			return spec.Remote.PodCIDRs[0].Remap
		}
		other, _, err := rome.Propose(Peer{Name: "turin", Pods: parse(t, "10.244.0.0/16"), Role: "Server"},
			nil, nil)
		need.NoError(t, err)
		if r := other.Remote.PodCIDRs[0].Remap; r == "10.61.0.0/16" {
			t.Errorf("turin gets %s, which milan was given", r)
		}
		return spec.Remote.PodCIDRs[0].Remap
	}
	for _, step := range []struct{ pods, seen string }{
		{"10.244.0.0/16", "10.61.0.0/16"}, {"10.20.0.0/16", ""}, {"10.96.0.0/17", "10.61.0.0/17"},
		{"10.244.0.0/16", "10.61.0.0/16"}, {"10.20.0.0/16", ""}, {"10.244.0.0/16", "10.61.0.0/16"},
	} {
		got := propose(step.pods)
		if step.pods == "10.96.0.0/17" {
			if got == "" || netip.MustParsePrefix(got).Overlaps(netip.MustParsePrefix("10.61.0.0/16")) {
				t.Errorf("%s is seen as %s", step.pods, got)
			}
		} else if got != step.seen {
			t.Errorf("%s is seen as %q, want %q (notes %s)", step.pods, got, step.seen, notes)
		}
	}
	if !strings.Contains(notes, "10.20.0.0/16=10.20.0.0/16") || len(strings.Fields(notes)) != 4 {
		t.Error(notes)
	}
}

// TestGivenIsBounded: the newest CIDRs are kept, and the present ones always; what is no remap is
// ignored.
func TestGivenIsBounded(t *testing.T) {
	text := "x 10.1.0.0/16=10.2.0.0/15 10.3.0.0/16=fd00::/16 10.4.0.0/16= =10.4.0.0/16"
	if got := readGiven(text); len(got) != 1 || got[0].CIDR != "10.4.0.0/16" { // as it is
		t.Error(got)
	}
	if got := readGiven("64:ff9b::/96=fd61::/96 fd00:244::/56=fd61::/56"); len(got) != 1 ||
		got[0].Remap != "fd61::/56" {
		t.Error(got)
	}
	rome := cluster(t, "rome", "172.18.0")
	spec := &peering.Spec{Peer: "milan"}
	for n := range 2 * maxGiven {
		spec.Remote.PodCIDRs = []peering.SpecRemap{{CIDR: fmt.Sprintf("10.%d.0.0/16", n), Remap: "10.61.0.0/16"}}
		rome.notes = map[string]map[string]string{"milan": rome.Notes(spec, "", "")}
	}
	if all := rome.Given(spec); len(all) != maxGiven || all[maxGiven-1] != spec.Remote.PodCIDRs[0] {
		t.Errorf("%d: %v", len(all), all)
	}
}

// TestCheckOwn: a cluster that peers know by one name does not get another.
func TestCheckOwn(t *testing.T) {
	joined := peeringObject("milan", "10.80.0.0/22", "10.70.0.0/23", "10.99.0.0/16", "10.244.0.0/16")
	for name, want := range map[string]string{"rome": "",
		"roma": "--name: this cluster is rome by its Peering milan, and cannot be roma as well"} {
		if err := cluster(t, name, "172.18.0", joined).CheckOwn(); (err == nil) != (want == "") || err != nil &&
			!strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := cluster(t, "roma", "172.18.0").CheckOwn(); err != nil {
		t.Error(err)
	}
}

// TestAddress: the address of a NodePort is that of a ready node, the external one if there is one.
func TestAddress(t *testing.T) {
	external := `{kind: Node, metadata: {name: node0}, spec: {podCIDRs: [10.244.9.0/24]}, status: {addresses: [{type: InternalIP, address: 10.9.0.1}, {type: ExternalIP, address: 203.0.113.7}]}}`
	unready := `{kind: Node, metadata: {name: node0}, spec: {podCIDRs: [10.244.9.0/24]}, status: {addresses: [{type: InternalIP, address: 10.9.0.1}]}}`
	for _, c := range []struct {
		more, want string
		public     bool
	}{{serviceCIDR, "172.18.0.1", false}, {external, "203.0.113.7", true}, {unready, "172.18.0.1", false},
		{virtual, "172.18.0.1", false}} {
		if got := cluster(t, "rome", "172.18.0", c.more); got.Address.String() != c.want || got.Public != c.public {
			t.Errorf("%s, %t, want %s", got.Address, got.Public, c.want)
		}
	}
}

func TestNameOf(t *testing.T) {
	for context, want := range map[string]string{
		"rome": "rome", "kubernetes-admin@rome": "rome", "gke_project_europe-west1-b_rome": "rome",
		"kind-rome": "kind-rome",
		"arn:aws:eks:eu-west-1:123456789012:cluster/rome": "rome", "Rome.Example": "rome-example", "@": "",
		"default/api-rome-example:6443/admin": "admin",
		strings.Repeat("a", 60):               strings.Repeat("a", 40),
	} {
		if got := NameOf(context); got != want {
			t.Errorf("%s: %q, want %q", context, got, want)
		}
	}
}

// stack is a cluster with two Nodes, whose pods have the families of CIDRs such as 10.244.%d.0/24,
// and more objects.
func stack(t testing.TB, name string, cidrs []string, more ...string) *Cluster {
	t.Helper()
	var nodes []string
	for n := 1; n <= 2; n++ {
		var own []string
		for _, c := range cidrs {
			own = append(own, fmt.Sprintf(c, n))
		}
		nodes = append(nodes, fmt.Sprintf(`{kind: Node, metadata: {name: n%d}, spec: {podCIDRs: [%s]}, status: {addresses: [
  {type: InternalIP, address: "2001:db8::%[1]d"}, {type: InternalIP, address: 172.18.0.%[1]d}]}}`, n, strings.Join(own, ", ")))
	}
	c, err := survey(t, append(append(nodes, serviceCIDR), more...)...).Find(name, Hints{})
	need.NoError(t, err)
	return c
}

const cidr4, cidr6 = "10.244.%d.0/24", "'fd00:244:0:%d::/64'"

// TestFamilies: two clusters are joined by the families that pods of both have, with remaps of IPv6
// from a prefix of each cluster's own. The user learns what is not carried, and why.
func TestFamilies(t *testing.T) {
	defer func(was func(int) netip.Prefix) { newULA = was }(newULA)
	made := byte(0)
	newULA = func(bits int) netip.Prefix {
		made++
		return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, made}), bits).Masked()
	}
	for _, c := range []struct {
		rome, milan []string
		pods, seen  string
		internals   string
		left        string // of rome
		err         string
	}{
		{[]string{cidr6, cidr4}, []string{cidr4, cidr6}, "10.244.0.0/16, fd00:244::/56", "10.61.0.0/16, fd01:0:0:8000::/56",
			"10.80.0.0/22, fd01::/64", "", ""},
		{[]string{cidr6, cidr4}, []string{cidr4}, "10.244.0.0/16", "10.61.0.0/16", "10.80.0.0/22",
			"IPv6 is not carried the pod CIDRs of milan have none", ""},
		{[]string{cidr6, cidr4}, []string{cidr6}, "fd00:244::/56", "fd01:0:0:8000::/56", "fd01::/64",
			"IPv4 is not carried the pod CIDRs of milan have none", ""},
		{[]string{cidr4}, []string{cidr6, cidr4}, "10.244.0.0/16", "10.61.0.0/16", "10.80.0.0/22",
			"IPv6 is not carried the pod CIDRs of rome have none", ""},
		{[]string{cidr4}, []string{cidr6}, "", "", "", "", "rome and milan have no family of addresses in common, and nothing " +
			"translates between IPv4 and IPv6; give the pods of one of them both (rome: 10.244.0.0/16; milan: fd00:244::/56)"},
	} {
		made = 0
		rome, milan := stack(t, "rome", c.rome), stack(t, "milan", c.milan)
		rome.unique = netip.Prefix{}
		specs, lines, err := Pair(rome, milan, "")
		if fmt.Sprint(err) != cmp.Or(c.err, "<nil>") {
			t.Errorf("%q, %q: %v", c.rome, c.milan, err)
		}
		if c.err != "" || err != nil {
			continue
		}
		good(t, rome, specs[0])
		good(t, milan, specs[1])
		var seen []string
		for _, r := range specs[0].Remote.PodCIDRs {
			seen = append(seen, r.Remap)
		}
		s, left := specs[0], ""
		for _, l := range lines[0] {
			if l.Value == "is not carried" {
				left = l.What + " " + l.Value + " " + l.Source
			}
		}
		if got := strings.Join(s.Local.PodCIDRs, ", "); got != c.pods || strings.Join(seen, ", ") != c.seen ||
			strings.Join(s.Internals(), ", ") != c.internals || left != c.left {
			t.Errorf("%q, %q: pods %s, seen %q, tunnels %q, %q", c.rome, c.milan, got, seen, s.Internals(), left)
		}
		if len(s.Local.Externals()) != len(s.Internals()) || len(s.Remote.Externals()) != len(s.Internals()) {
			t.Errorf("%q, %q: external %q, %+v", c.rome, c.milan, s.Local.Externals(), s.Remote.Externals())
		}
	}
}

// TestFamiliesAgain: a second family comes, goes and comes back by joining again. Nothing of the
// first one changes, and the second one is seen as before.
func TestFamiliesAgain(t *testing.T) {
	both := []string{cidr4, cidr6}
	var stored [2][]string // the Peering of each cluster
	join := func(cidrs []string) *peering.Spec {
		t.Helper()
		ends := [2]*Cluster{stack(t, "rome", both, stored[0]...), stack(t, "milan", cidrs, stored[1]...)}
		specs, _, err := Pair(ends[0], ends[1], "")
		need.NoError(t, err)
		for i, c := range ends {
			good(t, c, specs[i])
			meta := map[string]any{"name": specs[i].Peer, "annotations": c.Notes(specs[i], "", "")}
			object, err := yaml.Marshal(map[string]any{"kind": "Peering", "metadata": meta, "spec": specs[i]})
			need.NoError(t, err)
			stored[i] = []string{string(object)}
		}
		return specs[0]
	}
	four := join([]string{cidr4})
	first := join(both)
	if first.InternalCIDR != four.InternalCIDR || first.Local.ExternalCIDR != four.Local.ExternalCIDR ||
		*first.Remote.ExternalCIDR != *four.Remote.ExternalCIDR ||
		first.Remote.PodCIDRs[0] != four.Remote.PodCIDRs[0] || len(first.InternalCIDRs) != 2 ||
		len(first.Remote.PodCIDRs) != 2 || first.Remote.PodCIDRs[1].Remap == "" {
		t.Errorf("%+v, then %+v", four, first)
	}
	if same := join(both); !reflect.DeepEqual(same, first) {
		t.Errorf("%+v, want %+v", same, first)
	}
	if again := join([]string{cidr4}); !reflect.DeepEqual(again, four) {
		t.Errorf("%+v, want %+v", again, four)
	}
	if second := join(both); !reflect.DeepEqual(second, first) {
		t.Errorf("%+v, want %+v", second, first)
	}
}

// TestFamiliesStay: joining again keeps the families of a Peering although a Node that is new, or a
// pod, does not say by now where pods are.
func TestFamiliesStay(t *testing.T) {
	for _, cidrs := range [][]string{{cidr4}, {cidr4, cidr6}} {
		var want [2]*peering.Spec
		var stored [2][]string
		for round := range 2 {
			ends := [2]*Cluster{stack(t, "rome", cidrs, stored[0]...), stack(t, "milan", cidrs, stored[1]...)}
			specs, _, err := Pair(ends[0], ends[1], "")
			need.NoError(t, err)
			if round > 0 && !reflect.DeepEqual(specs, want) {
				t.Errorf("%+v, want %+v", specs, want)
			}
			want = specs
			for i, c := range ends {
				meta := map[string]any{"name": specs[i].Peer, "annotations": c.Notes(specs[i], "", "")}
				object, err := yaml.Marshal(map[string]any{"kind": "Peering", "metadata": meta, "spec": specs[i]})
				need.NoError(t, err)
				stored[i] = []string{string(object), "{kind: Node, metadata: {name: n3}}", pod(1, 3, "10.244.9.9")}
			}
		}
	}
}

// TestFamiliesNarrow: a Peering whose MTU is too small for IPv6 stays with IPv4, and the user
// learns why.
func TestFamiliesNarrow(t *testing.T) {
	narrow := strings.Replace(peeringObject("milan", "10.80.0.0/22", "10.70.0.0/23", "10.61.0.0/16", "10.244.0.0/16"),
		"role: Server", "role: Server, mtu: 1200", 1)
	rome, milan := stack(t, "rome", []string{cidr4, cidr6}, narrow), stack(t, "milan", []string{cidr4, cidr6})
	specs, lines, err := Pair(milan, rome, "192.0.2.1:51840")
	need.NoError(t, err)
	good(t, rome, specs[1])
	want := Line{"IPv6", "is not carried", "spec.mtu of Peering milan is 1200, and IPv6 needs 1280"}
	if specs[1].InternalCIDRs != nil || specs[0].InternalCIDRs != nil || !slices.Contains(lines[1], want) {
		t.Errorf("%+v, %+v: %q", specs[0], specs[1], lines[1])
	}
}

// TestFamiliesOlder: while a gateway that knows IPv4 alone stays, a Peering gets nothing of IPv6,
// because that gateway would refuse it, and the user learns what helps.
func TestFamiliesOlder(t *testing.T) {
	const status = `, status: {conditions: [{type: Accepted, status: "True"}]%s}}`
	stands := strings.TrimSuffix(peeringObject("milan", "10.80.0.0/22", "10.70.0.0/23", "10.61.0.0/16", "10.244.0.0/16"),
		"}")
	gateway := `{kind: Pod, metadata: {name: culvert-milan-1, namespace: culvert}, spec: {nodeName: n1, containers: [{image: "culvert:0.1.0"}]}}`
	for _, c := range []struct {
		what, accepted, image string
		older                 bool
	}{
		{"no image", "", "", true},
		{"the image of the gateway", "", "culvert:0.1.0", true},
		{"another image", "", "culvert:0.2.0", false},
		{"the gateway is new enough", ", accepted: {cluster: rome}", "", false},
	} {
		t.Run(c.what, func(t *testing.T) {
			objects := []string{stands + fmt.Sprintf(status, c.accepted), gateway, serviceCIDR}
			for n := 1; n <= 2; n++ {
				objects = append(objects, fmt.Sprintf(`{kind: Node, metadata: {name: n%d}, spec: {podCIDRs: [`+cidr4+`, `+cidr6+`]}}`,
					n, n, n))
			}
			rome, err := survey(t, objects...).Find("rome", Hints{Image: c.image})
			need.NoError(t, err)
			for _, peer := range []string{"milan", "turin"} { // the agents are of that version too
				specs, lines, err := Pair(stack(t, peer, []string{cidr4, cidr6}), rome, "192.0.2.1:51840")
				need.NoError(t, err)
				good(t, rome, specs[1])
				told := slices.Contains(lines[1], Line{"IPv6", "is not carried",
					"the gateway of Peering milan is too old for it; --image or --push installs another one"})
				families := 2
				if c.older {
					families = 1
				}
				if c.older != told || len(specs[0].Internals()) != families || len(specs[1].Internals()) != families ||
					len(specs[1].Local.PodCIDRs) != families {
					t.Errorf("with %s: %+v, %+v: %q", peer, specs[0], specs[1], lines[1])
				}
			}
		})
	}
}
