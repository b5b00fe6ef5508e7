package gateway

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestProcessEnds: one that has ended has, although nobody has waited for it and it still takes signals.
func TestProcessEnds(t *testing.T) {
	hold, holdEnd, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	cmd := exec.Command("/bin/sh", "-c", "read line")
	cmd.Stdin = hold
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := processOf(cmd.Process.Pid)
	if p == nil {
		t.Fatal("no process")
	}
	defer p.close()
	if p.ended(10 * time.Millisecond) {
		t.Error("ended although it waits for its input")
	}
	holdEnd.Close()
	if !p.ended(10 * time.Second) {
		t.Error("not ended")
	}
	if err := unix.Kill(cmd.Process.Pid, 0); err != nil {
		t.Errorf("it is no zombie: %v", err)
	}
	cmd.Wait()
	if byID := (&process{cmd.Process.Pid, -1}); !byID.ended(0) {
		t.Error("not ended for a kernel without pidfd_open")
	}
	for _, id := range []int{0, cmd.Process.Pid} {
		if processOf(id) != nil {
			t.Errorf("a process of ID %d", id)
		}
	}
}
