package inspect

import (
	"maps"
	"slices"

	"culvert/gateway/health"
	"culvert/gateway/monitor"
	"culvert/gateway/prometheus"
	"culvert/nat"
)

// legFamilies are the metrics of the path to the peer or a node, and back.
var legFamilies = []struct {
	kind, name, help string
	value            func(*monitor.Traffic) float64
}{
	{prometheus.Counter, "requests_total",
		"Requests by which a way there and back is measured: ARP to a node; to the peer the connection check, or else pings while there is traffic.", func(t *monitor.Traffic) float64 { return float64(t.All) }},
	{prometheus.Counter, "requests_lost_total",
		"Of the requests by which a way is measured, those without answer when the next one was sent.",
		func(t *monitor.Traffic) float64 { return float64(t.AllMissed) }},
}

// legs reports round-trip times and losses to the peer and the nodes.
func (p *page) legs(peer string, links map[string]nat.Link, of func(nat.Link) monitor.Traffic) {
	type leg struct {
		kind health.Kind
		of   string
		monitor.Traffic
	}
	legs := []leg{{health.OfPeer, peer, of(nat.Tunnel)}}
	for _, name := range slices.Sorted(maps.Keys(links)) {
		legs = append(legs, leg{health.OfNode, name, of(links[name])})
	}
	p.Family(prometheus.Gauge, "leg_rtt_seconds",
		"Time to a node or the peer and back, of the last request that was answered; absent while none of the last few was.", "kind", "of")
	for i := range legs {
		if l := &legs[i]; l.RTT > 0 {
			p.Add(l.RTT.Seconds(), string(l.kind), l.of)
		}
	}
	for _, f := range legFamilies {
		p.Family(f.kind, "leg_"+f.name, f.help, "kind", "of")
		for i := range legs {
			p.Add(f.value(&legs[i].Traffic), string(legs[i].kind), legs[i].of)
		}
	}
}
