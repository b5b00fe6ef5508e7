package lifecycle

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// TestProcessEnds: a zombie counts as ended, although it still accepts signals.
func TestProcessEnds(t *testing.T) {
	need.Programs(t, "shell", "sh")
	hold, holdEnd, err := os.Pipe()
	need.NoError(t, err)
	defer hold.Close()
	cmd := need.Command(t, "sh", "-c", "read line")
	cmd.Stdin = hold
	need.NoError(t, cmd.Start())
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

// TestKillHitsNobodyElse: if the other process of a hand-over has ended and its ID belongs to a new
// process, that one is not killed.
func TestKillHitsNobodyElse(t *testing.T) {
	need.Programs(t, "shell", "sh")
	ended := need.Command(t, "sh", "-c", "read line")
	innocent := need.Command(t, "sh", "-c", "read line; exit 3")
	hold, holdEnd, err := os.Pipe()
	need.NoError(t, err)
	defer hold.Close()
	innocent.Stdin = hold
	wait, waitEnd, err := os.Pipe()
	need.NoError(t, err)
	defer wait.Close()
	ended.Stdin = wait
	need.NoError(t, errors.Join(ended.Start(), innocent.Start()))
	h := &handing{process: processOf(ended.Process.Pid)}
	defer h.process.close()
	waitEnd.Close()
	ended.Wait()
	h.next, h.process.id = innocent.Process.Pid, innocent.Process.Pid // the kernel may reuse the ID
	if h.process.kill() {
		t.Error("a process was killed")
	}
	holdEnd.Close()
	if err := innocent.Wait(); innocent.ProcessState.ExitCode() != 3 {
		t.Error("the process that has the ID:", err)
	}
	if (*process)(nil).kill() {
		t.Error("a process was killed that nobody knows")
	}
}
