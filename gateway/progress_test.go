package gateway

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"culvert/gateway/config"
	"culvert/geneve"
	"culvert/geneve/udp"
)

// TestProgress: a path is well that takes what comes, or has nothing to take.
func TestProgress(t *testing.T) {
	type second struct {
		received uint64
		waits    bool
	}
	for _, tt := range []struct {
		name  string
		at    func(s int) second
		stuck string // after 30 s
	}{
		{"nothing comes", func(int) second { return second{} }, ""},
		{"all is taken at once", func(s int) second { return second{uint64(s), false} }, ""},
		{"there is always more", func(s int) second { return second{uint64(s), true} }, ""},
		{"it is slow", func(s int) second { return second{uint64(s / 9), true} }, ""},
		{"nothing is taken", func(s int) second { return second{100, s > 5} }, "taken nothing for 24 s of what waits at its socket geneve; restart"},
		{"what waited is taken at last", func(s int) second { return second{100, s < 30} }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p progress
			for s := range 31 {
				at := tt.at(s)
				p.look(time.Duration(s)*time.Second, map[string]udp.Stats{"geneve": {ReceivedMessages: at.received, Waits: at.waits}, "wireguard": {}})
			}
			if got := p.fault(30 * time.Second); !strings.Contains(got, tt.stuck) || (got == "") != (tt.stuck == "") {
				t.Errorf("%q, want %q", got, tt.stuck)
			}
			if got := p.fault(45 * time.Second); !strings.Contains(got, "nobody has looked after the packet path for 15 s") {
				t.Errorf("nobody looks any more: %q", got)
			}
		})
	}
}

// TestHealthOfAStoppedPath: /healthz says so when the path is stopped while packets wait, and
// when it goes on.
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
	health := func(want int, text string) {
		t.Helper()
		code, page := getFrom(t, "127.0.0.1", p.rome.metrics.listener.Addr(), "/healthz")
		if code != want || !strings.Contains(page, text) {
			t.Errorf("/healthz: %d %s, want %d %s", code, page, want, text)
		}
	}
	p.rome.lookAtProgress()
	health(http.StatusOK, "ok")
	p.rome.progress.mu.Lock()
	p.rome.progress.stuck["geneve"].since -= stuckTime // as if that had passed
	p.rome.progress.mu.Unlock()
	health(http.StatusServiceUnavailable, "the packet path has taken nothing for 10 s of what waits at its socket geneve")

	p.rome.endpoint.SetTap(nil)
	goOn <- true
	for range 2 {
		expect(t, p.milan.nodes[0], "10.62.1.5", "10.0.1.7")
	}
	p.rome.lookAtProgress()
	health(http.StatusOK, "ok")
}
