//go:build !nokube

package main

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"culvert/cmd/internal/cli"
	"culvert/integration/need"
)

// TestLiqoBadInput: all faults of flags and of the kubeconfig are reported at once.
func TestLiqoBadInput(t *testing.T) {
	for _, tt := range []struct {
		args  string
		lines []string
	}{
		{"--liqo --name=n --namespace=s --remote-cluster-id=r --gateway-uid=u --node-name=k --mode=x --keys-dir=/nowhere",
			[]string{"--mode: ", "--keys-dir: ", "--kubeconfig: missing, and this is no pod"}},
		{"--liqo --config x --check", []string{"--check, --config: not with --liqo"}},
		{"--name=n --mtu=1400", []string{"--mtu, --name: only with --liqo"}},
	} {
		out, diag, status := run(t, append([]string{"gateway"}, strings.Fields(tt.args)...)...)
		lines := strings.Split(strings.TrimSpace(diag), "\n")
		if status != cli.ExitBadInput || out != "" || len(lines) != len(tt.lines) {
			t.Errorf("%s: status %d, %s", tt.args, status, diag)
			continue
		}
		for i, want := range tt.lines {
			if !strings.HasPrefix(lines[i], "culvert: "+want) {
				t.Errorf("%s: %q, want %q", tt.args, lines[i], want)
			}
		}
	}
}

// emptyAPI is an API server that has every kind and no resource. It forbids PublicKeys for as long
// as it is told to.
func emptyAPI(t *testing.T, forbid *atomic.Bool) (kubeconfig string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/publickeies") && forbid.Load():
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w,
				`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403}`)
		case r.URL.Query().Get("watch") != "":
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			fmt.Fprint(w,
				`{"kind": "List", "apiVersion": "networking.liqo.io/v1beta1", "metadata": {"resourceVersion": "1"}, "items": []}`)
		}
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
		clusters: [{name: c, cluster: {server: %q}}], users: [{name: u, user: {}}]}`, server.URL)
	need.NoError(t, os.WriteFile(kubeconfig, []byte(text), 0o600))
	return kubeconfig
}

// TestLiqoReadiness: a gateway without the right to list is alive but not ready, and logs the
// reason once. When it gets the right, it is ready, even if there is no resource at all.
func TestLiqoReadiness(t *testing.T) {
	var forbid atomic.Bool
	forbid.Store(true)
	kubeconfig := emptyAPI(t, &forbid)
	health := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	cmd := culvert("gateway", "--liqo", "--name=milan", "--namespace=liqo-tenant-milan", "--remote-cluster-id=milan",
		"--gateway-uid=u", "--node-name=rome-1",
		"--mode=server", "--keys-dir="+keysDir(t), "--kubeconfig="+kubeconfig, "--health-probe-bind-address="+health,
		fmt.Sprintf("--listen-port=%d", freePort(t)), fmt.Sprintf("--geneve-port=%d", freePort(t)))
	diag, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	need.NoError(t, err)
	kill := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer kill.Stop()
	lines := bufio.NewScanner(diag)
	said := ""
	await := func(want ...string) {
		t.Helper()
		for {
			missing := false
			for _, w := range want {
				missing = missing || !strings.Contains(said, w)
			}
			if !missing {
				return
			}
			if !lines.Scan() {
				t.Fatalf("it did not say %q:\n%s", want, said)
			}
			said += lines.Text() + "\n"
		}
	}
	status := func(path string) int {
		t.Helper()
		r, err := http.Get("http://" + health + path)
		need.NoError(t, err)
		r.Body.Close()
		return r.StatusCode
	}
	await("gateway running", "resource=publickeies verb=list")
	if live, ready, metrics := status("/healthz"), status("/readyz"), status("/metrics"); live != 200 || ready != 503 ||
		metrics != 404 {
		t.Errorf("forbidden: healthz %d, readyz %d, metrics %d", live, ready, metrics)
	}
	forbid.Store(false)
	await("all resources are known")
	need.Eventually(t, time.Minute, "readiness", func() error {
		if ready := status("/readyz"); ready != 200 {
			return fmt.Errorf("readyz %d", ready)
		}
		return nil
	})
	if n := strings.Count(said, "request to the API server failed"); n != 1 {
		t.Errorf("it said %d times why it is not ready:\n%s", n, said)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	await("stopping")
	for lines.Scan() {
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}
