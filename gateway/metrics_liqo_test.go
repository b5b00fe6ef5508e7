package gateway

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"culvert/gateway/config"
	"culvert/gateway/monitor"
	"culvert/gateway/seats"
)

// TestLiqoMetrics: a gateway under Liqo has the names, labels and bounds of Liqo's own metrics; any
// other has none of them.
func TestLiqoMetrics(t *testing.T) {
	const peer = `{driver="wireguard",cluster_id="milan"}`
	p := newPair(t, func(rome, _ *config.Config) {
		rome.Metrics, rome.Liqo, rome.ConnectionCheck = "127.0.0.1:0", true, config.LiqoConnectionCheck
	})
	for deadline := time.After(20 * time.Second); p.rome.Connection().State != monitor.CheckConnected; {
		select {
		case <-deadline:
			t.Fatalf("%+v", p.rome.Connection())
		case <-time.After(time.Millisecond):
		}
	}
	_, page := getFrom(t, "127.0.0.1", p.rome.metrics.Listener.Addr(), "/metrics")
	for _, want := range []string{
		"liqo_peer_is_connected" + peer + " 1", "# TYPE liqo_peer_receive_bytes_total counter",
		"liqo_peer_receive_bytes_total" + peer, "liqo_peer_transmit_bytes_total" + peer,
		"liqo_peer_latency_us" + peer, "# TYPE liqo_peer_latency_histogram_us histogram",
		`liqo_peer_latency_histogram_us_bucket{driver="wireguard",cluster_id="milan",le="10000"} `,
		`liqo_peer_latency_histogram_us_bucket{driver="wireguard",cluster_id="milan",le="299992"} `,
		`liqo_peer_latency_histogram_us_bucket{driver="wireguard",cluster_id="milan",le="+Inf"} `,
		"liqo_peer_latency_histogram_us_count" + peer, "liqo_peer_latency_histogram_us_sum" + peer,
		`liqo_wireguard_implementation{driver="wireguard",implementation="userspace"} 1`, "culvert_check_connected",
	} {
		if !strings.Contains(page, "\n"+want) {
			t.Errorf("no line %s", want)
		}
	}
	if _, err := promlint.New(strings.NewReader(page)).Lint(); err != nil { // its units do not follow Prometheus' rules
		t.Errorf("Prometheus does not take it: %v", err)
	}
	if text := string(p.milan.inspect.Metrics(seats.New(nil), 0)); strings.Contains(text, "liqo_") {
		t.Error("Liqo's names without Liqo")
	}
}
