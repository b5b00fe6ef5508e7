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

// TestKubeTakeOver: a node process under Kubernetes takes over from another one. No connection is
// lost or waits, and the Lease is held all the time. Then the process is killed while the API
// server is away: the next one serves the same Services at once, and follows their changes when the
// API server is back.
func TestKubeTakeOver(t *testing.T) {
	isolated(t, func(t *testing.T) {
		l := newKubeAnnounceLab(t)
		l.shop("pa")
		l.join(l.n1)
		file, flags := l.given(l.n1,
			"services: {pods: [10.244.0.0/16], serviceCIDRs: [10.96.0.0/16], announce: [172.18.0.77/32], state: "+
				filepath.Join(l.states, "n1")+"}\n")
		start := func(more ...string) {
			l.nodes["n1"] = l.n1.start(nil, os.Getenv(binaryEnv),
				append(append([]string{"node", "--config", file}, flags...), more...)...)
		}
		l.says(l.n1, "this node answers for an address", 1)
		stream := l.stream(l.out, "tcp", "172.18.0.2:30011")
		clients, stop := context.WithCancel(t.Context())
		asked := make(chan error)
		go func() {
			for clients.Err() == nil {
				if err := l.connect(l.out, "172.18.0.2:30011"); err != nil {
					t.Error(err)
				}
				if _, held, err := l.lease(l.n1); err != nil || !held {
					t.Errorf("the Lease is held: %t (%v)", held, err)
				}
			}
			close(asked)
		}()
		for range 2 {
			before := l.nodes["n1"]
			start("--takeover")
			<-before.ended
			if code := before.cmd.ProcessState.ExitCode(); code != 0 || !strings.Contains(before.output(),
				"another process serves") {
				t.Errorf("the former process exits with %d, want 0 and a message that another one serves:\n%s", code,
					before.output())
			}
			l.says(l.n1, "this node answers for an address", 1)
			if err := stream.alive(); err != nil {
				t.Error(err)
			}
		}
		stop()
		<-asked
		if n := l.repeated.Load(); n > 0 {
			t.Errorf("%d connections needed a second SYN-ACK, want none", n)
		}

		saved := filepath.Join(l.states, "n1", "culvert1", "services")
		eventually(t, "the Services on disk", func() error {
			if text, err := os.ReadFile(saved); err != nil || !strings.Contains(string(text), "default/shop:http") {
				return errNotYet
			}
			return nil
		})
		l.lan.ip("link set api down")
		shortest := time.Hour
		for range 5 {
			l.nodes["n1"].cmd.Process.Signal(unix.SIGKILL)
			<-l.nodes["n1"].ended
			began := time.Now()
			start("--takeover")
			eventually(t, "an answer without the API server", func() error {
				return l.out.do(func() error {
					conn, err := net.DialTimeout("tcp", "172.18.0.2:30011", 10*time.Millisecond)
					if err != nil {
						return errNotYet
					}
					return conn.Close()
				})
			})
			took := time.Since(began)
			t.Logf("without the API server, a new process serves %v after its start", took.Round(time.Millisecond))
			shortest = min(shortest, took)
			l.says(l.n1, "the Services of the previous run are served until the API server answers", 1)
			if err := stream.alive(); err != nil {
				t.Error(err)
			}
		}
		if shortest > servesWithin {
			t.Errorf("a new process serves after %v at best, want at most %v", shortest, servesWithin)
		}
		l.lan.ip("link set api up")
		l.shopAt("pc")
		eventually(t, "the new endpoint", func() error {
			if who, _, err := l.ask(l.out, "tcp", "172.18.0.2:30011"); err != nil || who != "pc" {
				return errNotYet
			}
			return nil
		})

		ends := func() (output, rules string) {
			p := l.nodes["n1"]
			p.cmd.Process.Signal(unix.SIGTERM)
			<-p.ended
			if code := p.cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("the process exits with %d, want 0:\n%s", code, p.output())
			}
			return p.output(), l.n1.run("ip", "rule") + l.n1.run("ip", "-br", "link")
		}
		if said, rules := ends(); !strings.Contains(said, "everything stays for the next process") ||
			!strings.Contains(rules, "culvert1") {
			t.Errorf("when its pod restarts, rules and links are\n%s\nwant culvert1 to stay; the process said\n%s",
				rules, said)
		}
		start()
		l.says(l.n1, "this node answers for an address", 1)
		need.NoError(t, l.api.admin.delete(object{"apiVersion": "apps/v1", "kind": "DaemonSet",
			"metadata": object{"namespace": "kube-system", "name": "culvert-node"}}))
		if said, rules := ends(); !strings.Contains(said, "removed with the DaemonSet") ||
			strings.Contains(rules, "culvert") {
			t.Errorf(
				"when its DaemonSet is deleted, rules and links are\n%s\nwant nothing of culvert; the process said\n%s",
				rules, said)
		}
	}, kubernetes)
}
