package netns

import (
	"net/netip"
	"testing"

	"culvert/integration/need"
)

// TestDialFromOwnPorts: each of many sockets with one peer gets answers of its own.
func TestDialFromOwnPorts(t *testing.T) {
	need.Namespace(t)
	loopback := netip.MustParseAddr("127.0.0.1")
	h, err := New("many", loopback)
	need.NoError(t, err)
	defer h.Close()
	of := map[string]int{}
	for i := range 1000 {
		conn, err := h.DialFrom(t.Context(), "udp4", netip.AddrPortFrom(loopback, 0), netip.AddrPortFrom(loopback,
			8125), nil)
		need.NoError(t, err)
		defer conn.Close()
		port := conn.LocalAddr().String()
		if other, taken := of[port]; taken {
			t.Fatalf("sockets %d and %d are both %s", other, i, port)
		}
		of[port] = i
	}
}
