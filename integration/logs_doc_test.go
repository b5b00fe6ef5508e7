package integration

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"culvert/gateway/health"
	"culvert/integration/need"
)

var logsUpdate = flag.Bool("logs.update", false, "write the findings of docs/logs.md")

// TestLogsAreDocumented: docs/logs.md has exactly the messages and keys that gateways and nodes
// log.
func TestLogsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/logs.md")
	need.NoError(t, err)
	doc := string(text)
	var findings, underLiqo, inPeering strings.Builder
	for _, c := range health.Causes() {
		findings.WriteString(wrapped(fmt.Sprintf("- `%s` (%s): %s", c.Name, c.Level, c.Sentence())))
		underLiqo.WriteString(otherwise(c, c.Liqo()))
		inPeering.WriteString(otherwise(c, c.Peering()))
	}
	for section, want := range map[string]string{"Findings": findings.String(),
		"Findings under Liqo": underLiqo.String(), "Findings of a Peering": inPeering.String()} {
		before, rest, _ := strings.Cut(doc, "## "+section+"\n")
		head, list, _ := strings.Cut(rest, "\n- ")
		list, after, _ := strings.Cut("- "+list, "\n\n")
		if list+"\n" == want {
			continue
		}
		if !*logsUpdate {
			t.Errorf("docs/logs.md, %q is not what package health says; run this test with -logs.update", section)
			continue
		}
		doc = before + "## " + section + "\n" + head + "\n" + want + "\n" + after
		need.NoError(t, os.WriteFile("../docs/logs.md", []byte(doc), 0o644))
	}
	messages, keys := logCalls(t)
	compare := func(what, section, list string, want []string) {
		t.Helper()
		_, rest, _ := strings.Cut(doc, "## "+section+"\n")
		rest, _, _ = strings.Cut(rest, "\n## ")
		var got []string
		for _, m := range regexp.MustCompile(list).FindAllStringSubmatch(rest, -1) {
			got = append(got, m[1])
		}
		slices.Sort(want)
		want = slices.Compact(want)
		for _, s := range want {
			if !slices.Contains(got, s) {
				t.Errorf("docs/logs.md, %q: no %s %s", section, what, s)
			}
		}
		for _, s := range got {
			if !slices.Contains(want, s) {
				t.Errorf("docs/logs.md, %q: nobody logs the %s %s", section, what, s)
			}
		}
	}
	compare("message", "Other messages", "(?m)^- (`.*?` \\(\\w+\\))", messages)
	// Keys that are not literals: those of logrus, and that of a finding.
	keys = append(keys, "time", "level", "msg", "error", string(health.OfPeer), string(health.OfNode),
		string(health.OfAddress))
	compare("key", "Keys", "`(\\w+)`[,:]", keys)
}

// otherwise returns what the cause says in other surroundings, without the words that are the same.
func otherwise(c, there *health.Cause) string {
	says := there.Sentence()
	if there.Says == c.Says {
		says = there.Remedy
	}
	if there == c || says == "" {
		return ""
	}
	return wrapped(fmt.Sprintf("- `%s`: %s", c.Name, says))
}

// wrapped breaks an element of a list into lines of at most 100 bytes.
func wrapped(element string) string {
	lines := []string{""}
	for word := range strings.FieldsSeq(element) {
		line := &lines[len(lines)-1]
		switch {
		case *line == "":
			*line = word
		case len(*line)+1+len(word) <= 100:
			*line += " " + word
		default:
			lines = append(lines, "  "+word)
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// logCalls returns the logged messages with their level, and the keys.
func logCalls(t *testing.T) (messages, keys []string) {
	levels := map[string]string{"Info": "info", "Warn": "warning", "Error": "error"}
	for _, folder := range []string{"../gateway", "../cmd/culvert", "../kube"} {
		err := filepath.WalkDir(folder, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					f, ok := n.Fun.(*ast.SelectorExpr)
					if !ok {
						break
					}
					if level := levels[f.Sel.Name]; level != "" && len(n.Args) == 1 {
						if message := literal(n.Args[0]); message != "" {
							messages = append(messages, fmt.Sprintf("`%s` (%s)", message, level))
						}
					}
					if f.Sel.Name == "WithField" {
						keys = append(keys, literal(n.Args[0]))
					}
				case *ast.CompositeLit:
					if f, ok := n.Type.(*ast.SelectorExpr); ok && f.Sel.Name == "Fields" {
						for _, e := range n.Elts {
							if key := literal(e.(*ast.KeyValueExpr).Key); key != "" {
								keys = append(keys, key)
							}
						}
					}
				}
				return true
			})
			return nil
		})
		need.NoError(t, err)
	}
	if len(messages) < 10 || len(keys) < 10 {
		t.Fatalf("messages %q, keys %q", messages, keys)
	}
	return messages, keys
}

// literal returns the string literal that an expression is or begins with, or "".
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		return literal(e.X)
	case *ast.BasicLit:
		if s, err := strconv.Unquote(e.Value); err == nil {
			return strings.TrimSuffix(s, ": ")
		}
	}
	return ""
}
