package service

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"culvert/integration/need"
)

// freePort returns a port at which nobody listens. It is below 32768, so the kernel does not assign
// it to another socket before the test uses it.
func freePort(t *testing.T) uint16 {
	t.Helper()
	for port := uint16(10000 + os.Getpid()%10000); port < 32768; port++ {
		if l, err := net.Listen("tcp", fmt.Sprint(":", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

// TestHealthChecks: health checks get exactly the answers of kube-proxy.
func TestHealthChecks(t *testing.T) {
	port := freePort(t)
	c := checks{answering: map[asked]*answering{}}
	defer c.close()
	at := addr("127.0.0.1", "127.0.0.2")
	name := Name{"shop", "web"}
	for _, test := range []struct {
		endpoints int
		healthy   bool
		code      int
		body      string
	}{
		{2, true, 200,
			"{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}"},
		{0, true, 503,
			"{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 0,\n\t\"serviceProxyHealthy\": true\n}"},
		{1, false, 503,
			"{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 1,\n\t\"serviceProxyHealthy\": false\n}"},
	} {
		c.healthy.Store(test.healthy)
		if failed := c.set(at, []Check{{name, true, port, test.endpoints}}); len(failed) > 0 {
			t.Fatal(failed)
		}
		for _, a := range at {
			r, err := http.Get("http://" + netip.AddrPortFrom(a, port).String() + "/any")
			need.NoError(t, err)
			body, err := io.ReadAll(r.Body)
			r.Body.Close()
			if err != nil || r.StatusCode != test.code || string(body) != test.body {
				t.Errorf("with %d endpoints the answer is %d %q, want %d %q (%v)", test.endpoints, r.StatusCode, body,
					test.code, test.body, err)
			}
			for header, want := range map[string]string{
				"Content-Type": "application/json", "X-Content-Type-Options": "nosniff",
				"X-Load-Balancing-Endpoint-Weight": strconv.Itoa(test.endpoints),
			} {
				if got := r.Header.Get(header); got != want {
					t.Errorf("%s: %q, want %q", header, got, want)
				}
			}
		}
	}
	c.set(at, nil)
	if conn, err := net.Dial("tcp", netip.AddrPortFrom(at[0], port).String()); err == nil {
		conn.Close()
		t.Error("the port of a deleted Service accepts connections")
	}
}

// TestHealthCheckPortTaken: a port that another process has is reported, and the checks of other
// Services are answered.
func TestHealthCheckPortTaken(t *testing.T) {
	taken := freePort(t)
	l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", taken))
	need.NoError(t, err)
	free := freePort(t)
	c := checks{answering: map[asked]*answering{}}
	defer c.close()
	all := []Check{{Name{"shop", "web"}, true, taken, 1}, {Name{"shop", "api"}, true, free, 1}}
	failed := c.set(addr("127.0.0.1"), all)
	if len(failed) != 1 || failed[all[0].Name] == nil {
		t.Errorf("failed are %v, want the check of %v alone", failed, all[0].Name)
	}
	if conn, err := net.Dial("tcp", netip.AddrPortFrom(addr("127.0.0.1")[0], free).String()); err != nil {
		t.Error(err)
	} else {
		conn.Close()
	}
	l.Close()
	if failed := c.set(addr("127.0.0.1"), all); len(failed) > 0 {
		t.Errorf("when the port is free again, failed are %v, want none", failed)
	}
}

// TestHealthCheckBesideSilence: clients that connect and say nothing do not delay load balancers at
// other addresses.
func TestHealthCheckBesideSilence(t *testing.T) {
	at := netip.AddrPortFrom(addr("127.0.0.1")[0], freePort(t))
	c := checks{answering: map[asked]*answering{}}
	defer c.close()
	if failed := c.set(addr("127.0.0.1"), []Check{{Name{"shop", "web"}, true, at.Port(), 1}}); len(failed) > 0 {
		t.Fatal(failed)
	}
	from := func(address string) *net.Dialer {
		return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}, Timeout: checkPatience}
	}
	for range 200 {
		conn, err := from("127.0.0.1").Dial("tcp", at.String())
		need.NoError(t, err)
		defer conn.Close()
	}
	client := http.Client{Transport: &http.Transport{DialContext: from("127.0.1.1").DialContext,
		DisableKeepAlives: true}, Timeout: checkPatience / 2}
	r, err := client.Get("http://" + at.String())
	need.NoError(t, err)
	r.Body.Close()
}

// TestHealthCheckBodyMissing: a client that announces a body and sends none loses its connection,
// like one that requests nothing.
func TestHealthCheckBodyMissing(t *testing.T) {
	at := netip.AddrPortFrom(addr("127.0.0.1")[0], freePort(t))
	c := checks{answering: map[asked]*answering{}}
	defer c.close()
	if failed := c.set(addr("127.0.0.1"), []Check{{Name{"shop", "web"}, true, at.Port(), 1}}); len(failed) > 0 {
		t.Fatal(failed)
	}
	conn, err := net.Dial("tcp", at.String())
	need.NoError(t, err)
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: shop\r\nContent-Length: 1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	conn.SetReadDeadline(time.Now().Add(10 * checkPatience))
	if b, err := io.ReadAll(conn); err != nil {
		t.Errorf("the connection is not closed after %q: %v", b, err)
	}
}
