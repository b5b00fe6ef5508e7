package holder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/lab"
)

// holderEnv passes the lab's folder to the holder, and marks it as one.
const holderEnv = "CULVERT_LAB_HOLDER"

// Files passed to the holder, after standard error.
const (
	permitFD = 3 + iota // a byte arrives when the state file is written
	readyFD             // with Detached: receives the outcome of the start
)

// Inside returns the lab's folder if this process is a holder.
func Inside() (dir string, ok bool) {
	dir, ok = os.LookupEnv(holderEnv)
	return dir, ok && os.Getpid() == 1
}

// Isolate runs this executable with the given arguments as a holder and returns its exit status
// when it has ended, or ErrInterrupted if ctx has ended it. It passes on standard input and output.
// The holder cannot outlive this process.
func Isolate(ctx context.Context, args []string) (status int, err error) {
	// The kernel kills the holder when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	h, err := newHolder(KindCheck, args, nil)
	if err != nil {
		return 0, err
	}
	defer h.remove()
	h.cmd.Stdin, h.cmd.Stdout, h.cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	h.cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	if err := h.start(nil); err != nil {
		return 0, err
	}
	stop := make(chan struct{})
	defer close(stop)
	go h.handOnSignals(ctx, stop)
	err = h.cmd.Wait()
	if err != nil && ctx.Err() != nil {
		return 0, ErrInterrupted
	}
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		if exit.ExitCode() < 0 {
			return 0, fmt.Errorf("lab: its first process was killed (%s); nothing of the lab is left", exit)
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}

// handOnSignals ends the holder when ctx ends, first with SIGTERM.
func (h *holder) handOnSignals(ctx context.Context, stop <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-stop:
		return
	}
	signals := make(chan os.Signal, 1) // from now on: the signal that ended ctx was the first one
	signal.Notify(signals, os.Interrupt, unix.SIGTERM)
	defer signal.Stop(signals)
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		// The first process of a PID namespace ignores signals before it handles them.
		h.cmd.Process.Signal(unix.SIGTERM)
		select {
		case <-again.C:
		case <-signals: // a second signal
			h.cmd.Process.Kill()
			return
		case <-stop:
			return
		}
	}
}

// Detach runs this executable with the given arguments as a holder that outlives this process, and
// returns when it has called Ready. If ctx ends before, nothing is left.
func Detach(ctx context.Context, args []string, report func(format string, args ...any)) (err error) {
	h, err := newHolder(KindUp, args, report)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			h.kill()
			h.remove()
		}
	}()
	log, err := os.Create(h.dir + "/holder.log")
	if err != nil {
		return err
	}
	defer log.Close()
	h.cmd.Stdout, h.cmd.Stderr = log, log
	ready, readyEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	err = h.start(readyEnd)
	readyEnd.Close()
	if err != nil {
		return err
	}
	enough := context.AfterFunc(ctx, func() { h.cmd.Process.Kill() })
	said, err := io.ReadAll(ready) // ends with the holder
	if !enough() {
		return ErrInterrupted
	}
	if err != nil {
		return err
	}
	if string(said) != readyWord {
		return fmt.Errorf("up: %s", cmp.Or(string(said), lab.Tail(log.Name(), 20), "the holder was killed"))
	}
	return h.cmd.Process.Release()
}

// readyWord is what a detached holder sends when its lab is up.
const readyWord = "up"

// Ready tells the process that called Detach that the lab is up, or why not.
func Ready(err error) {
	f := os.NewFile(readyFD, "ready")
	defer f.Close()
	if err != nil {
		fmt.Fprint(f, err)
		return
	}
	fmt.Fprint(f, readyWord)
}

// holder is a holder process as its parent sees it.
type holder struct {
	kind Kind
	dir  string
	cmd  *exec.Cmd
}

// newHolder makes the lab's folder. Nothing runs yet.
func newHolder(kind Kind, args []string, report func(format string, args ...any)) (*holder, error) {
	dir, err := newDir(kind, report)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), holderEnv+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:    true, // Isolate passes on Ctrl-C once
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWNS,
	}
	if !mayClone() {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return &holder{kind: kind, dir: dir, cmd: cmd}, nil
}

// mayClone reports whether this process may make namespaces without a user namespace around them.
func mayClone() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false
	}
	const need = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_ADMIN
	return data[0].Effective&need == need
}

// start starts the holder, records it in the state file, and only then permits it to make anything.
func (h *holder) start(ready *os.File) error {
	permit, permitEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	defer permitEnd.Close()
	h.cmd.ExtraFiles = []*os.File{permit}
	if ready != nil {
		h.cmd.ExtraFiles = append(h.cmd.ExtraFiles, ready)
	}
	err = h.cmd.Start()
	permit.Close()
	if err != nil {
		if h.cmd.SysProcAttr.Cloneflags&unix.CLONE_NEWUSER != 0 {
			return fmt.Errorf("lab: user namespaces are refused to this user; run as root or allow them: %w", err)
		}
		return fmt.Errorf("lab: namespaces are refused: %w", err)
	}
	if err := writeState(h.dir, h.kind, h.cmd.Process.Pid); err != nil {
		h.kill()
		return err
	}
	if _, err := permitEnd.Write([]byte{1}); err != nil {
		h.kill()
		return fmt.Errorf("lab: the holder ended at once: %w", err)
	}
	return nil
}

func (h *holder) kill() {
	if h.cmd.Process != nil {
		h.cmd.Process.Kill()
		h.cmd.Wait()
	}
}

// remove removes the lab's folder unless there are logs to keep.
func (h *holder) remove() {
	if _, err := os.Stat(h.dir + "/" + keepFile); err != nil {
		os.RemoveAll(h.dir)
	}
}

// Enter is the first action of a holder: it waits for permission.
func Enter() error {
	unix.CloseOnExec(permitFD)
	unix.CloseOnExec(readyFD)
	permit := os.NewFile(permitFD, "permit")
	defer permit.Close()
	if _, err := permit.Read(make([]byte, 1)); err != nil {
		return errors.New("lab: the process that wanted the lab has ended")
	}
	os.Unsetenv(holderEnv)
	// A process list with the lab's own process IDs, if the kernel allows it; nothing depends on
	// it.
	if unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") == nil {
		unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}
	return nil
}
