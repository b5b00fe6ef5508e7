package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"culvert/integration/need"
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

// romeIPNode is a second node of rome, on the same machine as the first, whose tunnel carries IP
// packets without Ethernet.
const romeIPNode = `    - {name: rome-2, vni: 66051, underlay: 172.18.0.2, address: 10.80.0.6, podCIDRs: [10.0.8.0/21], inner: ip}
`

// TestPeerKernelGeneve uses a kernel with Geneve as rome's node: first with a link made by hand, as
// other software makes it, then with culvert node.
func TestPeerKernelGeneve(t *testing.T) {
	besideFamilies(t, func(t *testing.T, f peerFamily) {
		c := newMilanOf(t, f)
		g := startGuest(c.romeGateway, "172.18.0.2/24", "172.18.0.9/24")
		config := strings.Replace(romeConfig, "  nodes:\n", "  nodes:\n"+romeIPNode, 1)
		c.romeCulvert = startGateway(c.romeGateway, config, c.romeKey, c.milanKey.public)
		g.pod(1340)
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
		traffic(f.amount(10_485_763))
		if f.inside {
			testDiscovery(t, g)
		}
		g.ip("link del tunnel")

		g.ip(
			"link add tunnel mtu 1340 type geneve id 66051 remote 172.18.0.9 dstport 6091 innerprotoinherit",
			"link set tunnel up",
			"address add 10.0.9.7/32 dev tunnel",
			"route add 10.61.0.0/16 dev tunnel src 10.0.9.7",
		)
		g.sh("ping -q -c 3 -i 0.05 -W 2 -s 1312 " + milanPodAtRome)
		pingThrough(c.milanPod, "10.62.9.7")
		g.ip("link del tunnel")

		g.write("/tmp/node.yaml", romeNodeConfig)
		start := []string{
			"culvert node --config /tmp/node.yaml >>/tmp/node.log 2>&1 & echo $! >/tmp/node.pid",
			"n=0; until { ip route show dev culvert0; ip -6 route show dev culvert0; } 2>/dev/null | grep -q 10.71.0.0/16; do n=$((n+1)); [ $n -lt 400 ] || { cat /tmp/node.log; exit 1; }; sleep 0.05; done",
		}
		g.sh(start...)
		t.Log(g.sh("ip -d link show culvert0; ip route show dev culvert0; ip -6 route show dev culvert0"))
		traffic(f.amount(10_240_001))
		g.sh("kill -9 $(cat /tmp/node.pid)") // its link stays, for the next run to replace
		g.write("/tmp/node.yaml", strings.Replace(romeNodeConfig, "mode: geneve", "mode: auto", 1))
		g.sh(start...)
		g.sh("ip -d link show culvert0 | grep 'geneve id'")
		g.ping(milanPodAtRome)
		g.sh(
			"kill $(cat /tmp/node.pid)",
			"n=0; while kill -0 $(cat /tmp/node.pid) 2>/dev/null; do n=$((n+1)); [ $n -lt 400 ] || { cat /tmp/node.log; exit 1; }; sleep 0.05; done",
		)
		if after := g.state(); after != before {
			t.Errorf("culvert node left behind:\n%s\nwhere there was\n%s", after, before)
		}
		if t.Failed() {
			t.Log(g.sh("cat /tmp/node.log"))
		}
	}, probeGuest)
}

// testDiscovery checks the kernel's neighbour table (RFC 4861), and tries to take the gateway's
// address, which duplicate address detection must prevent (RFC 4862).
func testDiscovery(t *testing.T, g *guest) {
	neighbours := g.sh("ip -6 neigh show " + romeInternal + " dev tunnel")
	if !strings.Contains(neighbours, " lladdr ") || strings.Contains(neighbours, "PERMANENT") {
		t.Errorf("the gateway is no neighbour that the kernel found: %q", neighbours)
	}
	g.sh(
		"ip addr add "+romeInternal+"/32 dev tunnel",
		"n=0; until ip addr show dev tunnel dadfailed | grep -q "+romeInternal+
			"; do n=$((n+1)); [ $n -lt 100 ] || { ip addr show dev tunnel; exit 1; }; sleep 0.1; done",
		"ip addr del "+romeInternal+"/32 dev tunnel",
	)
}

// ip runs ip(8) commands inside the guest.
func (g *guest) ip(commands ...string) {
	g.t.Helper()
	g.sh("ip " + strings.Join(commands, "\nip "))
}

// state returns the part of the guest's network that must not change.
func (g *guest) state() string {
	g.t.Helper()
	return g.sh("ip -br link | awk '{print $1}'; ip -br addr | awk '{print $1, $3}'; ip route; ip rule; ip -6 route | grep -v ^fe80 || true; ip -6 rule")
}

// TestPeerKernelWireGuard uses a kernel as all of milan: its WireGuard, nftables that translate
// prefixes as culvert would, and a pod behind it.
func TestPeerKernelWireGuard(t *testing.T) {
	besideFamilies(t, func(t *testing.T, f peerFamily) {
		c := &clusters{romeGateway: newPeerHostOf(t, f, "rome-gw"), romeKey: newKeyPair(t), milanKey: newKeyPair(t)}
		g := startGuest(c.romeGateway, "192.0.2.7/24", "192.0.2.1/24")
		g.pod(kernelMTU)
		g.wireGuard(c)
		c.addRome()

		pingThrough(c.romePod, milanPodAtRome)
		g.ping(romePodAtMilan)
		g.exchange(c.romePod, romePodAtMilan, milanPodAtRome, f.amount(10_485_761))
		g.echo(c.romePod, milanPodAtRome, f.amount(3_500_001))
		text := g.sh("wg show wg0")
		for _, want := range []string{"latest handshake: ", f.of("endpoint: 192.0.2.1:")} {
			if !strings.Contains(text, want) {
				t.Errorf("wg show of the kernel's tunnel: no %q in\n%s", want, text)
			}
		}
		testTooBig(t, c, g)
		testRoaming(t, c, g)
	}, probeGuest)
}

// kernelMTU is the MTU of the kernel's tunnel, which is larger than culvert's.
const kernelMTU = 1400

// testTooBig sends packets from each end that are too big for the network behind the other end. By
// then they have been translated twice; the errors come from the address that the sender had
// contacted, as with NAT in Linux.
func testTooBig(t *testing.T, c *clusters, g *guest) {
	headers, words, router := 28, "From %s icmp_seq=1 Frag needed and DF set (mtu = %d)", milanPodAtRome
	if g.host.family.inside {
		// The kernel's tunnel then has only a link-local address, so that the kernel answers from
		// its address on the pod's link (RFC 6724, Section 5, Rule 2), which is translated like a
		// pod's.
		headers, words, router = 48, "From %s icmp_seq=1 Packet too big: mtu=%d", "10.61.1.1"
		g.sh("ip -n pod -6 route flush cache") // forget path MTUs from the pings
	}
	ping := func(packet int, to string) string {
		return fmt.Sprintf("ping -c 1 -W 10 -M do -s %d %s || true", packet-headers, to)
	}
	tooBig := func(out, from string, mtu int) {
		t.Helper()
		if want := fmt.Sprintf(words, g.host.family.of(from), mtu); !strings.Contains(out, want) {
			t.Errorf("ping with DF: no %q in\n%s", want, out)
		}
	}
	tooBig(g.sh("ip netns exec pod "+ping(kernelMTU, romePodAtMilan)), romePodAtMilan, 1340)

	g.ip("route del 10.0.1.0/24 dev pod", "route add 10.0.1.0/24 dev pod mtu 1300")
	out, err := c.romePod.try("", "sh", "-c", ping(1340, milanPodAtRome))
	need.NoError(t, err)
	tooBig(out, router, 1300)
	// The pod forgets the path MTU, so the gateway must shrink the connection's super-frames.
	c.romePod.ip("route flush cache")
	c.romePod.run("ip", "-6", "route", "flush", "cache")
	g.echo(c.romePod, milanPodAtRome, 1_500_001)
}

// wireGuard makes the guest the gateway of milan.
func (g *guest) wireGuard(c *clusters) {
	g.t.Helper()
	g.write("/tmp/key", c.milanKey.private)
	g.sh(
		fmt.Sprintf("ip link add wg0 mtu %d type wireguard", kernelMTU),
		"wg set wg0 listen-port 51840 private-key /tmp/key peer "+c.romeKey.public+" allowed-ips 0.0.0.0/0,::/0",
		"ip addr add 169.254.18.1/30 dev wg0",
		"ip addr add fe80::a9fe:1201/64 dev wg0",
		"ip link set wg0 up",
		// The pods' packets to the remapped CIDR go to the tunnel, although this cluster also uses
		// the translated destination.
		"for f in -4 -6; do ip $f route add default dev wg0 table 100; ip $f rule add fwmark 1 lookup 100; done",
		// So do the kernel's own errors about packets from the tunnel.
		"echo 1 >/proc/sys/net/ipv4/fwmark_reflect; echo 1 >/proc/sys/net/ipv6/fwmark_reflect",
		"for f in -4 -6; do ip $f rule add fwmark 2 iif lo lookup 100; done",
	)
	nat := `
table ip nat {
	chain outgoing { type filter hook prerouting priority -150; ip daddr 10.62.0.0/16 meta mark set 1; iifname "wg0" meta mark set 2; }
	chain destination { type nat hook prerouting priority dstnat; ip daddr 10.62.0.0/16 dnat ip prefix to ip daddr map { 10.62.0.0/16 : 10.0.0.0/16 }; }
	chain source { type nat hook postrouting priority srcnat; iifname "wg0" snat ip prefix to ip saddr map { 10.0.0.0/16 : 10.62.0.0/16 }; }
}`
	if g.host.family.inside {
		nat = strings.ReplaceAll(nat, " ip ", " ip6 ")
	}
	g.write("/tmp/nat", nat)
	g.sh("nft -f /tmp/nat")
}

// testRoaming moves the kernel to another port, and the gateway must follow; then restarts the
// gateway, and the kernel must follow.
func testRoaming(t *testing.T, c *clusters, g *guest) {
	const port = "51999"
	g.sh("wg set wg0 listen-port " + port)
	g.ping(romePodAtMilan) // the first packet from there informs the gateway
	pingThrough(c.romePod, milanPodAtRome)
	if got, want := c.romeGateway.run("wg", "show", uapiLink, "endpoints"),
		c.milanKey.public+g.host.family.of("\t192.0.2.7:")+port+"\n"; got != want {
		t.Errorf("wg show endpoints: %q, want %q", got, want)
	}

	g.sh("wg set wg0 listen-port 51840") // where the configuration says
	c.romeCulvert.stop()
	c.startRome()
	began := time.Now()
	pingThrough(c.romePod, milanPodAtRome)
	took := time.Since(began)
	t.Logf("pings of all sizes are answered %v after a restart of the gateway", took.Round(time.Millisecond))
	if took > deadSession {
		t.Errorf("as long as it takes the kernel to notice that the session is dead, %v", deadSession)
	}
}

// deadSession is how long a WireGuard peer keeps a session that no longer answers:
// KEEPALIVE_TIMEOUT + REKEY_TIMEOUT.
const deadSession = 15 * time.Second
