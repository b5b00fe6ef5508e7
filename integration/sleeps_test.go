package integration

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"strings"
	"testing"

	"culvert/integration/need"
)

// TestSleepsSayWhy: a test that sleeps in real time says why, in a comment on the same line or the
// one above. A function that uses virtual time, or calls a function of its package that does, need
// not.
func TestSleepsSayWhy(t *testing.T) {
	var files []testFile
	eachFile(t, func(name string, fset *token.FileSet, f *ast.File) {
		if strings.HasSuffix(name, "_test.go") {
			files = append(files, testFile{path.Dir(name), fset, f})
		}
	})
	for _, at := range bareSleeps(files) {
		t.Errorf("%s: a test sleeps in real time; wait for the event by need.Eventually, "+
			"or use need.Bubble, or say here why the time must pass", at)
	}
}

type testFile struct {
	folder string
	fset   *token.FileSet
	*ast.File
}

// bareSleeps returns the places where a test sleeps in real time and does not say why.
func bareSleeps(files []testFile) (at []token.Position) {
	virtual := map[[2]string]bool{} // functions that use virtual time, by folder and name
	inVirtualTime := func(f testFile, d ast.Decl) (is bool) {
		ast.Inspect(d, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				in, _ := n.X.(*ast.Ident)
				is = is || in != nil && (in.Name == "synctest" || in.Name == "need" && n.Sel.Name == "Bubble")
			case *ast.CallExpr:
				called, _ := n.Fun.(*ast.Ident)
				is = is || called != nil && virtual[[2]string{f.folder, called.Name}]
			}
			return !is
		})
		return is
	}
	for more := true; more; {
		more = false
		for _, f := range files {
			for _, d := range f.Decls {
				d, ok := d.(*ast.FuncDecl)
				if !ok || d.Recv != nil || virtual[[2]string{f.folder, d.Name.Name}] || !inVirtualTime(f, d) {
					continue
				}
				virtual[[2]string{f.folder, d.Name.Name}], more = true, true
			}
		}
	}
	for _, f := range files {
		commented := map[int]bool{}
		for _, c := range f.Comments {
			commented[f.fset.Position(c.Pos()).Line] = true
		}
		for _, d := range f.Decls {
			if inVirtualTime(f, d) {
				continue
			}
			ast.Inspect(d, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Sleep" {
					in, _ := s.X.(*ast.Ident)
					if p := f.fset.Position(s.Pos()); in != nil && in.Name == "time" &&
						!commented[p.Line] && !commented[p.Line-1] {
						at = append(at, p)
					}
				}
				return true
			})
		}
	}
	return at
}

// TestBareSleeps: bareSleeps finds each sleep in real time without a comment, and no other.
func TestBareSleeps(t *testing.T) {
	const helper = "\nfunc inBubble(f func()) { need.Bubble(nil, nil) }\nfunc deeper() { inBubble(nil) }"
	for body, want := range map[string]int{
		"func f() { time.Sleep(1) }":                                       1,
		"func f() { x(time.Sleep) }":                                       1,
		"func f() { for ; ; time.Sleep(1) {\n} }":                          1,
		"var f = func() { time.Sleep(1) }":                                 1,
		"// the pace\nfunc f() {\ntime.Sleep(1) }":                         1,
		"func f() { time.Sleep(1) // the pace\n}":                          0,
		"func f() {\n// the pace\ntime.Sleep(1) }":                         0,
		"func f() { need.Bubble(nil, func() { time.Sleep(1) }) }":          0,
		"func f() { deeper(); time.Sleep(1) }":                             0,
		"func f() { x.deeper(); time.Sleep(1) }":                           1,
		"func (c *c) settle() { time.Sleep(1); synctest.Wait() }":          0,
		"func (c *c) inBubble() { need.Bubble() }\nfunc f() { x.Sleep() }": 0,
	} {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, "a_test.go", "package a\n"+body+helper, parser.ParseComments)
		need.NoError(t, err)
		if got := len(bareSleeps([]testFile{{"a", fset, f}})); got != want {
			t.Errorf("%s: %d, want %d", body, got, want)
		}
	}
}
