package holder

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/lab"
)

// Kind is the purpose of a lab.
type Kind string

// A lab that is up waits for commands until it is taken down; each user has one. A check's lab ends
// with the check.
const (
	KindUp    Kind = "up"
	KindCheck Kind = "check"
)

const (
	stateFile  = "state.json"
	keepFile   = "keep" // exists if logs of a failed check must be kept
	socketFile = "lab.sock"
)

// downTimeout is how long the kernel may take to end a lab's processes.
const downTimeout = 20 * time.Second

// state is the content of a lab's state file.
type state struct {
	Kind   Kind    `json:"kind"`
	Owner  process `json:"owner"`  // the command that started it, which waits for a check
	Holder process `json:"holder"` // absent before it was started
}

// process identifies a process uniquely: IDs are reused, but not with the same start time.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks since boot
}

// baseDir is the folder of this user's labs: below the runtime directory, else in a folder of the
// user's own below the temporary one.
func baseDir() (string, error) {
	runtime := os.Getenv("XDG_RUNTIME_DIR")
	switch {
	case runtime != "":
	case os.Getuid() == 0:
		runtime = "/run"
	default:
		runtime = filepath.Join(os.TempDir(), "culvert-"+strconv.Itoa(os.Getuid()))
	}
	base := filepath.Join(runtime, "culvert", "lab")
	if err := os.MkdirAll(base, 0o700); err != nil {
		return "", fmt.Errorf("lab: %w; set XDG_RUNTIME_DIR to a folder of your own", err)
	}
	info, err := os.Stat(base)
	if err != nil {
		return "", err
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; int(owner) != os.Getuid() {
		return "", fmt.Errorf("lab: %s belongs to user %d; set XDG_RUNTIME_DIR to a folder of your own", base, owner)
	}
	return base, nil
}

// newDir makes the folder of a new lab, with a state file without a holder. It removes leftovers of
// a killed lab that was up, and reports so.
func newDir(kind Kind, report func(format string, args ...any)) (string, error) {
	base, err := baseDir()
	if err != nil {
		return "", err
	}
	if kind == KindCheck {
		dir, err := os.MkdirTemp(base, string(kind)+"-")
		if err != nil {
			return "", fmt.Errorf("lab: %w", err)
		}
		return dir, writeState(dir, kind, 0)
	}
	// One command at a time checks whether there is a lab, and makes one.
	lock, err := os.Open(base)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("lab: lock %s: %w", base, err)
	}
	dir := filepath.Join(base, string(kind))
	switch now, err := stateOf(dir); {
	case err != nil:
		return "", err
	case now == isUp:
		return "", errors.New("lab: there is one up already; see: culvert-lab status, culvert-lab down")
	case now == isStarting:
		return "", errors.New("lab: another command is starting one; see: culvert-lab status")
	case now == isDead:
		if err := os.RemoveAll(dir); err != nil {
			return "", err
		}
		report("removed what was left of a lab that was killed")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("lab: %w", err)
	}
	return dir, writeState(dir, kind, 0)
}

// The condition of a lab's folder.
type condition int

const (
	isNone     condition = iota // there is no folder
	isStarting                  // a lab without a holder yet
	isUp
	isDead // a lab whose holder was killed
)

func stateOf(dir string) (condition, error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return isNone, nil
	}
	s, err := readState(dir)
	if err != nil {
		return isNone, err
	}
	if running, err := s.Holder.running(); err != nil || running {
		return isUp, err
	}
	if running, err := s.Owner.running(); err != nil || running {
		return isStarting, err
	}
	return isDead, nil
}

// writeState replaces the lab's state file as a whole. The owner is this process; the holder has
// the process ID pid, 0 for none.
func writeState(dir string, kind Kind, pid int) error {
	owner, err := processOf(os.Getpid())
	var holder process
	if err == nil && pid != 0 {
		holder, err = processOf(pid)
	}
	if err != nil {
		return fmt.Errorf("lab: the holder ended at once: %w", err)
	}
	text, err := json.Marshal(state{kind, owner, holder})
	if err != nil {
		return err
	}
	next := filepath.Join(dir, stateFile+".new")
	if err := os.WriteFile(next, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	return os.Rename(next, filepath.Join(dir, stateFile))
}

// processOf returns the process that has this ID now.
func processOf(pid int) (process, error) {
	fields, err := lab.ProcessStat(strconv.Itoa(pid))
	if err != nil {
		return process{}, err
	}
	return process{pid, uint64(fields[lab.StatStart])}, nil
}

// open returns a pidfd of the process, or -1 if it has ended.
func (p process) open() (pidfd int, err error) {
	if p.PID == 0 {
		return -1, nil
	}
	pidfd, err = unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) { // no such process, or a thread's ID
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("lab: process %d: %w", p.PID, err)
	}
	// From now on, the process ID cannot be reused.
	if now, err := processOf(p.PID); err != nil || now != p || ended(pidfd, 0) {
		unix.Close(pidfd)
		return -1, nil
	}
	return pidfd, nil
}

// running reports whether the process has not ended.
func (p process) running() (bool, error) {
	pidfd, err := p.open()
	if pidfd >= 0 {
		unix.Close(pidfd)
	}
	return pidfd >= 0, err
}

// ended reports whether the process of a pidfd ends within a time.
func ended(pidfd int, within time.Duration) bool {
	deadline := time.Now().Add(within)
	for {
		fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, max(0, int(time.Until(deadline).Milliseconds())))
		if err != unix.EINTR {
			return err == nil && n == 1
		}
	}
}

// KeepLogs keeps a lab's folder beyond its holder, and adds to the error where it is.
func KeepLogs(dir string, err error) error {
	if keepErr := os.WriteFile(filepath.Join(dir, keepFile), nil, 0o600); keepErr != nil {
		return errors.Join(err, keepErr)
	}
	return fmt.Errorf("%w; configurations and logs are in %s until `culvert-lab down`", err, dir)
}

// Down ends this user's running labs and removes the leftovers of labs of any kind. A running check
// is not affected. It reports its actions through report, and may be repeated.
func Down(report func(format string, args ...any)) error {
	base, err := baseDir()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(base)
	if err != nil {
		return fmt.Errorf("down: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if err := down(filepath.Join(base, e.Name()), report); err != nil {
			errs = append(errs, fmt.Errorf("down: %s: %w", e.Name(), err))
		}
	}
	if len(entries) == 0 {
		report("no lab")
	}
	return errors.Join(errs...)
}

func down(dir string, report func(format string, args ...any)) error {
	s, err := readState(dir)
	if err != nil {
		return err
	}
	if s.Kind == KindCheck {
		// After its command was killed, the holder may take a moment to end.
		running, err := s.Owner.running()
		if err != nil {
			return err
		}
		if running {
			report("%s: a check is running, left as it is (process %d)", filepath.Base(dir), s.Owner.PID)
			return nil
		}
	}
	if err := s.Holder.kill(); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	report("%s: gone", filepath.Base(dir))
	return nil
}

// kill ends a holder, and so its lab, unless it has ended.
func (p process) kill() error {
	pidfd, err := p.open()
	if err != nil || pidfd < 0 {
		return err
	}
	defer unix.Close(pidfd)
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end process %d: %w", p.PID, err)
	}
	if !ended(pidfd, downTimeout) { // the first process of a PID namespace ends after all others in it
		return fmt.Errorf("process %d does not end", p.PID)
	}
	return nil
}

// readState reads a lab's state file. A folder without one belongs to a lab that was killed before
// it began.
func readState(dir string) (s state, err error) {
	text, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return state{}, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return state{}, fmt.Errorf("state file: %w", err)
	}
	return s, nil
}

// upDir returns the folder of the lab that is up.
func upDir() (string, error) {
	base, err := baseDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(base, string(KindUp))
	switch now, err := stateOf(dir); {
	case err != nil:
		return "", err
	case now == isNone:
		return "", errors.New("lab: none is up; start one with: culvert-lab up")
	case now == isStarting:
		return "", errors.New("lab: none is up so far, it is being built; ask again")
	case now == isDead:
		return "",
			fmt.Errorf("lab: none is up: its first process was killed, and all others ended with it; start another with culvert-lab up,"+
				" or remove its files, %s, with culvert-lab down", dir)
	}
	return dir, nil
}

// ErrInterrupted means that the user interrupted a lab.
var ErrInterrupted = errors.New("interrupted; nothing of the lab is left")
