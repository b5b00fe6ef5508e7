package manifests

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"culvert/gateway/configfile"
)

// A schema is the part of JSON Schema (2020-12) that ValuesSchema uses. A description completes a
// message that says what a value should be.
type schema struct {
	Dialect     string             `json:"$schema"`
	Defs        map[string]*schema `json:"$defs"`
	Ref         string             `json:"$ref"`
	Type        string
	Description string
	Properties  map[string]*schema
	Others      *schema `json:"additionalProperties"`
	Required    []string
	Items       *schema
	Enum        []string
	Not         *schema // its Enum alone counts
	Pattern     string
	MinLength   int
	MaxLength   int
	Minimum     int
	Maximum     int

	never bool // false: nothing fits
}

func (s *schema) UnmarshalJSON(text []byte) error {
	if t := string(text); t == "true" || t == "false" {
		s.never = t == "false"
		return nil
	}
	type plain schema
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	return d.Decode((*plain)(s))
}

// A judge has what each check needs: where faults go, and the schema with the definitions.
type judge struct {
	*configfile.Errors
	root *schema
}

// types are how messages name the types of JSON Schema.
var types = map[string]string{"object": "a mapping of fields, such as {name: value}",
	"array": "a list, such as [first, second]", "string": "a text; put it in quotes", "boolean": "true or false",
	"integer": "a whole number without quotes"}

func typeOf(value any) string {
	switch value.(type) {
	case map[string]any:
		return "object"
	case []any:
		return "array"
	case bool:
		return "boolean"
	case int64:
		return "integer"
	case float64:
		return "number"
	}
	return "string"
}

// check records what is wrong with the value at a path.
func (s *schema) check(j judge, path string, value any) {
	if name, ok := strings.CutPrefix(s.Ref, "#/$defs/"); ok {
		s = j.root.Defs[name]
	}
	if s.never {
		j.Add(path, "culvert sets it itself; leave it out")
		return
	}
	if is := typeOf(value); s.Type != "" && is != s.Type {
		j.Add(path, "want %s", types[s.Type])
		return
	}
	switch value := value.(type) {
	case map[string]any:
		s.checkFields(j, path, value)
	case []any:
		for i, item := range value {
			if s.Items != nil {
				s.Items.check(j, fmt.Sprintf("%s[%d]", path, i), item)
			}
		}
	case int64:
		if s.Maximum > 0 && (value < int64(s.Minimum) || value > int64(s.Maximum)) {
			j.Add(path, "%d is not a number from %d to %d", value, s.Minimum, s.Maximum)
		}
	case string:
		n := utf8.RuneCountInString(value)
		switch {
		case s.MaxLength > 0 && n > s.MaxLength:
			j.Add(path, "%d characters, at most %d are allowed; want %s", n, s.MaxLength, s.Description)
		case n < s.MinLength, s.Pattern != "" && !regexp.MustCompile(s.Pattern).MatchString(value),
			s.Not != nil && slices.Contains(s.Not.Enum, value):
			j.Add(path, "%q is not %s", value, s.Description)
		}
	}
	if text := fmt.Sprint(value); s.Enum != nil && text == "" {
		j.Add(path, "empty; want one of %s", strings.Join(s.Enum, ", "))
	} else if s.Enum != nil {
		j.OneOf(path, configfile.Scalar(text), s.Enum...)
	}
}

// checkFields records which fields of a mapping are missing, unknown or wrong.
func (s *schema) checkFields(j judge, path string, value map[string]any) {
	if path != "" {
		path += "."
	}
	for _, name := range s.Required {
		if _, ok := value[name]; !ok {
			j.Add(path+name, "missing; want %s", s.Properties[name].Description)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(value)) {
		of := s.Properties[name]
		if of == nil {
			of = s.Others
		}
		switch {
		case of == nil: // anything
		case of.never && s.Properties[name] == nil:
			j.Add(path+name, "no such field; %s", s.hint(name))
		default:
			of.check(j, path+name, value[name])
		}
	}
}

// hint names the field that was probably meant, or all fields.
func (s *schema) hint(name string) string {
	known := slices.Sorted(maps.Keys(s.Properties))
	if near := configfile.Closest(name, known); near != "" {
		return "did you mean " + near + "?"
	}
	return "known here: " + strings.Join(known, ", ")
}
