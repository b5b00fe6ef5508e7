package inspect

import (
	"culvert/gateway/monitor"
	"culvert/gateway/prometheus"
	"culvert/gateway/wg"
)

// liqo reports under the names and labels of Liqo's gateway, so that its dashboards and alerts
// still work.
func (p *page) liqo(cluster string, s *wg.PeerStats, found *monitor.CheckStatus) {
	const driver = "wireguard"
	gauges := func(name, help string, value float64) {
		p.Begin(prometheus.Gauge, "liqo_peer_"+name, help, "driver", "cluster_id")
		p.Add(value, driver, cluster)
	}
	p.Begin(prometheus.Gauge, "liqo_wireguard_implementation", "Which WireGuard this is; always 1.", "driver",
		"implementation")
	p.Add(1, driver, "userspace")
	for _, f := range []struct {
		name, help string
		value      uint64
	}{
		{"receive", "Bytes of WireGuard messages received from the peer.", s.Received},
		{"transmit", "Bytes of WireGuard messages sent to the peer.", s.Sent},
	} {
		p.Begin(prometheus.Counter, "liqo_peer_"+f.name+"_bytes_total", f.help, "driver", "cluster_id")
		p.Count(f.value, driver, cluster)
	}
	connected := found.State == monitor.CheckConnected || found.State == monitor.CheckOff && !s.LastHandshake.IsZero()
	gauges("is_connected",
		"1 if the peer's gateway answers the connection check, or a handshake if none is made; 0 if not.",
		prometheus.Bit[connected])
	if found.State == monitor.CheckConnected {
		gauges("latency_us", "Microseconds to the peer's gateway and back; absent while it does not answer.",
			float64(found.RTT.Microseconds()))
	}
	p.Begin(prometheus.Histogram, "liqo_peer_latency_histogram_us",
		"Microseconds to the peer's gateway and back, of all answers.", "driver", "cluster_id")
	bounds := make([]float64, len(monitor.RTTBounds))
	for i, b := range monitor.RTTBounds {
		bounds[i] = float64(b.Microseconds())
	}
	p.Buckets(bounds, found.RTTs[:], float64(found.RTTSum.Microseconds()), driver, cluster)
}
