package inspect

import (
	"testing"
	"time"

	"culvert/gateway/monitor"
	"culvert/nat"
)

// TestLegMetrics: the paths to the peer and to each node have metrics of their own; one without
// answers has no round trip time.
func TestLegMetrics(t *testing.T) {
	p := new(page)
	p.legs("milan", map[string]nat.Link{"rome-1": 1, "rome-2": 2}, func(l nat.Link) monitor.Traffic {
		return map[nat.Link]monitor.Traffic{nat.Tunnel: {RTT: 20 * time.Millisecond, All: 7}, 1: {RTT: time.Millisecond,
			All: 60, AllMissed: 3}, 2: {All: 9, AllMissed: 8}}[l]
	})
	const want = `# HELP culvert_leg_rtt_seconds Time to a node or the peer and back, of the last request that was answered; absent while none of the last few was.
# TYPE culvert_leg_rtt_seconds gauge
culvert_leg_rtt_seconds{kind="peer",of="milan"} 0.02
culvert_leg_rtt_seconds{kind="node",of="rome-1"} 0.001
# HELP culvert_leg_requests_total Requests by which a way there and back is measured: ARP to a node; to the peer the connection check, or else pings while there is traffic.
# TYPE culvert_leg_requests_total counter
culvert_leg_requests_total{kind="peer",of="milan"} 7
culvert_leg_requests_total{kind="node",of="rome-1"} 60
culvert_leg_requests_total{kind="node",of="rome-2"} 9
# HELP culvert_leg_requests_lost_total Of the requests by which a way is measured, those without answer when the next one was sent.
# TYPE culvert_leg_requests_lost_total counter
culvert_leg_requests_lost_total{kind="peer",of="milan"} 0
culvert_leg_requests_lost_total{kind="node",of="rome-1"} 3
culvert_leg_requests_lost_total{kind="node",of="rome-2"} 8
`
	if got := p.Text.String(); got != want {
		t.Errorf("got\n%s", got)
	}
}
