package template

import (
	"maps"
	"slices"
)

// Field returns the value at a path of an object; nil if there is none.
func Field(o any, path ...string) any {
	for _, name := range path {
		m, _ := o.(map[string]any)
		o = m[name]
	}
	return o
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }

// clean returns a copy without nulls, which crash Liqo's operator.
func clean(v any) any {
	switch v := v.(type) {
	case map[string]any:
		c := make(map[string]any, len(v))
		for name, value := range v {
			if value != nil {
				c[name] = clean(value)
			}
		}
		return c
	case []any:
		c := make([]any, 0, len(v))
		for _, value := range v {
			if value != nil {
				c = append(c, clean(value))
			}
		}
		return c
	}
	return v
}
