//go:build !nokube

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"culvert/cmd/internal/cli"
	"culvert/integration/need"
	"culvert/kube/check"
	"culvert/kube/template"
)

const templatesFile = "../../kube/manifests/liqo-templates.yaml"

// exampleImage stands in the manifests for one in a registry.
const exampleImage = "registry.example/culvert:1.0"

// TestLiqoTemplates: the file among the manifests is what --offline prints; go test ./cmd/culvert
// -run TestLiqoTemplates -update writes it.
func TestLiqoTemplates(t *testing.T) {
	out, diag, status := run(t, "liqo", "template", "--offline", "--release", "liqo", "--image", exampleImage)
	if status != 0 || diag != "" {
		t.Fatalf("status %d: %s", status, diag)
	}
	if *update {
		need.NoError(t, os.WriteFile(templatesFile, []byte(out), 0o644))
	}
	if file, err := os.ReadFile(templatesFile); err != nil || string(file) != out {
		t.Errorf("%s is not what is printed (%v); run this test with -update", templatesFile, err)
	}
	other, _, _ := run(t, "liqo", "template", "--offline", "--release", "edge", "--image", "registry.invalid/culvert:1")
	want := strings.NewReplacer("instance: liqo-{{", "instance: edge-{{", "image: "+exampleImage,
		"image: registry.invalid/culvert:1").Replace(out)
	if other != want {
		t.Errorf("for release edge it prints\n%s", other)
	}
}

// templates reads what is printed.
func templates(t *testing.T, text string) (all []map[string]any) {
	t.Helper()
	for _, doc := range strings.Split(text, "\n---\n") {
		var o map[string]any
		need.NoError(t, yaml.Unmarshal([]byte(doc), &o))
		all = append(all, o)
	}
	return all
}

// TestLiqoFlagsAreOurs: the gateway knows every flag in a template, and those flags together lack
// only what the pod itself provides.
func TestLiqoFlagsAreOurs(t *testing.T) {
	out, _, _ := run(t, "liqo", "template", "--offline", "--image", exampleImage)
	for _, o := range templates(t, out) {
		var g template.Gateway
		g.Name, g.Namespace, g.ClusterID, g.GatewayUID = "milan", "liqo-tenant-milan", "milan", "1"
		g.Spec.MTU, g.Spec.Endpoint.Port, g.Spec.Endpoint.Addresses = 1340, 51840, []string{"192.0.2.7"}
		made, err := template.Render(o, g)
		need.NoError(t, err)
		containers, _ := template.Field(made, "spec", "deployment", "spec", "template", "spec", "containers").([]any)
		args, _ := template.Field(containers[0], "args").([]any)
		var words []string
		for _, a := range args {
			words = append(words, strings.NewReplacer("$(NODE_NAME)", "node-1", "$(POD_NAME)",
				"gw-milan-1").Replace(a.(string)))
		}
		_, diag, status := run(t, words...)
		if lines := strings.Split(strings.TrimSpace(diag), "\n"); status != cli.ExitBadInput || len(lines) != 2 ||
			!strings.Contains(lines[0], "--keys-dir: /etc/wireguard/keys/privateKey: ") || !strings.Contains(lines[1],
			"--kubeconfig: missing") {
			t.Errorf("%q: status %d\n%s", words, status, diag)
		}
	}
}

// A fakeCluster answers as an API server does, with what it holds.
type fakeCluster struct {
	mu sync.Mutex
	// +checklocks:mu
	objects map[string]any // by path
	// +checklocks:mu
	asked []string
}

// put adds an object while the server runs.
func (c *fakeCluster) put(path string, object any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.objects[path] = object
}

func (c *fakeCluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.asked = append(c.asked, r.Method)
	o, ok := c.objects[r.URL.Path]
	c.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		parts := strings.Split(r.URL.Path, "/")
		o = map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound",
			"code":    http.StatusNotFound,
			"message": "not found", "details": map[string]any{"name": parts[len(parts)-1]}}
	}
	if list, ok := o.([]any); ok {
		o = map[string]any{"kind": "List", "apiVersion": "v1", "metadata": map[string]any{}, "items": list}
	}
	json.NewEncoder(w).Encode(o)
}

// start returns a kubeconfig that leads to it.
func (c *fakeCluster) start(t *testing.T) (kubeconfig string) {
	t.Helper()
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: x, user: x}}],
clusters: [{name: x, cluster: {server: %q}}], users: [{name: x, user: {token: x}}]}`, server.URL)
	need.NoError(t, os.WriteFile(kubeconfig, []byte(text), 0o600))
	return kubeconfig
}

const liqoAPI = "/apis/networking.liqo.io/v1beta1"

// newFakeCluster is one with a gateway, and with Liqo's templates but not ours.
func newFakeCluster(t *testing.T) *fakeCluster {
	t.Helper()
	text, err := os.ReadFile("../../kube/testdata/v1.2.0/gatewayservers.yaml")
	need.NoError(t, err)
	const tenant = "/namespaces/liqo-tenant-cluster-b"
	empty := []any{}
	return &fakeCluster{objects: map[string]any{
		liqoAPI + "/namespaces/liqo/wggatewayservertemplates/wireguard-server": template.Default(true, "edge", "liqo"),
		liqoAPI + "/namespaces/liqo/wggatewayclienttemplates/wireguard-client": template.Default(false, "edge", "liqo"),
		liqoAPI + tenant + "/gatewayservers/cluster-b":                         templates(t, string(text))[0],
		"/api/v1/namespaces/liqo-tenant-cluster-b": map[string]any{"apiVersion": "v1",
			"kind": "Namespace"},
		"/api/v1" + tenant + "/pods": empty,
		"/api/v1/pods":               empty,
		"/apis/networking.k8s.io/v1" + tenant + "/networkpolicies": empty,
		liqoAPI + "/firewallconfigurations":                        empty,
		liqoAPI + "/routeconfigurations":                           empty,
		liqoAPI + "/internalnodes":                                 empty,
		liqoAPI + tenant + "/internalfabrics":                      empty,
		liqoAPI + tenant + "/genevetunnels":                        empty,
		liqoAPI + tenant + "/publickeies":                          empty,
	}}
}

// TestLiqoCommandsRead: template and check lead from nothing to a gateway that can be switched, and
// write nothing to the cluster.
func TestLiqoCommandsRead(t *testing.T) {
	c := newFakeCluster(t)
	kubeconfig := c.start(t)
	check := func() (out, diag string, status int) {
		return run(t, "liqo", "check", "liqo-tenant-cluster-b/cluster-b", "--kubeconfig", kubeconfig)
	}
	out, diag, status := check()
	if status != cli.ExitFailed ||
		!strings.Contains(out, "\nwrong: WgGatewayServerTemplate culvert-server: not in namespace liqo") ||
		!strings.Contains(diag, "would not work") {
		t.Errorf("without a template: status %d\n%s%s", status, out, diag)
	}
	printed, diag, status := run(t, "liqo", "template", "--kubeconfig", kubeconfig, "--image",
		"registry.invalid/culvert:1")
	if status != 0 || diag != "" || !strings.Contains(printed, "instance: edge-{{ .Name }}") {
		t.Fatalf("template: status %d\n%s%s", status, printed, diag)
	}
	c.put(liqoAPI+"/namespaces/liqo/wggatewayservertemplates/culvert-server", templates(t, printed)[0])
	out, diag, status = check()
	if status != 0 || diag != "" ||
		!strings.Contains(out, "culvert would work here.\nTo switch:\n    kubectl patch gatewayservers") {
		t.Errorf("with a template: status %d\n%s%s", status, out, diag)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.ContainsFunc(c.asked, func(method string) bool { return method != http.MethodGet }) || len(c.asked) < 10 {
		t.Errorf("it asked %q", c.asked)
	}
}

// TestLiqoCannotLook: exit status 2, and each line names what is missing.
func TestLiqoCannotLook(t *testing.T) {
	c := newFakeCluster(t)
	c.objects[liqoAPI+"/namespaces/liqo/wggatewayclienttemplates/wireguard-client"] = map[string]any{
		"apiVersion": template.APIVersion, "kind": template.ClientKind}
	delete(c.objects, liqoAPI+"/internalnodes")
	kubeconfig := c.start(t)
	for _, tt := range []struct {
		args string
		want []string // one per line
	}{
		{"liqo", []string{"want template or check"}},
		{"liqo template --kubeconfig " + kubeconfig, []string{"--image: missing; name culvert's image in a registry"}},
		{"liqo template --offline", []string{"--image: missing"}},
		{"liqo template --image= --offline", []string{"--image: missing"}},
		{"liqo template --image x/y --release x --kubeconfig " + kubeconfig, []string{"only with --offline"}},
		{"liqo template --image x/y --offline --kubeconfig " + kubeconfig, []string{"none of the others can be"}},
		{"liqo template --image x/y --server-template other --kubeconfig " + kubeconfig,
			[]string{"--server-template: other in --namespace liqo: "}},
		{"liqo template --image x/y --kubeconfig " + kubeconfig,
			[]string{
				"WgGatewayClientTemplate <nil>: spec.objectKind.kind: <nil>, and culvert stands in for a WgGatewayClient alone"}},
		{"liqo template --image x/y --kubeconfig /nowhere", []string{"--kubeconfig: "}},
		{"liqo check cluster-b --kubeconfig " + kubeconfig, []string{"want NAMESPACE/NAME"}},
		{"liqo check liqo-tenant-x/x --kubeconfig " + kubeconfig,
			[]string{"liqo-tenant-x/x: no such GatewayServer or GatewayClient"}},
		{"liqo check liqo-tenant-cluster-b/cluster-b --kubeconfig " + kubeconfig, []string{"list internalnodes: "}},
		{"liqo check liqo-tenant-cluster-b/cluster-b --context y --kubeconfig " + kubeconfig,
			[]string{`--context: there is no context "y"; there are x`}},
	} {
		out, diag, status := run(t, strings.Fields(tt.args)...)
		lines := strings.Split(strings.TrimSuffix(diag, "\n"), "\n")
		if status != cli.ExitBadInput || out != "" || len(lines) != len(tt.want) {
			t.Errorf("%s: status %d, %q\n%s", tt.args, status, out, diag)
			continue
		}
		for i, want := range tt.want {
			if !strings.Contains(lines[i], want) {
				t.Errorf("%s: line %d is %q, want %q in it", tt.args, i, lines[i], want)
			}
		}
	}
}

// TestLiqoCheckFits: findings are broken where a terminal is too narrow; commands, which are to be
// copied, are not.
func TestLiqoCheckFits(t *testing.T) {
	const line = "kubectl patch gatewayservers.networking.liqo.io -n liqo-tenant-milan milan --type merge -p '{\"spec\":{\"serverTemplateRef\":{\"name\":\"culvert-server\"}}}'"
	long := strings.TrimSpace(strings.Repeat("words ", 40))
	page := &cli.Page{Columns: 100}
	if err := printReport(page, &check.Report{Gateway: "GatewayServer a/b", Findings: []check.Finding{{Text: long}},
		Commands: []check.Command{{Purpose: "To switch", Line: line}}}); err != nil {
		t.Error(err)
	}
	for text := range strings.Lines(page.String()) {
		if utf8.RuneCountInString(text) > page.Columns+1 && !strings.Contains(text, line) {
			t.Error(text)
		}
	}
	if said := strings.Join(strings.Fields(page.String()), " "); !strings.Contains(said,
		"note: "+long+" culvert would work here.") || !strings.Contains(page.String(), "    "+line+"\n") {
		t.Error(page)
	}
}
