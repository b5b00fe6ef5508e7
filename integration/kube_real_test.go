package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"culvert/integration/need"
)

// nodePrograms are the programs that make kube-nodes builds in addition to etcd and kube-apiserver.
var nodePrograms = []string{"kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"}

// realClusters probes for what clusters.sh needs.
var realClusters = probe{"clusters", func(t testing.TB) error {
	for _, name := range nodePrograms {
		if _, err := os.Stat(filepath.Join(os.Getenv(kubeAssetsEnv), name)); err != nil {
			return fmt.Errorf("%w; see make kube-nodes", err)
		}
	}
	if err := need.Find(t, "bash"); err != nil {
		return err
	}
	if out, err := need.Command(t, "bash", "clusters.sh", "check").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}}

// realLab is two clusters with kubelet, containerd and kube-proxy, two nodes each, that clusters.sh
// has made.
type realLab struct {
	t              *testing.T
	dir            string
	program, image string // the culvert that commands are of, and its image
}

const realImage = "localhost/culvert:1"

var (
	realNames = []string{"rome", "milan"}
	inBoth    = []string{"--context=rome", "--context=milan"}
)

// newRealLab makes the clusters, with a pod on each node and culvert's image. third names a third
// cluster, if any.
func newRealLab(t *testing.T, third ...string) *realLab {
	t.Helper()
	l := &realLab{t, filepath.Join(t.TempDir(), "c"), os.Getenv(binaryEnv), realImage}
	t.Cleanup(func() {
		if _, err := os.Stat(l.dir); err == nil {
			l.script("down")
		}
	})
	l.script("up", third...)
	l.script("load", realImage, l.program)
	for _, name := range realNames {
		l.script("hello", name)
	}
	return l
}

func (l *realLab) command(verb string, args ...string) *exec.Cmd {
	cmd := need.Command(l.t, "bash", append([]string{"clusters.sh", verb, l.dir}, args...)...)
	cmd.Env = append(os.Environ(), "CULVERT="+os.Getenv(binaryEnv))
	return cmd
}

// script runs a verb of clusters.sh, and returns what it prints.
func (l *realLab) script(verb string, args ...string) string {
	l.t.Helper()
	began := time.Now()
	cmd := l.command(verb, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		l.t.Fatalf("clusters.sh %s %q: %v\n%s%s", verb, args, err, out, &said)
	}
	if took := time.Since(began); took > 5*time.Second {
		l.t.Logf("clusters.sh %s: %.1f s", verb, took.Seconds())
	}
	return string(out)
}

// culvert runs a command of culvert.
func (l *realLab) culvert(args ...string) (string, error) {
	l.t.Helper()
	began := time.Now()
	out, err := l.command("shell", append([]string{l.program}, args...)...).CombinedOutput()
	l.t.Logf("culvert %s: %.1f s", args[0], time.Since(began).Seconds())
	return string(out), err
}

// must is culvert, which has to succeed.
func (l *realLab) must(args ...string) string {
	l.t.Helper()
	out, err := l.culvert(args...)
	if err != nil {
		l.t.Fatalf("culvert %q: %v\n%s", args, err, out)
	}
	return out
}

func (l *realLab) kubectl(cluster string, args ...string) string {
	l.t.Helper()
	return l.script("shell", append([]string{"kubectl", "--context", cluster}, args...)...)
}

// apply applies objects to a cluster. It retries while the API server does not know a kind that was
// just defined.
func (l *realLab) apply(cluster, text string) {
	l.t.Helper()
	file := filepath.Join(l.t.TempDir(), "objects.yaml")
	need.NoError(l.t, os.WriteFile(file, []byte(text), 0o600))
	eventuallyWithin(l.t, kubeStartTimeout, cluster+" takes objects", func() error {
		out, err := l.command("shell", "kubectl", "--context", cluster, "apply", "--server-side", "--force-conflicts",
			"-f", file).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// pod is the network of a pod.
func (l *realLab) pod(cluster, name string) *peerHost {
	l.t.Helper()
	return l.host(cluster+"/"+name, "/proc/"+strings.TrimSpace(l.script("process", cluster, name))+"/ns/net")
}

// node is the network of a node such as rome-1.
func (l *realLab) node(name string) *peerHost {
	l.t.Helper()
	return l.host(name, "/run/netns/cv-"+name)
}

func (l *realLab) host(name, path string) *peerHost {
	l.t.Helper()
	ns, err := netns.GetFromPath(path)
	if err != nil {
		l.t.Fatalf("%s: %v", name, err)
	}
	l.t.Cleanup(func() { ns.Close() })
	return &peerHost{t: l.t, name: name, ns: ns}
}

// seen returns the address under which pods of one cluster reach a pod of the other.
func (l *realLab) seen(from, to, pod string) string {
	l.t.Helper()
	remap := l.kubectl(from, "-n", "culvert", "get", "peering", to, "-o", "jsonpath={.spec.remote.podCIDRs[0].remap}")
	own := l.kubectl(to, "get", "pod", pod, "-o", "jsonpath={.status.podIP}")
	r, o := strings.Split(remap, "."), strings.Split(own, ".")
	if len(r) != 4 || len(o) != 4 {
		l.t.Fatalf("%s: remap %q, pod %q", from, remap, own)
	}
	return strings.Join([]string{r[0], r[1], o[2], o[3]}, ".") // both CIDRs are /16
}

// meet waits until pods of both clusters reach a pod on each node of the other cluster.
func (l *realLab) meet() {
	l.t.Helper()
	for i, from := range realNames {
		to := realNames[1-i]
		for _, pod := range []string{"hello-1", "hello-2"} {
			host, address := l.pod(from, "default/"+pod), l.seen(from, to, pod)
			eventuallyWithin(l.t, kubeStartTimeout, host.name+" reaches "+address, func() error {
				_, err := host.try("", "ping", "-c", "1", "-W", "1", address)
				return err
			})
		}
	}
}

// everything lists what a cluster has, except what changes by itself: its objects, and the links,
// addresses, routes, rules and nftables of its nodes.
func (l *realLab) everything(cluster string) (all []string) {
	l.t.Helper()
	kinds := strings.Fields(l.kubectl(cluster, "api-resources", "--verbs=list", "-o", "name"))
	kinds = slices.DeleteFunc(kinds, func(k string) bool {
		return slices.Contains([]string{"events", "events.events.k8s.io", "leases.coordination.k8s.io"}, k)
	})
	out := l.kubectl(cluster, "get", strings.Join(kinds, ","), "-A", "--ignore-not-found", "-o",
		`jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name}{"\n"}{end}`)
	all = strings.Split(out, "\n")
	for _, n := range []string{"1", "2"} {
		host := l.node(cluster + "-" + n)
		for _, command := range []string{"ip -o link", "ip -o -4 address", "ip route show table all", "ip rule",
			"nft list tables", "nft -s list table " + cniTable()} {
			words := strings.Fields(command)
			for line := range strings.Lines(host.run(words[0], words[1:]...)) {
				if strings.Contains(line, "veth") { // of pods, which have other names and numbers when they come again
					continue
				}
				all = append(all, host.name+" "+command+": "+strings.TrimSpace(line))
			}
		}
	}
	return all
}

// atRest lists everything of both clusters, once nothing changes by itself any more: the kernel
// adds routes when its duplicate address detection ends, and controllers add objects to a new
// cluster.
func (l *realLab) atRest() map[string][]string {
	l.t.Helper()
	last := map[string][]string{}
	eventuallyWithin(l.t, kubeStartTimeout, "the clusters come to rest", func() error {
		now := map[string][]string{}
		for _, cluster := range realNames {
			for _, n := range []string{"1", "2"} {
				host := l.node(cluster + "-" + n)
				if out := host.run("ip", "-o", "-6", "address", "show", "tentative"); out != "" {
					return fmt.Errorf("%s: duplicate address detection goes on: %s", host.name, out)
				}
			}
			now[cluster] = l.everything(cluster)
		}
		defer func() { last = now }()
		return alike(last, now)
	})
	return last
}

// alike names what one cluster has in only one of two lists of everything.
func alike(before, after map[string][]string) error {
	var errs []error
	for _, cluster := range realNames {
		for _, x := range after[cluster] {
			if !slices.Contains(before[cluster], x) {
				errs = append(errs, fmt.Errorf("%s has what it did not have before: %s", cluster, x))
			}
		}
		for _, x := range before[cluster] {
			if !slices.Contains(after[cluster], x) {
				errs = append(errs, fmt.Errorf("%s lacks what it had before: %s", cluster, x))
			}
		}
	}
	return errors.Join(errs...)
}

// requireAsBefore waits until both clusters have exactly what they had before. Controllers take
// some time to clean up.
func (l *realLab) requireAsBefore(t *testing.T, before map[string][]string) {
	t.Helper()
	eventuallyWithin(t, kubeStartTimeout, "the clusters are as before", func() error {
		after := map[string][]string{}
		for _, cluster := range realNames {
			after[cluster] = l.everything(cluster)
		}
		return alike(before, after)
	})
}

// TestKubeClusters runs culvert join, verify and leave on two clusters of real nodes with the same
// CIDRs, whose CNI masquerades.
func TestKubeClusters(t *testing.T) {
	isolated(t, func(t *testing.T) {
		l := newRealLab(t)
		l.kubectl("rome", "create", "namespace", "from-milan")
		l.kubectl("milan", "create", "namespace", "from-rome")
		before := l.atRest()
		long := os.Getenv("CULVERT_LONG") != ""
		began := time.Now()
		l.must("join", "--image="+realImage, "--imports=rome=from-milan", "--imports=milan=from-rome", "--yes",
			inBoth[0], inBoth[1])
		l.meet()
		if took := time.Since(began); took > time.Minute {
			t.Errorf("from culvert join until pods reached each other on all ways: %v", took)
		} else {
			t.Logf("from culvert join until pods reached each other on all ways: %.1f s", took.Seconds())
		}
		out := l.must("verify", inBoth[0], inBoth[1])
		if services := regexp.MustCompile(`(?m)^ok .* Service `).FindAllString(out, -1); len(services) != 2 ||
			!strings.Contains(out, "All is well") {
			t.Error(out)
		}
		if out := l.kubectl("rome", "-n", "culvert", "get", "peerings"); !regexp.MustCompile(
			`(?m)^milan +milan +True +[0-9.]+(µs|ms) +2/2 +10\.61\.0\.0/16 *$`).MatchString(out) {
			t.Error(out)
		}
		testRealGather(t, l)
		t.Run("no exception", func(t *testing.T) { testRealNoException(t, l) })
		l.leave(t, before)
		if long {
			t.Run("messages", func(t *testing.T) { testRealMessages(t, l, before) })
			t.Run("template", func(t *testing.T) { testRealTemplate(t, l, before) })
			t.Run("chart", func(t *testing.T) { testRealChart(t, l, before) })
		}
		l.requireRights(t, long)
	}, kubernetes, realClusters)
}

// testRealGather: culvert gather reaches all gateways and agents; pseudonyms leave no name and no
// address of the clusters.
func testRealGather(t *testing.T, l *realLab) {
	file := filepath.Join(t.TempDir(), "fault.tar.gz")
	l.must("gather", inBoth[0], inBoth[1], "--anonymise", "-w", file)
	out := l.must("status", "--from", file)
	if up, answers := strings.Count(out, "\ntunnel       up, "), strings.Count(out, "gateway answers"); up != 2 ||
		answers != 4 {
		t.Errorf("%d gateways are up and %d agents hear theirs, want 2 and 4:\n%s", up, answers, out)
	}
	for _, name := range []string{"rome", "milan", "172.30.0.", "10.244."} {
		if strings.Contains(out, name) {
			t.Errorf("%s is in it:\n%s", name, out)
		}
	}
}

// testRealNoException: culvert verify names a masquerade rule that comes before the exception.
func testRealNoException(t *testing.T, l *realLab) {
	node := l.node("rome-1")
	node.run("nft",
		"add table ip early; add chain ip early post { type nat hook postrouting priority 98; }; add rule ip early post ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade")
	out, err := l.culvert("verify", inBoth[0], inBoth[1])
	if err == nil || !strings.Contains(out,
		"wrong: rome: packets of pods on node rome-1 leave with the node's address") {
		t.Errorf("%v\n%s", err, out)
	}
	node.run("nft", "delete table ip early")
	if out, err := l.culvert("verify", inBoth[0], inBoth[1]); err != nil {
		t.Errorf("after the repair: %v\n%s", err, out)
	}
}

// leave removes culvert from both clusters.
func (l *realLab) leave(t *testing.T, before map[string][]string) {
	t.Helper()
	l.must("leave", "--all", "--yes", inBoth[0], inBoth[1])
	l.requireAsBefore(t, before)
}
