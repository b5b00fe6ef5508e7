package integration

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// servesWithin is how soon after its start a node serves without the API server. The best of
// several starts counts, so that the pauses of a busy machine do not.
const servesWithin = 100 * time.Millisecond

// TestKubeTakeOver: a node process under Kubernetes takes over from another one, then from one that
// was killed while the API server is away. What a process that ends leaves behind depends on
// whether its DaemonSet is still there.
func TestKubeTakeOver(t *testing.T) {
	isolated(t, func(t *testing.T) {
		l := newKubeTakeOverLab(t)
		stream := l.stream(l.out, "tcp", "172.18.0.2:30011")
		l.takesOverTwice(stream)
		l.startsWithoutAPIServer(stream)
		l.followsAgain()
		l.leavesForNext()
		l.leavesNothing()
	}, kubernetes)
}

// A kubeTakeOverLab is a kubeAnnounceLab in which the first node alone serves a Service.
type kubeTakeOverLab struct {
	*kubeAnnounceLab
	config string   // the node's
	flags  []string // the node's
}

func newKubeTakeOverLab(t *testing.T) *kubeTakeOverLab {
	t.Helper()
	l := &kubeTakeOverLab{kubeAnnounceLab: newKubeAnnounceLab(t)}
	l.shop("pa")
	l.join(l.n1)
	l.config, l.flags = l.given(l.n1,
		"services: {pods: [10.244.0.0/16], serviceCIDRs: [10.96.0.0/16], announce: [172.18.0.77/32], state: "+
			filepath.Join(l.states, "n1")+"}\n")
	l.says(l.n1, takesOver, 1)
	return l
}

// startNode starts another process on the node.
func (l *kubeTakeOverLab) startNode(more ...string) {
	l.nodes["n1"] = l.n1.start(nil, os.Getenv(binaryEnv),
		append(append([]string{"node", "--config", l.config}, l.flags...), more...)...)
}

// takesOverTwice: a process takes over from another one, twice. No connection is lost or waits, and
// the Lease is held all the time.
func (l *kubeTakeOverLab) takesOverTwice(stream *serviceStream) {
	l.Helper()
	stop := l.connectAndWatchLease()
	for range 2 {
		before := l.nodes["n1"]
		l.startNode("--takeover")
		<-before.ended
		if code := before.cmd.ProcessState.ExitCode(); code != 0 || !strings.Contains(before.output(),
			"another process serves") {
			l.Errorf("the former process exits with %d, want 0 and a message that another one serves:\n%s", code,
				before.output())
		}
		l.says(l.n1, takesOver, 1)
		if err := stream.alive(); err != nil {
			l.Error(err)
		}
	}
	stop()
	if n := l.repeated.Load(); n > 0 {
		l.Errorf("%d connections needed a second SYN-ACK, want none", n)
	}
}

// connectAndWatchLease opens connections to the Service, one after the other, and requires after
// each that the node's Lease is held, until stop is called.
func (l *kubeTakeOverLab) connectAndWatchLease() (stop func()) {
	ctx, cancel := context.WithCancel(l.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := l.connect(l.out, "172.18.0.2:30011"); err != nil {
				l.Error(err)
			}
			if _, held, err := l.lease(l.n1); err != nil || !held {
				l.Errorf("the Lease is held: %t (%v)", held, err)
			}
		}
	}()
	return func() { cancel(); <-done }
}

// startsWithoutAPIServer: the process is killed while the API server is away. The next one serves
// the same Services at once, and the connection goes on.
func (l *kubeTakeOverLab) startsWithoutAPIServer(stream *serviceStream) {
	l.Helper()
	saved := filepath.Join(l.states, "n1", "culvert1", "services")
	eventually(l.T, "the Services on disk", func() error {
		if text, err := os.ReadFile(saved); err != nil || !strings.Contains(string(text), "default/shop:http") {
			return errNotYet
		}
		return nil
	})
	l.lan.ip("link set api down")
	shortest := time.Hour
	for range 5 {
		l.end(l.n1, unix.SIGKILL)
		began := time.Now()
		l.startNode("--takeover")
		eventually(l.T, "an answer without the API server", func() error {
			return l.out.do(func() error {
				conn, err := net.DialTimeout("tcp", "172.18.0.2:30011", 10*time.Millisecond)
				if err != nil {
					return errNotYet
				}
				return conn.Close()
			})
		})
		took := time.Since(began)
		l.Logf("without the API server, a new process serves %v after its start", took.Round(time.Millisecond))
		shortest = min(shortest, took)
		l.says(l.n1, "the Services of the previous run are served until the API server answers", 1)
		if err := stream.alive(); err != nil {
			l.Error(err)
		}
	}
	if shortest > servesWithin {
		l.Errorf("a new process serves after %v at best, want at most %v", shortest, servesWithin)
	}
}

// followsAgain: when the API server is back, the node follows changes of the Service.
func (l *kubeTakeOverLab) followsAgain() {
	l.Helper()
	l.lan.ip("link set api up")
	l.shopAt("pc")
	eventually(l.T, "the new endpoint", func() error {
		if who, _, err := l.ask(l.out, "tcp", "172.18.0.2:30011"); err != nil || who != "pc" {
			return errNotYet
		}
		return nil
	})
}

// ends stops the process, and returns what it has said, and the node's rules and links.
func (l *kubeTakeOverLab) ends() (output, rules string) {
	l.Helper()
	p := l.nodes["n1"]
	p.cmd.Process.Signal(unix.SIGTERM)
	<-p.ended
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		l.Errorf("the process exits with %d, want 0:\n%s", code, p.output())
	}
	return p.output(), l.n1.run("ip", "rule") + l.n1.run("ip", "-br", "link")
}

// leavesForNext: when its pod restarts, a process leaves everything to the next one.
func (l *kubeTakeOverLab) leavesForNext() {
	l.Helper()
	if said, rules := l.ends(); !strings.Contains(said, "everything stays for the next process") ||
		!strings.Contains(rules, "culvert1") {
		l.Errorf("when its pod restarts, rules and links are\n%s\nwant culvert1 to stay; the process said\n%s",
			rules, said)
	}
	l.startNode()
	l.says(l.n1, takesOver, 1)
}

// leavesNothing: when its DaemonSet is deleted, a process removes everything.
func (l *kubeTakeOverLab) leavesNothing() {
	l.Helper()
	need.NoError(l, l.api.admin.delete(object{"apiVersion": "apps/v1", "kind": "DaemonSet",
		"metadata": object{"namespace": "kube-system", "name": "culvert-node"}}))
	if said, rules := l.ends(); !strings.Contains(said, "removed with the DaemonSet") ||
		strings.Contains(rules, "culvert") {
		l.Errorf("when its DaemonSet is deleted, rules and links are\n%s\nwant nothing of culvert; the process said\n%s",
			rules, said)
	}
}
