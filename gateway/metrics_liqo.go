package gateway

import (
	"strconv"

	"culvert/gateway/wg"
)

// liqo reports under the names and labels of Liqo's gateway, so that dashboards and alerts for it go on.
func (p *page) liqo(cluster string, s *wg.PeerStats, found *CheckStatus) {
	const driver = "wireguard"
	gauges := func(name, help string, value float64) {
		p.begin(gauge, "liqo_peer_"+name, help, "driver", "cluster_id")
		p.add(value, driver, cluster)
	}
	p.begin(gauge, "liqo_wireguard_implementation", "Which WireGuard this is; always 1.", "driver", "implementation")
	p.add(1, driver, "userspace")
	for _, f := range []struct {
		name, help string
		value      uint64
	}{
		{"receive", "Bytes of WireGuard messages received from the peer.", s.Received},
		{"transmit", "Bytes of WireGuard messages sent to the peer.", s.Sent},
	} {
		p.begin(counter, "liqo_peer_"+f.name+"_bytes_total", f.help, "driver", "cluster_id")
		p.count(f.value, driver, cluster)
	}
	connected := found.State == CheckConnected || found.State == CheckOff && !s.LastHandshake.IsZero()
	gauges("is_connected", "1 if the peer's gateway answers the connection check, or a handshake if none is made; 0 if not.", bit[connected])
	if found.State == CheckConnected {
		gauges("latency_us", "Microseconds to the peer's gateway and back; absent while it does not answer.", float64(found.RTT.Microseconds()))
	}
	const histogram = "liqo_peer_latency_histogram_us"
	p.begin("histogram", histogram, "Microseconds to the peer's gateway and back, of all answers.", "driver", "cluster_id", "le")
	p.name = histogram + "_bucket"
	all := uint64(0)
	for i, n := range found.RTTs {
		all += n
		le := "+Inf"
		if i < len(rttBounds) {
			le = strconv.FormatInt(rttBounds[i].Microseconds(), 10)
		}
		p.count(all, driver, cluster, le)
	}
	p.name, p.labels = histogram+"_sum", p.labels[:2]
	p.add(float64(found.RTTSum.Microseconds()), driver, cluster)
	p.name = histogram + "_count"
	p.count(all, driver, cluster)
}
