package sockets

import (
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"culvert/gateway/prometheus"
	"culvert/nat"
)

// stats are event counters.
type stats struct {
	created        [2]atomic.Uint64 // TCP connections and UDP flows
	refused        [2]reasons
	evicted        [kept]atomic.Uint64 // evicted UDP flows, by state
	failures       atomic.Uint64       // an endpoint refused a connection or a packet
	lost           atomic.Uint64       // UDP packets that the kernel did not accept
	acceptFailures atomic.Uint64
}

// slot is the index of a protocol in counters by protocol.
func slot(protocol uint8) int {
	if protocol == unix.IPPROTO_UDP {
		return 1
	}
	return 0
}

func (s *stats) createdOf(protocol uint8) *atomic.Uint64 { return &s.created[slot(protocol)] }

func (s *stats) refusedOf(protocol uint8) *reasons { return &s.refused[slot(protocol)] }

// The reasons for refusing connections.
var refusals = [...]nat.Reason{nat.ReasonTableFull, nat.ReasonConnectionShare, nat.ReasonFiltered, nat.ReasonNoBackend,
	nat.ReasonNoMapping}

// reasons count refused connections, by index in refusals.
type reasons [len(refusals)]atomic.Uint64

// of returns the counter of a reason; reasons not in refusals share the last one.
func (r *reasons) of(reason nat.Reason) *atomic.Uint64 {
	i := slices.Index(refusals[:], reason)
	if i < 0 {
		i = len(refusals) - 1
	}
	return &r[i]
}

// metrics returns the counters in Prometheus' text format.
func (s *Server) metrics() string {
	s.mu.Lock()
	served, listening, closed := len(s.config.Services), len(s.listening), len(s.closed)
	s.mu.Unlock()
	var m prometheus.Page
	one := func(kind, name, help string, value uint64) { m.One(kind, name, help, float64(value)) }
	each := func(kind, name, help string, tcp, udp uint64) {
		m.Family(kind, name, help, "protocol")
		m.Count(tcp, "tcp")
		m.Count(udp, "udp")
	}
	one(prometheus.Gauge, "services", "Ports of Services that are served.", uint64(served))
	one(prometheus.Gauge, "sockets", "Sockets that listen for clients of Services.", uint64(listening))
	one(prometheus.Gauge, "sockets_missing", "Places where a socket should listen and cannot.", uint64(closed))
	each(prometheus.Gauge, "connections", "Connections that are carried.", uint64(s.tcpLimit.count()),
		uint64(s.all.count()))
	each(prometheus.Gauge, "connections_max", "How many there may be.", uint64(s.tcpLimit.size()), uint64(s.all.max))
	each(prometheus.Counter, "connections_created_total", "Connections that were given to an endpoint.",
		s.stats.createdOf(unix.IPPROTO_TCP).Load(), s.stats.createdOf(unix.IPPROTO_UDP).Load())
	m.Family(prometheus.Counter, "connections_refused_total",
		"Connections that were reset, and packets of UDP that began none, by reason.", "protocol", "reason")
	for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		for _, reason := range refusals {
			m.Count(s.stats.refusedOf(protocol).of(reason).Load(), names[protocol], reason.String())
		}
	}
	m.Family(prometheus.Counter, "connections_evicted_total",
		"Connections of UDP that have made room for new ones: those that had their answer, those that have waited longest for one, and silent streams.", "protocol", "state")
	for x := range kept {
		m.Count(s.stats.evicted[x].Load(), "udp", flowStateNames[x])
	}
	one(prometheus.Counter, "endpoint_failures_total",
		"Times that an endpoint did not take a connection, or refused a packet.", s.stats.failures.Load())
	one(prometheus.Counter, "lost_packets_total", "Packets of UDP that the kernel did not take.", s.stats.lost.Load())
	one(prometheus.Counter, "accept_failures_total",
		"Times that a connection could not be accepted, as without a free descriptor.", s.stats.acceptFailures.Load())
	st := s.engine.Stats()
	one(prometheus.Gauge, "affinity_clients", "Clients of Services with affinity that are remembered.",
		uint64(st.Clients))
	one(prometheus.Gauge, "affinity_clients_max", "Cap of the clients that are remembered.", uint64(st.MaxClients))
	return m.Text.String()
}
