package integration

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"culvert/integration/need"
)

// startsPrograms are the files, besides tests, that may start programs: integration/need does it
// for tests, and the others belong to commands, which tell their users what is missing.
var startsPrograms = []string{"integration/need/", "integration/lab/", "integration/release/", "cmd/"}

// TestTestsAskForPrograms: tests start programs only by integration/need. So a test skips where a
// program is missing, and fails everywhere if it has not requested it.
func TestTestsAskForPrograms(t *testing.T) {
	eachFile(t, func(name string, fset *token.FileSet, f *ast.File) {
		may := slices.ContainsFunc(startsPrograms, func(folder string) bool { return strings.HasPrefix(name, folder) })
		if may && (!strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "integration/need/")) {
			return
		}
		for _, at := range starts(f) {
			t.Errorf("%s: a program may start here without having been asked for; use need.Command after need.Programs (or the probe programs(...) of "+
				"isolated), need.Self for this test binary, need.Go for the go command", fset.Position(at))
		}
	})
}

// notStarts are the names of os/exec that neither start nor find a program, except Cmd, for which
// see starts.
var notStarts = []string{"ExitError", "Error", "ErrDot", "ErrNotFound", "ErrWaitDelay"}

// starts returns the places in a file that name something that starts or finds a program.
func starts(f *ast.File) (at []token.Pos) {
	packages := map[string]string{} // import paths by their names in this file
	for _, i := range f.Imports {
		path, _ := strconv.Unquote(i.Path.Value)
		if !slices.Contains([]string{"os", "os/exec", "syscall", "golang.org/x/sys/unix"}, path) {
			continue
		}
		name := path[strings.LastIndex(path, "/")+1:]
		if i.Name != nil {
			name = i.Name.Name
		}
		if name == "." {
			at = append(at, i.Pos())
		}
		packages[name] = path
	}
	pointers := map[ast.Expr]bool{} // operands of a *
	ast.Inspect(f, func(n ast.Node) bool {
		if star, ok := n.(*ast.StarExpr); ok {
			pointers[star.X] = true
		}
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		in, ok := s.X.(*ast.Ident)
		if !ok {
			return true
		}
		switch name := s.Sel.Name; packages[in.Name] {
		case "os/exec":
			// *exec.Cmd is the type of what need returns; exec.Cmd alone would make a new command.
			if name == "Cmd" && !pointers[s] || name != "Cmd" && !slices.Contains(notStarts, name) {
				at = append(at, s.Pos())
			}
		case "os", "syscall", "golang.org/x/sys/unix":
			if slices.Contains([]string{"StartProcess", "ForkExec", "Exec"}, name) ||
				strings.HasPrefix(name, "SYS_EXECVE") {
				at = append(at, s.Pos())
			}
		}
		return true
	})
	return at
}

// TestStarts: starts finds whatever starts a program, also under another import name.
func TestStarts(t *testing.T) {
	for _, tt := range []struct {
		imports, body string
		want          int
	}{
		{`"os/exec"`, `var c = exec.Command("ping")`, 1},
		{`"os/exec"`, `var c = exec.CommandContext`, 1},
		{`"os/exec"`, `var _, err = exec.LookPath("ping")`, 1},
		{`"os/exec"`, `var c = &exec.Cmd{Path: "/bin/ping"}`, 1},
		{`"os/exec"`, `var c = new(exec.Cmd)`, 1},
		{`"os/exec"`, `var c exec.Cmd`, 1},
		{`other "os/exec"`, `var c = other.Command("ping")`, 1},
		{`. "os/exec"`, `var c = Command("ping")`, 1},
		{`"os"`, `var p, err = os.StartProcess("/bin/ping", nil, nil)`, 1},
		{`"syscall"`, `var p, err = syscall.ForkExec("/bin/ping", nil, nil)`, 1},
		{`"syscall"`, `var n = syscall.SYS_EXECVEAT`, 1},
		{`"golang.org/x/sys/unix"`, `var err = unix.Exec("/bin/ping", nil, nil)`, 1},
		{`"os/exec"`, `func f(c *exec.Cmd) *exec.ExitError { return nil }`, 0},
		{`"lab"`, `var c, err = lab.Exec("rome/pod1", nil)`, 0},
		{`"culvert/integration/need"`, `var c = need.Self()`, 0},
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "a_test.go", "package a\nimport "+tt.imports+"\n"+tt.body, 0)
		need.NoError(t, err)
		if got := len(starts(f)); got != tt.want {
			t.Errorf("import %s; %s: %d, want %d", tt.imports, tt.body, got, tt.want)
		}
	}
}

// TestNamespacesAreFresh: a file that makes network namespaces sets them up by integration/fresh,
// so that tests do not depend on the machine's settings.
func TestNamespacesAreFresh(t *testing.T) {
	notUsed := map[string]string{
		"integration/lab/holder/holder.go": "each host of the lab has its own",
		"integration/lab/netns/machine.go": "it adds a link, and no packet passes",
		"integration/kube_seccomp_test.go": "it is refused",
	}
	eachFile(t, func(name string, fset *token.FileSet, f *ast.File) {
		var makes token.Pos
		fresh := false
		// The lab's package of the same name does it itself.
		others := slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool {
			return i.Path.Value == `"github.com/vishvananda/netns"`
		})
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				switch in, _ := s.X.(*ast.Ident); {
				case in == nil:
				case s.Sel.Name == "CLONE_NEWNET",
					others && in.Name == "netns" && strings.HasPrefix(s.Sel.Name, "New"):
					makes = s.Pos()
				case in.Name == "fresh" && s.Sel.Name == "Network":
					fresh = true
				}
			}
			return true
		})
		if makes.IsValid() && !fresh && notUsed[name] == "" {
			t.Errorf("%s: a network namespace has the settings of this machine, such as forwarding; call fresh.Network inside it", fset.Position(makes))
		}
	})
}
