package control

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"culvert/integration/need"
)

// TestTooManyConnections: the client recognises a gateway that closes a connection at once, even
// before it has sent the request.
func TestTooManyConnections(t *testing.T) {
	c := NewClient(filepath.Join(t.TempDir(), "socket"))
	l, err := net.Listen("unix", c.Path)
	need.NoError(t, err)
	defer l.Close()
	c.http.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		near, err := new(net.Dialer).DialContext(ctx, "unix", c.Path)
		if err != nil {
			return nil, err
		}
		far, err := l.Accept()
		if err != nil {
			return nil, err
		}
		return near, far.Close()
	}}
	for range 100 {
		if _, err := c.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "it has too many connections, or is stopping") {
			t.Fatal(err)
		}
	}
}
