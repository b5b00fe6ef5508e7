package inspect

import (
	"strings"
	"testing"
	"time"

	"culvert/gateway/monitor"
	"culvert/gateway/wg"
)

// TestLatencyHistogram: each bucket counts the answers within its bound, and the sum covers all.
func TestLatencyHistogram(t *testing.T) {
	found, page := monitor.CheckStatus{State: monitor.CheckConnected, RTTSum: 1022 * time.Millisecond}, new(page)
	found.RTT = time.Second
	found.RTTs[0], found.RTTs[1], found.RTTs[len(monitor.RTTBounds)] = 2, 1, 1
	page.liqo("milan", &wg.PeerStats{}, &found)
	for _, want := range []string{
		`bucket{driver="wireguard",cluster_id="milan",le="10000"} 2`,
		`bucket{driver="wireguard",cluster_id="milan",le="15000"} 3`,
		`bucket{driver="wireguard",cluster_id="milan",le="299992"} 3`,
		`bucket{driver="wireguard",cluster_id="milan",le="+Inf"} 4`,
		`sum{driver="wireguard",cluster_id="milan"} 1.022e+06`, `count{driver="wireguard",cluster_id="milan"} 4`,
		`liqo_peer_latency_us{driver="wireguard",cluster_id="milan"} 1e+06`,
		`liqo_peer_is_connected{driver="wireguard",cluster_id="milan"} 1`,
	} {
		if !strings.Contains(page.Text.String(), want+"\n") {
			t.Errorf("no line ends with %s:\n%s", want, &page.Text)
		}
	}
	page.Text.Reset()
	found.State = monitor.CheckError
	page.liqo("milan", &wg.PeerStats{}, &found)
	if text := page.Text.String(); strings.Contains(text, "liqo_peer_latency_us") ||
		!strings.Contains(text, `is_connected{driver="wireguard",cluster_id="milan"} 0`) {
		t.Errorf("of a peer that does not answer:\n%s", text)
	}
}
