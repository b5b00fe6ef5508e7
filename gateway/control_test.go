package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/config"
	"culvert/gateway/config/configtest"
	"culvert/gateway/control"
	"culvert/gateway/seats"
	"culvert/gateway/wgkey"
	"culvert/geneve"
	"culvert/integration/need"
)

// newControlled returns a pair of clusters, and a client of rome's control socket.
func newControlled(t testing.TB, edit func(rome, milan *config.Config)) (*pair, *control.Client) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rome.sock")
	p := newPair(t, func(rome, milan *config.Config) {
		rome.Control = path
		if edit != nil {
			edit(rome, milan)
		}
	})
	return p, control.NewClient(path)
}

// TestStatus: a status reports what has happened, and only the owner may use the socket.
func TestStatus(t *testing.T) {
	p, client := newControlled(t, nil)
	p.rome.nodes[0].GatewayMAC()
	for _, n := range p.rome.nodes {
		deaf(n)
	}
	p.rome.nodes[0].Send(udpPacket("127.0.0.1", "10.61.1.7", nil)) // bad-source
	p.rome.nodes[0].Send(udpPacket("10.0.1.5", "10.61.1.7", nil))
	expect(t, p.milan.nodes[0], "10.62.1.5", "10.0.1.7")

	s, err := client.Status(t.Context())
	need.NoError(t, err)
	if s.Cluster != "rome" || s.Peer != "milan" || s.Role != "client" || s.PID != os.Getpid() ||
		s.MTU != int(config.DefaultMTU) {
		t.Errorf("%+v", s)
	}
	if s.Tunnel.State != "up" || s.Tunnel.HandshakeSeconds == nil ||
		s.Tunnel.Endpoint != p.rome.config().WireGuard.Endpoint || s.Tunnel.SentBytes == 0 {
		t.Errorf("tunnel %+v", s.Tunnel)
	}
	if len(s.Nodes) != 2 || s.Nodes[0].State != "up" || s.Nodes[0].SilenceSeconds == nil ||
		s.Nodes[0].ReceivedPackets != 2 || s.Nodes[0].Encap != "geneve" ||
		s.Nodes[1].State != "unresolved" || s.Nodes[1].Name != "rome-2" || s.Nodes[1].Encap != "vxlan" {
		t.Errorf("nodes %+v", s.Nodes)
	}
	if s.Table.Connections != 1 || s.Table.Created != 1 || s.Table.Unreplied != 1 || s.Table.Pressed {
		t.Errorf("table %+v", s.Table)
	}
	if d := s.Outbound.Drops; s.Outbound.Received != 2 || s.Outbound.Forwarded != 1 || len(d) != 1 ||
		d[0].Reason != "bad-source" || d[0].Packets != 1 || d[0].Rate <= 0 {
		t.Errorf("outbound %+v", s.Outbound)
	}
	if k := s.Sockets["geneve"]; k.ReceivedBytes == 0 || k.Overflows == nil || k.ReceiveBuffer == 0 {
		t.Errorf("sockets %+v", s.Sockets)
	}
	if s.Memory.Resident == 0 || s.Memory.Heap == 0 {
		t.Errorf("memory %+v", s.Memory)
	}
	if info, err := os.Stat(client.Path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	p.rome.stop()
	if _, err := os.Stat(client.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	if _, err := client.Status(t.Context()); !errors.Is(err, control.ErrNoGateway) {
		t.Errorf("a gateway that has stopped: %v", err)
	}
}

// TestStatusShowsNoSecret: nothing that the socket serves contains a secret key, but the status
// says that there is a pre-shared one.
func TestStatusShowsNoSecret(t *testing.T) {
	p, client := newControlled(t, nil)
	w := p.rome.config().WireGuard
	if s, err := client.Status(t.Context()); err != nil || !s.Tunnel.Preshared {
		t.Errorf("%v, %+v", err, s.Tunnel)
	}
	for _, path := range []string{"/v1/status", "/debug/pprof/goroutine?debug=2", "/debug/pprof/cmdline"} {
		path, query, _ := strings.Cut(path, "?")
		response, err := client.Open(t.Context(), http.MethodGet, path,
			map[string][]string{"debug": {strings.TrimPrefix(query, "debug=")}}, nil)
		need.NoError(t, err)
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || len(text) == 0 {
			t.Errorf("%s: %v, %q", path, err, text)
		}
		for _, key := range []wgkey.Key{w.PrivateKey, w.PresharedKey} {
			if bytes.Contains(text, []byte(key.Base64())) || bytes.Contains(text, key[:]) {
				t.Errorf("%s: %q", path, text)
			}
		}
	}
}

// TestControlPlace: a gateway does not start without a socket that the file names, but does without
// the default one. A refused start leaves another gateway's socket alone.
func TestControlPlace(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	open := func(path string) (*Gateway, string, error) {
		t.Helper()
		c := configtest.Cluster("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16")
		c.WireGuard.PeerPublicKey, c.WireGuard.Endpoint = c.WireGuard.PrivateKey, "127.0.0.1:9"
		for i := range c.Geneve.Nodes {
			c.Geneve.Nodes[i].Underlay = netip.AddrFrom4([4]byte{127, 0, 50, byte(2 + i)})
		}
		c.Control = path
		var text bytes.Buffer
		log := logrus.New()
		log.SetOutput(&text)
		g, err := newGateway(c, Budget{}, log, geneve.Options{Listen: netip.MustParseAddrPort("127.0.0.1:0")})
		return g, text.String(), err
	}
	first, log, err := open(config.ControlAuto)
	if err != nil || log != "" {
		t.Fatal(err, log)
	}
	defer first.close()
	usual := filepath.Join(dir, "culvert", "rome-milan.sock")
	if first.control.Listener.Addr().String() != usual {
		t.Errorf("the usual place is %s", first.control.Listener.Addr())
	}
	second, log, err := open(config.ControlAuto)
	if err != nil || !strings.Contains(log, usual+" is in use by another process") {
		t.Fatal(err, log)
	}
	second.close()
	if _, _, err := open(usual); err == nil || !strings.Contains(err.Error(),
		"control: "+usual+" is in use by another process; stop it") {
		t.Fatal(err)
	}
	if conn, err := net.Dial("unix", usual); err != nil {
		t.Errorf("the first gateway's socket: %v", err)
	} else {
		conn.Close()
	}
	off, log, err := open("")
	if err != nil || log != "" || off.control.Listener != nil {
		t.Fatal(err, log)
	}
	off.close()
}

// TestControlIsBounded: idle connections take all seats, the next connection is refused with a
// reason, and there is room again when the idle ones have been closed.
func TestControlIsBounded(t *testing.T) {
	_, client := newControlled(t, nil)
	var idle net.Conn
	began := time.Now()
	for range seats.Max {
		conn, err := net.Dial("unix", client.Path)
		need.NoError(t, err)
		defer conn.Close()
		idle = conn
	}
	_, err := client.Status(t.Context())
	// late: some idle connections have been closed
	if late := err == nil && time.Since(began) > requestTime; !late && (err == nil || !strings.Contains(err.Error(),
		"too many")) {
		t.Errorf("one more: %v", err)
	}
	io.Copy(io.Discard, idle) // until the gateway closes it
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for err := errors.New(""); err != nil; _, err = client.Status(ctx) {
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}
