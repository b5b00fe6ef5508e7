package gateway

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"culvert/gateway/config"
	"culvert/integration/need"
)

// The limits of package inspect: the time to send a request, and the bytes of its header.
const (
	requestTime = 2 * time.Second
	maxHeader   = 4 << 10
)

// dialFrom connects to address from a loopback address.
func dialFrom(t *testing.T, source string, address net.Addr) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: 5 * time.Second}
	c, err := d.Dial("tcp", address.String())
	need.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(30 * time.Second))
	return c
}

// getFrom requests a page from a loopback address.
func getFrom(t *testing.T, source string, address net.Addr, path string) (status int, body string) {
	t.Helper()
	c := dialFrom(t, source, address)
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: culvert\r\n\r\n", path)
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return r.StatusCode, string(b)
}

// TestPipelinedRequests opens many connections from one address and sends many requests on each,
// reading nothing. Each connection gets one response at most, and another address is served
// meanwhile.
func TestPipelinedRequests(t *testing.T) {
	p := newPair(t, func(rome, _ *config.Config) { rome.Metrics = "127.0.0.1:0" })
	address := p.rome.metrics.Listener.Addr()
	const connections, requests = 500, 40
	crowd := make([]net.Conn, connections)
	for i := range crowd {
		crowd[i] = dialFrom(t, fmt.Sprintf("127.%d.%d.1", 1+i%100, i/100), address)
		// may have been closed already
		io.WriteString(crowd[i], strings.Repeat("GET /metrics HTTP/1.1\r\nHost: culvert\r\n\r\n", requests))
	}
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		if status, _ := getFrom(t, "127.0.1.1", address, path); status != http.StatusOK {
			t.Errorf("%s: %d", path, status)
		}
	}
	served := 0
	for _, c := range crowd {
		text, _ := io.ReadAll(c) // what came before the gateway closed it
		answers := bytes.Count(text, []byte("HTTP/1.1 200"))
		if answers > 1 {
			t.Fatalf("%d answers on one connection", answers)
		}
		served += answers
	}
	refused := p.rome.metrics.Listener.Refused()
	// A connection that has its answer can lose its seat before the server closes it, and counts as
	// both then.
	if served == 0 || refused == 0 || refused > connections+3 {
		t.Errorf("%d served, %d refused of %d", served, refused, connections)
	}
}

// TestSilentConnections: silent connections from this machine's loopback addresses get the seats of
// one source. They lose them to clients that send requests, even of the same source, and after a
// while.
func TestSilentConnections(t *testing.T) {
	p := newPair(t, func(rome, _ *config.Config) { rome.Metrics = "127.0.0.1:0" })
	address := p.rome.metrics.Listener.Addr()
	crowd, began := make([]net.Conn, 300), time.Now()
	for i := range crowd {
		crowd[i] = dialFrom(t, fmt.Sprintf("127.%d.%d.1", 1+i%100, i/100), address)
	}
	took := time.Since(began)
	// The listener has accepted all of the crowd before it answers. A silent connection loses its
	// seat after requestTime.
	_, _ = getFrom(t, "127.0.1.1", address, "/healthz")
	if n, most, least := p.rome.metrics.Listener.Refused(), 301-11, 301-11*(1+int(took/requestTime)); int(n) > most ||
		int(n) < least {
		t.Errorf("%d connections refused, want %d, and %d at least", n, most, least)
	}
	for range 20 {
		for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
			if status, _ := getFrom(t, "127.0.1.1", address, path); status != http.StatusOK {
				t.Errorf("%s: %d", path, status)
			}
		}
	}
	n := p.rome.metrics.Listener.Refused()
	_, page := getFrom(t, "127.0.1.1", address, "/metrics")
	if !strings.Contains(page, fmt.Sprintf("\nculvert_listener_refused_connections_total %d\n", n)) {
		t.Error("the page does not tell how many connections were refused")
	}
	for _, c := range crowd {
		io.Copy(io.Discard, c) // ends when the gateway closes it
	}
}

// TestLongHeader: a request with an endless header is refused.
func TestLongHeader(t *testing.T) {
	p := newPair(t, func(rome, _ *config.Config) { rome.Metrics = "127.0.0.1:0" })
	c := dialFrom(t, "127.0.0.1", p.rome.metrics.Listener.Addr())
	fmt.Fprintf(c, "GET /metrics HTTP/1.1\r\nHost: culvert\r\nX: %s", strings.Repeat("x", 2*maxHeader))
	answer, err := bufio.NewReader(c).ReadString('\n')
	if !strings.HasPrefix(answer, "HTTP/1.1 431 ") {
		t.Errorf("%q, %v", answer, err)
	}
}
