//go:build !nokube

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"culvert/cmd/internal/cli"
	"culvert/integration/need"
)

// TestNodeNothingToCheck: a node does not start where it was to check a configuration, and there is
// none.
func TestNodeNothingToCheck(t *testing.T) {
	for _, kind := range []string{"--kube", "--liqo"} {
		if out, diag, status := run(t, "node", kind, "--check", "--node-name", "n1"); status != cli.ExitBadInput ||
			out != "" || !strings.Contains(diag, "--check: only with --config or --services") {
			t.Errorf("%s: status %d: %s%s", kind, status, out, diag)
		}
	}
}

// TestNodeHangUpEarly sends SIGHUP to a node that starts: it goes on, where the signal would end it
// with half of its rules made.
func TestNodeHangUpEarly(t *testing.T) {
	for _, kind := range []string{"--services", "--liqo", "--kube"} {
		path := filepath.Join(t.TempDir(), "kubeconfig")
		need.NoError(t, unix.Mkfifo(path, 0o600))
		cmd := culvert("node", kind, "--node-name", "n1", "--kubeconfig", path)
		var diag bytes.Buffer
		cmd.Stderr = &diag
		need.NoError(t, cmd.Start())
		file, err := os.OpenFile(path, os.O_WRONLY, 0) // waits until the node reads
		need.NoError(t, err)
		need.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
		if _, err := file.WriteString("nothing"); err != nil {
			t.Fatal(err)
		}
		need.NoError(t, file.Close())
		if cmd.Wait(); !cmd.ProcessState.Exited() || !strings.Contains(diag.String(), "--kubeconfig") {
			t.Errorf("%s: %v: %s", kind, cmd.ProcessState, &diag)
		}
	}
}
