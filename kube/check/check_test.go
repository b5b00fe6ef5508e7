package check

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"culvert/integration/need"
	"culvert/kube/liqo"
	"culvert/kube/objects"
	"culvert/kube/template"
)

// object reads YAML.
func object(t *testing.T, text string) map[string]any {
	t.Helper()
	var o map[string]any
	need.NoError(t, yaml.Unmarshal([]byte(text), &o))
	return o
}

func readFile(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{".."}, path...)...))
	need.NoError(t, err)
	return string(text)
}

// captured returns the cluster of a capture before the switch, with culvert's template of the
// chart's defaults in it.
func captured(t *testing.T, server bool) *Cluster {
	t.Helper()
	const capture = "v1.2.0"
	gateway, made := "gatewayclients", "wggatewayclients"
	if server {
		gateway, made = "gatewayservers", "wggatewayservers"
	}
	c := &Cluster{
		Gateway: object(t, readFile(t, "testdata", capture, gateway+".yaml")), TemplateNamespace: "liqo",
		Namespace: object(t, "metadata: {name: liqo-tenant-cluster-b}"),
		Pods:      []map[string]any{object(t, "{metadata: {name: gw-1}, status: {phase: Running}}")},
	}
	c.Deployment, _ = template.Field(object(t, readFile(t, "testdata", capture, made+".yaml")), "spec",
		"deployment").(map[string]any)
	var err error
	if c.Template, _, err = template.From(template.Default(server, "liqo", "liqo"), "registry.invalid/culvert:1",
		1); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"firewallconfigurations", "routeconfigurations", "internalnodes", "internalfabrics",
		"genevetunnels"} {
		for _, doc := range strings.Split(readFile(t, "testdata", capture, kind+".yaml"), "\n---\n") {
			c.Resources = append(c.Resources, resource(t, doc))
		}
	}
	return c
}

func resource(t *testing.T, text string) *objects.Object {
	t.Helper()
	o := &objects.Object{}
	need.NoError(t, yaml.Unmarshal([]byte(text), o))
	return o
}

func checked(t *testing.T, c *Cluster) *Report {
	t.Helper()
	r, err := Check(c)
	need.NoError(t, err)
	return r
}

// A gateway that Liqo has made with the defaults of its chart can be switched, and the commands say
// how.
func TestACapturedGatewayCanBeSwitched(t *testing.T) {
	for _, tt := range []struct {
		server              bool
		gateway, change, to string
	}{
		{true, "GatewayServer liqo-tenant-cluster-b/cluster-b towards cluster-b",
			`kubectl patch gatewayservers.networking.liqo.io -n liqo-tenant-cluster-b cluster-b --type merge -p '{"spec":{"serverTemplateRef":{"name":"`, "server"},
		{false, "GatewayClient liqo-tenant-cluster-c/cluster-c towards cluster-c",
			`kubectl patch gatewayclients.networking.liqo.io -n liqo-tenant-cluster-c cluster-c --type merge -p '{"spec":{"clientTemplateRef":{"name":"`, "client"},
	} {
		r := checked(t, captured(t, tt.server))
		if len(r.Findings) > 0 || !r.Works() || r.Gateway != tt.gateway {
			t.Errorf("%s: %+v", r.Gateway, r.Findings)
		}
		const end = `","namespace":"liqo"}}}'`
		if want := []Command{{"To switch", tt.change + "culvert-" + tt.to + end},
			{"To go back", tt.change + "wireguard-" + tt.to + end}}; !slices.Equal(r.Commands, want) {
			t.Errorf("commands %q", r.Commands)
		}
	}
}

func withPod(text string) func(*testing.T, *Cluster) {
	return func(t *testing.T, c *Cluster) { c.Pods = []map[string]any{object(t, text)} }
}

// switched is a captured cluster after the switch: an API server has written the Deployment.
func switched(t *testing.T) *Cluster {
	t.Helper()
	c := captured(t, true)
	set(c.Gateway, "culvert-server", "spec", "serverTemplateRef", "name")
	k := &checker{Cluster: c, end: serverEnd}
	g, err := k.gateway()
	need.NoError(t, err)
	made, err := template.Render(c.Template, g)
	need.NoError(t, err)
	text, err := json.Marshal(template.Field(made, "spec", "deployment"))
	need.NoError(t, err)
	c.Deployment = object(t, strings.Replace(string(text), `"cpu":"0.1"`, `"cpu":"100m"`, 1))
	set(c.Deployment, 600, "spec", "progressDeadlineSeconds")
	c.Stock = template.Default(true, "liqo", "liqo")
	return c
}

// TestGatewayAfterSwitch: the findings about a gateway after the switch, besides the one that it
// has culvert's template.
func TestGatewayAfterSwitch(t *testing.T) {
	newImage := func(t *testing.T, c *Cluster) {
		var err error
		if c.Template, _, err = template.From(c.Stock, "registry.invalid/culvert:2", 1); err != nil {
			t.Fatal(err)
		}
	}
	const differs = "Deployment gw-cluster-b is not what its template makes: spec.template.spec.containers[0].image is registry.invalid/culvert:1, and registry.invalid/culvert:2"
	for _, tt := range []struct {
		name   string
		change func(*testing.T, *Cluster)
		works  bool
		want   []string // in the findings
	}{
		{"as it is", func(*testing.T, *Cluster) {}, true, nil},
		{"a changed template", newImage, true, []string{differs}},
		{"a changed template and no pod", func(t *testing.T, c *Cluster) {
			newImage(t, c)
			withPod("{metadata: {name: gw-1}, status: {phase: Pending}}")(t, c)
		}, false, []string{differs, "no pod of Deployment gw-cluster-b is Running: until"}},
		{"level restricted", enforce("restricted"), true,
			[]string{
				"restricted of namespace liqo-tenant-cluster-b refuses the pod of wireguard-server, so that the way back is closed: "}},
		{"level privileged", enforce("privileged"), true, nil},
		{"no stock template", func(_ *testing.T, c *Cluster) { c.Stock = nil }, true,
			[]string{"wireguard-server: not in namespace liqo, so that the way back leads nowhere"}},
		{"a stock template for another version", func(_ *testing.T, c *Cluster) {
			set(c.Stock, "{{ .Spec.Nothing }}", append(templatePath, "metadata", "name")...)
		}, true, []string{"what the way back leads to is not known"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := switched(t)
			tt.change(t, c)
			r := checked(t, c)
			if len(r.Findings) != len(tt.want)+1 || !strings.Contains(r.Findings[0].Text,
				"it has culvert's template already; the way back is to wireguard-server") || r.Works() != tt.works {
				t.Fatalf("%+v", r.Findings)
			}
			for i, want := range tt.want {
				if !strings.Contains(r.Findings[i+1].Text, want) {
					t.Errorf("%q, want %q", r.Findings[i+1].Text, want)
				}
			}
			lines := []string{
				`kubectl annotate gatewayservers.networking.liqo.io -n liqo-tenant-cluster-b cluster-b --overwrite touched="$(date +%s)"`,
				`kubectl patch gatewayservers.networking.liqo.io -n liqo-tenant-cluster-b cluster-b --type merge -p '{"spec":{"serverTemplateRef":{"name":"wireguard-server","namespace":"liqo"}}}'`,
			}
			if !tt.works {
				lines = append(lines, "kubectl delete deployment -n liqo-tenant-cluster-b gw-cluster-b")
			}
			if !slices.EqualFunc(r.Commands, lines, func(c Command, line string) bool { return c.Line == line }) {
				t.Errorf("commands %q", r.Commands)
			}
		})
	}
}

// set changes a field of an object.
func set(o map[string]any, value any, path ...string) {
	last := len(path) - 1
	for _, name := range path[:last] {
		next, _ := o[name].(map[string]any)
		if next == nil {
			next = map[string]any{}
			o[name] = next
		}
		o = next
	}
	if o[path[last]] = value; value == nil {
		delete(o, path[last])
	}
}

func enforce(level string) func(*testing.T, *Cluster) {
	return func(_ *testing.T, c *Cluster) { set(c.Namespace, level, "metadata", "labels", labelEnforce) }
}

func withPolicy(spec string) func(*testing.T, *Cluster) {
	return func(t *testing.T, c *Cluster) {
		c.Policies = append(c.Policies, object(t, "metadata: {name: deny}\nspec: "+spec))
	}
}

// withMetrics turns metrics on and adds a policy.
func withMetrics(policy string) func(*testing.T, *Cluster) {
	return func(t *testing.T, c *Cluster) {
		stock := template.Default(true, "liqo", "liqo")
		one := containers(podOf(template.Field(stock, templatePath...)))[1]
		one["args"] = append(one["args"].([]any), "--metrics-address=:8084")
		var err error
		if c.Template, _, err = template.From(stock, "registry.invalid/culvert:1", 1); err != nil {
			t.Fatal(err)
		}
		withPolicy(policy)(t, c)
	}
}

func withResource(text string) func(*testing.T, *Cluster) {
	return func(t *testing.T, c *Cluster) { c.Resources = append(c.Resources, resource(t, text)) }
}

// podPath leads to a pod in a Deployment; templatePath to the Deployment in a template.
var (
	podPath      = []string{"spec", "template", "spec"}
	templatePath = []string{"spec", "template", "spec", "deployment"}
)

func TestFindingsBeforeSwitch(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*testing.T, *Cluster)
		wrong  bool
		want   string // in the one finding; "": none
	}{
		{"no template", func(_ *testing.T, c *Cluster) { c.Template = nil }, true,
			"WgGatewayServerTemplate culvert-server: not in namespace liqo; make it"},
		{"another release", func(t *testing.T, c *Cluster) {
			c.Template, _, _ = template.From(template.Default(true, "liqo-2", "liqo"), "registry.invalid/culvert:1", 1)
		}, true, "label app.kubernetes.io/instance is liqo-cluster-b there and would be liqo-2-cluster-b"},
		{"a selector with more labels", func(t *testing.T, c *Cluster) {
			set(c.Deployment, "here", "spec", "selector",
				"matchLabels", "edge")
		}, true,
			"label edge is here there and would be missing"},
		{"a pod that its selector does not find", func(t *testing.T, c *Cluster) {
			set(c.Template, "x", append(templatePath, "spec", "template", "metadata", "labels",
				"app.kubernetes.io/part-of")...)
		}, true, "label app.kubernetes.io/part-of of the pod: x, and the selector wants liqo"},
		{"a template for another version", func(t *testing.T, c *Cluster) {
			set(c.Template, "{{ .Spec.Nothing }}", append(templatePath, "metadata", "name")...)
		}, true, "make it anew"},
		{"another Geneve port", func(t *testing.T, c *Cluster) {
			pod := template.Field(c.Deployment, podPath...).(map[string]any)
			for _, one := range containers(pod) {
				for i, arg := range one["args"].([]any) {
					if arg == "--geneve-port=6091" {
						one["args"].([]any)[i] = "--geneve-port=6081"
					}
				}
			}
		}, true, "--geneve-port: nodes send to 6081, and the gateway would listen at 6091"},
		{"an image without a registry", func(t *testing.T, c *Cluster) {
			c.Template, _, _ = template.From(template.Default(true, "liqo", "liqo"), "culvert:latest", 1)
		}, false, "image culvert:latest names no registry, so that each node must have it already"},
		{"two replicas", func(t *testing.T, c *Cluster) { set(c.Deployment, 2, "spec", "replicas") }, false,
			"replicas: 1 instead of 2"},
		{"no Deployment", func(t *testing.T, c *Cluster) { c.Deployment = nil }, false,
			"no Deployment gw-cluster-b runs"},
		{"no pod", func(_ *testing.T, c *Cluster) { c.Pods = nil }, true,
			"no pod of Deployment gw-cluster-b is Running: until one is, Liqo applies neither"},
		{"a pod that no node takes",
			withPod(`{metadata: {name: gw-1}, status: {phase: Pending, conditions: [{type: PodScheduled, status: "False", reason: Unschedulable, message: too little memory}]}}`),
			true, "is Running (gw-1: Unschedulable: too little memory): until"},
		{"a rollout that waits for an image", func(t *testing.T, c *Cluster) {
			c.Pods = append(c.Pods,
				object(t,
					`{metadata: {name: gw-2}, status: {phase: Pending, containerStatuses: [{state: {waiting: {reason: ErrImagePull, message: not found}}}]}}`))
		}, true, "a pod of Deployment gw-cluster-b does not start (gw-2: ErrImagePull: not found)"},
		{"an image that is nowhere",
			withPod(`{metadata: {name: gw-1}, status: {phase: Pending, containerStatuses: [{state: {waiting: {reason: ImagePullBackOff, message: not found}}}]}}`),
			true, "is Running (gw-1: ImagePullBackOff: not found): until"},
		{"a pod that Pod Security refuses", func(t *testing.T, c *Cluster) {
			c.Pods = nil
			set(c.Deployment, []any{map[string]any{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
				"message": "violates PodSecurity"}}, "status", "conditions")
		}, true, "is Running (FailedCreate: violates PodSecurity): until"},
		{"several ports", func(t *testing.T, c *Cluster) {
			set(c.Gateway, []any{51840, 51841}, "spec", "endpoint",
				"ports")
		}, false,
			"spec.endpoint.ports: of [51840 51841] culvert uses the first"},

		{"level privileged", enforce("privileged"), false, ""},
		{"level baseline", enforce("baseline"), false,
			"baseline of namespace liqo-tenant-cluster-b refuses the pod that runs, so that the way back is closed"},
		{"level restricted", enforce("restricted"), false,
			"restricted of namespace liqo-tenant-cluster-b refuses the pod that runs"},

		{"a policy on other pods", withPolicy("{podSelector: {matchLabels: {app: other}}}"), false, ""},
		{"a policy that lets in nothing", withPolicy("{podSelector: {}}"), true,
			"NetworkPolicy deny lets no UDP 6091 and 51840 in"},
		{"a policy that lets in TCP",
			withPolicy("{podSelector: {}, ingress: [{ports: [{port: 6091}, {protocol: TCP}]}]}"), true,
			"lets no UDP 6091 and 51840 in"},
		{"a policy that lets in one port",
			withPolicy("{podSelector: {}, ingress: [{ports: [{protocol: UDP, port: 6091}]}]}"), true,
			"lets no UDP 51840 in"},
		{"a policy that lets in a range",
			withPolicy("{podSelector: {}, ingress: [{ports: [{protocol: UDP, port: 6000, endPort: 60000}]}]}"), false,
			"NetworkPolicy deny selects the pod, and lets its ports in"},
		{"a policy that lets in what comes from somewhere",
			withPolicy("{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}"), false,
			"selects the pod, and lets its ports in"},
		{"a policy that lets nobody read metrics",
			withMetrics("{podSelector: {}, ingress: [{ports: [{protocol: UDP}, {port: 8085}]}]}"), false,
			"lets its ports in, but not TCP 8084, by which metrics are scraped; whether"},
		{"a policy that lets metrics be read",
			withMetrics("{podSelector: {}, ingress: [{ports: [{protocol: UDP}, {port: wg-metrics}]}]}"), false,
			"lets its ports in; whether"},
		{"a policy that lets in TCP to the port of metrics",
			withMetrics("{podSelector: {}, ingress: [{ports: [{protocol: UDP}]}, {ports: [{port: 8084}]}]}"), false,
			"lets its ports in; whether"},
		{"a policy for what goes out", withPolicy("{podSelector: {}, policyTypes: [Egress]}"), false,
			"NetworkPolicy deny restricts what the pod sends"},
		{"a policy of expressions",
			withPolicy("{podSelector: {matchExpressions: [{key: networking.liqo.io/component, operator: In, values: [gateway]}]}}"), true, "lets no UDP"},
		{"a policy that nobody can read", withPolicy("{podSelector: 7}"), false, "NetworkPolicy deny cannot be read"},

		{"a family of frames",
			withResource(`{kind: FirewallConfiguration, metadata: {name: f, namespace: liqo, labels: {networking.liqo.io/firewall-category: gateway, networking.liqo.io/firewall-subcategory: all-gateways}},
 spec: {table: {name: f, family: BRIDGE}}}`), true,
			"FirewallConfiguration/liqo/f would be left out: spec.table.family: BRIDGE sees frames"},
		{"a tunnel of another fabric",
			withResource(`{kind: GeneveTunnel, metadata: {name: t, namespace: liqo-tenant-cluster-b},
 spec: {id: 77, internalNodeRef: {name: n1}, internalFabricRef: {name: other}}}`), true,
			"GeneveTunnel/liqo-tenant-cluster-b/t would be left out: spec.internalFabricRef.name"},
		{"a key of another length",
			withResource(`{kind: PublicKey, metadata: {name: k, namespace: liqo-tenant-cluster-b, labels: {liqo.io/remote-cluster-id: cluster-b}}, spec: {publicKey: AAAA}}`),
			false, "PublicKey/liqo-tenant-cluster-b/k would be left out: spec.publicKey"},
		{"a resource for nodes",
			withResource(`{kind: FirewallConfiguration, metadata: {name: f, namespace: liqo, labels: {networking.liqo.io/firewall-category: fabric}},
 spec: {table: {name: f, family: BRIDGE}}}`), false, ""},
		{"a table without rules",
			withResource(`{kind: RouteConfiguration, metadata: {name: r, namespace: liqo, labels: {networking.liqo.io/route-category: gateway, networking.liqo.io/route-subcategory: fabric}},
 spec: {table: {name: r}}}`), true, "RouteConfiguration/liqo/r would be left out: spec.table.rules: missing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := captured(t, true)
			tt.change(t, c)
			r := checked(t, c)
			if tt.want == "" {
				if len(r.Findings) > 0 {
					t.Errorf("%+v", r.Findings)
				}
				return
			}
			if len(r.Findings) != 1 || r.Findings[0].Wrong != tt.wrong || !strings.Contains(r.Findings[0].Text,
				tt.want) || r.Works() == tt.wrong {
				t.Errorf("%+v, want one, wrong %v: %s", r.Findings, tt.wrong, tt.want)
			}
		})
	}
}

// TestPolicyForAStandby: a NetworkPolicy must let a standby copy connections from the other pod.
func TestPolicyForAStandby(t *testing.T) {
	for policy, want := range map[string]string{
		"{podSelector: {}, ingress: [{ports: [{protocol: UDP}]}]}": "NetworkPolicy deny lets no TCP 51841, by which a standby copies connections, in; add one",
		"{podSelector: {}}": "NetworkPolicy deny lets no UDP 6091 and 51840 and no TCP 51841, by which a standby copies connections, in; add one",
		"{podSelector: {}, ingress: [{ports: [{protocol: UDP}, {port: 51841}]}]}": "",
	} {
		c := captured(t, true)
		var err error
		if c.Template, _, err = template.From(template.Default(true, "liqo", "liqo"), "registry.invalid/culvert:1",
			2); err != nil {
			t.Fatal(err)
		}
		withPolicy(policy)(t, c)
		r := checked(t, c)
		wrong := ""
		for _, f := range r.Findings {
			if f.Wrong {
				wrong += f.Text
			}
		}
		if r.Works() != (want == "") || !strings.HasPrefix(wrong, want) {
			t.Errorf("%s: %q, want %q", policy, wrong, want)
		}
	}
}

// The policy among the manifests lets in what a gateway needs, beside one that lets in nothing.
func TestTheExamplePolicyIsEnough(t *testing.T) {
	for _, server := range []bool{true, false} {
		c := captured(t, server)
		withPolicy("{podSelector: {}}")(t, c)
		if r := checked(t, c); r.Works() {
			t.Error("a policy that lets in nothing is not reported")
		}
		c.Policies = append(c.Policies, object(t, readFile(t, "manifests", "networkpolicy.yaml")))
		if r := checked(t, c); !r.Works() {
			t.Errorf("%+v", r.Findings)
		}
	}
}

func TestGatewayNotMadeByLiqo(t *testing.T) {
	for _, tt := range []struct {
		value any
		path  []string
		want  string
	}{
		{nil, []string{"metadata", "labels", labelRemote}, "no label liqo.io/remote-cluster-id"},
		{"large", []string{"spec", "mtu"}, "spec: json: cannot unmarshal string"},
	} {
		c := captured(t, true)
		set(c.Gateway, tt.value, tt.path...)
		if r, err := Check(c); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, %v, want %q", r, err, tt.want)
		}
	}
}

// Each line is the pod that passes, changed in one way.
func TestPodSecurity(t *testing.T) {
	const good = `{"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
"volumes": [{"name": "v", "emptyDir": {}}],
"containers": [{"name": "c", "ports": [{"containerPort": 1}], "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}`
	for _, tt := range []struct{ old, new, baseline, restricted string }{
		{"", "", "", ""},
		{`{"securityContext"`, `{"hostNetwork": true, "securityContext"`, "spec.hostNetwork", "spec.hostNetwork"},
		{`"emptyDir": {}`, `"hostPath": {}`, "volume v: hostPath", "volume v: hostPath"},
		{`"emptyDir": {}`, `"nfs": {}`, "", "volume v: nfs"},
		{`"containerPort": 1`, `"hostPort": 1`, "hostPort 1", "hostPort 1"},
		{`"drop": ["ALL"]`, `"drop": ["ALL"], "add": ["NET_ADMIN"]`, "adds capability NET_ADMIN",
			"adds capability NET_ADMIN"},
		{`"drop": ["ALL"]`, `"drop": ["ALL"], "add": ["CHOWN"]`, "", "adds capability CHOWN"},
		{`"drop": ["ALL"]`, `"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]`, "", ""},
		{`"drop": ["ALL"]`, `"drop": ["CHOWN"]`, "", "does not drop ALL"},
		{`"allowPrivilegeEscalation": false, `, "", "", "allowPrivilegeEscalation is not false"},
		{`"allowPrivilegeEscalation": false`, `"privileged": true, "allowPrivilegeEscalation": false`, "privileged",
			"privileged"},
		{`"runAsNonRoot": true, `, "", "", "runAsNonRoot is not true"},
		{`"runAsNonRoot": true`, `"runAsNonRoot": true, "runAsUser": 0`, "", "runAsUser 0"},
		{`"RuntimeDefault"`, `"Unconfined"`, "seccompProfile Unconfined", "seccompProfile Unconfined"},
		{`, "seccompProfile": {"type": "RuntimeDefault"}`, "", "", "no seccompProfile"},
	} {
		if !strings.Contains(good, tt.old) {
			t.Fatalf("no %q in the pod", tt.old)
		}
		var pod map[string]any
		need.NoError(t, json.NewDecoder(bytes.NewReader([]byte(strings.Replace(good, tt.old, tt.new, 1)))).Decode(&pod))
		for level, want := range map[string]string{"privileged": "", "baseline": tt.baseline,
			"restricted": tt.restricted} {
			faults := podFaults(pod, level)
			if (want == "") != (len(faults) == 0) || want != "" && (len(faults) != 1 ||
				!strings.Contains(faults[0], want)) {
				t.Errorf("%s instead of %s, %s: %q, want %q", tt.new, tt.old, level, faults, want)
			}
		}
	}
}

// TestStandbysController: of a gateway with several pods, the report names Liqo's controller, how
// many there are and where.
func TestStandbysController(t *testing.T) {
	for _, tt := range []struct{ name, nodes, want string }{
		{"none", "", "No pod of it runs"},
		{"beside the active gateway", "n2", "It runs on node n2 alone, like the active gateway"},
		{"alone", "n1", "It runs on node n1 alone; set controllerManager.replicas=2"},
		{"two on one node", "n1 n1", "It runs on node n1 alone; "},
		{"two", "n1 n2", "It runs on the nodes n1, n2"},
	} {
		c := switched(t)
		set(c.Gateway, "n2", "status", "internalEndpoint", "node")
		for _, n := range strings.Fields(tt.nodes) {
			c.Controllers = append(c.Controllers, object(t, "{spec: {nodeName: "+n+"}, status: {phase: Running}}"))
		}
		c.Controllers = append(c.Controllers, object(t, "{spec: {nodeName: n3}, status: {phase: Pending}}"))
		says := func() bool {
			return slices.ContainsFunc(checked(t, c).Findings, func(f Finding) bool {
				return !f.Wrong && strings.Contains(f.Text, tt.want)
			})
		}
		if says() {
			t.Errorf("%s: said of a gateway with one pod", tt.name)
		}
		var err error
		c.Template, _, err = template.From(template.Default(true, "liqo", "liqo"), "registry.invalid/culvert:1", 2)
		need.NoError(t, err)
		if !says() {
			t.Errorf("%s: %+v, want %q", tt.name, checked(t, c).Findings, tt.want)
		}
	}
}

// TestNodesOfStandby: a pod that does not know an address of a node is named, with the address that
// is missing. One that has only the address for other pods can do without.
func TestNodesOfStandby(t *testing.T) {
	for _, tt := range []struct {
		status, want string
		wrong        bool
	}{
		{`{"nodeIP":{"local":"10.244.1.1"}}`,
			"pod gw-1 waits for InternalNode n2: no status.nodeIP.remote, which Liqo writes after this pod becomes active", false},
		{`{}`, "pod gw-1 waits for InternalNode n2: no status.nodeIP.remote", true},
	} {
		c := switched(t)
		c.Pods = []map[string]any{object(t, "{metadata: {name: gw-1}, spec: {nodeName: n1}, status: {phase: Running}}")}
		for _, o := range c.Resources {
			if o.Kind == liqo.KindNode && o.Metadata.Name == "n2" {
				o.Status = json.RawMessage(tt.status)
			}
		}
		if !slices.ContainsFunc(checked(t, c).Findings, func(f Finding) bool {
			return f.Wrong == tt.wrong &&
				strings.HasPrefix(f.Text, tt.want)
		}) {
			t.Errorf("%+v, want %q", checked(t, c).Findings, tt.want)
		}
	}
}
