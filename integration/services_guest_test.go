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

var guestHosts = []guestHost{
	{"one", [2]string{"10.0.1.5", "fd00:10:0:1::5"}}, {"two", [2]string{"10.0.2.5", "fd00:10:0:2::5"}},
	{"outside", [2]string{"203.0.113.5", "fd03::5"}}, {"node", [2]string{"203.0.113.1", "fd03::1"}},
}

// links returns commands that make and connect the namespace.
func (h guestHost) links() []string {
	lines := []string{"ip netns add " + h.name,
		fmt.Sprintf("ip link add %s type veth peer name eth0 netns %[1]s; ip link set %[1]s up", h.name),
		fmt.Sprintf("ip -n %s link set lo up; ip -n %[1]s link set eth0 up", h.name)}
	for family, a := range h.addresses {
		gateway, bits := strings.TrimSuffix(a, "5")+"1", []int{24, 64}[family]
		nodad := []string{"", "nodad"}[family]
		lines = append(lines, fmt.Sprintf("ip addr add %s/%d dev %s %s", gateway, bits, h.name, nodad),
			fmt.Sprintf("ip -n %s addr add %s/%d dev eth0 %s", h.name, a, bits, nodad),
			fmt.Sprintf("ip -n %s -%d route add default via %s", h.name, []int{4, 6}[family], gateway))
	}
	return lines
}

// servers returns commands that start the servers of sctpServices, which say their name and whom
// they see.
func (h guestHost) servers() (lines []string) {
	for family := range h.addresses {
		// Bound to one address, so that neither end announces others.
		listen := fmt.Sprintf("SCTP%d-LISTEN:808%%d,bind=%s,fork,reuseaddr", []int{4, 6}[family], h.literal(family))
		lines = append(lines,
			fmt.Sprintf("ip netns exec %s socat -U "+listen+
				" SYSTEM:'echo %[1]s $SOCAT_PEERADDR; cat /tmp/sent' >/dev/null 2>&1 &", h.name, 1),
			fmt.Sprintf("ip netns exec %s socat -u "+listen+
				" SYSTEM:'s=$(sha256sum); echo %[1]s $SOCAT_PEERADDR $s >/tmp/heard.new; mv /tmp/heard.new /tmp/heard' >/dev/null 2>&1 &", h.name, 2))
	}
	return lines
}

// literal returns an address as a part of address:port.
func (h guestHost) literal(family int) string {
	return []string{h.addresses[0], "[" + h.addresses[1] + "]"}[family]
}

// TestServicesSCTP uses a node's Services over SCTP, inside a guest whose kernel supports it: over
// both families, from endpoints themselves, the node and a host outside, at cluster addresses, node
// ports and external addresses. Either end sends 100,000 bytes, which must arrive intact, and
// endpoints must see the right source.
func TestServicesSCTP(t *testing.T) {
	beside(t, func(t *testing.T) {
		g := startGuest(newPeerHost(t, "beside"), "172.18.0.2/24", "")
		lines := []string{
			"modprobe sctp; modprobe tun",
			"echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding",
			"head -c 100000 /dev/urandom >/tmp/sent",
		}
		for _, h := range guestHosts[:3] {
			lines = append(lines, h.links()...)
		}
		for _, h := range guestHosts[:2] {
			lines = append(lines, h.servers()...)
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
			for _, from := range guestHosts {
				for _, to := range []string{cluster, "node", external} {
					if from.name == "outside" && to == cluster {
						continue
					}
					for _, listens := range []bool{false, true} {
						q := sctpQuestion{from, family, to, to == cluster, listens}
						answered[q.ask(t, g, sum)]++
						asked++
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

// An sctpQuestion is a client's association with a Service.
type sctpQuestion struct {
	from    guestHost
	family  int
	to      string // "node": at its node port
	cluster bool   // to is a cluster address
	listens bool   // the Service listens, so the client sends
}

// at returns the address and port.
func (q *sctpQuestion) at() string {
	port := 81
	if q.listens {
		port = 82
	}
	if q.to == "node" {
		return fmt.Sprintf("%s:%d", guestHosts[3].literal(q.family), port+30000+2*q.family)
	}
	return fmt.Sprintf("%s:%d", q.to, port)
}

// sees returns whom the endpoint who must see. As with kube-proxy, endpoints see the node. Only
// pods at a cluster address, and pods and the host outside at a Service with externalTrafficPolicy
// Local, keep their address; a pod that reaches itself never does.
func (q *sctpQuestion) sees(who string) string {
	pod := q.from.name == "one" || q.from.name == "two"
	if pod && who != q.from.name && (q.cluster || q.listens) || q.from.name == "outside" && q.listens {
		return q.from.addresses[q.family]
	}
	return guestHosts[3].addresses[q.family]
}

// ask returns which endpoint has answered. The data that arrives must have the SHA-256 sum.
func (q *sctpQuestion) ask(t *testing.T, g *guest, sum string) (who string) {
	t.Helper()
	client, at := fmt.Sprintf("SCTP%d:%s,bind=%s", []int{4, 6}[q.family], q.at(), q.from.literal(q.family)),
		"ip netns exec "+q.from.name+" "
	if q.from.name == "node" {
		at = ""
	}
	var out string
	if q.listens {
		out = g.sh("rm -f /tmp/heard", at+"socat -u /tmp/sent "+client,
			"n=0; until [ -e /tmp/heard ]; do n=$((n+1)); [ $n -lt 200 ]; sleep 0.05; done", "cat /tmp/heard")
	} else {
		out = g.sh(at+"socat -u "+client+" - >/tmp/got",
			"echo $(head -n 1 /tmp/got) $(tail -n +2 /tmp/got | sha256sum) $(wc -c </tmp/got)")
	}
	said := strings.Fields(out)
	if len(said) < 3 {
		t.Fatalf("%s asks %s: %q", q.from.name, q.at(), out)
	}
	who, sees := said[0], strings.Trim(said[1], "[]")
	if want := q.sees(who); netip.MustParseAddr(sees).String() != want || said[2] != sum {
		t.Errorf("%s asks %s: %s answers, which sees %s, want %s; SHA-256 %s, want %s", q.from.name, q.at(), who, sees,
			want, said[2], sum)
	}
	return who
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
