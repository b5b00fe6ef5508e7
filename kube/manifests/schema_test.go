package manifests

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"testing"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"culvert/integration/need"
)

// faults judges a value by the part of JSON Schema (2020-12) that the chart uses, and panics at any
// other keyword.
func faults(schema map[string]any, value any, at string) (all []string) {
	fault := func(format string, args ...any) { all = append(all, at+": "+fmt.Sprintf(format, args...)) }
	object, _ := value.(map[string]any)
	list, _ := value.([]any)
	text, isText := value.(string)
	number, isNumber := value.(float64)
	properties, _ := schema["properties"].(map[string]any)
	for keyword, want := range schema {
		switch keyword {
		case "$schema", "properties":
		case "type":
			is := map[any]bool{"object": object != nil, "array": list != nil, "string": isText, "integer": isNumber &&
				number == math.Trunc(number)}
			if known, ok := is[want]; !ok {
				panic(fmt.Sprintf("type %q", want))
			} else if !known {
				fault("no %s", want)
			}
		case "additionalProperties":
			for key := range object {
				if properties[key] == nil && want == false {
					fault("unknown %s", key)
				}
			}
		case "required":
			for _, key := range want.([]any) {
				if _, ok := object[key.(string)]; object != nil && !ok {
					fault("no %s", key)
				}
			}
		case "items":
			for i, item := range list {
				all = append(all, faults(want.(map[string]any), item, fmt.Sprintf("%s[%d]", at, i))...)
			}
		case "enum":
			if !slices.ContainsFunc(want.([]any), func(one any) bool { return reflect.DeepEqual(one, value) }) {
				fault("not of %v", want)
			}
		case "pattern":
			if isText && !regexp.MustCompile(want.(string)).MatchString(text) {
				fault("bad pattern")
			}
		case "minLength", "maxLength":
			if n := float64(utf8.RuneCountInString(text)); isText && (keyword == "minLength" && n < want.(float64) ||
				keyword == "maxLength" && n > want.(float64)) {
				fault("%s", keyword)
			}
		case "minimum", "maximum":
			if isNumber && (keyword == "minimum" && number < want.(float64) || keyword == "maximum" &&
				number > want.(float64)) {
				fault("%s", keyword)
			}
		default:
			panic("the test does not know the keyword " + keyword)
		}
	}
	for key, of := range properties {
		if one, ok := object[key]; ok {
			all = append(all, faults(of.(map[string]any), one, at+"."+key)...)
		}
	}
	return all
}

// TestChartSchema: Helm refuses values that the templates would print as something else, and
// accepts all others.
func TestChartSchema(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chart, "values.schema.json"))
	var schema map[string]any
	if err == nil {
		err = json.Unmarshal(text, &schema)
	}
	need.NoError(t, err)
	standard, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	need.NoError(t, err)
	for values, want := range map[string][]string{
		string(standard):                                           nil,
		"global: {anything: 1}\nimage: a":                          nil, // Helm gives it to each chart of a chart
		"peerings: [{name: milan, expose: NodePort}]":              nil,
		"peerings: [{name: a, expose: LoadBalancer, replicas: 3}]": nil,
		"peerings: [{name: a-1, expose: ClusterIP, imports: b}]":   nil,
		"image: ''":                      {"values.image: minLength"},
		"image: 1":                       {"values.image: no string"},
		"images: a":                      {"values: unknown images"},
		"peerings: milan":                {"values.peerings: no array"},
		"peerings: [milan]":              {"values.peerings[0]: no object"},
		"peerings: [{name: milan}]":      {"values.peerings[0]: no expose"},
		"peerings: [{expose: NodePort}]": {"values.peerings[0]: no name"},
		"peerings: [{name: Milan, expose: NodePort}]":                 {"values.peerings[0].name: bad pattern"},
		"peerings: [{name: a-, expose: NodePort}]":                    {"values.peerings[0].name: bad pattern"},
		"peerings: [{name: \"a\\nb\", expose: NodePort}]":             {"values.peerings[0].name: bad pattern"},
		"peerings: [{name: a, expose: nodeport}]":                     {"values.peerings[0].expose: not of [LoadBalancer NodePort ClusterIP]"},
		"peerings: [{name: a, expose: NodePort, replicas: 0}]":        {"values.peerings[0].replicas: minimum"},
		"peerings: [{name: a, expose: NodePort, replicas: 4}]":        {"values.peerings[0].replicas: maximum"},
		"peerings: [{name: a, expose: NodePort, replicas: 1.5}]":      {"values.peerings[0].replicas: no integer"},
		"peerings: [{name: a, expose: NodePort, replicas: '2'}]":      {"values.peerings[0].replicas: no integer"},
		"peerings: [{name: a, expose: NodePort, imports: 'x: y'}]":    {"values.peerings[0].imports: bad pattern"},
		"peerings: [{name: a, expose: NodePort, mtu: 1400}]":          {"values.peerings[0]: unknown mtu"},
		"peerings: [{name: " + longName + "a, expose: NodePort}]":     {"values.peerings[0].name: maxLength"},
		"peerings: [{name: " + longName[1:] + "a, expose: NodePort}]": nil,
	} {
		var value any
		need.NoError(t, yaml.Unmarshal([]byte(values), &value))
		if got := faults(schema, value, "values"); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", values, got, want)
		}
	}
}

// longName is as long as the name of a Peering may be.
const longName = "abcdefghijabcdefghijabcdefghijabcdefghij"
