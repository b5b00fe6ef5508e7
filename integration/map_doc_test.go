package integration

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"culvert/integration/need"
)

// TestDocsMap: the map of ARCHITECTURE.md has exactly the packages of the tree.
func TestDocsMap(t *testing.T) {
	text, err := os.ReadFile("../ARCHITECTURE.md")
	need.NoError(t, err)
	_, section, _ := strings.Cut(string(text), "\n## The map\n")
	section, _, _ = strings.Cut(section, "\n## ")
	code := regexp.MustCompile("`([^`]+)`")
	var mapped []string
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "|"); len(cells) > 1 {
			for _, name := range code.FindAllStringSubmatch(cells[1], -1) {
				mapped = append(mapped, name[1])
			}
		}
	}
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, "culvert/")
		if !slices.Contains(mapped, name) {
			t.Errorf("the map lacks %s", name)
		}
		mapped = slices.DeleteFunc(mapped, func(m string) bool { return m == name })
	}
	if len(mapped) > 0 {
		t.Errorf("the map has %q, which are no packages", mapped)
	}
}
