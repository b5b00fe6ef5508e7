// Package manifeststest renders the templates of the Helm chart as Helm does, with those of its
// functions that they use.
package manifeststest

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"text/template"
)

// Render returns all objects of a chart, whose files it gets by name.
func Render(files map[string]string, values map[string]any) (string, error) {
	functions := template.FuncMap{
		"toJson": func(v any) (string, error) {
			text, err := json.Marshal(v)
			return string(text), err
		},
		"dict":   func() map[string]any { return nil },
		"hasKey": func(of map[string]any, key string) bool { _, ok := of[key]; return ok },
		"default": func(standard, given map[string]any) map[string]any {
			if len(given) == 0 {
				return standard
			}
			return given
		},
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasPrefix(name, "templates/") {
			continue
		}
		one, err := template.New(name).Funcs(functions).Parse(files[name])
		if err == nil {
			b.WriteString("\n---\n")
			err = one.Execute(&b, map[string]any{"Values": values})
		}
		if err != nil {
			return "", err
		}
	}
	return b.String(), nil
}
