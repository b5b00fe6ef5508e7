package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/gateway/procs"
	"culvert/integration/need"
)

const (
	cpuSaid     = 15 * time.Second // how soon a finding must appear, and how soon it must end
	cpuGroupEnv = "CULVERT_PEER_CPU_GROUP"
	cpuPeriod   = 100 * time.Millisecond
)

// needQuota makes a group with a CPU quota, which exists until the end of the test. It skips the
// test where that is impossible.
func needQuota(t *testing.T, cpus float64) *controlGroup {
	t.Helper()
	g, err := newQuota(fmt.Sprintf("culvert-%s-%d", t.Name(), os.Getpid()), cpus)
	need.Kernel(t, "cpu-cgroup", err)
	t.Cleanup(func() {
		if err := g.remove(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func newQuota(name string, cpus float64) (*controlGroup, error) {
	parent, unified, err := groupController("cpu")
	if err != nil {
		return nil, err
	}
	g := &controlGroup{filepath.Join(parent, name), unified}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, err
	}
	period, most := strconv.FormatInt(cpuPeriod.Microseconds(), 10),
		strconv.FormatFloat(cpus*float64(cpuPeriod.Microseconds()), 'f', 0, 64)
	set := func(file, text string) {
		err = errors.Join(err, os.WriteFile(filepath.Join(g.dir, file), []byte(text), 0))
	}
	if unified {
		set("cpu.max", most+" "+period)
	} else {
		set("cpu.cfs_period_us", period)
		set("cpu.cfs_quota_us", most)
	}
	if err != nil {
		return nil, errors.Join(err, g.remove())
	}
	return g, nil
}

// openQuota opens the group that needQuota made, in the process inside the namespaces.
func openQuota(dir string) *controlGroup {
	_, err := os.Stat(filepath.Join(dir, "cpu.max"))
	return &controlGroup{dir: dir, unified: err == nil}
}

// loadOfNode returns a flood of trains from rome's node to its gateway, as a fast network card
// would send it.
func (c *clusters) loadOfNode(rate int) *flood {
	pod, peer := always(10, 0, 1, 5), always(10, 61, 1, 5)
	fill := vxlanFrames(romeVNI, nodeMAC(c.romeNode), unix.IPPROTO_UDP, pod, peer)
	var one []byte // of one connection
	return &flood{name: "the node", from: c.romeNode, to: "172.18.0.9:6091", size: 8 + 14 + 20 + 8 + 64, train: true,
		rate: rate, fill: func(b []byte) {
			if one == nil {
				fill(b)
				one = append(one, b...)
				copy(one[8+14+20:], []byte{0, 9, 0, 9})
			}
			if b[8+14+20+1] != 9 {
				copy(b, one)
			}
		}}
}

// tooFast is a rate that no gateway can carry on one CPU.
const tooFast = 20_000_000

// during runs the flood until do returns, with precedence over everything else on the machine.
func (f *flood) during(t *testing.T, do func()) {
	t.Helper()
	end, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock
		if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20); err != nil {
			ended <- err
			return
		}
		for {
			select {
			case <-end:
				ended <- nil
				return
			default:
			}
			now := time.Now()
			if err := f.run(now, now.Add(100*time.Millisecond)); err != nil {
				ended <- err
				return
			}
		}
	}()
	do()
	close(end)
	need.NoError(t, <-ended)
}

// saysOf waits for a log line with a cause and returns it.
func saysOf(t *testing.T, p *peerProcess, cause string) (line string) {
	t.Helper()
	eventuallyWithin(t, cpuSaid, cause, func() error {
		for l := range strings.Lines(p.output()) {
			if strings.Contains(l, "cause="+cause) {
				line = l
				return nil
			}
		}
		return errors.New("the log does not say it")
	})
	return line
}

// faultMetric reports whether the metrics show a cause.
func (c *clusters) faultMetric(t *testing.T, cause string) bool {
	t.Helper()
	page, err := c.romeGateway.get("/metrics")
	need.NoError(t, err)
	return strings.Contains(page, fmt.Sprintf("\nculvert_fault{cause=%q,of=\"milan\"} 1\n", cause))
}

// expectCause floods rome's gateway until it has reported a cause, and waits until it has reported
// the end of it.
func (c *clusters) expectCause(t *testing.T, cause string, words ...string) {
	t.Helper()
	began := time.Now()
	c.loadOfNode(tooFast).during(t, func() {
		line := saysOf(t, c.romeCulvert, cause)
		t.Logf("after %v: %s", time.Since(began).Round(100*time.Millisecond), line)
		for _, w := range append(words, " packets from nodes were lost") {
			if !strings.Contains(line, w) {
				t.Errorf("the log lacks %q: %s", w, line)
			}
		}
		if !c.faultMetric(t, cause) {
			t.Errorf("no metric culvert_fault of %s", cause)
		}
	})
	began = time.Now()
	t.Logf("%v after the load: %s", time.Since(began).Round(100*time.Millisecond),
		saysOf(t, c.romeCulvert, "cpu-restored"))
	if c.faultMetric(t, cause) {
		t.Errorf("the metric culvert_fault of %s stays", cause)
	}
}

// quietPeer stops milan's gateway, which would use a CPU. It does not matter that nobody reads what
// rome's gateway sends.
func (c *clusters) quietPeer(t *testing.T) {
	t.Helper()
	pingThrough(c.romePod, milanPodAtRome)
	need.NoError(t, c.milanCulvert.cmd.Process.Signal(unix.SIGSTOP))
	t.Cleanup(func() { c.milanCulvert.cmd.Process.Signal(unix.SIGCONT) }) // a stopped process could not obey SIGTERM
}

// TestCPUQuota gives a gateway half a CPU and more packets than that can carry. Within 15 s the
// gateway must name the quota, and within 15 s of the end of the load say that it is over.
func TestCPUQuota(t *testing.T) {
	need.Long(t, "a flood that half a CPU does not carry needs a CPU of its own")
	if os.Getenv(isolatedEnv) != t.Name() {
		t.Setenv(cpuGroupEnv, needQuota(t, 0.5).dir)
	}
	isolated(t, func(t *testing.T) {
		c := newMilan(t)
		c.romeGateway.group = openQuota(os.Getenv(cpuGroupEnv))
		c.addRome()
		c.quietPeer(t)
		c.expectCause(t, "cpu-quota", "quota of 0.5 CPUs", "raise the quota")
	}, programs("ping", "ping"))
}

// TestCPUProcs: at 90 % of the load that it can carry, a gateway on one P says nothing. With more,
// it says within 15 s that a second P may help.
func TestCPUProcs(t *testing.T) {
	need.Long(t, "a gateway at 90 % of its load for 25 s")
	isolated(t, func(t *testing.T) {
		if a := procs.Allowed(); a.Most() < 2 {
			need.Kernel(t, "two-cpus", fmt.Errorf("this process may use %v: %w", a, errors.ErrUnsupported))
		}
		c := newVXLANClusters(t)
		c.quietPeer(t)
		first(t, c.romeCulvert.cmd.Process.Pid)
		const forwarded = `culvert_forwarded_packets_total{direction="outbound"}`
		var packets, used float64
		c.loadOfNode(tooFast).during(t, func() {
			time.Sleep(time.Second) // the load lasts a second
			packets, used = c.romeGateway.metric(forwarded), cpuTime(t, c.romeCulvert.cmd.Process.Pid).Seconds()
			time.Sleep(3 * time.Second) // the load lasts three seconds
			packets, used = c.romeGateway.metric(forwarded)-packets,
				cpuTime(t, c.romeCulvert.cmd.Process.Pid).Seconds()-used
		})
		carries := packets / used
		t.Logf("one P carries %.0f packets a second", carries)
		c.loadOfNode(int(0.9*carries)).during(t, func() {
			const while = 25 * time.Second
			before := cpuTime(t, c.romeCulvert.cmd.Process.Pid)
			for began := time.Now(); time.Since(began) < while; time.Sleep(time.Second) { // the load goes on meanwhile
				if said := c.romeCulvert.output(); strings.Contains(said, "cause=cpu-") {
					t.Fatalf("after %v at 90 %%: %s", time.Since(began).Round(100*time.Millisecond), said)
				}
			}
			t.Logf("at 90 %% it uses %.0f %% of a CPU", 100*(cpuTime(t, c.romeCulvert.cmd.Process.Pid)-before).
				Seconds()/while.Seconds())
		})
		c.expectCause(t, "cpu-procs", "write cpus: 2")
	}, programs("ping", "ping"))
}

// first gives all threads of a process precedence over other processes.
func first(t *testing.T, pid int) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	need.NoError(t, err)
	for _, thread := range threads {
		id, _ := strconv.Atoi(filepath.Base(thread))
		need.NoError(t, unix.Setpriority(unix.PRIO_PROCESS, id, -20))
	}
}

const cpuNodeConfig = `
name: rome-1
underlay: 172.18.0.2
gateway: {underlay: 172.18.0.9, address: 10.80.0.4}
vni: 7340033
address: 10.80.0.2
mtu: 1340
mode: tun
routes: [10.61.0.0/16, 10.71.0.0/16]
services:
  addresses: [172.18.0.2]
  pods: [10.0.0.0/16]
  serviceCIDRs: [10.96.0.0/16]
  mtu: 1340
  metrics: 127.0.0.1:8083
  serve: [{name: far, protocol: udp, clusterIP: 10.96.0.10, port: 9, endpoints: [{address: 10.61.1.5, port: 9}]}]
`

// TestCPUNode gives a node a tenth of a CPU while its pod sends more than that can carry. The node
// must name the quota in its log, metrics and status, and say when it is over.
func TestCPUNode(t *testing.T) {
	need.Long(t, "as of TestCPUQuota")
	if os.Getenv(isolatedEnv) != t.Name() {
		t.Setenv(cpuGroupEnv, needQuota(t, 0.1).dir)
	}
	isolated(t, func(t *testing.T) {
		c := newMilan(t)
		c.newRomeNode()
		join(c.romeGateway, c.romeNode, "172.18.0.9/24", "172.18.0.2/24", 1500)
		connectPod(c.romeNode, c.romePod)
		c.startRome()
		c.romeNode.group = openQuota(os.Getenv(cpuGroupEnv))
		file := filepath.Join(t.TempDir(), "node.yaml")
		need.NoError(t, os.WriteFile(file, []byte(cpuNodeConfig), 0o600))
		node := c.romeNode.start(nil, os.Getenv(binaryEnv), "node", "--config", file)
		c.romeNode.group = nil
		pingThrough(c.romePod, milanPodAtRome)
		const cause = "cpu-quota"
		ofPod := &flood{name: "the pod", from: c.romePod, to: "10.96.0.10:9", size: 64, rate: tooFast,
			fill: func([]byte) {}}
		ofPod.during(t, func() {
			line := saysOf(t, node, cause)
			t.Log(line)
			for _, w := range []string{"quota of 0.1 CPUs", " packets from this node by culvert", "were lost",
				"raise the quota"} {
				if !strings.Contains(line, w) {
					t.Errorf("the log lacks %q", w)
				}
			}
			if page, err := c.romeNode.getFrom("127.0.0.1:8083", "/metrics"); err != nil ||
				!strings.Contains(page, "\nculvert_fault{cause=\"cpu-quota\",of=\"rome-1\"} 1\n") {
				t.Errorf("metrics: %v\n%s", err, nonZero(page))
			}
			if said := c.romeNode.run(os.Getenv(binaryEnv), "status"); !strings.Contains(
				strings.Join(strings.Fields(said), " "), "warning: Go code has used") {
				t.Errorf("status:\n%s", said)
			}
		})
		t.Log(saysOf(t, node, "cpu-restored"))
	}, programs("ping", "ping"))
}
