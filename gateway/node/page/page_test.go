package page

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"culvert/integration/need"
)

// Clients that open connections and send nothing delay nobody from elsewhere, and are counted.
func TestPageBesideSilence(t *testing.T) {
	page, err := New("metrics", "127.0.0.1:0", nil, func() string { return "" }, func() string { return "" })
	need.NoError(t, err)
	defer page.Close()
	go page.Serve()
	dial := func(from string) net.Conn {
		t.Helper()
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: requestTime}).Dial("tcp",
			page.listener.Addr().String())
		need.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(requestTime * 4 / 5)) // before a silent connection times out
		return c
	}
	get := func(path string) string {
		t.Helper()
		c := dial("127.0.1.1")
		fmt.Fprintf(c, "GET %s HTTP/1.0\r\n\r\n", path)
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		need.NoError(t, err)
		text, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != http.StatusOK {
			t.Errorf("%d %s %v", r.StatusCode, text, err)
		}
		return string(text)
	}
	const crowd, share, asked = 10_000, 11, 11 // the clients that send requests are on this machine too
	began := time.Now()
	for n := range crowd {
		dial("127.0.0.1")
		if n%(crowd/10) == crowd/10-1 { // the response comes after all earlier connections were accepted
			get("/healthz")
		}
	}
	_, count, _ := strings.Cut(get("/metrics"), "\nculvert_listener_refused_connections_total ")
	refused, err := strconv.Atoi(strings.TrimSpace(count))
	// A silent connection loses its place after requestTime.
	if least := crowd - share*(1+int(time.Since(began)/requestTime)); err != nil || refused < least ||
		refused > crowd-share+asked {
		t.Errorf("%d of %d were refused, at least %d should be: %v", refused, crowd, least, err)
	}
}
