package integration

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// sctpServices are the Services of the guest's node, in each family: in speaks the server sends
// data, in listens the client does.
const sctpServices = `name: node-1
services:
  addresses: [203.0.113.1, "fd03::1"]
  pods: [10.0.0.0/16, "fd00:10::/48"]
  serviceCIDRs: [10.96.0.0/12, "fd96::/112"]
  serve:
  - {name: speaks, protocol: sctp, clusterIP: 10.96.0.10, port: 81, nodePort: 30081, externalIPs: [198.51.100.10],
     endpoints: [{address: 10.0.1.5, port: 8081, node: node-1}, {address: 10.0.2.5, port: 8081, node: node-1}]}
  - {name: listens, protocol: sctp, clusterIP: 10.96.0.10, port: 82, nodePort: 30082, externalIPs: [198.51.100.10], externalTrafficPolicy: Local,
     endpoints: [{address: 10.0.1.5, port: 8082, node: node-1}, {address: 10.0.2.5, port: 8082, node: node-1}]}
  - {name: speaks-6, protocol: sctp, clusterIP: "fd96::a", port: 81, nodePort: 30083, externalIPs: ["2001:db8:5::a"],
     endpoints: [{address: "fd00:10:0:1::5", port: 8081, node: node-1}, {address: "fd00:10:0:2::5", port: 8081, node: node-1}]}
  - {name: listens-6, protocol: sctp, clusterIP: "fd96::a", port: 82, nodePort: 30084, externalIPs: ["2001:db8:5::a"], externalTrafficPolicy: Local,
     endpoints: [{address: "fd00:10:0:1::5", port: 8082, node: node-1}, {address: "fd00:10:0:2::5", port: 8082, node: node-1}]}
`

// A guestHost is a namespace of the guest, behind its kernel; node is the kernel itself. It has an
// address of each family.
type guestHost struct {
	name      string
	addresses [2]string
}

// TestServicesSCTP uses a node's Services over SCTP, inside a guest whose kernel supports it: over
// both families, from endpoints themselves, the node and a host outside, at cluster addresses, node
// ports and external addresses. Either end sends 100,000 bytes, which must arrive intact, and
// endpoints must see the right source.
func TestServicesSCTP(t *testing.T) {
	beside(t, func(t *testing.T) {
		g := startGuest(newPeerHost(t, "beside"), "172.18.0.2/24", "")
		hosts := []guestHost{
			{"one", [2]string{"10.0.1.5", "fd00:10:0:1::5"}}, {"two", [2]string{"10.0.2.5", "fd00:10:0:2::5"}},
			{"outside", [2]string{"203.0.113.5", "fd03::5"}}, {"node", [2]string{"203.0.113.1", "fd03::1"}},
		}
		lines := []string{
			"modprobe sctp; modprobe tun",
			"echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding",
			"head -c 100000 /dev/urandom >/tmp/sent",
		}
		for _, h := range hosts[:3] {
			lines = append(lines, "ip netns add "+h.name,
				fmt.Sprintf("ip link add %s type veth peer name eth0 netns %[1]s; ip link set %[1]s up", h.name),
				fmt.Sprintf("ip -n %s link set lo up; ip -n %[1]s link set eth0 up", h.name))
			for family, a := range h.addresses {
				gateway, bits := strings.TrimSuffix(a, "5")+"1", []int{24, 64}[family]
				lines = append(lines, fmt.Sprintf("ip addr add %s/%d dev %s %s", gateway, bits, h.name,
					[]string{"", "nodad"}[family]),
					fmt.Sprintf("ip -n %s addr add %s/%d dev eth0 %s", h.name, a, bits, []string{"", "nodad"}[family]),
					fmt.Sprintf("ip -n %s -%d route add default via %s", h.name, []int{4, 6}[family], gateway))
			}
		}
		for _, h := range hosts[:2] {
			for family, a := range h.addresses {
				// Bound to one address, so that neither end announces others.
				listen := fmt.Sprintf("SCTP%d-LISTEN:808%%d,bind=%s,fork,reuseaddr", []int{4, 6}[family],
					[]string{a, "[" + a + "]"}[family])
				lines = append(lines,
					fmt.Sprintf("ip netns exec %s socat -U "+listen+
						" SYSTEM:'echo %[1]s $SOCAT_PEERADDR; cat /tmp/sent' >/dev/null 2>&1 &", h.name, 1),
					fmt.Sprintf("ip netns exec %s socat -u "+listen+
						" SYSTEM:'s=$(sha256sum); echo %[1]s $SOCAT_PEERADDR $s >/tmp/heard.new; mv /tmp/heard.new /tmp/heard' >/dev/null 2>&1 &", h.name, 2))
			}
		}
		g.sh(lines...)
		g.write("/tmp/services.yaml", sctpServices)
		g.sh("culvert node --config /tmp/services.yaml >/tmp/services.log 2>&1 & echo $! >/tmp/services.pid",
			"n=0; until grep -q 'services are served' /tmp/services.log; do n=$((n+1)); [ $n -lt 200 ] || { cat /tmp/services.log; exit 1; }; sleep 0.05; done")
		sum := strings.Fields(g.sh("sha256sum </tmp/sent"))[0]
		asked, answered := 0, map[string]int{}
		for family := range 2 {
			cluster, external := []string{"10.96.0.10", "[fd96::a]"}[family], []string{"198.51.100.10",
				"[2001:db8:5::a]"}[family]
			node := hosts[3].addresses[family]
			for _, from := range hosts {
				for _, to := range []string{cluster, "node", external} {
					if from.name == "outside" && to == cluster {
						continue
					}
					for _, listens := range []bool{false, true} {
						address, port := to, 81
						if listens {
							port = 82
						}
						if to == "node" {
							address, port = []string{node, "[" + node + "]"}[family], port+30000+2*family
						}
						own := []string{from.addresses[family], "[" + from.addresses[family] + "]"}[family]
						client, at := fmt.Sprintf("SCTP%d:%s:%d,bind=%s", []int{4, 6}[family], address, port, own),
							"ip netns exec "+from.name+" "
						if from.name == "node" {
							at = ""
						}
						var out string
						if listens {
							out = g.sh("rm -f /tmp/heard", at+"socat -u /tmp/sent "+client,
								"n=0; until [ -e /tmp/heard ]; do n=$((n+1)); [ $n -lt 200 ]; sleep 0.05; done",
								"cat /tmp/heard")
						} else {
							out = g.sh(at+"socat -u "+client+" - >/tmp/got",
								"echo $(head -n 1 /tmp/got) $(tail -n +2 /tmp/got | sha256sum) $(wc -c </tmp/got)")
						}
						said := strings.Fields(out)
						if len(said) < 3 {
							t.Fatalf("%s asks %s:%d: %q", from.name, address, port, out)
						}
						who, sees := said[0], strings.Trim(said[1], "[]")
						asked++
						answered[who]++
						// As with kube-proxy, endpoints see the node. Only pods at a cluster
						// address, and pods and the host outside at a Service with
						// externalTrafficPolicy Local, keep their address; a pod that reaches
						// itself never does.
						want := node
						if pod := from.name == "one" || from.name == "two"; pod && who != from.name &&
							(to == cluster || listens) || from.name == "outside" && listens {
							want = from.addresses[family]
						}
						if netip.MustParseAddr(sees).String() != want || said[2] != sum {
							t.Errorf("%s asks %s:%d: %s answers, which sees %s, want %s; SHA-256 %s, want %s",
								from.name, address, port, who, sees, want, said[2], sum)
						}
					}
				}
			}
		}
		if answered["one"] == 0 || answered["two"] == 0 || answered["one"]+answered["two"] != asked {
			t.Errorf("%d asked, answered by %v", asked, answered)
		}
		t.Logf("%d associations of 100,000 bytes each, endpoints %v", asked, answered)
		g.sh("kill $(cat /tmp/services.pid)",
			"n=0; while ip link show culvert0 2>/dev/null; do n=$((n+1)); [ $n -lt 200 ]; sleep 0.05; done")
	}, probeGuest)
}

// TestServicesAnnounceGuest: an older kernel answers ARP for an address while its node lives, and
// stops when the node is killed, although the device stays for the next run.
func TestServicesAnnounceGuest(t *testing.T) {
	beside(t, func(t *testing.T) {
		g := startGuest(newPeerHost(t, "beside"), "172.18.0.2/24", "")
		g.write("/tmp/node.yaml", `name: n1
services:
  addresses: [203.0.113.1]
  state: /tmp/state
  announce: [203.0.113.77/32]
  serve:
  - {name: web, port: 80, loadBalancerIPs: [203.0.113.77], endpoints: [{address: 203.0.113.5, port: 8080}]}
`)
		ask := func(patience int) string {
			return fmt.Sprintf("ip -n outside neigh flush all; ip netns exec outside socat -u TCP:203.0.113.77:80,connect-timeout=%d - 2>/dev/null || true; ip -n outside neigh show to 203.0.113.77", patience)
		}
		alive := g.sh("modprobe tun; echo 1 >/proc/sys/net/ipv4/ip_forward; mkdir /tmp/state",
			"ip netns add outside; ip link add outside type veth peer name eth0 netns outside; ip link set outside up; ip addr add 203.0.113.1/24 dev outside",
			"ip -n outside link set lo up; ip -n outside link set eth0 up; ip -n outside addr add 203.0.113.5/24 dev eth0",
			"ip netns exec outside socat TCP-LISTEN:8080,fork,reuseaddr SYSTEM:'echo web' >/dev/null 2>&1 &",
			"culvert node --config /tmp/node.yaml >/tmp/node.log 2>&1 & echo $! >/tmp/node.pid",
			"n=0; until grep -q 'services are served' /tmp/node.log; do n=$((n+1)); [ $n -lt 200 ] || { cat /tmp/node.log; exit 1; }; sleep 0.05; done", ask(30))
		if !strings.Contains(alive, "web") || !strings.Contains(alive, "lladdr") {
			t.Errorf("while the node lives: %s", alive)
		}
		g.sh("kill -9 $(cat /tmp/node.pid); n=0; while ip link show culvert-vip0 2>/dev/null; do n=$((n+1)); [ $n -lt 200 ]; sleep 0.05; done", "ip link show culvert1")
		if dead := g.sh(ask(3)); strings.Contains(dead, "web") || strings.Contains(dead, "lladdr") ||
			!strings.Contains(dead, "203.0.113.77") {
			t.Errorf("when it was killed: %s", dead)
		}
	}, probeGuest)
}
