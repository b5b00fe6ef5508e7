package control

import "testing"

func TestVersionNamesTheCommit(t *testing.T) {
	v := Version{Version: "v1.2.3", Revision: "0123456789abcdef", Time: "2026-01-02T03:04:05Z", Modified: true,
		Go: "go1.26.3", Platform: "linux/arm64"}
	want := "culvert v1.2.3, commit 0123456789ab of 2026-01-02T03:04:05Z with changes, go1.26.3, linux/arm64"
	if got := v.String(); got != want {
		t.Fatalf("%q, want %q", got, want)
	}
}
