package manifests

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"culvert/integration/need"
	"culvert/kube/manifests/manifeststest"
)

var update = flag.Bool("update", false, "write the generated files of kube/chart")

const chart = "../chart"

// TestChartIsGenerated: the chart has the manifests, the schema and nothing else.
func TestChartIsGenerated(t *testing.T) {
	all := Chart()
	for name, want := range all {
		name = filepath.Join(chart, name)
		if *update {
			need.NoError(t, os.WriteFile(name, []byte(want), 0o644))
		}
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s is not what the manifests make (%v); run this test with -update", name, err)
		}
	}
	found, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	if err != nil || len(found) != len(all)-1 {
		t.Errorf("%d templates, want %d: %v", len(found), len(all)-1, err)
	}
}

// read are the documents that objects has read: most are the same in all cases.
var read = map[string]map[string]any{}

// objects reads manifests by kind, namespace and name.
func objects(t *testing.T, text string) map[string]any {
	t.Helper()
	all := map[string]any{}
	for document := range strings.SplitSeq(text, "\n---\n") {
		document += "\n"
		o, known := read[document]
		if !known {
			if err := yaml.UnmarshalStrict([]byte(document), &o); err != nil {
				t.Fatalf("%v in\n%s", err, document)
			}
			read[document] = o
		}
		if o == nil {
			continue // comments alone
		}
		key := fmt.Sprintf("%v/%v", o["kind"], o["metadata"].(map[string]any)["name"])
		if namespace := o["metadata"].(map[string]any)["namespace"]; namespace != nil {
			key += fmt.Sprintf(" in %v", namespace)
		}
		if all[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		all[key] = o
	}
	return all
}

// alone returns values with Everything's value of one field, besides image and peerings, by the
// name of the field; "" has none.
func alone(t *testing.T) map[string]map[string]any {
	t.Helper()
	var full map[string]any
	need.NoError(t, yaml.Unmarshal([]byte(manifeststest.Everything), &full))
	base := func(service map[string]any) map[string]any {
		return map[string]any{"image": full["image"], "peerings": []any{map[string]any{"name": "turin-2",
			"expose": "LoadBalancer", "service": service}, map[string]any{"name": "oslo", "expose": "ClusterIP"}}}
	}
	all := map[string]map[string]any{"": base(map[string]any{})}
	for field, value := range full["peerings"].([]any)[1].(map[string]any)["service"].(map[string]any) {
		all["service."+field] = base(map[string]any{field: value})
	}
	delete(full, "peerings")
	for name, value := range full {
		fields, nested := value.(map[string]any)
		if !nested {
			all[name] = base(nil)
			all[name][name] = value
		}
		for field, value := range fields {
			all[name+"."+field] = base(nil)
			all[name+"."+field][name] = map[string]any{field: value}
			if enabled := fields["enabled"]; enabled != nil {
				all[name+"."+field][name] = map[string]any{field: value, "enabled": enabled}
			}
		}
	}
	return all
}

// TestChartIsTemplate: the chart, rendered as Helm does, is what culvert kube template prints and
// culvert join applies: with all options, with none and with each alone.
func TestChartIsTemplate(t *testing.T) {
	cases := alone(t)
	options := slices.Sorted(maps.Keys(cases))
	if len(options) < 32 {
		t.Errorf("%d options: %q", len(options), options)
	}
	for name, text := range map[string]string{
		"all": manifeststest.Everything, "none": "image: a",
		"empty": "image: a\nagents: {}\ngateways: {labels: {}, tolerations: []}\n" +
			"imagePullSecrets: []\npeerings: [{name: a, expose: NodePort}]",
		"gateways only": "gatewaysOnly: true\n" + manifeststest.Everything, "not only": "gatewaysOnly: false\nimage: a",
	} {
		var values map[string]any
		need.NoError(t, yaml.Unmarshal([]byte(text), &values))
		cases[name] = values
	}
	made := map[string]map[string]any{}
	for name, values := range cases {
		text, err := yaml.Marshal(values)
		need.NoError(t, err)
		v, err := ReadValues("values.yaml", text)
		need.NoError(t, err)
		parts := []string{}
		if !v.GatewaysOnly() {
			parts = append(parts, Common(v.Image(), v))
		}
		for _, g := range v.Gateways() {
			parts = append(parts, g.YAML())
		}
		want := objects(t, strings.Join(parts, "\n---\n"))
		rendered, err := manifeststest.Render(Chart(), values)
		need.NoError(t, err)
		if got := objects(t, rendered); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %s", name, cmp.Diff(want, got))
		}
		made[name] = want
	}
	for _, name := range options {
		group, field, _ := strings.Cut(name, ".")
		without := made[group+".enabled"]
		if without == nil || field == "enabled" {
			without = made[""]
		}
		if name != "" && name != "image" && reflect.DeepEqual(made[name], without) {
			t.Errorf("%s changes nothing", name)
		}
	}
	if n := len(made["gateways only"]); n != len(made["all"])-len(made["none"])-3 || n < 3*8 {
		t.Errorf("%d objects of gateways, %d in all", n, len(made["all"]))
	}
}
