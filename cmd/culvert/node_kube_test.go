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
)

// TestNodeHangUpEarly sends SIGHUP to a node that starts: it goes on, where the signal would end it with half of its rules made.
func TestNodeHangUpEarly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := culvert("node", "--services", "--node-name", "n1", "--kubeconfig", path)
	var diag bytes.Buffer
	cmd.Stderr = &diag
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY, 0) // waits until the node reads
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString("nothing"); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if cmd.Wait(); !cmd.ProcessState.Exited() || !strings.Contains(diag.String(), "--kubeconfig") {
		t.Errorf("%v: %s", cmd.ProcessState, &diag)
	}
}
