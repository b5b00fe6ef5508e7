package gateway

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"culvert/nat"
)

// TestMetrics: the three pages answer, every drop reason is a label from the start,
// and a dropped packet shows.
func TestMetrics(t *testing.T) {
	p := newPair(t, func(rome, _ *Config) { rome.Metrics = "127.0.0.1:0" })
	base := "http://" + p.rome.metrics.listener.Addr().String()
	get := func(path string) (int, string) {
		t.Helper()
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		r, err := client.Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(body)
	}
	node := p.rome.nodes[0]
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
		"culvert_connections_max ",
		`culvert_node_trains{node="rome-1"} `,
		`culvert_node_trains_lost_total{node="rome-1"} 0`,
		`culvert_wireguard_trains{peer="milan"} `,
		`culvert_wireguard_trains_lost_total{peer="milan"} 0`,
		`culvert_socket_offload{offload="gro",socket="geneve"} `,
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
	if key := p.rome.config.WireGuard.PrivateKey; strings.Contains(page, key.Base64()) || strings.Contains(page, key.hex()) {
		t.Error("the private key is shown")
	}
}
