package manifests

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"text/template"

	"sigs.k8s.io/yaml"

	"culvert/integration/need"
)

var update = flag.Bool("update", false, "write the templates of kube/chart")

const chart = "../chart"

// TestChartIsGenerated: the chart has the manifests and nothing else.
func TestChartIsGenerated(t *testing.T) {
	all := Chart()
	for name, want := range all {
		name = filepath.Join(chart, "templates", name)
		if *update {
			need.NoError(t, os.WriteFile(name, []byte(want), 0o644))
		}
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s is not what the manifests make (%v); run this test with -update", name, err)
		}
	}
	found, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	if err != nil || len(found) != len(all) {
		t.Errorf("%d templates, want %d: %v", len(found), len(all), err)
	}
}

// objects reads manifests by kind, namespace and name.
func objects(t *testing.T, text string) map[string]any {
	t.Helper()
	all := map[string]any{}
	for document := range strings.SplitSeq(text, "\n---\n") {
		document += "\n"
		var o map[string]any
		if err := yaml.UnmarshalStrict([]byte(document), &o); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if o == nil {
			continue // comments alone
		}
		var meta struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		need.NoError(t, yaml.Unmarshal([]byte(document), &meta))
		key := strings.Join([]string{meta.Kind, meta.Metadata.Namespace, meta.Metadata.Name}, "/")
		if all[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		all[key] = o
	}
	return all
}

// TestChartIsTemplate: the chart, rendered as Helm does, is what culvert kube template prints and
// culvert join applies.
func TestChartIsTemplate(t *testing.T) {
	const image = "registry.example/another:2.0"
	for _, peerings := range [][]Gateway{nil, {{Peering: "milan"}}, {{Peering: "milan", Replicas: 2, Imports: "milan"},
		{Peering: "turin-2", Replicas: 1}, {Peering: "oslo", Replicas: 3}}} {
		want := Common(image)
		values := map[string]any{}
		text, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
		if err == nil {
			err = yaml.UnmarshalStrict(text, &values)
		}
		need.NoError(t, err)
		if got := slices.Sorted(maps.Keys(values)); !slices.Equal(got, []string{"image", "peerings"}) {
			t.Errorf("values %q", got)
		}
		values["image"] = image
		var list []any
		for _, g := range peerings {
			one := map[string]any{"name": g.Peering, "expose": "NodePort"}
			if g.Imports != "" {
				one["imports"] = g.Imports
			}
			if g.Replicas != 0 {
				one["replicas"] = g.Replicas
			}
			list = append(list, one)
			g.Image, g.Expose, g.Replicas = image, "NodePort", max(g.Replicas, 1)
			want += "\n---\n" + g.YAML()
		}
		values["peerings"] = list
		var b strings.Builder
		for _, name := range slices.Sorted(maps.Keys(Chart())) {
			text, err := os.ReadFile(filepath.Join(chart, "templates", name))
			need.NoError(t, err)
			rendered, err := template.New(name).Parse(string(text))
			if err == nil {
				b.WriteString("\n---\n")
				err = rendered.Execute(&b, map[string]any{"Values": values})
			}
			need.NoError(t, err)
		}
		if got, want := objects(t, b.String()), objects(t, want); !reflect.DeepEqual(got, want) ||
			len(got) < 15+8*len(peerings) {
			t.Errorf("%v: the chart has %d objects, the manifests %d:\n%q\n%q", peerings, len(got), len(want),
				slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
		}
	}
}
