package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"culvert/integration/need"
)

// complete returns what a shell would offer for the last word.
func complete(t *testing.T, words ...string) []string {
	t.Helper()
	root := newRootCommand()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(append([]string{"__complete"}, words...))
	if err := root.Execute(); err != nil {
		t.Fatalf("%v: %v", words, err)
	}
	var offers []string
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, ":") || strings.HasPrefix(line, "Completion ended") {
			break
		}
		name, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
		offers = append(offers, name)
	}
	return offers
}

func TestShellsComplete(t *testing.T) {
	for _, test := range []struct{ words, has, hasNot string }{
		{"gateway --", "--config", "--offloads"},
		{"gateway -o ", "json", "vxlan"},
		{"completion ", "fish", "powershell"},
	} {
		offers := complete(t, strings.Split(test.words, " ")...)
		if test.has != "" && !slices.Contains(offers, test.has) || slices.Contains(offers, test.hasNot) {
			t.Errorf("culvert %s: %v, want %q among it and not %q", test.words, offers, test.has, test.hasNot)
		}
	}
}

// TestBashTakesTheScript lets bash parse the completion script.
func TestBashTakesTheScript(t *testing.T) {
	need.Programs(t, "bash", "bash")
	script, _, _ := run(t, "completion", "bash")
	if !strings.Contains(script, "__start_culvert") {
		t.Fatalf("a script of %d bytes", len(script))
	}
	bash := need.Command(t, "bash", "-n")
	bash.Stdin = strings.NewReader(script)
	if out, err := bash.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("bash -n: %v: %s", err, out)
	}
}
