package step

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
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
		defer Catch(&err)
		defer func() { err = errors.Join(err, undo) }()
		steps = 1
		figure = Must("figure", step)
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
		defer Catch(&err)
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
		if err := Await(t.Context(), 2*time.Second, time.Second, step); err != nil || calls != 4 {
			t.Errorf("%v after %d calls", err, calls)
		}
		fail := func() error { return io.EOF }
		if err := Await(t.Context(), 3*time.Second, time.Second, fail); !errors.Is(err, io.EOF) ||
			!strings.Contains(err.Error(), "3s") {
			t.Errorf("after its time: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := Await(ctx, time.Hour, time.Minute, fail); !errors.Is(err, io.EOF) ||
			!errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a context: %v", err)
		}
	})
}

// TestTryIsCaught: each function of the lab that uses Try or Must defers Catch itself. Otherwise an
// error would end the process.
func TestTryIsCaught(t *testing.T) {
	users := 0
	err := filepath.WalkDir("..", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
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
			if called := calledIn(body); called["Try"] || called["Must"] || called["Must2"] {
				if users++; !called["Catch"] {
					t.Errorf("%s: a function uses Try or Must and does not defer Catch", positions.Position(n.Pos()))
				}
			}
			return true
		})
		return nil
	})
	need.NoError(t, err)
	if users < 20 {
		t.Errorf("only %d functions use Try or Must", users)
	}
}

// calledIn returns the names of the functions of this package that a body calls itself, without
// function literals inside it, and Catch if it defers that.
func calledIn(body *ast.BlockStmt) map[string]bool {
	called := make(map[string]bool)
	stepOf := func(call *ast.CallExpr) string {
		f, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return ""
		}
		if in, ok := f.X.(*ast.Ident); !ok || in.Name != "step" {
			return ""
		}
		return f.Sel.Name
	}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.CallExpr:
			if name := stepOf(n); name != "Catch" {
				called[name] = true
			}
		case *ast.DeferStmt:
			if stepOf(n.Call) == "Catch" {
				called["Catch"] = true
			}
		}
		return true
	})
	return called
}
