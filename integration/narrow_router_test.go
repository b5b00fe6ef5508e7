package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"culvert/integration/need"
)

// narrowTime is how soon TCP recovers after a router has become narrow.
const narrowTime = 10 * time.Second

// narrowMTU is the size of the largest IP packet that a narrow router forwards. Through a tunnel
// over IPv6 that must leave 1280 bytes to pods that use IPv6 (RFC 8200, Section 5).
func narrowMTU(f peerFamily) int {
	if f.inside {
		return 1280 + 80
	}
	return 1300
}

// A routedLab is a faultLab whose gateway in rome reaches its node and its peer through routers.
//
//	rome-1 ─────── near ─────── rome's gateway ─────── far ─────── milan's gateway
//	172.18.0.2   .1   198.51.100.1    .9 192.0.2.1     .2    203.0.113.2     .7
type routedLab struct {
	*faultLab
	near, far *peerHost
}

func newRoutedLab(t *testing.T, f peerFamily, id string) *routedLab {
	l := &routedLab{faultLab: newFaultLabOf(t, f, id), near: newPeerHostOf(t, f, id+"r"),
		far: newPeerHostOf(t, f, id+"q")}
	join(l.node, l.near, "172.18.0.2/24", "172.18.0.1/24", 1500)
	join(l.near, l.gateway, "198.51.100.1/24", "198.51.100.9/24", 1500)
	join(l.gateway, l.far, "192.0.2.1/24", "192.0.2.2/24", 1500)
	join(l.far, l.milanGateway, "203.0.113.2/24", "203.0.113.7/24", 1500)
	l.near.router()
	l.far.router()
	l.node.ip("route add 198.51.100.0/24 via 172.18.0.1")
	l.gateway.ip("route add 172.18.0.0/24 via 198.51.100.1", "route add 203.0.113.0/24 via 192.0.2.2")
	l.milanGateway.ip("route add 192.0.2.0/24 via 203.0.113.2")
	l.rome = strings.Replace(strings.Replace(l.rome, "192.0.2.7:", "203.0.113.7:", 1), ", encap: vxlan", "", 1)
	return l
}

// startNode starts culvert node in TUN mode. Kernel links are not tested: whether they fragment
// depends on the kernel.
func (l *routedLab) startNode() {
	l.t.Helper()
	file := filepath.Join(l.t.TempDir(), "node.yaml")
	config := `name: rome-1
underlay: 172.18.0.2
gateway: {underlay: 198.51.100.9, address: 10.80.0.4}
vni: 1
address: 10.80.0.2
mode: tun
routes: [10.61.0.0/16, 10.71.0.0/16]
`
	if err := os.WriteFile(file, []byte(l.node.family.of(config)), 0o600); err != nil {
		l.t.Fatal(err)
	}
	l.processes["node"] = l.node.start(nil, os.Getenv(binaryEnv), "node", "--config", file)
	l.script = ""
}

// narrow makes a router forward only packets of at most narrowMTU bytes between the networks on
// both sides.
func (l *routedLab) narrow(router *peerHost, tellsNobody bool) {
	l.t.Helper()
	if tellsNobody {
		router.feed(`table inet silent {
	chain told {
		type filter hook output priority 0
		icmp type destination-unreachable drop
		icmpv6 type packet-too-big drop
	}
}
`, "nft", "-f", "-")
	}
	metric := 0 // of the routes that the kernel makes for addresses
	if router.family.outside {
		metric = 256
	}
	// An MTU of the link would also drop arriving packets, silently.
	for _, route := range map[*peerHost][]string{
		l.near: {"172.18.0.0/24 dev " + l.node.name, "198.51.100.0/24 dev " + l.gateway.name},
		l.far:  {"192.0.2.0/24 dev " + l.gateway.name, "203.0.113.0/24 dev " + l.milanGateway.name},
	}[router] {
		router.ip(fmt.Sprintf("route replace %s metric %d mtu lock %d", route, metric, narrowMTU(router.family)))
	}
}

// fragments returns how many fragments the kernel of a host has made.
func (h *peerHost) fragments() (n int) {
	h.t.Helper()
	err := h.do(func() error {
		four, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		six, err := os.ReadFile("/proc/thread-self/net/snmp6")
		if err != nil {
			return err
		}
		lines := strings.Split(string(four), "\n") // lines of names, each followed by one of values
		names, values := strings.Fields(lines[0]), strings.Fields(lines[1])
		found := 0
		add := func(name, value string) {
			if name == "FragCreates" || name == "Ip6FragCreates" {
				found++
				v, _ := strconv.Atoi(value)
				n += v
			}
		}
		for i := range names {
			add(names[i], values[i])
		}
		for line := range strings.Lines(string(six)) {
			fields := strings.Fields(line)
			add(fields[0], fields[1])
		}
		if found != 2 {
			return fmt.Errorf("%d counters of fragments, want one a family", found)
		}
		return nil
	})
	need.NoError(h.t, err)
	return n
}

// TestNarrowRouter: a router on the path to the node or the peer starts to forward less than the
// tunnels send, with or without ICMP errors. TCP connections recover soon, and nobody fragments the
// tunnels' datagrams.
func TestNarrowRouter(t *testing.T) {
	beside(t, func(t *testing.T) {
		for i, f := range []peerFamily{{}, {outside: true}, onlyIPv6Peers} {
			for j, leg := range []string{"node", "peer"} {
				for k, silent := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s, leg to the %s, silent %v", f, leg, silent), func(t *testing.T) {
						t.Parallel()
						l := newRoutedLab(t, f, fmt.Sprintf("w%d%d%d", i, j, k))
						l.startNode()
						l.start(nil)
						l.until("node", "the gateway answers")
						flow := l.newFlow(10*flowPace, 0, 1)
						defer flow.close()
						flow.moves(256<<10, startTimeout)
						hosts := []*peerHost{l.node, l.near, l.gateway, l.far, l.milanGateway}
						var before []int
						for _, h := range hosts {
							before = append(before, h.fragments())
						}
						router := l.near
						if leg == "peer" {
							router = l.far
						}
						l.narrow(router, silent)
						began := time.Now()
						l.until("rome", "cause="+leg+"-path-mtu")
						known := time.Since(began)
						if t.Logf("known after %.1f s", known.Seconds()); known > narrowTime {
							t.Errorf("that took %v, want at most %v", known, narrowTime)
						}
						// TCP retransmits after pauses that double: if a busy machine learns the
						// path MTU late, one more pause passes.
						flow.moves(256<<10, max(narrowTime, 3*known)-known)
						for i, h := range hosts {
							if n := h.fragments() - before[i]; n != 0 {
								t.Errorf("%s has made %d fragments, want none", h.name, n)
							}
						}
					})
				}
			}
		}
	}, programs("ping", "ping"), programs("nft", "nft"))
}
