//go:build !nokube

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"culvert/integration/need"
)

// TestGatherClusters: a context that there is not is refused before anything is asked; of one whose
// API server is away the archive says so.
func TestGatherClusters(t *testing.T) {
	dir := t.TempDir()
	kubeconfig, file := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "file")
	need.NoError(t, os.WriteFile(kubeconfig, []byte(`
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: rome, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: t}}]
`), 0o600))
	for contexts, want := range map[string]string{"rome turin": `there is no context "turin"; there are rome`,
		"rome rome": "--context: rome is given twice"} {
		args := []string{"gather", "--kubeconfig", kubeconfig, "-w", file}
		for context := range strings.FieldsSeq(contexts) {
			args = append(args, "--context", context)
		}
		if _, said, status := run(t, args...); status != 2 || !strings.Contains(said, want) {
			t.Errorf("status %d, %s; want %q", status, said, want)
		}
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a file was written")
	}
	_, said, status := run(t, "gather", "--kubeconfig", kubeconfig, "--context", "rome", "-w", file)
	if status != 1 || !strings.Contains(said, "missing: rome: all of it: the API server does not answer: ") {
		t.Errorf("status %d, %s", status, said)
	}
	if out, _, status := run(t, "status", "--from", file); status != 0 || !strings.Contains(out, "missing: rome: all of it") {
		t.Errorf("status %d, %s", status, out)
	}
}
