package lab

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"culvert/integration/need"
)

// TestCatch: the first error ends a function, and those of what it defers are joined. Other panics
// pass.
func TestCatch(t *testing.T) {
	steps := 0
	run := func(step, undo error) (figure string, err error) {
		defer catch(&err)
		defer func() { err = errors.Join(err, undo) }()
		steps = 1
		figure = must("figure", step)
		steps = 2
		return figure, nil
	}
	if figure, err := run(nil, nil); figure != "figure" || err != nil || steps != 2 {
		t.Errorf("no error: %q, %v after step %d", figure, err, steps)
	}
	if _, err := run(io.EOF, nil); !errors.Is(err, io.EOF) || err.Error() != "EOF" || steps != 1 {
		t.Errorf("an error: %v after step %d", err, steps)
	}
	if _, err := run(io.EOF, io.ErrShortWrite); !errors.Is(err, io.EOF) || !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("two errors: %v", err)
	}
	defer func() {
		if r := recover(); r != "other" {
			t.Errorf("another panic: %v", r)
		}
	}()
	func() (err error) {
		defer catch(&err)
		panic("other")
	}()
}

// TestAwait: the last error is returned, when the time is over or the context is done.
func TestAwait(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		calls := 0
		step := func() error {
			if calls++; calls < 4 {
				return io.EOF
			}
			return nil
		}
		if err := await(t.Context(), 2*time.Second, time.Second, step); err != nil || calls != 4 {
			t.Errorf("%v after %d calls", err, calls)
		}
		fail := func() error { return io.EOF }
		if err := await(t.Context(), 3*time.Second, time.Second, fail); !errors.Is(err, io.EOF) ||
			!strings.Contains(err.Error(), "3s") {
			t.Errorf("after its time: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := await(ctx, time.Hour, time.Minute, fail); !errors.Is(err, io.EOF) ||
			!errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a context: %v", err)
		}
	})
}

// TestTryIsCaught: each function that uses try or must defers catch itself. Otherwise an error
// would end the process.
func TestTryIsCaught(t *testing.T) {
	files, err := filepath.Glob("*.go")
	need.NoError(t, err)
	users := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || name == "try.go" {
			continue
		}
		positions := token.NewFileSet()
		file, err := parser.ParseFile(positions, name, nil, 0)
		need.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			var body *ast.BlockStmt
			switch f := n.(type) {
			case *ast.FuncDecl:
				body = f.Body
			case *ast.FuncLit:
				body = f.Body
			}
			if body == nil {
				return true
			}
			if called := calledIn(body); called["try"] || called["must"] || called["must2"] {
				if users++; !called["catch"] {
					t.Errorf("%s: a function uses try or must and does not defer catch", positions.Position(n.Pos()))
				}
			}
			return true
		})
	}
	if users < 20 {
		t.Errorf("only %d functions use try or must", users)
	}
}

// calledIn returns the names of the functions that a body calls itself, without function literals
// inside it, and catch if it defers that.
func calledIn(body *ast.BlockStmt) map[string]bool {
	called := make(map[string]bool)
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.CallExpr:
			if name, ok := n.Fun.(*ast.Ident); ok && name.Name != "catch" {
				called[name.Name] = true
			}
		case *ast.DeferStmt:
			if name, ok := n.Call.Fun.(*ast.Ident); ok && name.Name == "catch" {
				called["catch"] = true
			}
		}
		return true
	})
	return called
}
