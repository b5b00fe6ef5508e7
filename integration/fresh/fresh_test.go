package fresh_test

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"culvert/integration/fresh"
	"culvert/integration/need"
)

// TestNetwork: whatever a namespace has taken from its machine, it is set for the links that are
// there, and for those that come.
func TestNetwork(t *testing.T) {
	runtime.LockOSThread() // and never unlock: the namespace ends with its thread
	need.Kernel(t, "namespace", unix.Unshare(unix.CLONE_NEWNET))
	const conf = "/proc/sys/net/ipv4/conf/"
	taken := map[string]string{"forwarding": "1", "rp_filter": "1", "arp_ignore": "1", "proxy_arp": "1",
		"accept_redirects": "0", "send_redirects": "0"}
	for name, value := range taken {
		for _, link := range []string{"all/", "default/", "lo/"} {
			if err := os.WriteFile(conf+link+name, []byte(value), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := fresh.Network(); err != nil {
		t.Fatal(err)
	}
	for name, value := range taken {
		for _, link := range []string{"all/", "default/", "lo/"} {
			if is, err := os.ReadFile(conf + link + name); err != nil || strings.TrimSpace(string(is)) == value {
				t.Errorf("%s%s: %q, %v", link, name, is, err)
			}
		}
	}
	if is, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward"); err != nil || string(is) != "0\n" {
		t.Errorf("ip_forward: %q, %v", is, err)
	}
}
