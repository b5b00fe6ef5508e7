package main

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"culvert/gateway/config"
	"culvert/integration/need"
)

// TestPortsInUse: a port that another program has is reported under its field; a port that the
// gateway itself has is not.
func TestPortsInUse(t *testing.T) {
	udp, err := net.ListenPacket("udp", ":0")
	need.NoError(t, err)
	defer udp.Close()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	need.NoError(t, err)
	defer tcp.Close()
	free, err := net.ListenPacket("udp", ":0")
	need.NoError(t, err)
	free.Close()
	port := func(c net.PacketConn) uint16 { return uint16(c.LocalAddr().(*net.UDPAddr).Port) }
	c := &config.Config{Cluster: "rome", Peer: "milan", Control: filepath.Join(t.TempDir(), "s"),
		Metrics: tcp.Addr().String()}
	c.WireGuard.ListenPort, c.Geneve.ListenPort = port(udp), port(free)
	const what = " is in use on this machine; stop what uses it or choose another"
	want := []string{fmt.Sprintf("wireguard.listenPort: UDP port %d", port(udp)) + what, "metrics: " + c.Metrics + what}
	if got := portsInUse(t.Context(), c); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	l, err := net.Listen("unix", c.Control)
	need.NoError(t, err)
	var cluster atomic.Value
	cluster.Store("turin")
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(`{"cluster":"` + cluster.Load().(string) + `"}`))
	})}
	go server.Serve(l)
	defer server.Close()
	if got := portsInUse(t.Context(), c); !slices.Equal(got, want) {
		t.Errorf("beside the gateway of another cluster: %q, want %q", got, want)
	}
	cluster.Store("rome")
	if got := portsInUse(t.Context(), c); got != nil {
		t.Errorf("beside itself: %q", got)
	}
}
