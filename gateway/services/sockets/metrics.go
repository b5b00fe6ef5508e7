package sockets

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"culvert/gateway/services"
	"culvert/nat"
)

// stats count what has happened.
type stats struct {
	created        [protocols]atomic.Uint64 // connections, by protocol
	refused        [protocols]reasons
	evicted        [kept]atomic.Uint64 // flows of UDP that have made room, by standing
	failures       atomic.Uint64       // of endpoints to take a connection or a packet
	lost           atomic.Uint64       // packets of UDP that the kernel did not take
	acceptFailures atomic.Uint64
}

// protocols is more than the number of any protocol that is served.
const protocols = unix.IPPROTO_UDP + 1

// The reasons for which connections are refused.
var refusals = []nat.Reason{nat.ReasonTableFull, nat.ReasonConnectionShare, nat.ReasonFiltered, nat.ReasonNoBackend, nat.ReasonNoMapping}

// reasons count refused connections.
type reasons [256]atomic.Uint64

func (r *reasons) add(reason nat.Reason) { r[reason].Add(1) }

// metrics returns the counters in Prometheus' text format.
func (s *Server) metrics() string {
	s.mu.Lock()
	served, doors, closed := len(s.config.Services), len(s.doors), len(s.closed)
	s.mu.Unlock()
	var m services.Metrics
	each := func(kind, name, help string, tcp, udp uint64) {
		m.Family(kind, name, help)
		fmt.Fprintf(&m, "culvert_%s{protocol=\"tcp\"} %d\nculvert_%[1]s{protocol=\"udp\"} %[3]d\n", name, tcp, udp)
	}
	m.One("gauge", "services", "Ports of Services that are served.", uint64(served))
	m.One("gauge", "sockets", "Sockets that listen for clients of Services.", uint64(doors))
	m.One("gauge", "sockets_missing", "Places where a socket should listen and cannot.", uint64(closed))
	each("gauge", "connections", "Connections that are carried.", uint64(s.crowd.count()), uint64(s.all.count()))
	each("gauge", "connections_max", "How many there may be.", uint64(s.crowd.max), uint64(s.all.max))
	each("counter", "connections_created_total", "Connections that were given to an endpoint.", s.stats.created[unix.IPPROTO_TCP].Load(), s.stats.created[unix.IPPROTO_UDP].Load())
	m.Family("counter", "connections_refused_total", "Connections that were reset, and packets of UDP that began none, by reason.")
	for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		for _, reason := range refusals {
			fmt.Fprintf(&m, "culvert_connections_refused_total{protocol=%q,reason=%q} %d\n", names[protocol], reason, s.stats.refused[protocol][reason].Load())
		}
	}
	m.Family("counter", "connections_evicted_total", "Connections of UDP that have made room for new ones: those that had their answer, those that have waited longest for one, and silent streams.")
	for x := range kept {
		fmt.Fprintf(&m, "culvert_connections_evicted_total{protocol=\"udp\",state=%q} %d\n", standingNames[x], s.stats.evicted[x].Load())
	}
	m.One("counter", "endpoint_failures_total", "Times that an endpoint did not take a connection, or refused a packet.", s.stats.failures.Load())
	m.One("counter", "lost_packets_total", "Packets of UDP that the kernel did not take.", s.stats.lost.Load())
	m.One("counter", "accept_failures_total", "Times that a connection could not be accepted, as without a free descriptor.", s.stats.acceptFailures.Load())
	st := s.engine.Stats()
	m.One("gauge", "affinity_clients", "Clients of Services with affinity that are remembered.", uint64(st.Clients))
	m.One("gauge", "affinity_clients_max", "Cap of the clients that are remembered.", uint64(st.MaxClients))
	return m.String()
}
