package wg

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"culvert/gateway/wgkey"
	"culvert/integration/need"
)

// TestUAPI: wg show finds the device, without its secrets; whatever else comes is refused, or gets
// no answer.
func TestUAPI(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	private, peer := wgkey.NewPrivate(), wgkey.NewPrivate().Public()
	d := New(Options{PrivateKey: private, MTU: 1340, Log: logrus.NewEntry(log)})
	t.Cleanup(d.Close)
	need.NoError(t, errors.Join(d.Open(idlePath(), Peer{PublicKey: peer, Preshared: wgkey.Key{1}, Endpoint: "127.0.0.1:9"}), d.Up()))
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	need.NoError(t, err)
	served := make(chan struct{})
	go func() { d.ServeUAPI(l); close(served) }()
	for request, want := range map[string]string{
		"get=1\n\n":                   "errno=0\n\n",
		"set=1\nlisten_port=1\n\n":    "errno=-1\n\n",
		"set=1\nprivate_key=zz\n\n":   "errno=-1\n\n",
		"GET / HTTP/1.1\nHost: a\n\n": "errno=-1\n\n",
		"get=2\n\n":                   "errno=-1\n\n",
		"get=1\n":                     "", // cut off
		"":                            "",
		strings.Repeat("x", maxUAPIRequest) + "\n\n": "",
	} {
		conn, err := net.Dial("unix", l.Addr().String())
		need.NoError(t, err)
		io.WriteString(conn, request)
		conn.(*net.UnixConn).CloseWrite()
		b, _ := io.ReadAll(conn) // a request that was not read to its end resets the connection
		conn.Close()
		got := string(b)
		if request == "get=1\n\n" {
			if !strings.Contains(got, "public_key=") || !strings.Contains(got, "endpoint=127.0.0.1:9\n") ||
				strings.Contains(got, "private_key=") || strings.Contains(got, "preshared_key=") {
				t.Errorf("%q", got)
			}
			got = got[max(0, len(got)-len(want)):]
		}
		if got != want {
			t.Errorf("%.20q: %q, want %q", request, got, want)
		}
	}
	l.Close()
	<-served
	if _, err := ListenUAPI("rome/milan"); err == nil || !strings.Contains(err.Error(), "choose another cluster") {
		t.Errorf("a name with a slash: %v", err)
	}
	if got := UAPIPath("a-long-name-of-a-cluster"); got != "/var/run/wireguard/a-long-name-of-.sock" {
		t.Errorf("a long name: %s", got)
	}
}
