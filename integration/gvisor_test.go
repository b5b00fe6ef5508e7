package integration

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"culvert/integration/lab"
	"culvert/integration/lab/check"
	"culvert/integration/need"
)

// gvisorGaps are the checks that fail with the gateways in gVisor, each because of something gVisor
// lacks. All others pass.
var gvisorGaps = map[string]struct{ says, reason string }{
	"outer ecn": {"outer TOS 0x0 around 0xb9, want 0x1",
		"its UDP sockets take IP_TOS with a datagram and do not send it"},
	"socket offloads": {" is 0, the kernel has 1", "its UDP sockets have neither UDP_GRO nor UDP_SEGMENT"},
}

// runscEnv names the runsc to test with; make test-gvisor builds one.
const runscEnv = "RUNSC"

// needGVisor skips the test where gVisor cannot run. It returns the flags with which lab check uses
// gVisor, and the gateways' groups.
func needGVisor(t *testing.T) (flags []string, groups *gatewayGroups) {
	t.Helper()
	needPrograms(t, []probe{{"gvisor", func(testing.TB) error {
		if os.Getenv(runscEnv) == "" {
			return errors.New(runscEnv + " names no runsc; see make test-gvisor")
		}
		out, err := need.Command(t, os.Getenv(runscEnv), "--version").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}}, programs("busybox", "busybox")})
	groups = needGatewayGroups(t)
	return []string{"--runsc", os.Getenv(runscEnv), "--runsc-groups", groups.path}, groups
}

// gatewayGroups are control groups that each gateway's sandbox joins.
type gatewayGroups struct {
	path   string // as runsc wants it, without -rome and -milan
	memory map[string]*memoryGroup
}

// needGatewayGroups makes a group of limited memory for each gateway until the
// test ends.
func needGatewayGroups(t *testing.T) *gatewayGroups {
	t.Helper()
	name := fmt.Sprintf("culvert-%s-%d", strings.ReplaceAll(t.Name(), "/", "-"), os.Getpid())
	g := &gatewayGroups{memory: make(map[string]*memoryGroup)}
	for _, cluster := range []string{"rome", "milan"} {
		m := needMemoryGroupNamed(t, name+"-"+cluster, lab.SandboxMemory)
		// runsc takes the path as relative to this process's group in each version 1 hierarchy, and
		// as absolute in version 2.
		g.path = strings.TrimSuffix(filepath.Base(m.dir), "-"+cluster)
		if m.unified {
			g.path = strings.TrimPrefix(filepath.Join(filepath.Dir(m.dir), g.path), "/sys/fs/cgroup")
		}
		g.memory[cluster] = m
	}
	t.Cleanup(func() { // removes groups that runsc made and could not remove
		for _, dir := range g.others(t) {
			if err := (&controlGroup{dir: dir}).remove(); err != nil {
				t.Error(err)
			}
		}
	})
	return g
}

// others returns the groups that runsc made beside those of memory: in version 1 there is a
// hierarchy for each controller.
func (g *gatewayGroups) others(t *testing.T) (dirs []string) {
	own, err := os.ReadFile("/proc/self/cgroup")
	need.NoError(t, err)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	need.NoError(t, err)
	for line := range strings.Lines(string(own)) {
		controller, _, _ := strings.Cut(strings.SplitN(line, ":", 3)[1], ",")
		m := controllerMount(string(mounts), "cgroup", controller)
		if controller == "" || controller == "memory" || m == nil {
			continue
		}
		found, err := filepath.Glob(filepath.Join(m.folder(string(own), controller), g.path+"-*"))
		need.NoError(t, err)
		dirs = append(dirs, found...)
	}
	return dirs
}

// TestGVisor runs the labs' checks with both gateways in gVisor, each in a control
// group of its own.
func TestGVisor(t *testing.T) {
	u := newLabUser(t)
	u.need("root", "vxlan")
	flags, groups := needGVisor(t)
	failed := make(map[string]bool)
	count, err := u.results(func(t *testing.T, r *check.Result) {
		gap, known := gvisorGaps[r.Check]
		switch {
		case r.OK && known:
			t.Errorf("passes (%s), but is listed: %s", r.Figure, gap.reason)
		case r.OK:
			t.Log(r.Figure)
		case known && strings.Contains(r.Error, gap.says):
			failed[r.Check] = true
			t.Logf("%s; gVisor: %s", r.Error, gap.reason)
		default:
			t.Errorf("%s: %s", r.Lab, r.Error)
		}
	}, append(flags, "ipv4", "--mode", "vxlan", "--offloads", "on")...)
	if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("lab check: %v, want exit status 1 for what gVisor does not have", err)
	}
	for check := range gvisorGaps {
		if !failed[check] {
			t.Errorf("no check %q has failed as listed", check)
		}
	}
	const atLeast = 75
	if count < atLeast {
		t.Errorf("%d checks, want %d or more", count, atLeast)
	}
	for cluster, g := range groups.memory {
		use := g.use(t)
		t.Logf("%s: %v", cluster, use)
		if use.killed != 0 || use.peak == 0 {
			t.Errorf("%s: %v, want some memory used and nobody killed", cluster, use)
		}
	}
	if left := groups.others(t); len(left) > 0 {
		t.Errorf("groups are left: %v", left)
	}
	if t.Failed() {
		u.logs()
	}
	if out, status := u.run("down"); status != 0 {
		t.Errorf("lab down: status %d: %s", status, out)
	}
	u.requireNothingLeft()
}

// TestGVisorKilled kills a process of a lab in gVisor, which then cannot clean up. None of its
// processes may survive: needGatewayGroups removes the groups, which works only once they are
// empty.
func TestGVisorKilled(t *testing.T) {
	for _, test := range []struct {
		name   string
		victim func(*labUser, *gatewayGroups) int
	}{
		{"the holder", func(u *labUser, _ *gatewayGroups) int { return u.holder() }},
		{"runsc", func(u *labUser, _ *gatewayGroups) int { return u.find(" run --bundle=") }},
		// as the kernel does when memory runs out
		{"the sandbox", func(u *labUser, g *gatewayGroups) int { return g.sandbox(u.t) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			u := newLabUser(t)
			u.need("root", "vxlan")
			flags, groups := needGVisor(t)
			cmd, out, said := u.start(append([]string{"check", "--mode", "vxlan", "--offloads", "on"}, flags...)...)
			lines := bufio.NewScanner(out)
			begun := false
			for !begun && lines.Scan() {
				begun = strings.HasPrefix(lines.Text(), "ok   first contact")
			}
			if !begun {
				t.Fatalf("lab check: %v: %s", cmd.Wait(), said)
			}
			need.NoError(t, syscall.Kill(test.victim(u, groups), syscall.SIGKILL))
			for lines.Scan() {
				if strings.HasPrefix(lines.Text(), "FAIL") { // because of the kill; more labs would follow
					cmd.Process.Signal(os.Interrupt)
				}
			}
			if err := cmd.Wait(); err == nil {
				t.Error("lab check passed")
			}
			if out, status := u.run("down"); status != 0 {
				t.Errorf("lab down: status %d: %s", status, out)
			}
			u.requireNothingLeft()
		})
	}
}

// sandbox returns the process that is gVisor's kernel for rome's gateway.
func (g *gatewayGroups) sandbox(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(g.memory["rome"].dir, "cgroup.procs"))
	need.NoError(t, err)
	for _, pid := range strings.Fields(string(text)) {
		line, _ := os.ReadFile("/proc/" + pid + "/cmdline")
		if n, err := strconv.Atoi(pid); err == nil && bytes.HasPrefix(line, []byte("runsc-sandbox\x00")) {
			return n
		}
	}
	t.Fatalf("no runsc-sandbox among %q", text)
	return 0
}

// TestGVisorVersion: runsc is built from the version that culvert is.
func TestGVisorVersion(t *testing.T) {
	version := func(file string) string {
		text, err := os.ReadFile(file)
		need.NoError(t, err)
		m := regexp.MustCompile(`(?m)^\s*gvisor\.dev/gvisor (v\S+)`).FindSubmatch(text)
		if m == nil {
			t.Fatalf("no gvisor.dev/gvisor in %s", file)
		}
		return string(m[1])
	}
	if ours, runsc := version("../go.mod"), version("gvisor/go.mod"); ours != runsc {
		t.Errorf("culvert requires gVisor %s, runsc is built from %s", ours, runsc)
	}
}
