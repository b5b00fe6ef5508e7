package integration

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNodeSees: culvert node, with one capability and a kernel link, says whether the gateway
// answers, and if not, why.
func TestNodeSees(t *testing.T) {
	beside(t, func(t *testing.T) {
		gateway, node := newPeerHost(t, "rome-gw"), newPeerHost(t, "rome-1")
		join(gateway, node, "172.18.0.9/24", "172.18.0.2/24", 1500)
		own, peer := newKeyPair(t), newKeyPair(t)
		file := filepath.Join(t.TempDir(), "node.yaml")
		if err := errors.Join(os.Chmod(filepath.Dir(filepath.Dir(file)), 0o711),
			os.WriteFile(file, []byte(strings.Replace(romeNodeConfig, "mode: geneve\n", "", 1)), 0o644)); err != nil {
			t.Fatal(err)
		}
		start := func() (p *peerProcess, says func(string)) {
			t.Helper()
			p = node.start(nil, "setpriv", "--reuid=65532", "--regid=65532", "--clear-groups",
				"--inh-caps=-all,+net_admin",
				"--ambient-caps=-all,+net_admin", "--bounding-set=-all,+net_admin", os.Getenv(binaryEnv), "node",
				"--config", file)
			return p, func(line string) {
				t.Helper()
				p.awaitOutput(t, line)
			}
		}
		const well = `msg="the gateway answers"`

		p, says := start()
		says(`msg="the gateway does not answer" error="UDP port 6091 is closed at 172.18.0.9"`)
		g := startGateway(gateway, romeConfig, own, peer.public)
		says(well)
		p.stop()
		g.stop()

		g = startGateway(gateway, strings.Replace(romeConfig, "7340033", "1", 1), own, peer.public)
		p, says = start()
		says(`msg="the gateway does not answer" error="nothing comes back from 172.18.0.9:6091"`)
		p.stop()
		g.stop()

		node.sysctl("net/ipv4/ping_group_range", "0 65535")
		gateway.feed("add table ip way\nadd chain ip way in { type filter hook input priority 0; }\nadd rule ip way in udp length > 1350 drop\n", "nft", "-f", "-")
		startGateway(gateway, romeConfig, own, peer.public)
		_, says = start()
		says(`msg="the gateway answers, but packets of mtu bytes do not come back" bytes=1340`)
		gateway.run("nft", "delete table ip way")
		says(well)
	}, programs("setpriv", "setpriv"), programs("nft", "nft"))
}
