package gateway

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/path"
	"culvert/geneve"
)

// TestHealthOfAStoppedPath: a path that has stopped while packets wait becomes a fault after a
// while, which ends when the path continues.
func TestHealthOfAStoppedPath(t *testing.T) {
	p := newPair(t, func(rome, _ *config.Config) { rome.Metrics = "127.0.0.1:0" })
	node := p.rome.nodes[0]
	packet := func() { node.Send(udpPacket("10.0.1.5", "10.61.1.7", nil)) }
	packet()
	expect(t, p.milan.nodes[0], "10.62.1.5", "10.0.1.7")
	stopped, goOn := make(chan bool), make(chan bool)
	p.rome.endpoint.SetTap(func(d *geneve.Datagram) {
		if !d.Outbound && d.Inner != nil {
			stopped <- true
			<-goOn
		}
	})
	packet()
	<-stopped
	packet() // waits in the socket
	for !p.rome.endpoint.Stats().Socket.Waits {
	}
	look := func(ahead time.Duration) { p.rome.monitor.LookAtProgress(path.Uptime() + ahead) }
	health := func(want int, text string) {
		t.Helper()
		code, page := getFrom(t, "127.0.0.1", p.rome.metrics.Listener.Addr(), "/healthz")
		if code != want || !strings.Contains(page, text) {
			t.Errorf("/healthz: %d %s, want %d %s", code, page, want, text)
		}
	}
	look(0)
	health(http.StatusOK, "ok")
	const later = 10 * time.Second
	look(later)
	if fault, want := p.rome.monitor.Fault(path.Uptime()+later),
		"the packet path has taken nothing for 10 s of what waits at its socket geneve"; !strings.Contains(
		fault, want) {
		t.Errorf("%q, want %q", fault, want)
	}

	p.rome.endpoint.SetTap(nil)
	goOn <- true
	for range 2 {
		expect(t, p.milan.nodes[0], "10.62.1.5", "10.0.1.7")
	}
	look(0)
	health(http.StatusOK, "ok")
}
