package configfile

import (
	"fmt"
	"reflect"
	"strings"
)

// Closest returns the word that s was probably meant to be, or "".
func Closest(s string, words []string) string {
	if len(s) > MaxDomain {
		return ""
	}
	plain := func(s string) string { return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(s)) }
	s = plain(s)
	best, least := "", max(1, len(s)/3)+1
	for _, w := range words {
		p := plain(w)
		d := distance(s, p)
		if len(s) >= 4 && strings.Contains(p, s) || len(p) >= 4 && strings.Contains(s, p) {
			d = min(d, 1) // part of the name, or more than it
		}
		if d < least {
			best, least = w, d
		}
	}
	return best
}

// distance is the number of letters to insert, remove, replace or swap with a neighbour to turn a
// into b (optimal string alignment).
func distance(a, b string) int {
	var before []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next[j+1] = min(next[j]+1, row[j+1]+1, row[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}

// Leaves returns the paths of all values in a file decoded into v, in the order of its types, with
// [] after each list.
func Leaves(v any) []string { return leaves(reflect.TypeOf(v), "") }

func leaves(t reflect.Type, path string) (all []string) {
	if t == reflect.TypeFor[List]() {
		return []string{path} // its brackets may be omitted
	}
	switch t.Kind() {
	case reflect.Pointer:
		return leaves(t.Elem(), path)
	case reflect.Slice:
		return leaves(t.Elem(), path+"[]")
	case reflect.Struct:
		if path != "" {
			path += "."
		}
		for i := range t.NumField() {
			all = append(all, leaves(t.Field(i).Type, path+t.Field(i).Tag.Get("json"))...)
		}
		return all
	}
	return []string{path}
}

// unknown suggests a remedy for a field that v lacks.
func unknown(path string, v any) string {
	parent, name := "", path
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		parent, name = general(path[:i])+".", path[i+1:]
	}
	var here, elsewhere []string
	for _, leaf := range Leaves(v) {
		if rest, ok := strings.CutPrefix(leaf, parent); ok {
			field, _, _ := strings.Cut(strings.TrimSuffix(rest, "[]"), ".")
			if field = strings.TrimSuffix(field, "[]"); len(here) == 0 || here[len(here)-1] != field {
				here = append(here, field)
			}
		}
		if leaf = strings.TrimSuffix(leaf, "[]"); leaf == name || strings.HasSuffix(leaf, "."+name) {
			elsewhere = append(elsewhere, leaf)
		}
	}
	switch word := Closest(name, here); {
	case word != "" && len(elsewhere) == 0:
		return fmt.Sprintf("no such field; did you mean %s?", word)
	case len(elsewhere) > 0:
		return fmt.Sprintf("no such field here; did you mean %s? Mind the indentation", strings.Join(elsewhere, " or "))
	case len(here) == 0:
		return "no such field; see culvert help config"
	}
	return fmt.Sprintf("no such field; known here: %s (culvert help config)", strings.Join(here, ", "))
}

// general returns a path without the indexes of list elements.
func general(path string) string {
	var b strings.Builder
	inside := false
	for _, r := range path {
		if r == ']' {
			inside = false
		}
		if !inside {
			b.WriteRune(r)
		}
		if r == '[' {
			inside = true
		}
	}
	return b.String()
}
