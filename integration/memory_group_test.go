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

// memoryGroup is a control group with a limit of memory and no swap.
type memoryGroup struct {
	dir     string
	unified bool // cgroup v2
}

// memoryFiles are what the two versions call the same.
type memoryFiles struct{ limit, swap, peak string }

// openMemoryGroup returns a group that another process has made.
func openMemoryGroup(dir string) *memoryGroup {
	_, err := os.Stat(filepath.Join(dir, "memory.max"))
	return &memoryGroup{dir: dir, unified: err == nil}
}

func (g *memoryGroup) files() memoryFiles {
	if g.unified {
		return memoryFiles{"memory.max", "memory.swap.max", "memory.peak"}
	}
	return memoryFiles{"memory.limit_in_bytes", "memory.swappiness", "memory.max_usage_in_bytes"}
}

// newMemoryGroup makes a group below that of this process. The error is an
// errors.ErrUnsupported if this kernel has no memory controller.
func newMemoryGroup(name string, limit int) (*memoryGroup, error) {
	parent, unified, err := memoryController()
	if err != nil {
		return nil, err
	}
	g := &memoryGroup{filepath.Join(parent, name), unified}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, err
	}
	err = g.set(limit)
	if _, e := os.Stat(filepath.Join(g.dir, g.files().peak)); err == nil && e != nil {
		err = fmt.Errorf("%w: %w", errors.ErrUnsupported, e) // Linux before 5.19
	}
	if err != nil {
		return nil, errors.Join(err, g.remove())
	}
	return g, nil
}

// set sets the limit. A kernel without swap has no file for it.
func (g *memoryGroup) set(limit int) error {
	err := os.WriteFile(filepath.Join(g.dir, g.files().limit), []byte(strconv.Itoa(limit)), 0)
	if err != nil {
		return err
	}
	err = os.WriteFile(filepath.Join(g.dir, g.files().swap), []byte("0"), 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// remove removes the group when the last of its processes has ended, which the kernel
// may note after their parents do.
func (g *memoryGroup) remove() error {
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
func (g *memoryGroup) start(cmd *exec.Cmd) error {
	if !g.unified { // v1 moves single threads, and what they start is where they are
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

// memoryUse is what a group has needed.
type memoryUse struct {
	peak    int // bytes, with page cache and kernel memory
	atLimit int // how often there was no room below the limit
	killed  int // processes killed for it
}

func (u memoryUse) String() string {
	return fmt.Sprintf("peak of the group %.1f MiB, %d times at its limit, %d processes killed", float64(u.peak)/(1<<20), u.atLimit, u.killed)
}

func (g *memoryGroup) use(t *testing.T) memoryUse {
	t.Helper()
	number := func(file, key string) (n int) {
		text, err := os.ReadFile(filepath.Join(g.dir, file))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			name, value, found := strings.Cut(strings.TrimSpace(line), " ")
			if !found {
				name, value = "", name
			}
			if name != key {
				continue
			}
			if n, err = strconv.Atoi(value); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			return n
		}
		t.Fatalf("%s: no %s in %q", file, key, text)
		return 0
	}
	u := memoryUse{peak: number(g.files().peak, "")}
	if g.unified {
		u.atLimit, u.killed = number("memory.events", "max"), number("memory.events", "oom_kill")
	} else {
		u.atLimit, u.killed = number("memory.failcnt", ""), number("memory.oom_control", "oom_kill")
	}
	return u
}

// residentPeak returns the line of a process's status that tells its largest resident
// set. The pages of its program are in it.
func residentPeak(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "VmHWM:") {
			return strings.Join(strings.Fields(line), " ")
		}
	}
	t.Fatalf("no VmHWM in %s", text)
	return ""
}

// memoryController returns the folder below which this process may make groups with
// a limit of memory, and whether they are of cgroup v2.
func memoryController() (dir string, unified bool, err error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", false, err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", false, err
	}
	if at := controllerMount(string(mounts), "cgroup", "memory"); at != nil {
		return at.folder(string(own), "memory"), false, nil
	}
	at := controllerMount(string(mounts), "cgroup2", "")
	if at == nil {
		return "", true, fmt.Errorf("no control groups are mounted here: %w", errors.ErrUnsupported)
	}
	controllers, err := os.ReadFile(filepath.Join(at.point, "cgroup.controllers"))
	if err != nil {
		return "", true, err
	}
	if !slices.Contains(strings.Fields(string(controllers)), "memory") {
		return "", true, fmt.Errorf("%s has no memory controller: %w", at.point, errors.ErrUnsupported)
	}
	// A group that has processes of its own cannot have groups with controllers
	// below it: look for one further up.
	for dir := at.folder(string(own), ""); strings.HasPrefix(dir, at.point); dir = filepath.Dir(dir) {
		below, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
		if err == nil && slices.Contains(strings.Fields(string(below)), "memory") {
			return dir, true, nil
		}
	}
	return "", true, fmt.Errorf("no group of this process in %s hands its memory controller down", at.point)
}

// groupMount is where control groups are mounted.
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

// needMemoryGroup makes a group until the test ends, and skips the test where that
// is not possible.
func needMemoryGroup(t *testing.T, limit int) *memoryGroup {
	t.Helper()
	return needMemoryGroupNamed(t, fmt.Sprintf("culvert-%s-%d", t.Name(), os.Getpid()), limit)
}

func needMemoryGroupNamed(t *testing.T, name string, limit int) *memoryGroup {
	t.Helper()
	g, err := newMemoryGroup(name, limit)
	need.Kernel(t, "memory-cgroup", err)
	t.Cleanup(func() {
		if err := g.remove(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// TestMemoryGroup: what is started in a group is bounded by it, and it tells.
func TestMemoryGroup(t *testing.T) {
	need.Programs(t, "shell", "sh")
	const limit = 16 << 20
	g := needMemoryGroup(t, limit)
	run := func(script string) error {
		cmd := need.Command(t, "sh", "-c", script)
		if err := g.start(cmd); err != nil {
			t.Fatal(err)
		}
		return cmd.Wait()
	}
	if err := run("grep -q culvert-TestMemoryGroup /proc/self/cgroup"); err != nil {
		t.Errorf("not in the group: %v", err)
	}
	if use := g.use(t); use.peak == 0 || use.peak >= limit || use.killed != 0 {
		t.Errorf("after a small program: %v", use)
	}
	run("head -c 100000000 /dev/zero | tail") // tail keeps the last line
	if use := openMemoryGroup(g.dir).use(t); use.killed == 0 || use.atLimit == 0 || use.peak < limit {
		t.Errorf("after a large program: %v", use)
	}
}

func TestGroupFolder(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
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
		if got := controllerMount(mountinfo, test.kind, test.option).folder(test.own, test.option); got != dir+test.want {
			t.Errorf("%s, %q: %s, want %s%s", test.kind, test.own, got, dir, test.want)
		}
	}
	if m := controllerMount(mountinfo, "cgroup", "pids"); m != nil {
		t.Errorf("found %v for a controller that is not mounted", m)
	}
}
