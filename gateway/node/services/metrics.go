package services

import (
	"sync/atomic"

	"culvert/gateway/prometheus"
	"culvert/nat"
)

// broken says why routes and rules to the device cannot be restored, or "".
func (s *Server) broken() string {
	for _, why := range []*atomic.Pointer[string]{&s.fault, &s.deaf} {
		if fault := why.Load(); fault != nil {
			return *fault
		}
	}
	return ""
}

// metrics returns the counters in Prometheus' text format, under the same names as a gateway's.
func (s *Server) metrics() string {
	s.mu.Lock()
	services, mended := len(s.config.Services), s.steering.Made
	announcer, announced := s.announcer, s.announcer.Addresses()
	s.mu.Unlock()
	st := s.engine.Stats()
	d := &st.Outbound // all comes from the host
	var b prometheus.Page
	one := func(kind, name, help string, value uint64) { b.One(kind, name, help, float64(value)) }
	one(prometheus.Gauge, "services", "Ports of Services that are served.", uint64(services))
	one(prometheus.Counter, "steering_changes_total", "Rules and routes that were made or put back.", uint64(mended))
	announcer.WriteMetrics(&b, announced)
	one(prometheus.Counter, "received_packets_total", "Packets for Services and answers to them, after segmentation.",
		d.Received)
	one(prometheus.Counter, "forwarded_packets_total", "Packets sent on.", d.Forwarded)
	one(prometheus.Counter, "untracked_packets_total", "Packets sent on as they came, as no Service has them.",
		d.Untracked)
	one(prometheus.Counter, "answered_packets_total", "Packets that were answered with an error.", d.Answered)
	b.Family(prometheus.Counter, "dropped_packets_total", "Packets dropped, by reason.", "reason")
	for reason, n := range d.Dropped {
		if reason > 0 {
			b.Count(n, nat.Reason(reason).String())
		}
	}
	one(prometheus.Gauge, "connections", "Connections in the table.", uint64(st.Connections))
	one(prometheus.Gauge, "connections_max", "Cap of the connection table.", uint64(st.MaxConnections))
	one(prometheus.Counter, "connections_created_total", "Connections made.", st.Created)
	one(prometheus.Counter, "connections_restored_total", "Connections that the previous run has left to this one.",
		st.Restored)
	b.Family(prometheus.Counter, "connections_removed_total",
		"Connections removed: expired, evicted with their Service, dropped early for others.", "reason")
	for reason, n := range map[string]uint64{"expired": st.Expired, "evicted": st.Evicted,
		"early-dropped": st.EarlyDropped} {
		b.Count(n, reason)
	}
	one(prometheus.Gauge, "ports_busiest", "Source ports in use towards the endpoint that has most.",
		uint64(st.BusiestPorts))
	one(prometheus.Gauge, "ports_busiest_max", "How many there may be towards that one.", uint64(st.BusiestPortsMax))
	one(prometheus.Gauge, "affinity_clients", "Clients of Services with affinity that are remembered.",
		uint64(st.Clients))
	one(prometheus.Gauge, "affinity_clients_max", "Cap of the clients that are remembered.", uint64(st.MaxClients))
	return b.Text.String()
}
