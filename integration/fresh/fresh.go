// Package fresh makes a new network namespace the same on every machine.
package fresh

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ipv4 has the settings of an unconfigured kernel, for those that a new namespace inherits from the
// machine's first one (devinet_init_net in net/ipv4/devinet.c) and that affect packets. On a host
// that forwards packets, as with Docker or Kubernetes, every new namespace would forward them too.
var ipv4 = map[string]string{
	"accept_local": "0", "arp_announce": "0", "arp_filter": "0", "arp_ignore": "0", "forwarding": "0", "proxy_arp": "0",
	"route_localnet": "0",
	"rp_filter":      "0", "src_valid_mark": "0", "accept_redirects": "1", "secure_redirects": "1",
	"send_redirects": "1",
	"shared_media":   "1",
}

// ipv6 is the same for a machine with net.core.devconf_inherit_init_net=1.
var ipv6 = map[string]string{"forwarding": "0", "disable_ipv6": "0"}

// Network applies them in the network namespace of this thread, which this process must have made,
// for all present and future links. It skips settings that this kernel lacks.
func Network() error {
	for family, settings := range map[string]map[string]string{"ipv4": ipv4, "ipv6": ipv6} {
		for name, value := range settings {
			files, err := filepath.Glob("/proc/sys/net/" + family + "/conf/*/" + name)
			if err != nil {
				return fmt.Errorf("new network namespace: %w", err)
			}
			for _, file := range files {
				is, err := os.ReadFile(file)
				if err == nil && string(is) != value+"\n" {
					err = os.WriteFile(file, []byte(value), 0)
				}
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					return fmt.Errorf("new network namespace: %w", err)
				}
			}
		}
	}
	return nil
}
