package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"culvert/integration/need"
)

// TestNodeCheckServices: --check of a node that serves by a device says what would keep it from starting on this machine.
func TestNodeCheckServices(t *testing.T) {
	var first, last int
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	need.NoError(t, err)
	if _, err := fmt.Sscan(string(text), &first, &last); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "node.yaml")
	file := fmt.Sprintf("name: n1\nservices: {addresses: [192.0.2.1], clientPorts: %d-%d, serve: [{name: web, port: 80, nodePort: 80}]}\n", last-99, last)
	need.NoError(t, os.WriteFile(name, []byte(file), 0o600))
	out, diag, status := run(t, "node", "--check", "--config", name)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i, want := range []string{
		": good: n1 serves 1 port of a Service", "warning: services.addresses[0]: 192.0.2.1 is not an address of this machine",
		"warning: services.clientPorts: ",
	} {
		if status != 0 || diag != "" || len(lines) != 3 || !strings.Contains(lines[i], want) {
			t.Fatalf("status %d, %q, %q; want %q", status, out, diag, want)
		}
	}
}
