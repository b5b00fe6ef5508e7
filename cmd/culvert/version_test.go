package main

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	text, diag, status := run(t, "version")
	if status != 0 || diag != "" || strings.Count(text, "\n") != 1 || !strings.Contains(text, runtime.Version()) {
		t.Fatalf("status %d, %q, %q", status, text, diag)
	}
	out, _, _ := run(t, "version", "-o", "json")
	var b buildInfo
	if err := json.Unmarshal([]byte(out), &b); err != nil {
		t.Fatal(err)
	}
	if b.String()+"\n" != text {
		t.Fatalf("text %q and JSON %+v differ", text, b)
	}
	if _, diag, status := run(t, "version", "-o", "xml"); status != exitBadInput || !strings.Contains(diag, "--output") {
		t.Fatalf("status %d, %q", status, diag)
	}
}

func TestBuildInfoNamesTheCommit(t *testing.T) {
	b := buildInfo{Version: "v1.2.3", Revision: "0123456789abcdef", Time: "2026-01-02T03:04:05Z", Modified: true, Go: "go1.26.3", Platform: "linux/arm64"}
	want := "culvert v1.2.3, commit 0123456789ab of 2026-01-02T03:04:05Z with changes, go1.26.3, linux/arm64"
	if got := b.String(); got != want {
		t.Fatalf("%q, want %q", got, want)
	}
}
