package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"culvert/integration/need"
)

// memoryGroup is a control group with a limit of memory and no swap.
type memoryGroup struct{ controlGroup }

// memoryFiles are the names of the same files in both versions.
type memoryFiles struct{ limit, swap, peak string }

// openMemoryGroup returns a group that another process has made.
func openMemoryGroup(dir string) *memoryGroup {
	_, err := os.Stat(filepath.Join(dir, "memory.max"))
	return &memoryGroup{controlGroup{dir: dir, unified: err == nil}}
}

func (g *memoryGroup) files() memoryFiles {
	if g.unified {
		return memoryFiles{"memory.max", "memory.swap.max", "memory.peak"}
	}
	return memoryFiles{"memory.limit_in_bytes", "memory.swappiness", "memory.max_usage_in_bytes"}
}

// newMemoryGroup makes a group below that of this process. The error is errors.ErrUnsupported if
// this kernel has no memory controller.
func newMemoryGroup(name string, limit int) (*memoryGroup, error) {
	parent, unified, err := groupController("memory")
	if err != nil {
		return nil, err
	}
	g := &memoryGroup{controlGroup{filepath.Join(parent, name), unified}}
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

// memoryUse is how much memory a group has needed.
type memoryUse struct {
	peak    int // bytes, with page cache and kernel memory
	atLimit int // how often the limit left no room
	killed  int // processes killed for it
}

func (u memoryUse) String() string {
	return fmt.Sprintf("peak of the group %.1f MiB, %d times at its limit, %d processes killed",
		float64(u.peak)/(1<<20), u.atLimit, u.killed)
}

func (g *memoryGroup) use(t *testing.T) memoryUse {
	t.Helper()
	number := func(file, key string) (n int) {
		text, err := os.ReadFile(filepath.Join(g.dir, file))
		need.NoError(t, err)
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

// residentPeak returns the line of a process's status with its largest resident set, which includes
// the pages of its program.
func residentPeak(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	need.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "VmHWM:") {
			return strings.Join(strings.Fields(line), " ")
		}
	}
	t.Fatalf("no VmHWM in %s", text)
	return ""
}

// inMemoryGroup runs a test in namespaces, with a group of memoryCeiling for one of its processes.
func inMemoryGroup(t *testing.T, test func(t *testing.T, group *memoryGroup), probes ...probe) {
	t.Helper()
	if os.Getenv(isolatedEnv) != t.Name() {
		t.Setenv(memoryGroupEnv, needMemoryGroup(t, memoryCeiling).dir)
	}
	isolated(t, func(t *testing.T) {
		// From now on the kernel counts the program's pages as this process's, not as the group's.
		_, err := os.ReadFile(os.Getenv(binaryEnv))
		need.NoError(t, err)
		test(t, openMemoryGroup(os.Getenv(memoryGroupEnv)))
	}, probes...)
}

// needMemoryGroup makes a group that exists until the end of the test. It skips the test where that
// is impossible.
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

// TestMemoryGroup: a group limits what is started in it, and reports how much that needed.
func TestMemoryGroup(t *testing.T) {
	need.Programs(t, "shell", "sh")
	const limit = 16 << 20
	g := needMemoryGroup(t, limit)
	run := func(script string) error {
		cmd := need.Command(t, "sh", "-c", script)
		need.NoError(t, g.start(cmd))
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
