package verify

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"culvert/gateway/config"
	"culvert/integration/need"
	"culvert/kube/peering"
	"culvert/kube/verify/probe"
)

// silence removes the answers on all paths that touch a place.
func silence(places ...string) func(*Path) {
	return func(p *Path) {
		if p.Kind == KindPods && slices.ContainsFunc(places, func(x string) bool {
			return x == p.From || x == p.To ||
				x == "all"
		}) {
			p.Error = "no answer"
		}
		if p.Kind == KindNodePort && slices.Contains(places, "all") {
			p.Error = "no answer"
		}
	}
}

func policy(t *testing.T, name, text string) Policy {
	t.Helper()
	p, err := readPolicy(object(t, "metadata: {name: "+name+"}\nspec: "+text))
	need.NoError(t, err)
	return p
}

// TestFaults: each fault makes the report red, with these sentences and no others.
func TestFaults(t *testing.T) {
	disconnected := func(w *world) {
		w.rome.set("Connected", "PeerSilent",
			"no handshake answer from 198.51.100.2:51840 for 15 s (4 sent, 0 received)")
		w.milan.set("Connected", "Connecting", "no handshake from the peer for 30 s (0 received on UDP 51840)")
		w.spoil = silence("all")
	}
	for _, tt := range []struct {
		name string
		seed func(w *world)
		want []string // * stands for anything
	}{
		{"nothing", func(*world) {}, nil},
		{"closed UDP port", disconnected,
			[]string{"nothing passes between the gateways. Both run, so look at UDP on the way from rome's gateway to milan.example:51840, " +
				"which has to lead to UDP 51840 of milan's: *rome says: no handshake answer*milan says: no handshake from the peer*"}},
		{"NetworkPolicy before WireGuard", func(w *world) {
			disconnected(w)
			w.milan.Policies = []Policy{policy(t, "deny", "{podSelector: {}, policyTypes: [Ingress]}"),
				policy(t, "other", "{podSelector: {matchLabels: {app: web}}, ingress: [{}]}")}
		},
			[]string{
				"milan: NetworkPolicy deny in culvert keeps UDP 51840 from the gateway of rome away from the gateway; let it pass: ingress*"}},
		{"NetworkPolicy of the client", func(w *world) {
			disconnected(w)
			w.rome.Policies = []Policy{policy(t, "dns-only",
				"{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{protocol: UDP, port: 53}]}]}")}
		}, []string{"rome: NetworkPolicy dns-only in culvert keeps UDP 51840 to the gateway of milan away*egress*"}},
		{"NetworkPolicy before Geneve", func(w *world) {
			w.milan.Policies = []Policy{policy(t, "wireguard-only",
				"{podSelector: {}, ingress: [{ports: [{protocol: UDP, port: wireguard}]}]}")}
			w.spoil = silence("milan/milan-2")
		},
			[]string{
				"milan: NetworkPolicy wireguard-only in culvert keeps UDP 6091 from node milan-2 (192.0.2.2) away from the gateway*"}},
		{"missing exception", func(w *world) {
			w.spoil = func(p *Path) {
				if p.Kind == KindPods && p.fromNode == "rome-2" {
					p.Seen = "10.72.0.0"
				}
			}
		},
			[]string{
				"rome: packets of pods on node rome-2 leave with the node's address: milan sees 10.72.0.0, which stands for what is no pod. The exception*nft list table ip culvert*"}},
		{"exception that the kernel refuses", func(w *world) {
			w.spoil = func(p *Path) {
				if p.Kind == KindPods && p.from == nil && strings.HasPrefix(p.fromNode, "milan") {
					p.Seen = "10.71.0.0"
				}
			}
			for i := range w.milan.Tunnels {
				w.milan.Tunnels[i].Peerings[0].Message = "the kernel refuses nftables: set it in the CNI"
			}
		},
			[]string{
				"milan: packets of pods on nodes milan-1 and milan-2 leave with the node's address: rome sees 10.71.0.0*. The kernel refuses nftables*"}},
		{"admission", func(w *world) {
			w.rome.Peerings[0].Admit = config.AdmitExports
			w.spoil = func(p *Path) {
				if p.Kind == KindPods && strings.HasPrefix(p.To, "rome/") ||
					p.Kind == KindNodePort && strings.HasPrefix(p.From, "milan/") {
					p.Error = "connect: no route to host"
				}
			}
		}, nil},
		{"admission by an older gateway", func(w *world) { w.rome.Peerings[0].Admit = config.AdmitExports },
			[]string{
				"rome: packets reach pods that are not exported (milan/milan-1 to rome/rome-2 and 2 more), although spec.admit of Peering milan is Exports: *"}},
		{"wrong VNI", func(w *world) {
			w.rome.set("NodesReady", "NodesMissing", "node rome-2: rome-2 (192.0.2.2) sends VNI 9, configured 2")
			w.spoil = func(p *Path) {
				silence("rome/rome-2")(p)
				if p.Kind == KindNodePort && strings.HasPrefix(p.From, "rome/") { // of rome-2
					p.Error = "no answer"
				}
			}
		}, []string{"rome: node rome-2: rome-2 (192.0.2.2) sends VNI 9, configured 2"}},
		{"closed UDP port of Geneve", func(w *world) { w.spoil = silence("rome/rome-2") },
			[]string{
				"rome: nothing passes between node rome-2 and the gateway on node rome-1: is UDP 6091 open both ways between 192.0.2.2 and the gateway's pod? VNI 2*"}},
		{"MTU hole", func(w *world) {
			w.spoil = func(p *Path) {
				if p.Kind == KindPods {
					p.Size = &probe.Size{Own: 1500, Largest: 1212, Above: probe.Vanished}
					p.Bulk.Error = "no answer after 0 of 10485760 bytes"
				}
			}
		},
			[]string{
				"packets of more than 1212 bytes do not pass (on every way: look between the gateways), and the Peerings say 1340: *set spec.mtu of both to 1212 or less"}},
		{"MTU hole too small for IPv6", func(w *world) {
			w.rome.six(false)
			w.milan.six(false)
			w.spoil = func(p *Path) {
				if p.Kind == KindPods {
					p.Size = &probe.Size{Own: 1500, Largest: 1212, Above: probe.Vanished}
				}
			}
		}, []string{"packets of more than 1212 bytes do not pass (on every way: look between the gateways), and IPv6 needs 1280: *"}},
		{"MTU hole at a node, of which the network tells", func(w *world) {
			w.spoil = func(p *Path) {
				if p.Kind == KindPods && p.To == "milan/milan-2" {
					p.Size = &probe.Size{Own: 1500, Largest: 1300, Told: 1300, Above: probe.Refused}
				}
			}
		}, []string{"packets of more than 1300 bytes do not pass (rome/rome-2 to milan/milan-2)*"}},
		{"IPv6 between the clusters", func(w *world) {
			w.rome.six(false)
			w.milan.six(false)
			w.spoil = func(p *Path) {
				if p.v6 && (p.Kind == KindPods || p.Kind == KindNodePort) {
					p.Error = "no answer"
				}
			}
		}, []string{"no pod reaches one of the other cluster by IPv6 (no answer), although the other family passes: *culvert status*"}},
		{"IPv6 between two nodes", func(w *world) {
			w.rome.six(false)
			w.milan.six(false)
			w.spoil = func(p *Path) {
				if p.v6 && p.Kind == KindPods && p.From == "rome/rome-1" {
					p.Error = "no answer"
				}
			}
		}, []string{"no answer on the way from rome/rome-1 to milan/milan-1 by IPv6 (no answer)"}},
		{"missing exception for IPv6", func(w *world) {
			w.rome.six(false)
			w.milan.six(false)
			w.spoil = func(p *Path) {
				if p.v6 && p.Kind == KindPods && p.fromNode == "rome-2" {
					p.Seen = "fd72::"
				}
			}
		}, []string{"rome: packets of pods on node rome-2 leave with the node's address: milan sees fd72::, *nft list table ip6 culvert*"}},
		{"no ICMP of IPv6", func(w *world) {
			w.rome.six(false)
			w.milan.six(false)
			w.spoil = func(p *Path) {
				if p.v6 && p.Kind == KindPods {
					p.Size.Told, p.Size.Above = 0, probe.Vanished
				}
			}
		}, []string{"a sender of 1341 bytes is not told that this is too much (rome/rome-1 to milan/milan-1 by IPv6): something " +
			"drops ICMP of IPv6, \"packet too big\" (type 2), and large transfers hang"}},
		{"no ICMP", func(w *world) {
			w.spoil = func(p *Path) {
				if p.Kind == KindPods {
					p.Size.Told, p.Size.Above = 0, probe.Vanished
				}
			}
		}, []string{"a sender of 1341 bytes is not told that this is too much*ICMP*"}},
		{"gateway scaled to 0", func(w *world) {
			disconnected(w)
			w.rome.Gateways, w.rome.Deployments[0].Replicas = nil, 0
		},
			[]string{
				"rome: the gateway is down: Deployment culvert-milan has 0 replicas; start it: kubectl --context rome -n culvert scale deployment culvert-milan --replicas 1"}},
		{"gateway without its image", func(w *world) {
			disconnected(w)
			w.milan.Gateways[0].Ready, w.milan.Gateways[0].Phase, w.milan.Gateways[0].Trouble = false, "Pending",
				"ImagePullBackOff: no such image"
		},
			[]string{
				"milan: the gateway is down: Deployment culvert-rome: pod culvert-rome-x is not ready: ImagePullBackOff: no such image; see kubectl --context milan*"}},
		{"an image that does not exist, beside the gateway and an agent that run", func(w *world) {
			absent := Pod{Name: "culvert-rome-y", Node: "milan-2", Phase: "Pending",
				Trouble: "ErrImagePull: no such image", Labels: w.milan.Gateways[0].Labels}
			w.milan.Gateways = append([]Pod{absent}, w.milan.Gateways...)
			absent.Name = "culvert-node-y"
			w.milan.Agents = append([]Pod{absent}, w.milan.Agents...)
			absent.Name, absent.Ending = "culvert-node-z", true
			w.milan.Agents = append(w.milan.Agents, absent)
		},
			[]string{"milan: a pod of Deployment culvert-rome does not start, and another one still does its work: culvert-rome-y on node milan-2: ErrImagePull: no such image; see *",
				"milan: a pod of DaemonSet culvert-node does not start, and another one still does its work: culvert-node-y on node milan-2: ErrImagePull*describe pod culvert-node-y"}},
		{"two gateways without an election", func(w *world) {
			w.rome.Deployments[0].Replicas, w.rome.Deployments[0].Elects = 2, false
			disconnected(w)
			w.spoil = silence("all")
		},
			[]string{
				"rome: Deployment culvert-milan has 2 pods, which do not elect the one that forwards: each takes the place of the other; *"}},
		{"two gateways that displace each other", func(w *world) {
			of := &w.rome.Peerings[0].Status
			of.Conditions = append(of.Conditions, &peering.Condition{Type: peering.OneGateway, Status: "False",
				Reason: "Displaced", Message: "pods a and b displace each other"})
			w.spoil = func(p *Path) { p.Size = &probe.Size{Own: 1500, Largest: 1300, Above: probe.Vanished} }
		}, []string{"rome: pods a and b displace each other"}},
		{"gateway's pod refused", func(w *world) {
			disconnected(w)
			w.rome.Gateways = nil
			w.rome.Warnings = []Warning{{"ReplicaSet", "culvert-milan-7d", "pods is forbidden: violates PodSecurity",
				w.rome.Peerings[0].Metadata.Created}}
		},
			[]string{
				"rome: the gateway is down: Deployment culvert-milan has no pod: pods is forbidden: violates PodSecurity*"}},
		{"gateway's node down", func(w *world) {
			w.milan.Gateways[0].Ready, w.milan.Nodes[0].Ready = false, false // and conditions as they were
			w.spoil = silence("all")
		},
			[]string{
				"milan: the gateway is down: Deployment culvert-rome: pod culvert-rome-x is not ready: its node milan-1 is not ready*"}},
		{"no agent", func(w *world) {
			w.milan.Agents = w.milan.Agents[:1]
			w.spoil = silence("milan/milan-2")
		},
			[]string{
				"milan: the agent of node milan-2 does not run: there is no pod of it; see kubectl --context milan -n culvert-nodes describe daemonset culvert-node"}},
		{"agent refuses", func(w *world) {
			w.rome.Tunnels[1].Peerings[0].Ready, w.rome.Tunnels[1].Peerings[0].Message = false,
				"spec.remote.podCIDRs[0].remap: 10.61.0.0/16 contains 10.61.0.1, an address of node x"
			w.spoil = silence("rome/rome-2")
		}, []string{"rome: node rome-2: spec.remote.podCIDRs[0].remap: 10.61.0.0/16 contains*"}},
		{"another key", func(w *world) {
			disconnected(w)
			w.milan.Peerings[0].Status.PublicKey = "AAAAA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
		},
			[]string{
				"rome: Peering milan: spec.publicKey: milan's gateway has another key; give it AAAAA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="}},
		{"other CIDRs", func(w *world) {
			w.rome.Peerings[0].Remote[0].Real.Addr()
			w.milan.Peerings[0].Pods[0] = w.rome.Peerings[0].Internal[0]
		},
			[]string{
				"rome: Peering milan: spec.remote.podCIDRs: 10.80.0.0/24 is missing, which milan has in spec.local.podCIDRs"}},
		{"a CNI that is broken", func(w *world) {
			w.spoil = func(p *Path) {
				if p.Kind == KindInside && p.To == "milan" {
					p.Error = "no answer"
				}
			}
		}, []string{"milan: a pod on node milan-1 does not reach one on node milan-2 of its own cluster (no answer)*"}},
		{"a CNI that masquerades too much", func(w *world) {
			w.spoil = func(p *Path) {
				if p.Kind == KindInside && p.fromNode == "milan-2" {
					p.Seen = "192.0.2.1"
				}
			}
		}, []string{"milan: a pod on node milan-1 sees milan/milan-2 as 192.0.2.1, although both are in one cluster*masquerades on node milan-2"}},
		{"NodePort closed", func(w *world) {
			w.spoil = func(p *Path) {
				if p.Kind == KindNodePort && p.To == "milan" {
					p.Error = "connection refused"
				}
			}
		},
			[]string{
				"rome: rome/rome-1 by a NodePort to milan/milan-2: connection refused, although pods reach each other: see what kube-proxy*"}},
		{"NodePort with the wrong source", func(w *world) {
			w.spoil = func(p *Path) {
				if p.Kind == KindNodePort && p.To == "rome" {
					p.Seen = "192.0.2.1"
				}
			}
		},
			[]string{
				"rome: a pod on node rome-2 sees 192.0.2.1 where milan uses a NodePort of milan-2; it should see 10.71.0.0*"}},
		{"datagrams lost", func(w *world) {
			w.spoil = func(p *Path) {
				if p.Kind == KindPods && p.From == "rome/rome-1" {
					p.UDP.Answered = 12
				}
			}
		}, []string{"rome/rome-1 to milan/milan-1: 8 of 20 datagrams were lost twice*"}},
		{"TCP stalls", func(w *world) {
			w.spoil = func(p *Path) {
				if p.Kind == KindPods && p.From == "milan/milan-1" {
					p.Bulk.Error = "no answer after 4096 of 10485760 bytes"
				}
			}
		}, []string{"milan/milan-1 to rome/rome-2: many bytes do not arrive: no answer after 4096 of 10485760 bytes"}},
		{"nobody knows", func(w *world) { w.spoil = silence("all") },
			[]string{
				"no pod reaches one of the other cluster, although the gateways reach each other*culvert status*"}},
		{"one way between two nodes", func(w *world) {
			w.spoil = func(p *Path) {
				if p.From == "rome/rome-1" && p.Kind == KindPods {
					p.Error = "no answer"
				}
			}
		}, []string{"no answer on the way from rome/rome-1 to milan/milan-1 (no answer)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			tt.seed(w)
			r, err := w.run(t.Context(), Options{})
			need.NoError(t, err)
			got := wrongs(r)
			if r.OK != (tt.want == nil) || len(got) != len(tt.want) {
				t.Fatalf("ok %t: %s", r.OK, strings.Join(got, "\n"))
			}
			for i := range got {
				if !like(got[i], tt.want[i]) {
					t.Errorf("said: %s\nwant: %s", got[i], tt.want[i])
				}
			}
		})
	}
}

// like reports whether a text is a pattern in which * stands for anything.
func like(text, pattern string) bool {
	parts := strings.Split(pattern, "*")
	if !strings.HasPrefix(text, parts[0]) || len(parts) == 1 && text != pattern {
		return false
	}
	for _, part := range parts {
		_, after, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = after
	}
	return parts[len(parts)-1] == "" || text == ""
}

// TestRefusing: which NetworkPolicies keep UDP 51840 from a gateway.
func TestRefusing(t *testing.T) {
	labels := map[string]string{"app": "culvert-gateway", "tier": "edge"}
	for _, tt := range []struct {
		spec string
		from string
		want bool
	}{
		{"{podSelector: {}}", "", true},
		{"{podSelector: {}, policyTypes: [Egress]}", "", false},
		{"{podSelector: {matchLabels: {app: web}}}", "", false},
		{"{podSelector: {matchExpressions: [{key: tier, operator: In, values: [edge]}]}}", "", true},
		{"{podSelector: {matchExpressions: [{key: tier, operator: NotIn, values: [edge]}]}}", "", false},
		{"{podSelector: {matchExpressions: [{key: tier, operator: DoesNotExist}]}}", "", false},
		{"{podSelector: {matchExpressions: [{key: tier, operator: Exists}]}}", "", true},
		{"{podSelector: {}, ingress: [{}]}", "", false},
		{"{podSelector: {}, ingress: [{ports: [{port: 51840}]}]}", "", true}, // TCP
		{"{podSelector: {}, ingress: [{ports: [{protocol: UDP, port: 51840}]}]}", "", false},
		{"{podSelector: {}, ingress: [{ports: [{protocol: UDP, port: wireguard}]}]}", "", false},
		{"{podSelector: {}, ingress: [{ports: [{protocol: UDP}]}]}", "", false},
		{"{podSelector: {}, ingress: [{ports: [{protocol: UDP, port: 51000, endPort: 52000}]}]}", "", false},
		{"{podSelector: {}, ingress: [{ports: [{protocol: UDP, port: 6091}]}]}", "", true},
		{"{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}", "192.0.2.1", true},
		{"{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 192.0.2.0/24}}]}]}", "192.0.2.1", false},
		{"{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.1/32]}}]}]}",
			"192.0.2.1", true},
		{"{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 203.0.113.0/24}}]}]}", "192.0.2.1", true},
		{"{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 203.0.113.0/24}}]}]}", "", false}, // it may be there
	} {
		names := refusing([]Policy{policy(t, "p", tt.spec)}, labels, true, 51840, "wireguard", address(tt.from))
		if (len(names) > 0) != tt.want {
			t.Errorf("%s from %q: %q", tt.spec, tt.from, names)
		}
	}
	both := []Policy{policy(t, "deny", "{podSelector: {}}"), policy(t, "allow", "{podSelector: {}, ingress: [{}]}")}
	if names := refusing(both, labels, true, 51840, "wireguard", address("")); names != nil {
		t.Errorf("what one policy lets pass, %q keep away", names)
	}
}

// TestRing: the ring leaves and enters every node, and is closed.
func TestRing(t *testing.T) {
	for _, n := range [][2]int{{1, 1}, {2, 2}, {1, 3}, {5, 2}, {10, 10}} {
		left, entered := map[string]int{}, map[string]int{}
		for _, h := range ring(n[0], n[1]) {
			from, to := "a", "b"
			if h.away {
				from, to = to, from
			}
			left[fmt.Sprint(from, h.from)]++
			entered[fmt.Sprint(to, h.to)]++
		}
		if len(left) != n[0]+n[1] || len(entered) != n[0]+n[1] {
			t.Errorf("%v: left %v, entered %v", n, left, entered)
		}
	}
	if got := len(everyPair(3, 4)); got != 24 {
		t.Errorf("%d pairs", got)
	}
	if ring(0, 3) != nil {
		t.Error("a ring without a node")
	}
}
