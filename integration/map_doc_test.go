package integration

import (
	"flag"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"culvert/integration/need"
)

var mapUpdate = flag.Bool("map.update", false, "write what package comments say into the map of ARCHITECTURE.md")

// TestDocsMap: the map, which ends ARCHITECTURE.md, has exactly the packages of the tree, and says
// of each what its package comment says.
func TestDocsMap(t *testing.T) {
	const page = "../ARCHITECTURE.md"
	text, err := os.ReadFile(page)
	need.NoError(t, err)
	before, section, _ := strings.Cut(string(text), "\n## The map\n")
	if strings.Contains(section, "\n## ") {
		t.Error("the map is not the last section")
	}
	row := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (.*?) \\|")
	mapped := make(map[string]string)
	for _, m := range row.FindAllStringSubmatch(section, -1) {
		mapped[m[1]] = m[2]
	}
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, "culvert/")
		does, there := mapped[name]
		delete(mapped, name)
		want := purpose(t, p.Dir)
		switch {
		case !there:
			t.Errorf("the map lacks %s", name)
		case does != want && *mapUpdate:
			section = strings.Replace(section, "| `"+name+"` | "+does+" |", "| `"+name+"` | "+want+" |", 1)
		case does != want:
			t.Errorf("the map says %q of %s, its package comment %q; run this test with -map.update", does, name, want)
		}
	}
	for name := range mapped {
		t.Errorf("the map has %s, which is no package", name)
	}
	if *mapUpdate {
		need.NoError(t, os.WriteFile(page, []byte(before+"\n## The map\n"+section), 0o644))
	}
}

var purposeOf = regexp.MustCompile(`^(?:Package|Command) \S+ (.*?)(?:[:;]| \(|\. |\.$)`)

// purpose returns what a package comment says before its first colon, semicolon, bracket or full
// stop, without the package's name.
func purpose(t *testing.T, folder string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	need.NoError(t, err)
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.PackageClauseOnly|parser.ParseComments)
		need.NoError(t, err)
		if f.Doc == nil || strings.HasSuffix(name, "_test.go") {
			continue
		}
		words := strings.Join(strings.Fields(f.Doc.Text()), " ")
		if m := purposeOf.FindStringSubmatch(words); m != nil {
			return m[1]
		}
	}
	t.Errorf("%s has no package comment that begins with its name", folder)
	return ""
}

// TestDocsFit: pages fit 100 columns, but for tables, code and names of log messages, README is
// short, and pictures are small.
func TestDocsFit(t *testing.T) {
	whole := regexp.MustCompile("^(\\s*\\||    |- `)")
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		need.NoError(t, err)
		code, number := false, 0
		for line := range strings.Lines(string(text)) {
			line, number = strings.TrimSuffix(line, "\n"), number+1
			if strings.HasPrefix(line, "```") {
				code = !code
			}
			if n := utf8.RuneCountInString(line); n > 100 && !code && !whole.MatchString(line) {
				t.Errorf("%s, line %d: %d columns", page, number, n)
			}
		}
		if filepath.Base(page) == "README.md" && filepath.Dir(page) == ".." && (number > 130 || len(text) > 7000) {
			t.Errorf("README.md has %d lines and %d bytes, at most 130 and 7,000 are allowed", number, len(text))
		}
	}
	pictures, err := filepath.Glob("../docs/pictures/*")
	need.NoError(t, err)
	for _, picture := range pictures {
		info, err := os.Stat(picture)
		need.NoError(t, err)
		if info.Size() > 150_000 {
			t.Errorf("%s has %d bytes, at most 150,000 are allowed", picture, info.Size())
		}
	}
	if len(pictures) < 7 {
		t.Errorf("there are only %d pictures", len(pictures))
	}
}

// TestDocsLinks: links between pages lead to files that exist and, with a fragment, to a heading
// there.
func TestDocsLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading := regexp.MustCompile(`(?m)^#+ (.+)$`)
	dropped := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	linked := 0
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		need.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			linked++
			name, fragment, _ := strings.Cut(m[1], "#")
			target := page
			if name != "" {
				target = filepath.Join(filepath.Dir(page), name)
			}
			there, err := os.ReadFile(target)
			if fragment == "" {
				_, err = os.Stat(target) // a folder will do
			}
			if err != nil {
				t.Errorf("%s: %v", page, err)
				continue
			}
			var fragments []string
			for _, h := range heading.FindAllStringSubmatch(string(there), -1) {
				fragments = append(fragments, strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(h[1]),
					""), " ", "-"))
			}
			if fragment != "" && !slices.Contains(fragments, fragment) {
				t.Errorf("%s: %s has no heading %q", page, target, fragment)
			}
		}
	}
	if linked < 100 {
		t.Errorf("only %d links were found", linked)
	}
}

// TestDocsReach: links lead from README.md to every page.
func TestDocsReach(t *testing.T) {
	reached := map[string]bool{"../README.md": true}
	for queue := []string{"../README.md"}; len(queue) > 0; queue = queue[1:] {
		text, err := os.ReadFile(queue[0])
		need.NoError(t, err)
		for _, m := range regexp.MustCompile(`\]\(([^)\s#]+\.md)`).FindAllStringSubmatch(string(text), -1) {
			page := filepath.Join(filepath.Dir(queue[0]), m[1])
			if !strings.Contains(m[1], "://") && !reached[page] {
				reached[page] = true
				queue = append(queue, page)
			}
		}
	}
	for _, page := range pages(t) {
		if !reached[page] {
			t.Errorf("no link leads from README.md to %s", page)
		}
	}
}

// TestDocsRooms: in the picture of the rooms, arrows lead from each room to what it imports, and an
// import between two rooms that has no arrow has a chain of them.
func TestDocsRooms(t *testing.T) {
	text, err := os.ReadFile("../docs/pictures/rooms.dot")
	need.NoError(t, err)
	drawing, err := os.ReadFile("../docs/pictures/rooms.svg")
	need.NoError(t, err)
	folders := make(map[string]string) // of the names in the picture
	for _, m := range regexp.MustCompile(`(\w+) \[label="([\w/]+)\\n`).FindAllStringSubmatch(string(text), -1) {
		folders[m[1]] = m[2]
		if !strings.Contains(string(drawing), ">"+m[2]+"<") {
			t.Errorf("the drawing lacks %s; run make pictures", m[2])
		}
	}
	// What the room gateway is; the other packages in its folder are small, and stand in no room.
	gateway := []string{"gateway", "gateway/path", "gateway/monitor", "gateway/inspect", "gateway/lifecycle"}
	room := func(path string) (found string) {
		path = strings.TrimPrefix(path, "culvert/")
		for _, f := range folders {
			inside := path == f || strings.HasPrefix(path, f+"/")
			if f == "gateway" {
				inside = slices.Contains(gateway, path)
			}
			if inside && len(f) > len(found) {
				found = f
			}
		}
		return found
	}
	imports := make(map[[2]string]bool)
	for _, p := range packages(t) {
		for _, imported := range p.Imports {
			if from, to := room(p.ImportPath), room(imported); from != "" && to != "" && from != to {
				imports[[2]string{from, to}] = true
			}
		}
	}
	chains := make(map[[2]string]bool)
	for _, m := range regexp.MustCompile(`(?m)^\t(\w+) -> (\w+)$`).FindAllStringSubmatch(string(text), -1) {
		arrow := [2]string{folders[m[1]], folders[m[2]]}
		if chains[arrow] = true; !imports[arrow] {
			t.Errorf("%s does not import %s, as the picture says", arrow[0], arrow[1])
		}
	}
	for range folders {
		for a := range maps.Clone(chains) {
			for b := range maps.Clone(chains) {
				if a[1] == b[0] {
					chains[[2]string{a[0], b[1]}] = true
				}
			}
		}
	}
	for i := range imports {
		if !chains[i] && i[0] != "integration" { // which imports what it likes
			t.Errorf("%s imports %s; no arrow of the picture leads there", i[0], i[1])
		}
	}
	if len(folders) != 10 || len(imports) < 10 {
		t.Errorf("there are %d rooms and %d imports between them", len(folders), len(imports))
	}
}

// pages returns the files of all pages.
func pages(t *testing.T) (all []string) {
	t.Helper()
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../docs/*/*.md"} {
		more, err := filepath.Glob(pattern)
		need.NoError(t, err)
		all = append(all, more...)
	}
	if len(all) < 15 {
		t.Fatalf("there are only %d pages", len(all))
	}
	return all
}
