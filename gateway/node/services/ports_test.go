package services

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"culvert/integration/fresh"
	"culvert/integration/need"
)

// No test runs on the main thread: it could leave it in another namespace, and /proc/net shows the
// main thread's network.
func init() { runtime.LockOSThread() }

// TestLentPorts has node ports in the range from which the kernel chooses source ports.
func TestLentPorts(t *testing.T) {
	runtime.LockOSThread() // never unlocked
	need.Kernel(t, "namespace", unix.Unshare(unix.CLONE_NEWNET))
	need.NoError(t, fresh.Network())
	c, err := parse(t, "nodePort: 30080", "nodePort: 40000", "nodePort: 30080", "nodePort: 40001")
	need.NoError(t, err)
	for _, test := range []struct {
		local, reserved string
		lent            int
	}{
		{"32768 60999", "", 2},
		{"32768 39999", "", 0},
		{"40001 60999", "", 1},
		{"32768 60999", "39990-40000,50000", 1},
		{"32768 60999", "40000-40001", 0},
		{"32768 60999", "40000,40001", 0},
	} {
		for name, value := range map[string]string{"ip_local_port_range": test.local,
			"ip_local_reserved_ports": test.reserved + "\n"} {
			need.NoError(t, os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0))
		}
		if lent := c.lentPorts(); len(lent) != test.lent {
			t.Errorf("local %q, reserved %q: %v", test.local, test.reserved, lent)
		}
	}
}
