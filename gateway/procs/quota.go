package procs

import (
	"fmt"
	"math"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
)

// An Allowance says how much of the machine's CPUs this process may use.
type Allowance struct {
	CPUs  int     // CPUs on which its threads may run (sched_getaffinity(2))
	Quota float64 // CPUs that its control group may use on average; 0 = no limit
}

// Allowed reads the Allowance of this process.
func Allowed() Allowance {
	return Allowance{CPUs: runtime.NumCPU(), Quota: readQuota("/proc/self/cgroup", "/sys/fs/cgroup")}
}

// Most returns the highest number of Ps that the Allowance can keep busy.
func (a Allowance) Most() int {
	if a.Quota == 0 {
		return a.CPUs
	}
	return min(a.CPUs, int(math.Ceil(a.Quota)))
}

func (a Allowance) String() string {
	s := fmt.Sprintf("%d CPUs", a.CPUs)
	if a.CPUs == 1 {
		s = "1 CPU"
	}
	if a.Quota > 0 {
		s += fmt.Sprintf(", %.4g of them by the quota of the control group", a.Quota)
	}
	return s
}

// readQuota returns the smallest quota of a process's control group and those above it, 0 for none.
// list is /proc/PID/cgroup (cgroups(7)), mount where the hierarchies are mounted. A container
// without a cgroup namespace sees its own group at the root of the mount, and nothing at the path
// in list; so missing files are skipped.
func readQuota(list, mount string) (smallest float64) {
	b, _ := os.ReadFile(list)
	for line := range strings.Lines(string(b)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3) // hierarchy:controllers:path
		if len(fields) != 3 {
			continue
		}
		top, read := mount, readCPUMax
		if fields[0] != "0" { // version 1
			if !strings.Contains(","+fields[1]+",", ",cpu,") {
				continue
			}
			top, read = path.Join(mount, "cpu"), readCFSQuota
		}
		for group := path.Join("/", fields[2]); ; group = path.Dir(group) {
			if q := read(path.Join(top, group)); q > 0 && (smallest == 0 || q < smallest) {
				smallest = q
			}
			if group == "/" {
				break
			}
		}
	}
	return smallest
}

// readCPUMax reads "MAX PERIOD" in microseconds, or "max PERIOD" (Linux,
// Documentation/admin-guide/cgroup-v2.rst, CPU Interface Files).
func readCPUMax(group string) float64 {
	b, _ := os.ReadFile(path.Join(group, "cpu.max"))
	most, period, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
	return share(most, period)
}

// readCFSQuota reads version 1, where -1 is no limit (Linux,
// Documentation/scheduler/sched-bwc.rst).
func readCFSQuota(group string) float64 {
	most, _ := os.ReadFile(path.Join(group, "cpu.cfs_quota_us"))
	period, _ := os.ReadFile(path.Join(group, "cpu.cfs_period_us"))
	return share(strings.TrimSpace(string(most)), strings.TrimSpace(string(period)))
}

func share(most, period string) float64 {
	m, err := strconv.ParseFloat(most, 64)
	p, err2 := strconv.ParseFloat(period, 64)
	if err != nil || err2 != nil || m <= 0 || p <= 0 || math.IsInf(m/p, 0) || math.IsNaN(m/p) {
		return 0
	}
	return m / p
}
