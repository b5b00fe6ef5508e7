package main

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"culvert/cmd/internal/cli"
	"culvert/gateway/control"
	"culvert/integration/need"
)

func TestVersion(t *testing.T) {
	text, diag, status := run(t, "version")
	if status != 0 || diag != "" || strings.Count(text, "\n") != 1 || !strings.Contains(text, runtime.Version()) {
		t.Fatalf("status %d, %q, %q", status, text, diag)
	}
	out, _, _ := run(t, "version", "-o", "json")
	var b control.Version
	need.NoError(t, json.Unmarshal([]byte(out), &b))
	if b.String()+"\n" != text {
		t.Fatalf("text %q and JSON %+v differ", text, b)
	}
	if _, diag, status := run(t, "version", "-o", "xml"); status != cli.ExitBadInput ||
		!strings.Contains(diag, "--output") {
		t.Fatalf("status %d, %q", status, diag)
	}
}
