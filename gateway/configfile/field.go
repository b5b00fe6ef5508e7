package configfile

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Field documents one value of a file.
type Field struct {
	Path    string // with [] after each list
	Type    string // what is accepted, with its unit: "one of a, b", "bytes, 1 to 9", "CIDR"
	Default string // as it would be written; Required; "" = none
	Unless  string // a field whose presence makes this one optional although it is Required
	Live    bool   // a change takes effect by SIGHUP
	Doc     string // one sentence
}

// OneOrPair ends the type of a field that is read by Pair.
const OneOrPair = "IP address, or a list of one of each family"

// Required is the Default of a mandatory field.
const Required = "required"

// Reference lists fields in Markdown that also reads as plain text.
func Reference(fields []Field) string {
	var b strings.Builder
	for _, f := range fields {
		change, def := "restart", f.Default
		if f.Live {
			change = "live"
		}
		switch def {
		case "":
			def = "optional"
		case Required:
			if f.Unless != "" {
				def += " without " + f.Unless
			}
		default:
			def = "default " + def
		}
		fmt.Fprintf(&b, "- `%s`: %s; %s; %s.\n  %s\n", f.Path, f.Type, def, change, f.Doc)
	}
	return b.String()
}

var (
	numbers = regexp.MustCompile(`(\d+) to (\d+)$`)
	words   = regexp.MustCompile(`^one of ([A-Za-z0-9, ]+)$`)
)

// schema is a node of a JSON Schema.
type schema map[string]any

// Schema is the JSON Schema (draft 2020-12) of a file with these fields.
func Schema(title string, fields []Field) []byte {
	root := schema{"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
	unless := map[string][]string{}
	for _, f := range fields {
		at := root
		steps := strings.Split(f.Path, ".")
		for i, step := range steps {
			name, list := strings.CutSuffix(step, "[]")
			at["type"], at["additionalProperties"] = "object", false
			properties, _ := at["properties"].(schema)
			if properties == nil {
				properties = schema{}
				at["properties"] = properties
			}
			// The parents of a required field are required too, unless it is in a list's elements.
			required, _ := at["required"].([]string)
			last := len(steps) - 1
			if f.Default == Required && !slices.Contains(required, name) &&
				!strings.Contains(strings.Join(steps[i:last], "."), "[]") {
				if i == 0 && f.Unless != "" {
					if others := unless[f.Unless]; !slices.Contains(others, name) {
						unless[f.Unless] = append(others, name)
					}
				} else {
					at["required"] = append(required, name)
				}
			}
			next, _ := properties[name].(schema)
			if next == nil {
				next = schema{}
				properties[name] = next
			}
			if list {
				next["type"] = "array"
				items, _ := next["items"].(schema)
				if items == nil {
					items = schema{}
					next["items"] = items
				}
				next = items
			}
			at = next
		}
		f.describe(at)
	}
	for name, others := range unless {
		root["anyOf"] = []schema{{"required": others}, {"required": []string{name}}}
	}
	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic(err) // unreachable: maps, texts and numbers only
	}
	return append(text, '\n')
}

// describe adds to s which values f accepts.
func (f *Field) describe(s schema) {
	s["description"] = f.Doc
	s["type"] = []string{"string", "number"}
	if strings.HasSuffix(f.Type, OneOrPair) {
		s["type"] = []string{"string", "array"}
		s["items"], s["minItems"], s["maxItems"] = schema{"type": "string"}, 1, 2
	}
	if f.Default != "" && f.Default != Required {
		s["default"] = f.Default
	}
	if m := words.FindStringSubmatch(f.Type); m != nil {
		delete(s, "type")
		s["enum"] = strings.Split(m[1], ", ")
	} else if f.Type == "true or false" {
		s["type"], s["default"] = "boolean", f.Default == "true"
	} else if m := numbers.FindStringSubmatch(f.Type); m != nil && !strings.Contains(f.Type, " or ") {
		s["type"] = "integer"
		s["minimum"], _ = strconv.Atoi(m[1])
		s["maximum"], _ = strconv.Atoi(m[2])
		if n, err := strconv.Atoi(f.Default); err == nil {
			s["default"] = n
		}
	}
}
