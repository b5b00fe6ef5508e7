package template

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"culvert/integration/need"
)

const image = "registry.example/culvert:1.0"

// captures are what Liqo's operator has rendered: of its main branch, of a release, and of its main
// branch with two replicas.
var captures = []string{"main-557c199cf", "v1.2.0", "main-557c199cf-options"}

// ends are the two captured gateways of each.
var ends = []struct {
	server           bool
	name, file, from string
}{
	{true, "cluster-b", "wggatewayservers", "gatewayservers"},
	{false, "cluster-c", "wggatewayclients", "gatewayclients"},
}

func readObject(t *testing.T, capture, file string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "testdata", capture, file+".yaml"))
	need.NoError(t, err)
	return object(t, string(text))
}

// object reads YAML with the types that a client of the API server has.
func object(t *testing.T, text string) map[string]any {
	t.Helper()
	b, err := yaml.YAMLToJSON([]byte(text))
	need.NoError(t, err)
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var o map[string]any
	need.NoError(t, d.Decode(&o))
	return mend(o, func(v any) any {
		if n, ok := v.(json.Number); ok {
			i, err := n.Int64()
			need.NoError(t, err)
			return i
		}
		return v
	}).(map[string]any)
}

// mend returns a copy in which f has replaced every leaf.
func mend(v any, f func(any) any) any {
	switch v := v.(type) {
	case map[string]any:
		c := map[string]any{}
		for name, value := range v {
			c[name] = mend(value, f)
		}
		return c
	case []any:
		c := []any{}
		for _, value := range v {
			c = append(c, mend(value, f))
		}
		return c
	}
	return f(v)
}

// gatewayOf reads the GatewayServer or GatewayClient of a capture.
func gatewayOf(t *testing.T, capture string, server bool) Gateway {
	t.Helper()
	end := ends[1]
	if server {
		end = ends[0]
	}
	o := readObject(t, capture, end.from)
	g := Gateway{Name: end.name, Namespace: "liqo-tenant-" + end.name, ClusterID: end.name}
	g.GatewayUID, _ = Field(o, "metadata", "uid").(string)
	spec, err := json.Marshal(o["spec"])
	if err == nil {
		err = json.Unmarshal(spec, &g.Spec)
	}
	need.NoError(t, err)
	return g
}

// allPorts is how the main branch writes a list of ports.
const allPorts = "{{ range $i, $p := .Spec.Endpoint.Ports }}{{ if $i }},{{ end }}{{ $p }}{{ else }}{{ .Spec.Endpoint.Port }}{{ end }}"

// stockOf returns the template from which a capture was rendered: values that the operator has
// filled in are variables again.
func stockOf(t *testing.T, capture string, server bool) map[string]any {
	t.Helper()
	g := gatewayOf(t, capture, server)
	kind, object, file := ClientKind, "WgGatewayClient", ends[1].file
	if server {
		kind, object, file = ServerKind, "WgGatewayServer", ends[0].file
	}
	captured := readObject(t, capture, file)
	whole := map[string]string{
		"--mtu=1340":                    "--mtu={{ .Spec.MTU }}",
		"--listen-port=51840":           "--listen-port={{ .Spec.Endpoint.Port }}",
		"--listen-ports=51840":          "--listen-ports=" + allPorts,
		"--endpoint-port=31840":         "--endpoint-port={{ .Spec.Endpoint.Port }}",
		"--endpoint-ports=31840":        "--endpoint-ports=" + allPorts,
		"--endpoint-address=192.0.2.99": "--endpoint-address={{ index .Spec.Endpoint.Addresses 0 }}",
		"--remote-cluster-id=" + g.Name: "--remote-cluster-id={{ .ClusterID }}",
		"NodePort":                      "{{ .Spec.Endpoint.ServiceType }}", "": "{{ .Spec.SecretRef.Name }}",
	}
	variables := func(v any) any {
		switch v := v.(type) {
		case string:
			if w, ok := whole[v]; ok {
				return w
			}
			return strings.NewReplacer(g.Namespace, "{{ .Namespace }}", g.Name, "{{ .Name }}", g.GatewayUID,
				"{{ .GatewayUID }}").Replace(v)
		case int64:
			if v == 51840 {
				return "{{ .Spec.Endpoint.Port }}"
			}
		}
		return v
	}
	spec := mend(captured["spec"], variables).(map[string]any)
	if server {
		service := Field(spec, "service", "spec").(map[string]any)
		service["?loadBalancerIP"] = "{{ .Spec.Endpoint.LoadBalancerIP }}"
		service["ports"].([]any)[0].(map[string]any)["?nodePort"] = "{{ .Spec.Endpoint.NodePort }}"
	}
	return map[string]any{
		"apiVersion": APIVersion, "kind": kind, "metadata": map[string]any{"name": "wireguard-server",
			"namespace": "liqo", "uid": "1"},
		"spec": map[string]any{
			"objectKind": map[string]any{"apiVersion": APIVersion, "kind": object},
			"template": map[string]any{"metadata": mend(Field(captured, "spec", "deployment", "metadata"), variables),
				"spec": spec},
		},
	}
}

// podOf is the pod of a template, or of what is rendered from it.
func podOf(o map[string]any) map[string]any {
	path := []string{"spec", "deployment", "spec", "template", "spec"}
	if Field(o, "spec", "template") != nil {
		path = append([]string{"spec", "template"}, path...)
	}
	pod, _ := Field(o, path...).(map[string]any)
	return pod
}

// flagsOf are the flags of our one container.
func flagsOf(pod map[string]any) map[string]string {
	flags := map[string]string{}
	for _, f := range Flags(list(pod["containers"])[0].(map[string]any)) {
		flags[f.Name] = f.Value
	}
	return flags
}
