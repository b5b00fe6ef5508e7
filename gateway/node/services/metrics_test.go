//go:build !nokube

package services

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"culvert/gateway/node/page"
	"culvert/gateway/node/services/announce"
	"culvert/gateway/node/services/steer"
	"culvert/integration/need"
	"culvert/nat/nattest"
)

// The page counts what has happened, under valid Prometheus names, and the health check names the
// fault.
func TestMetrics(t *testing.T) {
	upLoopback(t)
	s, _ := keeping(t, "")
	s.mu.Lock()
	s.steering, s.announcer = &steer.Steering{Made: 7}, announce.New(0, s.log)
	s.mu.Unlock()
	connect(t, s, 4000, nattest.SYN)
	p, err := page.New("services.metrics", "127.0.0.1:0", nil, s.metrics, s.broken)
	need.NoError(t, err)
	defer p.Close()
	go p.Serve()
	listener, _ := p.Socket()
	address := listener.Addr().String()
	get := func(path string) (int, string) {
		t.Helper()
		r, err := http.Get("http://" + address + path)
		need.NoError(t, err)
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		need.NoError(t, err)
		return r.StatusCode, string(text)
	}
	_, text := get("/metrics")
	if problems, err := promlint.New(strings.NewReader(text)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
	for _, want := range []string{"culvert_services 2\n", "culvert_connections 1\n",
		"culvert_forwarded_packets_total 1\n", "culvert_steering_changes_total 7\n",
		"culvert_announcements_total 0\n",
		"culvert_dropped_packets_total{reason=\"no-backend\"} 0\n",
		"culvert_connections_removed_total{reason=\"expired\"} 0\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if code, text := get("/healthz"); code != http.StatusOK {
		t.Errorf("healthy: %d %s", code, text)
	}
	fault := "somebody has them"
	s.fault.Store(&fault)
	if code, text := get("/healthz"); code != http.StatusServiceUnavailable || !strings.Contains(text, fault) {
		t.Errorf("not healthy: %d %s", code, text)
	}
	if _, err := page.New("services.metrics", address, nil, s.metrics, s.broken); err == nil ||
		!strings.Contains(err.Error(), "services.metrics") || !strings.Contains(err.Error(), "in use") {
		t.Errorf("an address that is taken: %v", err)
	}
}
