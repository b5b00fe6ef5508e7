package integration

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"culvert/integration/need"
)

// TestSkipsHaveProbes: tests skip only by a probe of integration/need, so that LAB turns each skip
// into a failure.
func TestSkipsHaveProbes(t *testing.T) {
	eachFile(t, func(name string, fset *token.FileSet, f *ast.File) {
		if strings.HasPrefix(name, "integration/need/") {
			return
		}
		for _, at := range f.Decls {
			function := ""
			if fn, ok := at.(*ast.FuncDecl); ok {
				function = fn.Name.Name
			}
			for _, skip := range skips(at) {
				t.Errorf("%s: %s skips by itself; let integration/need do it, by the name of a probe",
					fset.Position(skip), function)
			}
		}
	})
}

// eachFile parses each Go file of the repository, and passes it to judge with its path.
func eachFile(t *testing.T, judge func(name string, fset *token.FileSet, f *ast.File)) {
	t.Helper()
	judged := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != ".." {
			return fs.SkipDir
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		judged++
		judge(strings.TrimPrefix(filepath.ToSlash(path), "../"), fset, f)
		return nil
	})
	need.NoError(t, err)
	if judged < 100 {
		t.Errorf("%d files were judged", judged)
	}
}

// skips returns the places in a declaration that name a method of a test that skips it.
func skips(in ast.Node) (at []token.Pos) {
	ast.Inspect(in, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, s.Sel.Name) {
			at = append(at, s.Pos())
		}
		return true
	})
	return at
}
