package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// A controlGroup is a control group of one controller.
type controlGroup struct {
	dir     string
	unified bool // cgroup v2
}

// remove removes the group once its last process has ended. The kernel may notice that later than
// the processes' parents.
func (g *controlGroup) remove() error {
	deadline := time.Now().Add(startTimeout)
	for {
		err := os.Remove(g.dir)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(time.Millisecond) // polling for what the kernel does
	}
}

// start starts cmd inside the group.
func (g *controlGroup) start(cmd *exec.Cmd) error {
	if !g.unified { // v1 moves single threads; a child starts in its parent's group
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := moveThread(g.dir); err != nil {
			return err
		}
		return errors.Join(cmd.Start(), moveThread(filepath.Dir(g.dir)))
	}
	dir, err := os.Open(g.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	return cmd.Start()
}

// moveThread moves this thread to a group of cgroup v1.
func moveThread(dir string) error {
	return os.WriteFile(filepath.Join(dir, "tasks"), []byte(strconv.Itoa(unix.Gettid())), 0)
}

// groupController returns the folder in which this process may make groups of a controller, and
// whether they are of cgroup v2.
func groupController(controller string) (dir string, unified bool, err error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", false, err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", false, err
	}
	if at := controllerMount(string(mounts), "cgroup", controller); at != nil {
		return at.folder(string(own), controller), false, nil
	}
	at := controllerMount(string(mounts), "cgroup2", "")
	if at == nil {
		return "", true, fmt.Errorf("no control groups are mounted here: %w", errors.ErrUnsupported)
	}
	controllers, err := os.ReadFile(filepath.Join(at.point, "cgroup.controllers"))
	if err != nil {
		return "", true, err
	}
	if !slices.Contains(strings.Fields(string(controllers)), controller) {
		return "", true, fmt.Errorf("%s has no %s controller: %w", at.point, controller, errors.ErrUnsupported)
	}
	// A group with processes of its own cannot have subgroups with controllers, so look further up.
	for dir := at.folder(string(own), ""); strings.HasPrefix(dir, at.point); dir = filepath.Dir(dir) {
		below, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
		if err == nil && slices.Contains(strings.Fields(string(below)), controller) {
			return dir, true, nil
		}
	}
	return "", true, fmt.Errorf("no group of this process in %s hands its %s controller down", at.point, controller)
}

// A groupMount says where control groups are mounted.
type groupMount struct{ root, point string }

// controllerMount finds the mount of a file system type with an option.
func controllerMount(mountinfo, kind, option string) *groupMount {
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(line, " - ")
		fields, rest := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(rest) < 3 || rest[0] != kind {
			continue
		}
		if option == "" || slices.Contains(strings.Split(rest[2], ","), option) {
			return &groupMount{root: fields[3], point: fields[4]}
		}
	}
	return nil
}

// folder returns this process's group. own is its /proc/self/cgroup; a controller
// of "" is that of cgroup v2.
func (m *groupMount) folder(own, controller string) string {
	for line := range strings.Lines(own) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 || !slices.Contains(strings.Split(fields[1], ","), controller) {
			continue
		}
		below, err := filepath.Rel(m.root, fields[2])
		dir := filepath.Join(m.point, below)
		if _, e := os.Stat(dir); err == nil && e == nil && strings.HasPrefix(dir, m.point) {
			return dir
		}
	}
	return m.point
}

func TestGroupFolder(t *testing.T) {
	dir := t.TempDir()
	need.NoError(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755))
	mountinfo := "22 1 0:20 / /proc rw - proc proc rw\n" +
		"31 22 0:31 /pods " + dir + " rw,relatime shared:5 - cgroup cgroup rw,memory\n" +
		"32 22 0:32 / " + dir + " rw - cgroup2 cgroup2 rw\n"
	own := "5:cpu,cpuacct:/other\n4:hugetlb,memory:/pods/a\n0::/a/b\n"
	for _, test := range []struct{ kind, option, own, want string }{
		{"cgroup", "memory", own, "/a"},
		{"cgroup2", "", own, "/a/b"},
		{"cgroup", "memory", "4:memory:/elsewhere/c\n", ""}, // not below what is mounted
		{"cgroup2", "", "0::/gone\n", ""},
	} {
		if got := controllerMount(mountinfo, test.kind, test.option).folder(test.own, test.option); got !=
			dir+test.want {
			t.Errorf("%s, %q: %s, want %s%s", test.kind, test.own, got, dir, test.want)
		}
	}
	if m := controllerMount(mountinfo, "cgroup", "pids"); m != nil {
		t.Errorf("found %v for a controller that is not mounted", m)
	}
}
