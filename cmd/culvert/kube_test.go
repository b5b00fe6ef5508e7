//go:build !nokube

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"culvert/cmd/internal/cli"
	"culvert/integration/need"
)

// TestTemplateValues: culvert kube template prints what its values say, flags count more, and all,
// the gateways, or what they share can be a file of its own.
func TestTemplateValues(t *testing.T) {
	file := write(t, `image: registry.example/culvert:2.0
imagePullSecrets: [{name: registry}]
peerings:
- {name: milan, expose: ClusterIP, replicas: 2}
- {name: turin, expose: NodePort, imports: turin}
`)
	common, milan, turin := "kind: DaemonSet\n", "name: culvert-milan\n", "name: culvert-turin\n"
	const oslo = "name: culvert-oslo\n"
	for args, want := range map[string][]string{ // with - in front: what is not there
		"": {common, milan, turin, "replicas: 2 ", "type: ClusterIP ", "type: NodePort ", "name: culvert-imports-turin\n",
			"image: \"registry.example/culvert:2.0\"\n", `imagePullSecrets: [{"name": "registry"}]`},
		"--common-only":                   {common, "-" + milan, "-" + turin, "imagePullSecrets"},
		"--gateways-only":                 {"-" + common, milan, turin, "imagePullSecrets"},
		"--gateways-only --peering=milan": {"-" + common, milan, "-" + turin, "replicas: 2 ", "type: ClusterIP "},
		"--peering=milan --expose=NodePort --replicas=3 --image=x": {common, milan, "-" + turin, "replicas: 3 ",
			"type: NodePort ", "image: \"x\"\n", "-culvert:2.0"},
		"--peering=turin --imports=other": {"namespace: \"other\"\n", "-namespace: \"turin\"\n"},
		"--peering=oslo":                  {oslo, "type: LoadBalancer ", "replicas: 1 ", "imagePullSecrets"},
	} {
		out, diag, status := run(t, append([]string{"kube", "template", "--values", file}, strings.Fields(args)...)...)
		if status != 0 {
			t.Errorf("%s: %s", args, diag)
		}
		for _, part := range want {
			if part, without := strings.CutPrefix(part, "-"); strings.Contains(out, part) == without {
				t.Errorf("%s: %q is there: %t", args, part, without)
			}
		}
	}
	for args, want := range map[string]string{
		"--imports=x":                       "--imports: belongs to one Peering",
		"--common-only --peering=milan":     "[common-only peering] were all set",
		"--common-only --gateways-only":     "[common-only gateways-only] were all set",
		"--values=/nowhere/v":               "--values: /nowhere/v: no such file",
		"--values=" + write(t, "images: a"): "values.yaml:1:9: images: no such field; did you mean image?",
	} {
		out, diag, status := run(t, append([]string{"kube", "template", "--values", file}, strings.Fields(args)...)...)
		if status != cli.ExitBadInput || out != "" || !strings.Contains(diag, want) {
			t.Errorf("%s: status %d: %s%s", args, status, out, diag)
		}
	}
}

// write writes a file of values and returns its name.
func write(t *testing.T, text string) string {
	file := filepath.Join(t.TempDir(), "values.yaml")
	need.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}
