package gateway

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"culvert/gateway/config"
	"culvert/gateway/seats"
	"culvert/gateway/wg"
)

// TestLiqoMetrics: a gateway under Liqo has the names, labels and bounds of Liqo's own; another has none of them.
func TestLiqoMetrics(t *testing.T) {
	const peer = `{driver="wireguard",cluster_id="milan"}`
	p := newPair(t, func(rome, _ *config.Config) {
		rome.Metrics, rome.LiqoMetrics, rome.ConnectionCheck = "127.0.0.1:0", true, config.LiqoConnectionCheck
	})
	for deadline := time.After(20 * time.Second); p.rome.Connection().State != CheckConnected; {
		select {
		case <-deadline:
			t.Fatalf("%+v", p.rome.Connection())
		case <-time.After(time.Millisecond):
		}
	}
	_, page := getFrom(t, "127.0.0.1", p.rome.metrics.listener.Addr(), "/metrics")
	for _, want := range []string{
		"liqo_peer_is_connected" + peer + " 1", "# TYPE liqo_peer_receive_bytes_total counter", "liqo_peer_receive_bytes_total" + peer, "liqo_peer_transmit_bytes_total" + peer,
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
	if _, err := promlint.New(strings.NewReader(page)).Lint(); err != nil { // its units are not Prometheus'
		t.Errorf("Prometheus does not take it: %v", err)
	}
	if text := string(p.milan.metricsPage(seats.New(nil), 0)); strings.Contains(text, "liqo_") {
		t.Error("Liqo's names without Liqo")
	}
}

// TestLatencyHistogram: each answer counts in the buckets that it is within, and the sum is that of all.
func TestLatencyHistogram(t *testing.T) {
	c := newTestCheck()
	now := checkStart
	for _, rtt := range []time.Duration{time.Millisecond, 10 * time.Millisecond, 11 * time.Millisecond, time.Second} {
		ping, _ := c.tick(now, true)
		if _, ok := c.receive(pong(t, ping, time.UTC), now.Add(rtt)); !ok {
			t.Fatalf("an answer after %v is not taken", rtt)
		}
		now = now.Add(checkConfig.Interval)
	}
	found, page := c.found(), new(page)
	page.liqo("milan", &wg.PeerStats{}, &found)
	for _, want := range []string{
		`bucket{driver="wireguard",cluster_id="milan",le="10000"} 2`, `bucket{driver="wireguard",cluster_id="milan",le="15000"} 3`,
		`bucket{driver="wireguard",cluster_id="milan",le="299992"} 3`, `bucket{driver="wireguard",cluster_id="milan",le="+Inf"} 4`,
		`sum{driver="wireguard",cluster_id="milan"} 1.022e+06`, `count{driver="wireguard",cluster_id="milan"} 4`,
		`liqo_peer_latency_us{driver="wireguard",cluster_id="milan"} 1e+06`, `liqo_peer_is_connected{driver="wireguard",cluster_id="milan"} 1`,
	} {
		if !strings.Contains(page.text.String(), want+"\n") {
			t.Errorf("no line ends with %s:\n%s", want, &page.text)
		}
	}
	page.text.Reset()
	c.begin(testCheckConfig(), now)
	found = c.found()
	page.liqo("milan", &wg.PeerStats{}, &found)
	if text := page.text.String(); strings.Contains(text, "liqo_peer_latency_us") || !strings.Contains(text, `is_connected{driver="wireguard",cluster_id="milan"} 0`) {
		t.Errorf("of a peer that does not answer:\n%s", text)
	}
}
