package integration

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// kubeProxyItself probes for kube-proxy as clusters run it, which sets the kernel's timeouts.
var kubeProxyItself = probe{"kubernetes", func(testing.TB) error {
	_, err := os.Stat(filepath.Join(os.Getenv(kubeAssetsEnv), "kube-proxy"))
	return err
}}

// TestKubeHalfClosed has culvert on one node and kube-proxy on another one of the same API server.
// A client sends its request, closes its direction and waits; the server reads to the end, and
// answers once the connection has been seen in conntrack, in make long 75 seconds after that. Both
// nodes bring the answer to clients on the node, in a pod and outside. docs/services.md says which
// timeouts kube-proxy sets.
func TestKubeHalfClosed(t *testing.T) {
	isolated(t, func(t *testing.T) {
		var late time.Duration
		if os.Getenv(longEnv) != "" {
			late = 75 * time.Second // more than the kernel's own minute
		}
		l := newKubeAnnounceLab(t)
		seen := make(chan struct{})
		l.b.accept(t, "tcp", "[::]:8081", func(conn net.Conn) {
			if request, err := io.ReadAll(conn); err == nil {
				<-seen
				time.Sleep(late) // not synchronisation: this is the server's work
				fmt.Fprintf(conn, "answer to %s", request)
			}
		})
		l.apply(object{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": "slow",
			"namespace": "default"},
			"spec": object{"type": "NodePort", "clusterIP": "10.96.0.30",
				"ports": []object{{"name": "tcp", "port": 80, "nodePort": 30030, "protocol": "TCP"}}}})
		l.apply(object{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
			"metadata": object{"name": "slow-1", "namespace": "default",
				"labels": object{"kubernetes.io/service-name": "slow"}},
			"ports":     []object{{"name": "tcp", "port": 8081, "protocol": "TCP"}},
			"endpoints": []object{{"addresses": []string{serviceAddresses["pb"][0]}, "nodeName": "n2"}}})
		l.startKubeProxyItself()
		l.join(l.n1)
		ways := []struct {
			from *peerHost
			node string
			to   string
		}{
			{l.n1, "culvert", "10.96.0.30:80"}, {l.c, "culvert", "10.96.0.30:80"},
			{l.out, "culvert", "172.18.0.2:30030"},
			{l.n2, "kube-proxy", "10.96.0.30:80"}, {l.b, "kube-proxy", "10.96.0.30:80"},
			{l.out, "kube-proxy", "172.18.0.3:30030"},
		}
		answers := make(chan error, len(ways))
		for _, w := range ways {
			var conn net.Conn
			eventually(t, w.node+" serves "+w.to, func() (err error) {
				conn, err = w.from.dialWithin(2*time.Second, "tcp4", w.to)
				return err
			})
			go func() {
				defer conn.Close()
				conn.SetDeadline(time.Now().Add(startTimeout + late + askPatience))
				_, err := conn.Write([]byte(w.node))
				answer, e := []byte(nil), error(nil)
				if err = errors.Join(err, conn.(*net.TCPConn).CloseWrite()); err == nil {
					answer, e = io.ReadAll(conn)
				}
				if err = errors.Join(err, e); err != nil || string(answer) != "answer to "+w.node {
					err = fmt.Errorf("%s, %s asks %s: %q %v after %v", w.node, w.from.name, w.to, answer, err, late)
				}
				answers <- err
			}()
		}
		await(t, "a half-closed connection of kube-proxy's node", func() (halfClosed bool) {
			need.NoError(t, l.n2.do(func() error {
				flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.InetFamily(unix.AF_INET))
				for _, f := range flows {
					if f.Forward.DstPort == 30030 && f.Forward.DstIP.String() == "172.18.0.3" &&
						f.Reverse.SrcPort == 8081 {
						halfClosed = f.TimeOut > 3000 && f.TimeOut <= 3600
					}
				}
				return err
			}))
			return halfClosed
		})
		close(seen)
		for range ways {
			if err := <-answers; err != nil {
				t.Error(err)
			}
		}
		l.timeoutsAsInDocs()
	}, kubernetes, kubeProxyItself)
}

// timeoutsAsInDocs compares the table in docs/services.md with kube-proxy's node.
func (l *kubeAnnounceLab) timeoutsAsInDocs() {
	l.Helper()
	text, err := os.ReadFile("../docs/services.md")
	need.NoError(l, err)
	seconds := regexp.MustCompile("(?m)^\\| `(nf_conntrack_[a-z_]+)` \\|[^|]*\\| ([0-9]+) s")
	all := seconds.FindAllStringSubmatch(string(text), -1)
	if len(all) < 10 {
		l.Fatalf("docs/services.md has only %d timeouts", len(all))
	}
	for _, row := range all {
		if is := strings.TrimSpace(l.n2.run("cat", "/proc/sys/net/netfilter/"+row[1])); is != row[2] {
			l.Errorf("%s: docs/services.md says %s s beside kube-proxy, the node has %s", row[1], row[2], is)
		}
	}
}
