package integration

import (
	"fmt"
	"strings"
	"testing"
)

// romeNodeConfig is the other end of romeConfig, for culvert node.
const romeNodeConfig = `
name: rome-1
underlay: 172.18.0.2
gateway: {underlay: 172.18.0.9, address: 10.80.0.4}
vni: 7340033
address: 10.80.0.2
mode: geneve
routes: [10.61.0.0/16, 10.71.0.0/16]
`

// TestPeerKernelGeneve has a kernel with Geneve as the node of rome: first with a
// link made by hand, as other software makes it, then with culvert node.
func TestPeerKernelGeneve(t *testing.T) {
	isolated(t, func(t *testing.T) {
		c := newMilan(t)
		g := startGuest(c.romeGateway, "172.18.0.2/24", "172.18.0.9/24")
		c.romeCulvert = startGateway(c.romeGateway, romeConfig, c.romeKey, c.milanKey.public)
		g.pod()
		before := g.state()
		traffic := func(size int) {
			t.Helper()
			g.ping(milanPodAtRome)
			g.sh("ping -q -c 2 -i 0.05 -W 2 " + romeInternal) // the node itself
			pingThrough(c.milanPod, romePodAtMilan)
			g.exchange(c.milanPod, milanPodAtRome, romePodAtMilan, size)
			g.echo(c.milanPod, romePodAtMilan, size/3)
		}

		g.ip(
			fmt.Sprintf("link add tunnel mtu 1340 type geneve id %d remote 172.18.0.9 dstport 6091", romeVNI),
			"link set tunnel up",
		)
		g.ip(internalAddress("10.80.0.2", romeInternal, "10.61.0.0/16", "10.71.0.0/16")...)
		traffic(10_485_763)
		g.ip("link del tunnel")

		g.write("/tmp/node.yaml", romeNodeConfig)
		start := []string{
			"culvert node --config /tmp/node.yaml >>/tmp/node.log 2>&1 & echo $! >/tmp/node.pid",
			"n=0; until ip route show dev culvert0 2>/dev/null | grep -q 10.71; do n=$((n+1)); [ $n -lt 100 ] || { cat /tmp/node.log; exit 1; }; sleep 0.05; done",
		}
		g.sh(start...)
		t.Log(g.sh("ip -d link show culvert0; ip route show dev culvert0"))
		traffic(10_240_001)
		g.sh("kill -9 $(cat /tmp/node.pid)") // its link stays, for the next to replace
		g.sh(start...)
		g.ping(milanPodAtRome)
		g.sh(
			"kill $(cat /tmp/node.pid)",
			"n=0; while kill -0 $(cat /tmp/node.pid) 2>/dev/null; do n=$((n+1)); [ $n -lt 100 ] || { cat /tmp/node.log; exit 1; }; sleep 0.05; done",
		)
		if after := g.state(); after != before {
			t.Errorf("culvert node left behind:\n%s\nwhere there was\n%s", after, before)
		}
		if t.Failed() {
			t.Log(g.sh("cat /tmp/node.log"))
		}
	}, probeGuest)
}

// ip runs ip(8) commands inside the guest.
func (g *guest) ip(commands ...string) {
	g.t.Helper()
	g.sh("ip " + strings.Join(commands, "\nip "))
}

// state is what of the guest's network must not change.
func (g *guest) state() string {
	g.t.Helper()
	return g.sh("ip -br link | awk '{print $1}'; ip -br addr | awk '{print $1, $3}'; ip route; ip rule")
}
