package manifests

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestEditKeeps: a manifest that is read and printed has the same objects and comments.
func TestEditKeeps(t *testing.T) {
	comments := func(text string) []string {
		all := regexp.MustCompile(`(?m)(^|[ \t])#.*$`).FindAllString(text, -1)
		for i := range all {
			all[i] = strings.TrimSpace(all[i])
		}
		return all
	}
	for _, text := range []string{Nodes, LiqoNodes, Services, GatewayYAML, Imports} {
		got := format(parse(text))
		if !reflect.DeepEqual(objects(t, got), objects(t, text)) {
			t.Errorf("other objects:\n%s", got)
		}
		if got, want := comments(got), comments(text); !slices.Equal(got, want) || len(got) == 0 {
			t.Errorf("comments\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// TestValuesStayStrings: a value that looks like something else in YAML is what the user gave.
func TestValuesStayStrings(t *testing.T) {
	for _, value := range []string{"7", "1e3", "0x10", "010", "1_0", "on", "y", "null", "a: b", "a #b", "{{ .x }}",
		"2026-01-01"} {
		g := Gateway{Peering: "milan", Image: value, Expose: "NodePort", Replicas: 1}
		for _, text := range []string{g.YAML(), Common(value, nil),
			LiqoNodesOf(value, value, ""), LiqoNodesOf(value, value, "all"),
			strings.TrimPrefix(Budget("GatewayServer", value, value, value), "---\n")} {
			images := 0
			for document := range strings.SplitSeq(text, "\n---\n") {
				var o object
				if err := yaml.Unmarshal([]byte(document), &o); err != nil {
					t.Fatalf("%q: %v in\n%s", value, err, document)
				}
				if name := valueAt(o, "metadata", "namespace"); name != nil &&
					reflect.TypeOf(name).Kind() != reflect.String {
					t.Errorf("%q: namespace %v", value, name)
				}
				if list, _ := valueAt(o, "spec", "template", "spec", "containers").([]any); len(list) == 1 {
					if images++; valueAt(list[0], "image") != value {
						t.Errorf("%q: image %v", value, valueAt(list[0], "image"))
					}
				}
			}
			if images != 1 && !strings.Contains(text, "PodDisruptionBudget\n") {
				t.Errorf("%q: %d images", value, images)
			}
		}
	}
}

// TestMissingField: an edit of a field that is not there fails, so that no manifest goes out with
// less.
func TestMissingField(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	at(parse(GatewayYAML)[0], "spec", "replica")
}
