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

	"culvert/integration/need"
)

// TestNodeHangUpEarly sends SIGHUP to a node that starts: it goes on, where the signal would end it with half of its rules made.
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
