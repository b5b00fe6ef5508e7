package manifests

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"culvert/gateway/configfile"
)

// Values are what differs between installations of culvert: the same file for the chart, culvert
// kube template and culvert join. ValuesSchema says which fields it has. The zero value, and nil,
// set nothing.
type Values struct {
	file   string
	fields map[string]any
}

// ValuesSchema is the JSON Schema by which Helm judges values, and ReadValues.
//
//go:embed values.schema.json
var ValuesSchema []byte

// Everything returns values that switch all objects on.
func Everything() *Values {
	v := &Values{fields: map[string]any{}}
	for name := range extraOptions {
		v.fields[name] = map[string]any{"enabled": true}
	}
	return v
}

// ReadValues reads a file of values. The error names all faults, with their lines.
func ReadValues(file string, text []byte) (*Values, error) {
	v, e := &Values{file: string(text)}, &configfile.Errors{File: file}
	if e.Decode(text, &v.fields) {
		s := new(schema)
		if err := json.Unmarshal(ValuesSchema, s); err != nil {
			panic(err) // it is our own
		}
		withoutNulls(v.fields)
		s.check(judge{e, s}, "", v.fields)
		seen := map[string]bool{}
		for i, g := range v.Gateways() {
			if seen[g.Peering] {
				e.Add(fmt.Sprintf("peerings[%d].name", i), "%s is there twice; keep one of them", g.Peering)
			}
			seen[g.Peering] = true
		}
	}
	return v, e.Err()
}

// withoutNulls removes fields without a value, as Helm does.
func withoutNulls(value any) {
	switch value := value.(type) {
	case map[string]any:
		for name, part := range value {
			if withoutNulls(part); part == nil {
				delete(value, name)
			}
		}
	case []any:
		for _, part := range value {
			withoutNulls(part)
		}
	}
}

// at returns the value of a field, such as agents.resources; nil if there is none.
func (v *Values) at(field string) any {
	if v == nil {
		return nil
	}
	return fieldAt(v.fields, field)
}

func fieldAt(value any, field string) any {
	for name := range strings.SplitSeq(field, ".") {
		m, _ := value.(map[string]any)
		value = m[name]
	}
	return value
}

// text is at for a text; "" if there is none.
func (v *Values) text(field string) string {
	text, _ := v.at(field).(string)
	return text
}

// Text returns the file; "" if there is none.
func (v *Values) Text() string {
	if v == nil {
		return ""
	}
	return v.file
}

// Names returns the names of the fields that are set.
func (v *Values) Names() []string {
	if v == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(v.fields))
}

// Multicluster reports whether the values switch culvert multicluster on; said is false if they say
// nothing of it.
func (v *Values) Multicluster() (on, said bool) {
	on, said = v.at(multicluster + ".enabled").(bool)
	return on, said
}

// WithMulticluster returns the values with culvert multicluster switched on, and the same Text.
func (v *Values) WithMulticluster() *Values {
	with := &Values{file: v.Text(), fields: map[string]any{}}
	part := map[string]any{}
	if v != nil {
		maps.Copy(with.fields, v.fields)
		old, _ := v.fields[multicluster].(map[string]any)
		maps.Copy(part, old)
	}
	part["enabled"] = true
	with.fields[multicluster] = part
	return with
}

// Image returns the image with its digest; "" if the values name none.
func (v *Values) Image() string {
	image, digest := v.text("image"), v.text("digest")
	if image != "" && digest != "" {
		image += "@" + digest
	}
	return image
}

// GatewaysOnly reports whether what all peerings share is left out.
func (v *Values) GatewaysOnly() bool { return v.at("gatewaysOnly") == true }

// Gateways returns the gateways that the values name.
func (v *Values) Gateways() (all []Gateway) {
	list, _ := v.at("peerings").([]any)
	for _, one := range list {
		g := Gateway{Image: v.Image(), Replicas: 1, Values: v}
		g.Peering, _ = fieldAt(one, "name").(string)
		g.Expose, _ = fieldAt(one, "expose").(string)
		g.Imports, _ = fieldAt(one, "imports").(string)
		if n, ok := fieldAt(one, "replicas").(int64); ok {
			g.Replicas = int(n)
		}
		all = append(all, g)
	}
	return all
}

// Gateway returns that of a peering; nil if the values do not name it.
func (v *Values) Gateway(peering string) *Gateway {
	for _, g := range v.Gateways() {
		if g.Peering == peering {
			return &g
		}
	}
	return nil
}

// peering returns the part about one peering; nil if there is none.
func (v *Values) peering(name string) any {
	list, _ := v.at("peerings").([]any)
	for _, one := range list {
		if fieldAt(one, "name") == name {
			return one
		}
	}
	return nil
}
