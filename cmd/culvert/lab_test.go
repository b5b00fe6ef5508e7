package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"culvert/cmd/internal/cli"
	"culvert/integration/need"
)

// TestLabBeside: culvert lab is the culvert-lab in its own folder, with its flags, its exit status
// and its completion.
func TestLabBeside(t *testing.T) {
	dir := t.TempDir()
	own := filepath.Join(dir, "culvert")
	need.NoError(t, os.Link(os.Args[0], own))
	culvertThere := func(args ...string) (string, int) {
		t.Helper()
		cmd := culvert(args...)
		cmd.Path = own
		out, err := cmd.CombinedOutput()
		if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return string(bytes.TrimSpace(out)), cmd.ProcessState.ExitCode()
	}
	lab := filepath.Join(dir, "culvert-lab")
	for _, args := range [][]string{{"lab", "up"}, {"lab", "--help"}, {"lab"}} {
		if out, status := culvertThere(args...); status != cli.ExitBadInput || strings.Contains(out, "\n") ||
			!strings.Contains(out, lab) {
			t.Errorf("culvert %v without culvert-lab: status %d, %s", args, status, out)
		}
	}
	if err := os.WriteFile(lab, []byte("#!/bin/sh\necho \"lab: $*.\"; exit 7\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"lab exec rome/pod1 -- ls -l":       "lab: exec rome/pod1 -- ls -l.",
		"lab --help":                        "lab: --help.",
		"lab":                               "lab: .",
		"__complete lab exec milan/pod1 -":  "lab: __complete exec milan/pod1 -.",
		"__completeNoDesc lab check --mode": "lab: __completeNoDesc check --mode.",
	} {
		if out, status := culvertThere(strings.Split(args, " ")...); status != 7 || out != want {
			t.Errorf("culvert %s: status %d, %s; want %s", args, status, out, want)
		}
	}
}
