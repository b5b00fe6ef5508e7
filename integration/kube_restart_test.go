package integration

import (
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/kube/template"
)

// kubeState is where the template mounts the volume for data that outlive a container.
const kubeState = "/var/lib/culvert"

// keepsState returns the flag by which the template makes a gateway keep its state, on a volume
// that exists as long as the pod, not the container. The Deployment must never run two pods at
// once.
func keepsState(t *testing.T, server bool) (flag string) {
	t.Helper()
	made, _, err := template.From(template.Default(server, "liqo", liqoNamespace), "registry.invalid/culvert:1", 1)
	need.NoError(t, err)
	deployment := field(made, "spec", "template", "spec", "deployment", "spec").(object)
	pod := field(deployment, "template", "spec").(object)
	container := pod["containers"].([]any)[0].(object)
	if flag = "--state=" + kubeState; !slices.Contains(container["args"].([]any), any(flag)) {
		t.Fatalf("no %s in %q", flag, container["args"])
	}
	for _, m := range container["volumeMounts"].([]any) {
		for _, v := range pod["volumes"].([]any) {
			if m, v := m.(object), v.(object); m["mountPath"] == kubeState && m["name"] == v["name"] &&
				m["readOnly"] == nil && v["emptyDir"] != nil {
				if how := field(deployment, "strategy", "type"); how != "Recreate" {
					t.Fatalf("strategy %v", how)
				}
				return flag
			}
		}
	}
	t.Fatalf("no volume of the pod at %s", kubeState)
	return ""
}

// testKubeRestart ends the container of rome's gateway, and starts another in the same pod. Two
// connections of nodes come from one address and one port, so the gateway changes the port of one:
// the far end can still speak first on both.
func testKubeRestart(t *testing.T, rome, milan *kubeLab) {
	const source = 20404 // the kernel assigns no ports below 32768
	flag := keepsState(t, rome.mode == "server")
	volume := t.TempDir()
	if err := os.Chmod(volume, 0o777); err != nil { // as kubelet makes one
		t.Fatal(err)
	}
	start := func(more ...string) {
		t.Helper()
		rome.ready(rome.startLiqoGateway(unprivilegedUID, unprivilegedUID, more...))
	}
	rome.culvert.stop()
	rome.gatewayHost.volume = volume
	defer func() {
		rome.culvert.stop()
		rome.gatewayHost.volume = ""
		start()
	}()
	start(flag)
	rome.culvert.requireConfined(t, unprivilegedUID, unprivilegedUID)
	rome.connected()

	pod := milan.pod(&kubeNodes[0], 5)
	l, err := milan.pods[0].listen("tcp4", net.JoinHostPort(pod, exchangePort))
	need.NoError(t, err)
	defer l.Close()
	var near, far []net.Conn
	var seen []string
	for _, node := range rome.nodes {
		var conn net.Conn
		err := node.do(func() error {
			d := net.Dialer{Timeout: startTimeout, LocalAddr: &net.TCPAddr{Port: source}}
			conn, err = d.Dial("tcp4", net.JoinHostPort(milan.seen(pod), exchangePort))
			return err
		})
		need.NoError(t, err)
		defer conn.Close()
		accepted, err := l.Accept()
		need.NoError(t, err)
		defer accepted.Close()
		near, far, seen = append(near, conn), append(far, accepted), append(seen, accepted.RemoteAddr().String())
	}
	own := fmt.Sprintf("%s:%d", rome.seen(rome.unknown()), source)
	if seen[0] != own || seen[1] == own || !strings.HasPrefix(seen[1], rome.seen(rome.unknown())+":") {
		t.Fatalf("the far end sees %q, want %s and another port", seen, own)
	}
	for _, end := range []struct {
		name string
		do   func()
	}{
		{"SIGTERM", func() { rome.culvert.stop() }}, // whichever runs
		{"SIGKILL", func() { rome.culvert.cmd.Process.Kill(); <-rome.culvert.ended }},
	} {
		began := time.Now()
		end.do()
		start(flag)
		for i, conn := range far {
			said := fmt.Sprintf("%s %d", end.name, i)
			if _, err := conn.Write([]byte(said)); err != nil {
				t.Fatalf("%s: %v", said, err)
			}
			heard := make([]byte, len(said))
			near[i].SetDeadline(time.Now().Add(startTimeout))
			if _, err := io.ReadFull(near[i], heard); err != nil || string(heard) != said {
				t.Fatalf("the client receives %q, want %q (%v)", heard, said, err)
			}
		}
		t.Logf("%s: both heard within %v", end.name, time.Since(began).Round(time.Millisecond))
	}
}
