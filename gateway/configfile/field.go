package configfile

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Field describes one value of a file, for its readers.
type Field struct {
	Path    string // with [] behind each list
	Type    string // what is accepted, with its unit: "one of a, b", "bytes, 1 to 9", "CIDR"
	Default string // as it would be written; Required; "" = none
	Live    bool   // a change takes effect by SIGHUP
	Doc     string // one sentence
}

// Required stands for the default of a field that has none and must be there.
const Required = "required"

// Reference is the table of fields in Markdown.
func Reference(fields []Field) string {
	var b strings.Builder
	b.WriteString("| field | type | default | change | what it is |\n|---|---|---|---|---|\n")
	cell := strings.NewReplacer("|", `\|`)
	for _, f := range fields {
		change, def := "restart", f.Default
		if f.Live {
			change = "live"
		}
		if def != "" && def != Required {
			def = "`" + def + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", f.Path, cell.Replace(f.Type), def, change, cell.Replace(f.Doc))
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
			if f.Default == Required && i == len(steps)-1 {
				required, _ := at["required"].([]string)
				at["required"] = append(required, name)
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
	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic(err) // unreachable: maps, texts and numbers only
	}
	return append(text, '\n')
}

// describe says in s which values f accepts.
func (f *Field) describe(s schema) {
	s["description"] = f.Doc
	s["type"] = []string{"string", "number"}
	if m := words.FindStringSubmatch(f.Type); m != nil {
		delete(s, "type")
		s["enum"] = strings.Split(m[1], ", ")
	} else if f.Type == "true or false" {
		s["type"] = "boolean"
	} else if m := numbers.FindStringSubmatch(f.Type); m != nil && !strings.Contains(f.Type, " or ") {
		s["type"] = "integer"
		s["minimum"], _ = strconv.Atoi(m[1])
		s["maximum"], _ = strconv.Atoi(m[2])
	}
	if f.Default != "" && f.Default != Required {
		s["default"] = f.Default
	}
}
