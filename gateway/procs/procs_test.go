package procs

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"culvert/integration/need"
)

// use restores the present number of Ps, and forgets the requested one, at the end of the test.
func use(t *testing.T, n int) {
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() {
		own.procs.Store(0)
		runtime.GOMAXPROCS(before)
	})
	Use(n)
}

// TestApart: while the disk is waited for, also for several files at once, Go code has a second P.
// Afterwards it has the requested number, even if that changed meanwhile.
func TestApart(t *testing.T) {
	for _, n := range []int{1, 2, 3} {
		use(t, n)
		var during []int
		count := func() { during = append(during, runtime.GOMAXPROCS(0)) }
		err := Apart(func() error {
			count()
			err := Apart(func() error { count(); return syscall.EIO })
			count()
			return err
		})
		for _, got := range during {
			if got != max(n, 2) {
				t.Errorf("%d of %d Ps meanwhile", got, n)
			}
		}
		if got := runtime.GOMAXPROCS(0); got != n || Count() != n || err != syscall.EIO {
			t.Errorf("%d Ps after, %d by Count, want %d; %v", got, Count(), n, err)
		}
	}
	use(t, 1)
	Apart(func() error {
		if Use(4); Count() != 4 || runtime.GOMAXPROCS(0) != 4 {
			t.Errorf("%d Ps while a disk is waited for, want 4", runtime.GOMAXPROCS(0))
		}
		Use(0)
		return nil
	})
	if n := runtime.GOMAXPROCS(0); n != 1 {
		t.Errorf("%d Ps by default, want 1", n)
	}
}

// TestEnvironmentWins: GOMAXPROCS in the environment, which the runtime obeys, takes precedence.
func TestEnvironmentWins(t *testing.T) {
	use(t, 1)
	runtime.GOMAXPROCS(3)
	t.Setenv("GOMAXPROCS", "3")
	if Use(1); Count() != 3 || Chosen() != 3 || Fixed() != "3" {
		t.Errorf("%d Ps, want the 3 of the environment", Count())
	}
}

// TestQuota: the smallest quota of a process's group and the groups above it counts, in both
// versions of control groups.
func TestQuota(t *testing.T) {
	for _, test := range []struct {
		name, list string
		files      map[string]string
		want       float64
	}{
		{"version 2", "0::/kubepods/pod1/c\n", map[string]string{"kubepods/pod1/c/cpu.max": "50000 100000\n",
			"kubepods/cpu.max": "max 100000\n"}, 0.5},
		{"a group above has less", "0::/kubepods/pod1/c\n",
			map[string]string{"kubepods/pod1/c/cpu.max": "200000 100000\n", "kubepods/pod1/cpu.max": "150000 100000\n"},
			1.5},
		{"no limit", "0::/a\n", map[string]string{"a/cpu.max": "max 100000\n"}, 0},
		{"a container sees its group at the root", "0::/docker/abc\n", map[string]string{"cpu.max": "25000 100000\n"},
			0.25},
		{"version 1", "5:cpuacct,cpu:/x\n3:memory:/y\n", map[string]string{"cpu/x/cpu.cfs_quota_us": "30000\n",
			"cpu/x/cpu.cfs_period_us": "20000\n"}, 1.5},
		{"version 1 without a limit", "5:cpu:/x\n", map[string]string{"cpu/x/cpu.cfs_quota_us": "-1\n",
			"cpu/x/cpu.cfs_period_us": "100000\n"}, 0},
		{"nonsense", "nonsense\n0::/a\n7\n", map[string]string{"a/cpu.max": "1 0\n", "cpu.max": "-5 x\n"}, 0},
		{"nothing", "", nil, 0},
	} {
		dir := t.TempDir()
		list := filepath.Join(dir, "list")
		need.NoError(t, os.WriteFile(list, []byte(test.list), 0o600))
		mount := filepath.Join(dir, "mount")
		for name, text := range test.files {
			file := filepath.Join(mount, name)
			need.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
			need.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		}
		if got := readQuota(list, mount); got != test.want {
			t.Errorf("%s: %v CPUs, want %v", test.name, got, test.want)
		}
	}
	if a := Allowed(); a.CPUs != runtime.NumCPU() || a.Most() < 1 || a.Most() > a.CPUs {
		t.Errorf("this process may use %+v", a)
	}
	for want, a := range map[string]Allowance{
		"8 CPUs": {CPUs: 8}, "1 CPU": {CPUs: 1}, "2 CPUs, 0.5 of them by the quota of the control group": {CPUs: 2,
			Quota: 0.5},
	} {
		if a.String() != want {
			t.Errorf("%+v is %q, want %q", a, a, want)
		}
	}
	for most, a := range map[int]Allowance{1: {CPUs: 2, Quota: 0.5}, 2: {CPUs: 8, Quota: 1.5},
		4: {CPUs: 4, Quota: 16}} {
		if a.Most() != most {
			t.Errorf("%+v leaves %d Ps something to do, want %d", a, a.Most(), most)
		}
	}
}

// TestUsed: computing uses CPU time.
func TestUsed(t *testing.T) {
	before := Used()
	for Used() == before { // until a tick of the clock at the latest
	}
}
