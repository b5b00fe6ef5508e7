package need

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// askedEnv lists, separated by commas, the programs requested by a test of which this process runs
// a part.
const askedEnv = "CULVERT_TEST_PROGRAMS"

// askedFileEnv names a file to which each test that asks for programs appends its name: on a
// machine with other programs, such a test may do something else.
const askedFileEnv = "CULVERT_ASKED"

// asked has the programs requested by this process's tests, by the test's name without subtests.
var asked = struct {
	sync.Mutex
	by map[string][]string
}{by: map[string][]string{}}

// Programs is Program for executables in PATH. The test and its subtests may then start them with
// Command.
func Programs(t testing.TB, probe string, names ...string) {
	t.Helper()
	Program(t, probe, Find(t, names...))
}

// Find is the condition of Programs: nil, or which program is missing.
func Find(t testing.TB, names ...string) error {
	if file := os.Getenv(askedFileEnv); file != "" {
		if err := appendLine(file, root(t)); err != nil {
			return err
		}
	}
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			return err
		}
	}
	asked.Lock()
	defer asked.Unlock()
	asked.by[root(t)] = append(asked.by[root(t)], names...)
	return nil
}

func appendLine(file, line string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, line)
	return errors.Join(err, f.Close())
}

// Asked returns the environment entry that lets a process which runs a part of this test start the
// programs it has requested.
func Asked(t testing.TB) string {
	asked.Lock()
	defer asked.Unlock()
	return askedEnv + "=" + strings.Join(asked.by[root(t)], ",")
}

// Command is exec.Command for a test. A program in PATH, which may be missing on another machine,
// must have been requested; otherwise the test fails, and the command does not start. Files
// elsewhere, built by the tests or named by a variable, need no request.
func Command(t testing.TB, program string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(program, args...)
	if name := filepath.Base(program); cmd.Err == nil && inPath(program) && !mayStart(t, name) {
		cmd.Err = fmt.Errorf("%s starts %s and has not asked for it: call need.Programs(t, %[2]q, %[2]q) first, or give isolated the probe programs(%[2]q, %[2]q)", root(t), name)
		t.Error(cmd.Err)
	}
	return cmd
}

// Self is a command that runs this test binary, which always exists.
func Self(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = os.Args[0]
	return cmd
}

// Go is the go command, which every test may start: without it there are no tests.
func Go(args ...string) *exec.Cmd { return exec.Command("go", args...) }

// inPath reports whether a program is found through PATH, by its name or by its folder.
func inPath(program string) bool {
	return !strings.Contains(program, "/") || slices.Contains(filepath.SplitList(os.Getenv("PATH")),
		filepath.Dir(program))
}

func mayStart(t testing.TB, name string) bool {
	asked.Lock()
	defer asked.Unlock()
	return slices.Contains(asked.by[root(t)], name) || slices.Contains(strings.Split(os.Getenv(askedEnv), ","), name)
}

// root is the name of t's top-level test.
func root(t testing.TB) string {
	name, _, _ := strings.Cut(t.Name(), "/")
	return name
}
