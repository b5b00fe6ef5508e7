package integration

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// scratch is the only folder that a confined program may write to, like a pod's emptyDir with a
// limit.
const scratch = "/run/culvert"

// confine removes from this thread, and from everything that it starts, what a pod of the level
// "restricted" with a read-only root lacks. That cannot be undone, so the thread must end.
// Programs find volume at kubeState unless it is "".
func confine(volume string) error {
	if err := os.MkdirAll(scratch, 0o755); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("new mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if volume != "" {
		if err := unix.Mount("var", filepath.Dir(kubeState), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV,
			"mode=0755"); err != nil {
			return fmt.Errorf("mount %s: %w", filepath.Dir(kubeState), err)
		}
		if err := os.Mkdir(kubeState, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(volume, kubeState, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", kubeState, err)
		}
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE,
		&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("make the root read-only: %w", err)
	}
	if volume != "" {
		if err := unix.MountSetattr(unix.AT_FDCWD, kubeState, 0,
			&unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return fmt.Errorf("make %s writable: %w", kubeState, err)
		}
	}
	if err := unix.Mount("scratch", scratch, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0777,size=16m"); err != nil {
		return fmt.Errorf("mount %s: %w", scratch, err)
	}
	for c := uintptr(0); ; c++ {
		// past the last capability
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); errors.Is(err, unix.EINVAL) {
			break
		} else if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("renounce privileges: %w", err)
	}
	return restrict()
}

// startAs starts a program as a user who belongs to one group only.
func (h *peerHost) startAs(uid, gid uint32, program string, args ...string) *peerProcess {
	h.t.Helper()
	return h.start(&syscall.Credential{Uid: uid, Gid: gid}, program, args...)
}

// requireConfined fails if the kernel grants the process any privilege.
func (p *peerProcess) requireConfined(t *testing.T, uid, gid uint32) {
	t.Helper()
	status := make(map[string]string)
	for name, value := range p.lines(t, "status", ":\t") {
		status[name] = value
	}
	const none = "0000000000000000"
	for name, want := range map[string]string{
		// 2 = a filter
		"CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none, "NoNewPrivs": "1",
		"Seccomp": "2",
		"Uid":     fmt.Sprintf("%d\t%[1]d\t%[1]d\t%[1]d", uid), "Gid": fmt.Sprintf("%d\t%[1]d\t%[1]d\t%[1]d", gid),
	} {
		if status[name] != want {
			t.Errorf("%s: %s %q, want %q", p.cmd.Path, name, status[name], want)
		}
	}
	writable := 0
	for line := range p.lines(t, "mountinfo", "\n") {
		fields := strings.Fields(line)
		if fields[4] == scratch {
			writable++
		} else if fields[4] != kubeState && !strings.HasPrefix(fields[5], "ro") {
			t.Errorf("%s can write to %s, want a read-only mount", p.cmd.Path, fields[4])
		}
	}
	if writable == 0 {
		t.Errorf("%s cannot write to %s", p.cmd.Path, scratch)
	}
}

// lines yields the lines of a file about the process, cut at a separator.
func (p *peerProcess) lines(t *testing.T, name, separator string) func(func(string, string) bool) {
	t.Helper()
	file, err := os.Open(fmt.Sprintf("/proc/%d/%s", p.cmd.Process.Pid, name))
	need.NoError(t, err)
	return func(yield func(string, string) bool) {
		defer file.Close()
		for lines := bufio.NewScanner(file); lines.Scan(); {
			key, value, _ := strings.Cut(lines.Text(), separator)
			if !yield(key, value) {
				return
			}
		}
	}
}
