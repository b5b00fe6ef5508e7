package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"culvert/kube/peering"
	"culvert/kube/verify/probe"
	"culvert/nat/rules"
)

const (
	romeKey  = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
	milanKey = "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0="
)

// object reads YAML.
func object(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	o := new(unstructured.Unstructured)
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return o
}

// snapshot is a cluster of two nodes in which nothing is wrong. Pods of node n have 10.244.n.x.
func snapshot(t testing.TB, name string) *Snapshot {
	t.Helper()
	peer, role, key, own, seen := "milan", "role: Client, endpoint: 'milan.example:51840'", milanKey, romeKey, 61
	if name == "milan" {
		peer, role, key, own, seen = "rome", "role: Server", romeKey, milanKey, 62
	}
	p, err := readPeering(object(t, fmt.Sprintf(`
metadata: {name: %[2]s, namespace: culvert, uid: u}
spec: {cluster: %[1]s, peer: %[2]s, %[3]s, publicKey: %[4]s, mtu: 1340, internalCIDR: 10.80.0.0/24,
  local: {podCIDRs: [10.244.0.0/16], externalCIDR: 10.70.0.0/24},
  remote: {podCIDRs: [{cidr: 10.244.0.0/16, remap: 10.%[6]d.0.0/16}], externalCIDR: {cidr: 10.70.0.0/24, remap: 10.%[7]d.0.0/24}}}
status: {publicKey: %[5]s, active: {pod: gateway-1, node: %[1]s-1, addresses: [10.244.1.5], term: 1},
  nodes: [{name: %[1]s-1, vni: 1, address: 10.80.0.2}, {name: %[1]s-2, vni: 2, address: 10.80.0.3}],
  conditions: [{type: Accepted, status: "True"}, {type: NodesReady, status: "True"}, {type: Connected, status: "True"}]}
`, name, peer, role, key, own, seen, seen+10)))
	if err != nil || len(p.Faults) > 0 {
		t.Fatal(err, p.Faults)
	}
	s := &Snapshot{
		Peerings:    []*peering.Peering{p},
		Deployments: []Deployment{{"culvert-" + peer, "registry.example/culvert:1.0", "", 1, true}},
		Gateways: []Pod{{Name: "culvert-" + peer + "-x", Node: name + "-1", Phase: "Running", Ready: true,
			Labels: map[string]string{"app": "culvert-gateway", peeringLabel: peer}}},
	}
	for n := 1; n <= 2; n++ {
		node := fmt.Sprintf("%s-%d", name, n)
		s.Nodes = append(s.Nodes, Node{node, true, rules.PairOf(address(fmt.Sprint("192.0.2.", n)),
			address(fmt.Sprint("2001:db8::", n)))})
		s.Tunnels = append(s.Tunnels, Tunnel{node, fmt.Sprintf("10.244.%d.1", n), fmt.Sprintf("192.0.2.%d", n),
			[]peering.NodePeering{{Name: peer, Ready: true}}})
		s.Agents = append(s.Agents, Pod{Name: "culvert-node-" + node, Node: node, Phase: "Running", Ready: true})
	}
	return s
}

// podCIDRs of both clusters, by whether they are IPv6.
var podCIDRs = map[bool]netip.Prefix{false: netip.MustParsePrefix("10.244.0.0/16"),
	true: netip.MustParsePrefix("fd00:244::/56")}

// six gives a Peering IPv6, beside IPv4 or alone. Pods of node n have fd00:244:0:n::x.
func (c *played) six(alone bool) {
	p := c.Peerings[0]
	seen := map[string]int{"rome": 61, "milan": 62}[c.name]
	external := netip.MustParsePrefix("fd70::/112")
	if alone {
		p.Remote, p.Pods, p.External = nil, nil, nil
	}
	p.Pods, p.External = append(p.Pods, podCIDRs[true]), append(p.External, external)
	to := func(n, bits int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf("fd%d::/%d", n, bits)) }
	p.Remote = append(p.Remote, rules.RemoteCIDR{Real: podCIDRs[true], Remapped: to(seen, 56)},
		rules.RemoteCIDR{Real: external, Remapped: to(seen+10, 112), External: true})
}

// remapped returns the address of a pod under a remap of its cluster, 61 or 62.
func remapped(a netip.Addr, n byte) netip.Addr {
	to := fmt.Sprintf("10.%d.0.0/16", n)
	if a.Is6() {
		to = fmt.Sprintf("fd%d::/56", n)
	}
	return peering.Remapped(a, podCIDRs[a.Is6()], netip.MustParsePrefix(to))
}

// set replaces a condition of the only Peering.
func (s *Snapshot) set(kind, reason, message string) {
	for _, c := range s.Peerings[0].Status.Conditions {
		if c.Type == kind {
			c.Status, c.Reason, c.Message = "False", reason, message
		}
	}
}

// A world is two simulated clusters.
type world struct {
	t           *testing.T
	rome, milan *played
	// spoil changes what is found on a path.
	spoil func(p *Path)
}

// played is one of them.
type played struct {
	*world
	name string
	*Snapshot

	mu      sync.Mutex
	missing []string
	spaces  map[string]bool
	left    []string // of earlier runs
	pods    []Pod
	stuck   func(p *Pod) // changes pods
	refuse  error        // of Create
	onlyV4  bool         // Services
	created []map[string]any
	// The fate of Services that the other cluster exports.
	importError error
	deaf, keeps bool  // none comes, none goes
	mayNot      error // of Forget
	forgot      []string
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, spoil: func(*Path) {}}
	w.rome = &played{world: w, name: "rome", Snapshot: snapshot(t, "rome"), spaces: map[string]bool{},
		stuck: func(*Pod) {}}
	w.milan = &played{world: w, name: "milan", Snapshot: snapshot(t, "milan"), spaces: map[string]bool{},
		stuck: func(*Pod) {}}
	return w
}

func (w *world) run(ctx context.Context, o Options) (*Report, error) {
	o.Contexts = [2]string{"rome", "milan"}
	return Run(ctx, w.rome, w.milan, o)
}

func (c *played) Missing(context.Context, string) ([]string, error) { return c.missing, nil }

func (c *played) Read(context.Context) (*Snapshot, error) { return c.Snapshot, nil }

func (c *played) Begin(_ context.Context, namespace string) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spaces[namespace] = true
	return c.left, nil
}

func (c *played) End(ctx context.Context, namespace string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.spaces, namespace)
	return ctx.Err()
}

// other is the other cluster.
func (c *played) other() *played {
	if c == c.world.rome {
		return c.world.milan
	}
	return c.world.rome
}

// ClusterIP returns the address of the Service that the other cluster exports, as long as its
// namespace exists.
func (c *played) ClusterIP(_ context.Context, namespace, name string) (netip.Addr, error) {
	if c.importError != nil {
		return netip.Addr{}, c.importError
	}
	o := c.other()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, x := range o.created {
		meta := x["metadata"].(map[string]any)
		if labels, _ := meta["labels"].(map[string]any); labels["culvert/export"] == "true" &&
			namespace == c.Peerings[0].Imports && !c.deaf {
			if space, ok := strings.CutPrefix(name, "probe-"); ok && (o.spaces[space] || c.keeps) {
				if x["spec"].(map[string]any)["ipFamilies"].([]any)[0] == "IPv6" {
					return address("fd96::99"), nil
				}
				return address("10.96.0.99"), nil
			}
		}
	}
	return netip.Addr{}, nil
}

// Forget removes what the other cluster no longer exports.
func (c *played) Forget(ctx context.Context, namespace, name string) (gone bool, err error) {
	at, err := c.ClusterIP(ctx, namespace, name)
	if gone = err == nil && !at.IsValid(); gone && c.mayNot == nil {
		c.forgot = append(c.forgot, namespace+"/"+name)
	}
	return gone && c.mayNot == nil, errors.Join(err, c.mayNot)
}

func (c *played) Pods(context.Context, string) ([]Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Clone(c.pods)
	for i := range all {
		c.stuck(&all[i])
	}
	return all, nil
}

func (c *played) Create(_ context.Context, namespace string, objects ...map[string]any) ([]map[string]any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse != nil {
		return nil, c.refuse
	}
	if !c.spaces[namespace] {
		return nil, errors.New("no such namespace")
	}
	for _, o := range objects {
		of, _ := o["spec"].(map[string]any)
		if o["kind"] == "Service" && c.onlyV4 && of["ipFamilies"].([]any)[0] == "IPv6" {
			return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, "x", nil)
		}
	}
	c.created = append(c.created, objects...)
	for _, o := range objects {
		switch o["kind"] {
		case "Service":
			o["spec"].(map[string]any)["ports"].([]any)[0].(map[string]any)["nodePort"] = int64(30999)
		case "Pod":
			c.start(o)
		}
	}
	return objects, nil
}

// start makes a pod run at once.
func (c *played) start(o map[string]any) {
	spec := o["spec"].(map[string]any)
	node := spec["nodeName"].(string)
	own := func(x int) rules.Pair {
		n := node[len(node)-1:]
		return rules.PairOf(address(fmt.Sprintf("10.244.%s.%d", n, x)), address(fmt.Sprintf("fd00:244:0:%s::%d", n, x)))
	}
	p := Pod{Name: o["metadata"].(map[string]any)["name"].(string), Node: node, Phase: "Running", Ready: true,
		Addresses: own(50)}
	args := spec["containers"].([]any)[0].(map[string]any)["args"].([]any)
	if args[1] == "ask" {
		p.Phase, p.Ready, p.Addresses = "Succeeded", false, own(60)
		var task probe.Task
		if err := json.Unmarshal([]byte(args[2].(string)), &task); err != nil {
			c.t.Error(err)
		}
		var answers []probe.Answer
		for _, target := range task.Targets {
			answers = append(answers, c.answer(node, p.Addresses, target))
		}
		text, err := json.Marshal(answers)
		if err != nil {
			c.t.Error(err)
		}
		p.Message = string(text)
	}
	c.pods = append(c.pods, p)
}

// answer is what an asker finds between two clusters with gateways.
func (c *played) answer(node string, pair rules.Pair, to probe.Target) probe.Answer {
	at, err := netip.ParseAddrPort(to.Address)
	named := err != nil
	if named {
		at = netip.MustParseAddrPort("10.96.0.99:9199")
		if c.Peerings[0].Pods[0].Addr().Is6() {
			at = netip.MustParseAddrPort("[fd96::99]:9199")
		}
	}
	six := at.Addr().Is6()
	own, b := pair.Of(six), at.Addr().AsSlice()
	far, seen, pods := "milan", byte(61), byte(62)
	if c.name == "milan" {
		far, seen, pods = "rome", 62, 61
	}
	p := Path{From: c.name + "/" + node, fromNode: node, v6: six, Answer: probe.Answer{Name: to.Name,
		RTT: 900 * time.Microsecond}}
	switch {
	case to.Zone != "":
		p.Kind, p.To, p.Seen, p.host = KindName, far, "10.96.0.7", to.Address
	case at.Port() == 30999:
		p.Kind, p.To, p.Seen = KindNodePort, far, map[bool]string{false: fmt.Sprintf("10.%d.0.0", pods+10),
			true: fmt.Sprintf("fd%d::", pods+10)}[six]
	case at.Addr() == address("10.96.0.99"), at.Addr() == address("fd96::99"):
		p.Kind, p.To, p.Seen = KindService, fmt.Sprintf("%s/%[1]s-1", far), remapped(own, pods).String()
		if named {
			p.host, _, _ = strings.Cut(to.Address, ":")
		}
	case podCIDRs[six].Contains(at.Addr()):
		p.Kind, p.To, p.Seen = KindInside, c.name, own.String()
	case at.Addr() == remapped(at.Addr(), seen):
		p.Kind, p.Seen = KindPods, remapped(own, pods).String()
		p.To = fmt.Sprintf("%s/%s-%d", far, far, b[map[bool]int{false: 2, true: 7}[six]])
	default:
		p.Error = "no answer"
	}
	if to.MTU > 0 {
		p.UDP, p.Size = &probe.UDP{Sent: 20, Answered: 20}, &probe.Size{Own: 1500, Largest: to.MTU, Told: to.MTU,
			Above: probe.Refused}
		p.Bulk = &probe.Bulk{Bytes: to.Bytes, Took: 100 * time.Millisecond}
	}
	if c.spoil(&p); p.Error != "" {
		return probe.Answer{Name: to.Name, Error: p.Error}
	}
	return p.Answer
}

// wrongs are the sentences of a report about what is wrong.
func wrongs(r *Report) (all []string) {
	for _, f := range r.Findings {
		if f.Wrong {
			all = append(all, strings.TrimPrefix(f.Cluster+": ", ": ")+f.Text)
		}
	}
	return all
}
