package main

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// complete returns what a shell would offer for the last word.
func complete(t *testing.T, words ...string) []string {
	t.Helper()
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir()) // there is no lab
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
		{"lab ", "break", "probe-all"},
		{"lab exec ", "milan/pod2", "missing-route"},
		{"lab exec milan/pod2 ", "", "milan/pod2"}, // files
		{"lab restart ", "rome/gateway", "rome/pod1"},
		{"lab break ", "missing-route", "rome/pod1"},
		{"lab break missing-route ", "node-off", "missing-route"},
		{"lab mend ", "", "missing-route"}, // there is none to mend
		{"lab check --mode ", "vxlan", "on"},
		{"lab up --offloads ", "off", "vxlan"},
		{"lab status -o ", "json", "vxlan"},
		{"lab check --", "--brief", "--config"},
		{"gateway --", "--config", "--offloads"},
		{"completion ", "fish", "powershell"},
	} {
		offers := complete(t, strings.Split(test.words, " ")...)
		if test.has != "" && !slices.Contains(offers, test.has) || slices.Contains(offers, test.hasNot) {
			t.Errorf("culvert %s: %v, want %q among it and not %q", test.words, offers, test.has, test.hasNot)
		}
	}
}

// TestBashTakesTheScript lets bash parse what it is to source.
func TestBashTakesTheScript(t *testing.T) {
	root := newRootCommand()
	var script bytes.Buffer
	root.SetOut(&script)
	root.SetArgs([]string{"completion", "bash"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	bash := exec.Command("bash", "-n")
	bash.Stdin = &script
	if out, err := bash.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("bash -n: %v: %s", err, out)
	}
}
