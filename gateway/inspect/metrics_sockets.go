package inspect

import (
	"maps"
	"slices"

	"culvert/gateway/prometheus"
	"culvert/gateway/seats"
	"culvert/geneve/udp"
)

// socketFamilies are the metrics of each UDP socket that have one value.
var socketFamilies = []struct {
	kind, name, help string
	value            func(*udp.Stats) float64
}{
	{prometheus.Counter, "received_messages_total", "Messages received; a merged train is one.",
		func(s *udp.Stats) float64 { return float64(s.ReceivedMessages) }},
	{prometheus.Counter, "received_bytes_total", "Bytes received, without UDP headers.", func(s *udp.Stats) float64 {
		return float64(s.ReceivedBytes)
	}},
	{prometheus.Gauge, "waiting", "1 if a message is there that nobody has received yet.", func(s *udp.Stats) float64 {
		return prometheus.Bit[s.Waits]
	}},
	{prometheus.Counter, "receive_errors_total", "Errors of datagrams sent earlier that the kernel reported.",
		func(s *udp.Stats) float64 { return float64(s.ReceiveErrors) }},
	{prometheus.Counter, "truncated_messages_total", "Messages lost because they were longer than their buffer.",
		func(s *udp.Stats) float64 { return float64(s.Truncated) }},
	{prometheus.Counter, "sent_datagrams_total", "Datagrams sent.", func(s *udp.Stats) float64 {
		return float64(s.SentDatagrams)
	}},
	{prometheus.Counter, "sent_bytes_total", "Bytes sent, without UDP headers.", func(s *udp.Stats) float64 {
		return float64(s.SentBytes)
	}},
	{prometheus.Counter, "refused_trains_total", "Trains that the kernel refused, sent again as single datagrams.",
		func(s *udp.Stats) float64 { return float64(s.RefusedTrains) }},
	{prometheus.Gauge, "receive_buffer_bytes", "Receive buffer granted by the kernel.", func(s *udp.Stats) float64 {
		return float64(s.ReceiveBuffer)
	}},
	{prometheus.Gauge, "send_buffer_bytes", "Send buffer granted by the kernel.", func(s *udp.Stats) float64 {
		return float64(s.SendBuffer)
	}},
}

func (p *page) sockets(sockets map[string]udp.Stats) {
	names := slices.Sorted(maps.Keys(sockets))
	for _, f := range socketFamilies {
		p.Family(f.kind, "socket_"+f.name, f.help, "socket")
		for _, name := range names {
			s := sockets[name]
			p.Add(f.value(&s), name)
		}
	}
	p.Family(prometheus.Counter, "socket_calls_total", "System calls that receive and send messages.", "call", "socket")
	for _, name := range names {
		p.Count(sockets[name].ReceiveCalls, "receive", name)
		p.Count(sockets[name].SendCalls, "send", name)
	}
	p.Family(prometheus.Counter, "socket_overflows_total",
		"Datagrams lost because the receive buffer was full; absent where the kernel does not tell.", "socket")
	for _, name := range names {
		if s := sockets[name]; s.OverflowsKnown {
			p.Count(s.Overflows, name)
		}
	}
	p.Family(prometheus.Counter, "socket_send_drops_total", "Datagrams that the kernel refused to send, by reason.",
		"reason", "socket")
	for _, name := range names {
		for r, n := range sockets[name].SendDrops {
			p.Count(n, udp.Reason(r).String(), name)
		}
	}
	p.Family(prometheus.Gauge, "socket_offload", "1 if the offload is in use.", "offload", "socket")
	for _, name := range names {
		p.Add(prometheus.Bit[sockets[name].GRO], "gro", name)
		p.Add(prometheus.Bit[sockets[name].GSO], "gso", name)
	}
}

func (p *page) listener(l *seats.Listener) {
	p.One(prometheus.Gauge, "listener_connections", "Connections to this listener.", float64(l.InUse()))
	p.One(prometheus.Counter, "listener_refused_connections_total",
		"Connections closed because there were too many, or too many of their source.", float64(l.Refused()))
}
