package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"culvert/geneve"
	"culvert/geneve/udp"
	"culvert/nat"
)

// metricsServer serves /metrics, /healthz and /readyz.
type metricsServer struct {
	listener net.Listener // nil = off
	server   *http.Server
}

// newMetricsServer opens the listener; serve starts answering.
func newMetricsServer(address string, g *Gateway) (*metricsServer, error) {
	if address == "" {
		return &metricsServer{}, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("metrics: %s is in use; stop what uses it, choose another address or turn metrics off with \"\"", address)
		}
		return nil, fmt.Errorf("metrics: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(&collector{g})
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !g.ready.Load() {
			http.Error(w, "starting or stopping", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return &metricsServer{l, &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}}, nil
}

func (m *metricsServer) serve() {
	if m.listener != nil {
		go m.server.Serve(m.listener)
	}
}

func (m *metricsServer) close() {
	if m.listener == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	m.server.Shutdown(ctx)
	m.listener.Close()
}

// collector reads the gateway's counters at each scrape; nothing is counted twice
// for Prometheus.
type collector struct{ g *Gateway }

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("culvert_"+name, help, labels, nil)
}

var (
	descReceived  = describe("received_packets_total", "Inner packets received, by direction, after segmentation.", "direction")
	descGenerated = describe("generated_packets_total", "Inner packets made by the gateway itself.", "direction")
	descForwarded = describe("forwarded_packets_total", "Inner packets sent on to the tunnel on the other side.", "direction")
	descDelivered = describe("delivered_packets_total", "Inner packets addressed to the gateway itself.", "direction")
	descDropped   = describe("dropped_packets_total", "Inner packets dropped, by reason.", "direction", "reason")

	descConnections    = describe("connections", "Connections in the table.")
	descMaxConnections = describe("connections_max", "Cap of the connection table.")

	descNodeReceived      = describe("node_received_packets_total", "Inner packets received from a node.", "node")
	descNodeSent          = describe("node_sent_packets_total", "Inner packets sent to a node.", "node")
	descNodeReceivedBytes = describe("node_received_bytes_total", "Bytes of inner packets received from a node.", "node")
	descNodeSentBytes     = describe("node_sent_bytes_total", "Bytes of inner packets sent to a node.", "node")

	descNodeTrains     = describe("node_trains", "1 if UDP_SEGMENT trains are sent to a node, 0 if single datagrams.", "node")
	descNodeTrainsLost = describe("node_trains_lost_total", "How often trains to a node were found lost.", "node")

	descPeerTrains     = describe("wireguard_trains", "1 if UDP_SEGMENT trains are sent to the peer, 0 if single datagrams.", "peer")
	descPeerTrainsLost = describe("wireguard_trains_lost_total", "How often trains to the peer were found lost.", "peer")

	descHandshake    = describe("wireguard_last_handshake_seconds", "Unix time of the last handshake with the peer; 0 = none.", "peer")
	descPeerReceived = describe("wireguard_received_bytes_total", "Bytes of WireGuard messages received from the peer.", "peer")
	descPeerSent     = describe("wireguard_sent_bytes_total", "Bytes of WireGuard messages sent to the peer.", "peer")

	descSocketCalls    = describe("socket_calls_total", "System calls that receive and send messages.", "socket", "call")
	descSocketOverflow = describe("socket_overflows_total", "Datagrams lost because the receive buffer was full.", "socket")
	descSocketDropped  = describe("socket_send_drops_total", "Datagrams that the kernel refused to send, by reason.", "socket", "reason")
	descSocketBuffer   = describe("socket_receive_buffer_bytes", "Receive buffer granted by the kernel.", "socket")
	descSocketOffload  = describe("socket_offload", "1 if the offload is in use.", "socket", "offload")
)

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	g := c.g
	g.collectLedger(counter, gauge)
	g.collectNodes(counter, gauge)
	g.collectPeer(counter, gauge)
	g.collectSockets(counter, gauge)
}

// bit is the value of a yes or no.
var bit = map[bool]float64{true: 1}

type (
	counterFunc func(d *prometheus.Desc, v uint64, labels ...string)
	gaugeFunc   func(d *prometheus.Desc, v float64, labels ...string)
)

func (g *Gateway) collectLedger(counter counterFunc, gauge gaugeFunc) {
	stats := g.engine.Stats()
	gauge(descConnections, float64(stats.Connections))
	gauge(descMaxConnections, float64(stats.MaxConnections))
	for _, d := range []struct {
		name string
		nat  nat.Direction
		own  *counters
	}{{"outbound", stats.Outbound, &g.out.counters}, {"inbound", stats.Inbound, &g.in.counters}} {
		counter(descReceived, d.nat.Received, d.name)
		counter(descForwarded, d.nat.Forwarded, d.name)
		counter(descDelivered, d.nat.Delivered, d.name)
		counter(descGenerated, d.own.generated.Load(), d.name)
		for _, r := range nat.Reasons() {
			counter(descDropped, d.nat.Dropped[r], d.name, r.String())
		}
		for r := range numDropReasons {
			counter(descDropped, d.own.drops[r].Load(), d.name, r.String())
		}
	}
}

// collectNodes reports each node's tunnel and what the tunnel headers dropped.
func (g *Gateway) collectNodes(counter counterFunc, gauge gaugeFunc) {
	stats := g.endpoint.Stats()
	for r := geneve.Accepted + 1; r < geneve.NumReasons; r++ {
		direction := "outbound"
		if r >= geneve.UnknownTunnel {
			direction = "inbound"
		}
		counter(descDropped, stats.Drops[r], direction, r.String())
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, port := range g.ports.byName {
		s, ok := g.endpoint.TunnelStats(uint16(port))
		if !ok {
			continue
		}
		counter(descNodeReceived, s.ReceivedPackets, name)
		counter(descNodeSent, s.SentPackets, name)
		counter(descNodeReceivedBytes, s.ReceivedBytes, name)
		counter(descNodeSentBytes, s.SentBytes, name)
		gauge(descNodeTrains, bit[s.Train], name)
		counter(descNodeTrainsLost, s.LostTrains, name)
	}
}

func (g *Gateway) collectPeer(counter counterFunc, gauge gaugeFunc) {
	g.mu.Lock()
	peer := g.config.Peer
	g.mu.Unlock()
	s, err := g.wg.stats()
	if err != nil {
		return
	}
	handshake := 0.0
	if !s.LastHandshake.IsZero() {
		handshake = float64(s.LastHandshake.UnixNano()) / 1e9
	}
	gauge(descHandshake, handshake, peer)
	counter(descPeerReceived, s.Received, peer)
	counter(descPeerSent, s.Sent, peer)
	gauge(descPeerTrains, bit[g.bind.offload() && !g.probe.Lost()], peer)
	counter(descPeerTrainsLost, g.probe.losses.Load(), peer)
}

func (g *Gateway) collectSockets(counter counterFunc, gauge gaugeFunc) {
	for name, s := range g.sockets() {
		counter(descSocketCalls, s.ReceiveCalls, name, "receive")
		counter(descSocketCalls, s.SendCalls, name, "send")
		counter(descSocketOverflow, s.Overflows, name)
		for r, n := range s.SendDrops {
			counter(descSocketDropped, n, name, udp.Reason(r).String())
		}
		gauge(descSocketBuffer, float64(s.ReceiveBuffer), name)
		gauge(descSocketOffload, bit[s.GRO], name, "gro")
		gauge(descSocketOffload, bit[s.GSO], name, "gso")
	}
}
