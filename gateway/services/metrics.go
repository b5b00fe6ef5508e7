package services

import (
	"fmt"

	"culvert/nat"
)

// broken says why what leads to the device cannot be put back, or "".
func (s *Server) broken() string {
	if fault := s.fault.Load(); fault != nil {
		return *fault
	}
	return ""
}

// metrics returns the counters in Prometheus' text format, under the names that gateways have for the same.
func (s *Server) metrics() string {
	s.mu.Lock()
	services, mended := len(s.config.Services), s.steering.made
	announcer, announced := s.announcer, s.announcer.addresses()
	s.mu.Unlock()
	st := s.engine.Stats()
	d := &st.Outbound // all comes from the host
	var b Metrics
	family, one := b.Family, b.One
	one("gauge", "services", "Ports of Services that are served.", uint64(services))
	one("counter", "steering_changes_total", "Rules and routes that were made or put back.", uint64(mended))
	announcer.metrics(&b, announced)
	one("counter", "received_packets_total", "Packets for Services and answers to them, after segmentation.", d.Received)
	one("counter", "forwarded_packets_total", "Packets sent on.", d.Forwarded)
	one("counter", "untracked_packets_total", "Packets sent on as they came, as no Service has them.", d.Untracked)
	one("counter", "answered_packets_total", "Packets that were answered with an error.", d.Answered)
	family("counter", "dropped_packets_total", "Packets dropped, by reason.")
	for reason, n := range d.Dropped {
		if reason > 0 {
			fmt.Fprintf(&b, "culvert_dropped_packets_total{reason=%q} %d\n", nat.Reason(reason), n)
		}
	}
	one("gauge", "connections", "Connections in the table.", uint64(st.Connections))
	one("gauge", "connections_max", "Cap of the connection table.", uint64(st.MaxConnections))
	one("counter", "connections_created_total", "Connections made.", st.Created)
	one("counter", "connections_restored_total", "Connections that the run before has left to this one.", st.Restored)
	family("counter", "connections_removed_total", "Connections removed: expired, evicted with their Service, dropped early for others.")
	for reason, n := range map[string]uint64{"expired": st.Expired, "evicted": st.Evicted, "early-dropped": st.EarlyDropped} {
		fmt.Fprintf(&b, "culvert_connections_removed_total{reason=%q} %d\n", reason, n)
	}
	one("gauge", "ports_busiest", "Source ports in use towards the endpoint that has most.", uint64(st.BusiestPorts))
	one("gauge", "ports_busiest_max", "How many there may be towards that one.", uint64(st.BusiestPortsMax))
	one("gauge", "affinity_clients", "Clients of Services with affinity that are remembered.", uint64(st.Clients))
	one("gauge", "affinity_clients_max", "Cap of the clients that are remembered.", uint64(st.MaxClients))
	return b.String()
}
