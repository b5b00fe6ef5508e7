package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"culvert/integration/need"
)

// TestNodeCheckServices: --check of a node that serves by a device says what would keep it from
// starting on this machine.
func TestNodeCheckServices(t *testing.T) {
	var first, last int
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	need.NoError(t, err)
	if _, err := fmt.Sscan(string(text), &first, &last); err != nil {
		t.Fatal(err)
	}
	ports := fmt.Sprintf("clientPorts: %d-%d", last-99, last)
	for fields, want := range map[string]string{
		"addresses: [192.0.2.1]":     "warning: services.addresses[0]: 192.0.2.1 is not an address of this machine",
		"addresses: [OWN], " + ports: "warning: services.clientPorts: ",
	} {
		if own := ownAddress(t); own != "" {
			fields = strings.Replace(fields, "OWN", own, 1)
		} else if strings.Contains(fields, "OWN") {
			continue
		}
		name := filepath.Join(t.TempDir(), "node.yaml")
		need.NoError(t, os.WriteFile(name,
			[]byte("name: n1\nservices: {"+fields+", serve: [{name: web, port: 80, nodePort: 80}]}\n"), 0o600))
		out, diag, status := run(t, "node", "--check", "--config", name)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if status != 0 || diag != "" || len(lines) != 2 || !strings.HasSuffix(lines[0],
			": good: n1 serves 1 port of a Service") || !strings.HasPrefix(lines[1], want) {
			t.Errorf("status %d, %q, %q; want %q", status, out, diag, want)
		}
	}
}

// ownAddress returns an IPv4 address of this machine that other hosts reach; "" if it has none.
func ownAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	need.NoError(t, err)
	for _, a := range all {
		if ip := a.(*net.IPNet).IP; ip.To4() != nil && ip.IsGlobalUnicast() {
			return ip.String()
		}
	}
	return ""
}
