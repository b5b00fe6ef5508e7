package main

import (
	"os"
	"strings"
	"testing"

	"culvert/integration/need"
)

// TestOperatingIsDocumented: docs/operating.md has a section for each command that asks a
// gateway. Every command line in it and in README uses commands and flags that exist.
func TestOperatingIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/operating.md")
	need.NoError(t, err)
	page := string(text)
	for _, c := range newRootCommand().Commands() {
		if c.Flags().Lookup("socket") != nil && !strings.Contains(page, "\n## "+c.Name()+"\n") {
			t.Errorf("docs/operating.md has no section for culvert %s", c.Name())
		}
	}
	if text, err = os.ReadFile("../../README.md"); err != nil {
		t.Fatal(err)
	}
	judged := 0
	for line := range strings.Lines(page + string(text)) {
		command, ok := strings.CutPrefix(line, "$ culvert ")
		if !ok {
			continue
		}
		command, _, _ = strings.Cut(command, " | ")
		command, _, _ = strings.Cut(command, " #")
		cmd, args, err := newRootCommand().Find(strings.Fields(command))
		if err == nil {
			err = cmd.ParseFlags(args)
		}
		if err != nil {
			t.Errorf("culvert %s: %v", strings.TrimSpace(command), err)
		}
		judged++
	}
	if judged < 10 {
		t.Errorf("%d commands were judged", judged)
	}
}
