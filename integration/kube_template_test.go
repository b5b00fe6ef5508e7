package integration

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"culvert/integration/need"
	"culvert/kube/template"
)

// TestKubeTemplates replaces Liqo's templates by culvert's in a real API server, which validates
// the results.
func TestKubeTemplates(t *testing.T) {
	beside(t, func(t *testing.T) {
		k := newKubeLab(t, &kubeRome, &kubeMilan)
		for _, stock := range []map[string]any{template.Default(true, "liqo", liqoNamespace),
			template.Default(false, "liqo", liqoNamespace)} {
			field(stock, "metadata").(object)["name"] = map[any]string{template.ServerKind: "wireguard-server",
				template.ClientKind: "wireguard-client"}[stock["kind"]]
			k.liqo.apply(stock)
		}
		o := newKubeOperator(k)
		templates := o.printTemplates(t)
		for _, test := range []struct {
			name string
			run  func(*testing.T, *kubeOperator, map[string]object)
		}{
			{"restricted", testKubeRestricted}, {"switch and back", testKubeSwitch}, {"check", testKubeCheck},
			{"start", testKubeStart}, {"policy", testKubePolicy},
			{"peer", testKubePeer},
		} {
			t.Run(test.name, func(t *testing.T) { test.run(t, o, templates) })
		}
	}, kubernetes, liqoMode)
}

// A kubeOperator runs culvert as a user who may read everything and change nothing.
type kubeOperator struct {
	*kubeLab
	file string // kubeconfig
}

const kubeReader = "reader"

// kubeConnects limits how long a gateway takes to connect when everything it needs exists.
const kubeConnects = 3 * time.Second

func newKubeOperator(k *kubeLab) *kubeOperator {
	k.t.Helper()
	k.liqo.apply(
		object{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": object{"name": kubeReader,
			"namespace": liqoNamespace}},
		object{"apiVersion": rbac + "/v1", "kind": "ClusterRole", "metadata": object{"name": kubeReader},
			"rules": []object{{"apiGroups": []string{"*"}, "resources": []string{"*"},
				"verbs": []string{"get", "list"}}}},
		object{"apiVersion": rbac + "/v1", "kind": "ClusterRoleBinding", "metadata": object{"name": kubeReader},
			"roleRef":  object{"apiGroup": rbac, "kind": "ClusterRole", "name": kubeReader},
			"subjects": []object{{"kind": "ServiceAccount", "name": kubeReader, "namespace": liqoNamespace}}},
	)
	k.api.awaitRight(k.t, "system:serviceaccount:"+liqoNamespace+":"+kubeReader, "list",
		"networking.liqo.io/internalnodes", "")
	return &kubeOperator{k, k.api.kubeconfigOf(liqoNamespace, kubeReader)}
}

// culvert runs a command of culvert liqo.
func (o *kubeOperator) culvert(args ...string) (string, error) {
	return o.gatewayHost.try("", os.Getenv(binaryEnv), append(append([]string{"liqo"}, args...),
		"--kubeconfig", o.file)...)
}

// printTemplates applies what the command prints, as kubectl apply does, and returns it by kind.
func (o *kubeOperator) printTemplates(t *testing.T) map[string]object {
	t.Helper()
	printed, err := o.culvert("template", "--image", "registry.invalid/culvert:1")
	need.NoError(t, err)
	templates := map[string]object{}
	for _, document := range strings.Split(printed, "\n---\n") {
		var one object
		need.NoError(t, yaml.Unmarshal([]byte(document), &one))
		o.liqo.apply(one)
		// A template's schema accepts anything and drops what it does not know, so look at the
		// stored object.
		stored, err := o.api.admin.get(one)
		need.NoError(t, err)
		templates[one["kind"].(string)] = stored
	}
	return templates
}

// kubeGateways are the gateways of the captures.
var kubeGateways = []struct{ template, gateway, made string }{
	{template.ServerKind, "gatewayservers", "wggatewayservers"}, {template.ClientKind, "gatewayclients",
		"wggatewayclients"},
}

// deployments returns the Deployment of a captured gateway, and the one that Liqo's controller
// would make from our templates.
func deployments(t *testing.T, capture, kind string, templates map[string]object) (stock, ours object) {
	t.Helper()
	for _, g := range kubeGateways {
		if g.template != kind {
			continue
		}
		from := readYAML(t, filepath.Join("../kube/testdata", capture, g.gateway+".yaml"))
		meta := from["metadata"].(object)
		gateway := template.Gateway{
			Name: meta["name"].(string), Namespace: meta["namespace"].(string), GatewayUID: meta["uid"].(string),
			ClusterID: field(meta, "labels", "liqo.io/remote-cluster-id").(string),
		}
		spec, err := json.Marshal(from["spec"])
		if err == nil {
			err = json.Unmarshal(spec, &gateway.Spec)
		}
		need.NoError(t, err)
		made, err := template.Render(templates[kind], gateway)
		need.NoError(t, err)
		captured := readYAML(t, filepath.Join("../kube/testdata", capture, g.made+".yaml"))
		return deployment(captured, gateway.Namespace, gateway.Name), deployment(made, gateway.Namespace, gateway.Name)
	}
	t.Fatalf("no gateway of a %s", kind)
	return nil, nil
}

// deployment completes it as Liqo's controller does: with a name, and the name of the Secret with
// the keys.
func deployment(made object, namespace, name string) object {
	spec := field(made, "spec", "deployment", "spec").(object)
	for _, v := range field(spec, "template", "spec", "volumes").([]any) {
		if v := v.(object); v["name"] == "wireguard-config" {
			v["secret"] = object{"secretName": "gw-" + name}
		}
	}
	return object{"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec,
		"metadata": object{"name": "gw-" + name, "namespace": namespace, "labels": field(made, "spec", "deployment",
			"metadata", "labels")}}
}

// podFrom returns the pod that a Deployment would start.
func podFrom(deployment object, namespace string) object {
	return object{"apiVersion": "v1", "kind": "Pod", "spec": field(deployment, "spec", "template", "spec"),
		"metadata": object{"name": "gw", "namespace": namespace, "labels": field(deployment, "spec", "template",
			"metadata", "labels")}}
}

// testKubeRestricted: in a namespace that enforces "restricted", Liqo's pod is refused and ours
// starts.
func testKubeRestricted(t *testing.T, o *kubeOperator, templates map[string]object) {
	o.liqo.apply(object{"apiVersion": "v1", "kind": "Namespace",
		"metadata": object{"name": "restricted", "labels": object{"pod-security.kubernetes.io/enforce": "restricted"}}})
	for _, capture := range captures {
		for _, g := range kubeGateways {
			stock, ours := deployments(t, capture, g.template, templates)
			refused := new(kubeError)
			if err := o.api.admin.dryRun(podFrom(stock, "restricted")); !errors.As(err, &refused) ||
				refused.Code != http.StatusForbidden ||
				!strings.Contains(refused.Message, `violates PodSecurity "restricted`) {
				t.Errorf("%s %s: Liqo's pod: %v", capture, g.made, err)
			}
			if err := o.api.admin.dryRun(podFrom(ours, "restricted")); err != nil {
				t.Errorf("%s %s: our pod: %v", capture, g.made, err)
			}
		}
	}
}

// testKubeSwitch changes the Deployment of each captured gateway to ours and back, as Liqo's
// controller would. It cannot where another release's selector differs.
func testKubeSwitch(t *testing.T, o *kubeOperator, templates map[string]object) {
	other, _, err := template.From(template.Default(true, "another", liqoNamespace), "registry.invalid/culvert:1", 1)
	need.NoError(t, err)
	for _, capture := range captures {
		for _, g := range kubeGateways {
			stock, ours := deployments(t, capture, g.template, templates)
			o.liqo.apply(object{"apiVersion": "v1", "kind": "Namespace",
				"metadata": object{"name": field(stock, "metadata", "namespace")}})
			put := func(d object) error {
				return o.api.admin.request(http.MethodPut, pathOf(d)+"?fieldValidation=Strict",
					"application/json", d, nil)
			}
			collection := strings.TrimSuffix(pathOf(stock), "/"+field(stock, "metadata", "name").(string))
			if err := o.api.admin.request(http.MethodPost, collection, "application/json", stock, nil); err != nil {
				t.Fatalf("%s %s: %v", capture, g.made, err)
			}
			for _, step := range []object{ours, stock, ours} {
				if err := put(step); err != nil {
					t.Errorf("%s %s: %v", capture, g.made, err)
				}
			}
			if g.template == template.ServerKind {
				_, foreign := deployments(t, capture, g.template, map[string]object{g.template: other})
				refused := new(kubeError)
				if err := put(foreign); !errors.As(err, &refused) || refused.Code != http.StatusUnprocessableEntity {
					t.Errorf("%s: a selector of another release: %v", capture, err)
				}
			}
			need.NoError(t, o.api.admin.request(http.MethodDelete, pathOf(stock), "application/json", nil, nil))
		}
	}
}

// testKubeCheck: with read rights only, check says what would happen and what prevents it, before
// and after the switch.
func testKubeCheck(t *testing.T, o *kubeOperator, templates map[string]object) {
	const name = "cluster-b"
	stock, ours := deployments(t, "v1.2.0", template.ServerKind, templates)
	namespace := field(stock, "metadata", "namespace").(string)
	gateway := readYAML(t, "../kube/testdata/v1.2.0/gatewayservers.yaml")
	for _, stale := range []string{"uid", "resourceVersion", "creationTimestamp", "generation"} {
		delete(gateway["metadata"].(object), stale)
	}
	delete(gateway, "status")
	o.liqo.apply(object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": namespace}}, gateway, stock)
	o.liqoSteps()
	says := func(works bool, wants ...string) {
		t.Helper()
		said, err := o.culvert("check", namespace+"/"+name)
		if err != nil {
			said += err.Error()
		}
		for _, want := range wants {
			if (err == nil) != works || !strings.Contains(said, want) {
				t.Errorf("%v; want %q, works %v:\n%s", err, want, works, said)
			}
		}
	}
	says(false, "no pod of Deployment gw-cluster-b is Running: until one is", "kubectl delete deployment -n "+
		namespace+" gw-"+name)
	pod := object{"apiVersion": "v1", "kind": "Pod", "spec": object{"serviceAccountName": kubeReader,
		"containers": []object{{"name": "c", "image": "i"}}},
		"metadata": object{"name": "gw-1", "namespace": namespace, "labels": field(stock, "spec", "template",
			"metadata", "labels")},
		"status": object{"phase": "Running"}}
	o.liqo.apply(object{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": object{"name": kubeReader,
		"namespace": namespace}}, pod)
	says(true, "culvert would work here.\nTo switch:\n")

	// After the switch: defaults that the API server adds to a Deployment are no difference from
	// the template.
	field(gateway, "spec", "serverTemplateRef").(object)["name"] = template.ServerName
	o.liqo.apply(gateway)
	stored, err := o.api.admin.get(gateway)
	need.NoError(t, err)
	container := field(ours, "spec", "template", "spec", "containers").([]any)[0].(object)
	for i, arg := range container["args"].([]any) {
		if strings.HasPrefix(arg.(string), "--gateway-uid=") { // this API server has assigned another
			container["args"].([]any)[i] = "--gateway-uid=" + field(stored, "metadata", "uid").(string)
		}
	}
	o.liqo.apply(ours)
	if said, err := o.culvert("check", namespace+"/"+name); err != nil ||
		strings.Contains(said, "is not what its template makes") ||
		!strings.Contains(said, "it has culvert's template already") {
		t.Errorf("after the switch: %v\n%s", err, said)
	}
	o.liqo.apply(object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": namespace,
		"labels": object{"pod-security.kubernetes.io/enforce": "restricted"}}})
	says(true, "refuses the pod of wireguard-server, so that the way back is closed")
	container["image"] = "registry.invalid/culvert:0"
	o.liqo.apply(ours)
	says(true,
		"spec.template.spec.containers[0].image is registry.invalid/culvert:0, and registry.invalid/culvert:1 in the template",
		"kubectl annotate gatewayservers.networking.liqo.io -n "+namespace+" "+name+" --overwrite touched=")

	bridge := firewall(liqoNamespace, "bridge", "bridge", subcategory("all-gateways"))
	table := field(bridge, "spec", "table").(object)
	table["family"], table["chains"] = "BRIDGE", []object{}
	o.liqo.apply(bridge)
	if said, err := o.culvert("check", namespace+"/"+name); err == nil || !strings.Contains(err.Error()+said,
		"spec.table.family") {
		t.Errorf("with a table of frames: %v\n%s", err, said)
	}
	var verbs []string
	for _, e := range o.api.audit(t, "system:serviceaccount:"+liqoNamespace+":"+kubeReader) {
		if e.ResponseStatus.Code == http.StatusForbidden {
			t.Errorf("%s %s was forbidden", e.Verb, e.RequestURI)
		}
		if !slices.Contains(verbs, e.Verb) {
			verbs = append(verbs, e.Verb)
		}
	}
	slices.Sort(verbs)
	if !slices.Equal(verbs, []string{"get", "list"}) {
		t.Errorf("it has used the verbs %q, want get and list only", verbs)
	}
}

// testKubeStart runs a gateway with the arguments of the rendered container, as a user that
// OpenShift would choose. It becomes ready when nothing but its account exists, and uses only the
// rights of its role.
func testKubeStart(t *testing.T, o *kubeOperator, templates map[string]object) {
	g := template.Gateway{Name: o.liqo.account(), Namespace: o.liqo.tenant(), ClusterID: o.remote().name,
		GatewayUID: kubeGatewayUID}
	g.Spec.MTU, g.Spec.Endpoint.Port, g.Spec.Endpoint.Addresses = kubeMTU, 51840, []string{o.remote().peering}
	made, err := template.Render(templates[template.ClientKind], g)
	need.NoError(t, err)
	container := field(made, "spec", "deployment", "spec", "template", "spec", "containers").([]any)[0]
	var args []string
	for _, arg := range field(container.(object), "args").([]any) {
		args = append(args, strings.NewReplacer("$(NODE_NAME)", kubeNodes[0].name, "$(POD_NAME)",
			o.liqo.podName()).Replace(arg.(string)))
	}
	const uid, gid = 1000680000, 0
	p := o.startLiqoGateway(uid, gid, args[1:]...)
	for _, path := range []string{"/healthz", "/readyz"} {
		eventually(t, path, func() error {
			need.NoError(t, p.running())
			_, err := o.gatewayHost.getFrom("127.0.0.1:8085", path)
			return err
		})
	}
	p.requireConfined(t, uid, gid)
	o.requireStatus(t, p, uid, gid)
	o.requireWithinRole(t)
}

// testKubePolicy: the API server accepts the example of a NetworkPolicy.
func testKubePolicy(t *testing.T, o *kubeOperator, _ map[string]object) {
	policy := readYAML(t, "../kube/manifests/networkpolicy.yaml")
	policy["metadata"].(object)["namespace"] = o.liqo.tenant()
	if err := o.api.admin.dryRun(policy); err != nil {
		t.Error(err)
	}
}

// testKubePeer: the gateway of testKubeStart connects to a peer that only speaks the connection
// check, and ignores everything else from it.
func testKubePeer(t *testing.T, o *kubeOperator, _ map[string]object) {
	milan := newPeerHost(t, "milan-gw")
	join(o.gatewayHost, milan, o.peering+"/24", o.remote().peering+"/24", 1500)
	key := newKeyPair(t)
	startWireGuard(t, milan, key, base64.StdEncoding.EncodeToString(o.key.PublicKey().Bytes()))
	peer := startCheckPeer(t, milan)
	public, err := base64.StdEncoding.DecodeString(key.public)
	need.NoError(t, err)
	began := time.Now()
	o.liqo.keysExchanged(public)
	peer.converse(t, o.gatewayHost, o.isConnected)
	t.Logf("found and questioned within %v of its key", time.Since(began).Round(time.Millisecond))

	// Everything exists when the pod is recreated.
	o.kubeLab.culvert.stop()
	connection := resource("Connection", o.liqo.tenant(), "gw-"+o.liqo.account(), nil)
	need.NoError(t, o.api.admin.delete(connection))
	began = time.Now()
	o.startLiqoGateway(1000680000, 0)
	eventuallyWithin(t, kubeConnects, "the gateway is connected again", o.isConnected)
	t.Logf("connected %v after it was started", time.Since(began).Round(time.Millisecond))
	o.requireWithinRole(t)
}
