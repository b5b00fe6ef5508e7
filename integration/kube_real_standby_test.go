package integration

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"culvert/integration/need"
)

const (
	realTalks = 500 // of each kind, half of them in each direction
	// The bounds of docs/standby.md, with the times of an election without Liqo: 5, 3 and 1 s.
	realHandover = 2 * time.Second // 1 s, and 1 s until nodes follow: kube-proxy's minSyncPeriod
	realKilled   = 5*time.Second + 2*22*time.Second/10 + 2*time.Second
)

// A realGateway is the gateway of a Peering in a cluster.
type realGateway struct {
	*realLab
	cluster, peer string
	standIn       bool // the peer is a stand-in, which does not answer checks
}

func (g *realGateway) peering(path string) string {
	g.t.Helper()
	return g.kubectl(g.cluster, "-n", "culvert", "get", "peering", g.peer, "-o", "jsonpath={"+path+"}")
}

func (g *realGateway) active() string { g.t.Helper(); return g.peering(".status.active.pod") }

// pods returns the names of its pods that are not being deleted.
func (g *realGateway) pods() []string {
	g.t.Helper()
	return strings.Fields(g.kubectl(g.cluster, "-n", "culvert", "get", "pods", "-l", "culvert.io/peering="+g.peer,
		"-o", `go-template={{range .items}}{{if not .metadata.deletionTimestamp}}{{.metadata.name}} {{end}}{{end}}`))
}

// settle waits until n pods are ready, and all but the active one have a copy.
func (g *realGateway) settle(n int) {
	g.t.Helper()
	eventuallyWithin(g.t, 3*time.Minute, g.cluster+" has its gateways", func() error {
		ready := g.kubectl(g.cluster, "-n", "culvert", "get", "deployment", "culvert-"+g.peer, "-o",
			"jsonpath={.status.readyReplicas} {.status.replicas}")
		if want := fmt.Sprintf("%d %d", n, n); ready != want {
			return fmt.Errorf("%s of %s", ready, want)
		}
		if reason := g.peering(`.status.conditions[?(@.type=="StandbyReady")].reason`); n > 1 && reason != "FullCopy" {
			return fmt.Errorf("standby: %s", reason)
		}
		if status := g.peering(`.status.conditions[?(@.type=="Connected")].status`); status != "True" && !g.standIn {
			return fmt.Errorf("connected: %s", status)
		}
		return nil
	})
}

// copied describes how many connections each pod holds, beginning with the active one.
func (g *realGateway) copied() (all string) {
	g.t.Helper()
	active := g.active()
	for _, pod := range g.pods() {
		page, err := g.pod(g.cluster, "culvert/"+pod).getFrom("127.0.0.1:8082", "/metrics")
		need.NoError(g.t, err)
		_, rest, _ := strings.Cut(page, "\nculvert_connections ")
		n, _, _ := strings.Cut(rest, "\n")
		if pod == active {
			all = n + " connections" + all
		} else {
			all += ", " + n + " at a standby"
		}
	}
	return all
}

// signal sends a signal to the process of the active pod, and waits until it has ended.
func (g *realGateway) signal(s syscall.Signal) {
	g.t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(g.script("process", g.cluster, "culvert/"+g.active())))
	need.NoError(g.t, err)
	need.NoError(g.t, syscall.Kill(pid, s))
	eventually(g.t, "the process ends", func() error {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && !strings.Contains(string(status), ") Z ") {
			return errNotYet
		}
		return nil
	})
}

// awaitTerm waits until the Lease has another term, and so another holder.
func (g *realGateway) awaitTerm(term int) {
	g.t.Helper()
	eventually(g.t, "another pod has the Lease", func() error {
		if g.term() == term {
			return errNotYet
		}
		return nil
	})
}

// moveTo moves the active pod to a node: the next standby can run only there, and takes over when
// the active pod is deleted.
func (g *realGateway) moveTo(node string, n int) {
	g.t.Helper()
	k := func(args ...string) string { g.t.Helper(); return g.kubectl(g.cluster, args...) }
	k("cordon", g.cluster+"-1", g.cluster+"-2")
	active := g.active()
	for _, pod := range g.pods() {
		if pod != active {
			k("-n", "culvert", "delete", "pod", pod)
		}
	}
	g.settle(n)
	k("uncordon", g.cluster+"-1", g.cluster+"-2")
	k("-n", "culvert", "delete", "pod", active)
	eventuallyWithin(g.t, kubeStartTimeout, "the gateway is at "+node, func() error {
		if at := g.peering(".status.active.node"); at != node {
			return fmt.Errorf("it is at %s", at)
		}
		return nil
	})
	g.settle(n)
}

// cut cuts off the active pod from the API server and from the other pods until heal is called.
func (g *realGateway) cut() (heal func()) {
	g.t.Helper()
	active := g.active()
	from := g.kubectl(g.cluster, "-n", "default", "get", "endpoints", "kubernetes", "-o",
		"jsonpath={.subsets[0].addresses[0].ip}") + ", 10.96.0.1"
	for _, pod := range g.pods() {
		if pod != active {
			from += ", " + g.kubectl(g.cluster, "-n", "culvert", "get", "pod", pod, "-o", "jsonpath={.status.podIP}")
		}
	}
	host := g.pod(g.cluster, "culvert/"+active)
	host.feed(
		fmt.Sprintf("table ip cut { chain output { type filter hook output priority 0; meta l4proto tcp ip daddr { %[1]s } drop; }; "+
			"chain input { type filter hook input priority 0; meta l4proto tcp ip saddr { %[1]s } drop; }; }\n", from),
		"nft", "-f", "-")
	return func() { host.run("nft", "delete", "table", "ip", "cut") }
}

// away stops a cluster's API server for a time.
func (g *realGateway) away(long time.Duration) {
	g.t.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir, g.cluster, "apiserver.pid"))
	need.NoError(g.t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	need.NoError(g.t, err)
	syscall.Kill(pid, syscall.SIGSTOP)
	gone := time.NewTimer(long)
	<-gone.C
	syscall.Kill(pid, syscall.SIGCONT)
	eventuallyWithin(g.t, kubeStartTimeout, "the API server is back", func() error {
		_, err := g.command("shell", "kubectl", "--context", g.cluster, "get", "--raw", "/readyz").Output()
		return err
	})
}

// A realEvent is what happens to the active pod of a gateway.
type realEvent struct {
	name     string
	bound    time.Duration // limits the pause, with a standby
	make     func(g *realGateway) (undo func())
	most     int  // limits the switches
	replicas bool // makes sense only with a standby
}

var realEvents = []realEvent{
	{"SIGTERM", realHandover, func(g *realGateway) func() { g.signal(syscall.SIGTERM); return nil }, 2, false},
	{"deleted pod", realHandover, func(g *realGateway) func() {
		g.kubectl(g.cluster, "-n", "culvert", "delete", "pod", g.active())
		return nil
	}, 1, false},
	{"rolling update", realHandover, func(g *realGateway) func() {
		before := g.pods()
		g.kubectl(g.cluster, "-n", "culvert", "rollout", "restart", "deployment", "culvert-"+g.peer)
		g.kubectl(g.cluster, append([]string{"-n", "culvert", "wait", "--for=delete", "--timeout=120s", "pod"},
			before...)...)
		return nil
	}, 2, false},
	{"SIGKILL", realKilled, func(g *realGateway) func() { g.signal(syscall.SIGKILL); return nil }, 1, false},
	{"API server away for 60 s", time.Second / 2, func(g *realGateway) func() { g.away(time.Minute); return nil }, 0,
		false},
	{"cut off, but for the peer", realKilled, func(g *realGateway) func() {
		term := g.term()
		heal := g.cut()
		g.awaitTerm(term)
		return heal
	}, 1, true},
	{"the node vanishes", realKilled, func(g *realGateway) func() {
		lan, port := g.host("lan", "/run/netns/cv-lan"), g.cluster+"-3"
		lan.run("ip", "link", "set", port, "down")
		return func() { lan.run("ip", "link", "set", port, "up") }
	}, 1, true},
}

// talks opens n connections of each kind between both clusters in each direction. Connections of
// both nodes have the same source ports, so that the gateway has to change the port of one of each
// two.
func (l *realLab) talks(replicas, n int) *talks {
	l.t.Helper()
	f := newTalks(l.t)
	imported := map[string]string{"rome": l.exported("milan", "rome", "ClusterIP", replicas),
		"milan": l.exported("rome", "milan", "NodePort", replicas)}
	l.listen(f.accept)
	for i, from := range realNames {
		to := realNames[1-i]
		entry := "172.30.0." + map[string]string{"rome": "12", "milan": "22"}[from] + ":" + l.nodePort(from,
			l.seen(from, to, "hello-2"))
		nodes := []*peerHost{l.node(from + "-1"), l.node(from + "-2")}
		first, second, lan := l.pod(from, "default/hello-1"), l.pod(from, "default/hello-2"),
			l.host("lan", "/run/netns/cv-lan")
		pod1, pod2 := l.seen(from, to, "hello-1")+":"+realPort, l.seen(from, to, "hello-2")+":"+realPort
		f.add(talkWay{podToPod, n, func(int) (net.Conn, error) {
			return first.dialWithin(5*time.Second, "tcp4", pod2)
		}})
		f.add(talkWay{byNodePort, n, func(int) (net.Conn, error) {
			return lan.dialWithin(5*time.Second, "tcp4", entry)
		}})
		f.add(talkWay{byExport, n, func(int) (net.Conn, error) {
			return second.dialWithin(5*time.Second, "tcp4", imported[from])
		}})
		again := map[int]int{} // further attempts, each with another port
		f.add(talkWay{fromNode, n, func(i int) (conn net.Conn, err error) {
			d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{Port: 20000 + again[i]*n + i/2}}
			again[i]++
			err = nodes[i%2].do(func() error { conn, err = d.Dial("tcp4", pod1); return err })
			return conn, err
		}})
	}
	return f
}

// term returns how often the active pod has changed.
func (g *realGateway) term() int {
	g.t.Helper()
	text := g.peering(".status.active.term")
	n, err := strconv.Atoi(text)
	if err != nil && text != "" { // without an election
		g.t.Fatal(err)
	}
	return n
}

// runEvents makes every event happen to the active one of n pods of a gateway, beside talks and
// datagrams.
func (g *realGateway) runEvents(n int, f *talks, watches []*pathWatch) {
	t := g.t
	pause := func(what string) (longest time.Duration) {
		for _, w := range watches {
			longest = max(longest, w.pause(t, what))
		}
		return longest
	}
	g.settle(n)
	f.said("undisturbed", f.count())
	t.Logf("undisturbed: the path pauses for %v", pause("nothing"))
	for _, e := range realEvents {
		if e.replicas && n == 1 {
			continue
		}
		if e.name == "the node vanishes" {
			g.moveTo(g.cluster+"-3", n)
			f.count()
			pause(e.name)
		}
		t.Logf("before %s: %s", e.name, g.copied())
		term := g.term()
		undo := e.make(g)
		by := f.count()
		dark := pause(e.name)
		lost := f.said(e.name, by)
		if undo != nil {
			undo()
		}
		g.settle(n)
		switches := g.term() - term
		t.Logf("%-28s the path pauses for %v, bound %v; %d switches", e.name, dark.Round(10*time.Millisecond),
			e.bound, switches)
		if n > 1 && (lost > 0 || dark > e.bound || switches > e.most) {
			t.Errorf("%s: %d connections lost, want none; a pause of %v, want at most %v; %d switches, want at most %d",
				e.name, lost, dark, e.bound, switches, e.most)
		}
		again := f.count()
		if lost := f.said(e.name+", after", again); n > 1 && lost > 0 {
			t.Errorf("after %s: %d connections lost, want none", e.name, lost)
		}
		pause(e.name + ", after")
	}
}

// testRealStandby joins two clusters, and makes every event happen to the active pod of the gateway
// of one of them.
func testRealStandby(t *testing.T, cluster string, replicas int) {
	need.Long(t, "2,000 connections beside switches")
	isolated(t, func(t *testing.T) {
		l := newRealLab(t)
		l.must("join", "--image="+realImage, "--yes", "--replicas="+strconv.Itoa(replicas), inBoth[0], inBoth[1])
		l.script("node", cluster, "3")
		peer := map[string]string{"rome": "milan", "milan": "rome"}[cluster]
		f := l.talks(replicas, realTalks/2)
		(&realGateway{realLab: l, cluster: peer, peer: cluster}).settle(replicas)
		(&realGateway{realLab: l, cluster: cluster, peer: peer}).runEvents(replicas, f, []*pathWatch{
			watchPath(t, l.pod("milan", "default/hello-2"), ":5301", l.pod("rome", "default/hello-1"),
				l.seen("rome", "milan", "hello-2")+":5301"),
			watchPath(t, l.pod("rome", "default/hello-2"), ":5301", l.pod("milan", "default/hello-1"),
				l.seen("milan", "rome", "hello-2")+":5301"),
		})
	}, kubernetes, realClusters)
}

// TestKubeClustersStandby: events of the active one of two pods of a gateway that is a Client.
func TestKubeClustersStandby(t *testing.T) { testRealStandby(t, "rome", 2) }

// TestKubeClustersStandbyServer is the same for a Server, which is reached through a NodePort.
func TestKubeClustersStandbyServer(t *testing.T) { testRealStandby(t, "milan", 2) }

// TestKubeClustersAlone and TestKubeClustersAloneServer measure what the same events cost without a
// standby.
func TestKubeClustersAlone(t *testing.T)       { testRealStandby(t, "rome", 1) }
func TestKubeClustersAloneServer(t *testing.T) { testRealStandby(t, "milan", 1) }
