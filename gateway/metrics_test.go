package gateway

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"culvert/gateway/config"
	"culvert/nat"
)

// TestMetrics: the three pages answer, every drop reason is a label from the start, and a dropped
// packet is counted.
func TestMetrics(t *testing.T) {
	p := newPair(t, func(rome, _ *config.Config) { rome.Metrics = "127.0.0.1:0" })
	get := func(path string) (int, string) {
		t.Helper()
		return getFrom(t, "127.0.0.1", p.rome.metrics.Listener.Addr(), path)
	}
	node := p.rome.nodes[0]
	node.GatewayMAC()
	deaf(node)
	node.Send(udpPacket("127.0.0.1", "10.61.1.7", nil)) // bad-source
	node.Send(udpPacket("10.0.1.5", "10.61.1.7", nil))
	expect(t, p.milan.nodes[0], "10.62.1.5", "10.0.1.7")

	if code, _ := get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d", code)
	}
	if code, _ := get("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz: %d", code)
	}
	_, page := get("/metrics")
	for _, line := range []string{
		`culvert_dropped_packets_total{direction="outbound",reason="bad-source"} 1`,
		`culvert_forwarded_packets_total{direction="outbound"} 1`,
		`culvert_node_received_packets_total{node="rome-1"} 2`,
		"culvert_connections 1",
		"culvert_connections_unreplied 1",
		"culvert_connections_created_total 1",
		`culvert_connections_removed_total{reason="early-dropped"} 0`,
		`culvert_asymmetric_packets_total{direction="inbound"} 0`,
		`culvert_table_packets_total{table="remap-podcidr"} 1`,
		`culvert_arp_messages_total{way="received"} 1`,
		"culvert_connections_max ",
		`culvert_node_trains{node="rome-1"} `,
		`culvert_node_trains_lost_total{node="rome-1"} 0`,
		`culvert_wireguard_trains{peer="milan"} `,
		`culvert_wireguard_trains_lost_total{peer="milan"} 0`,
		`culvert_socket_offload{offload="gro",socket="geneve"} `,
		`culvert_socket_send_buffer_bytes{socket="geneve"} `,
		`culvert_socket_overflows_total{socket="geneve"} 0`,
		"culvert_listener_connections ",
	} {
		if !strings.Contains(page, "\n"+line) {
			t.Errorf("no line %s", line)
		}
	}
	for _, r := range nat.Reasons() {
		if !strings.Contains(page, fmt.Sprintf("reason=%q", r.String())) {
			t.Errorf("no counter for reason %s", r)
		}
	}
	if !regexp.MustCompile(`culvert_wireguard_last_handshake_seconds\{peer="milan"\} 1\.\d+e\+09`).MatchString(page) {
		t.Error("no handshake time")
	}
	if problems, err := promlint.New(strings.NewReader(page)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
	series := map[string]bool{}
	for line := range strings.Lines(page) {
		name := line[:strings.LastIndexByte(line, ' ')]
		if series[name] {
			t.Errorf("%s is there twice", name)
		}
		series[name] = true
	}
	if key := p.rome.config().WireGuard.PrivateKey; strings.Contains(page, key.Base64()) ||
		strings.Contains(page, hex.EncodeToString(key[:])) {
		t.Error("the private key is shown")
	}
}
