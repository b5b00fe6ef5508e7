package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// faultLab is two clusters in which something may be wrong.
//
//	pod ─── rome-1 ═══════ rome's gateway ─────── milan's gateway ═══════ milan-1 and a pod
//	10.0.1.5   172.18.0.2   172.18.0.9 192.0.2.1   192.0.2.7 172.19.0.9   172.19.0.2, 10.0.1.5
type faultLab struct {
	t                                        *testing.T
	pod, node, gateway, milanGateway, milan1 *peerHost
	rome, milan                              string // configurations
	script                                   string // that makes rome-1 a node
	romeKey, milanKey                        keyPair
	romePeer, milanPeer                      string // public keys, as each is configured
	peerOff                                  bool   // milan's gateway does not start
	processes                                map[string]*peerProcess
}

// fault is a mistake that no file shows, and what a gateway's log says of it.
type fault struct {
	name   string
	make   func(l *faultLab) // before the gateways start
	later  func(l *faultLab) // when the tunnel is there
	inLog  string            // of whose gateway
	cause  string
	says   string   // part of the sentence
	others []string // causes that are said besides, and are true
}

// replace is an edit of one of the lab's texts.
func replace(text *string, old, new string) {
	if strings.Count(*text, old) == 0 {
		panic(fmt.Sprintf("%q is not in %s", old, *text))
	}
	*text = strings.Replace(*text, old, new, 1)
}

func rome(old, new string) func(*faultLab)  { return func(l *faultLab) { replace(&l.rome, old, new) } }
func milan(old, new string) func(*faultLab) { return func(l *faultLab) { replace(&l.milan, old, new) } }
func atNode(old, new string) func(*faultLab) {
	return func(l *faultLab) { replace(&l.script, old, new) }
}

// block has the host's firewall drop packets.
func (l *faultLab) block(h *peerHost, hook, match string) {
	h.feed(fmt.Sprintf("add table inet t\nadd chain inet t c { type filter hook %s priority 0; }\nadd rule inet t c %s drop\n", hook, match), "nft", "-f", "-")
}

const strangerKey = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo="

var faults = []fault{
	{name: "the peer's key is wrong here", make: func(l *faultLab) { l.romePeer = strangerKey }, inLog: "milan", cause: "stranger-key",
		says: "192.0.2.1 begins handshakes with another public key than ours: if it is the peer, make its wireguard.peerPublicKey ours", others: []string{"no-answer", "no-handshake"}},
	{name: "the peer's key is wrong there", make: func(l *faultLab) { l.milanPeer = strangerKey }, inLog: "milan", cause: "stranger-peer",
		says: "192.0.2.1 knows our public key, and has another one than wireguard.peerPublicKey", others: []string{"no-answer"}},
	{name: "the key here is a new one", make: func(l *faultLab) { l.romeKey = newKeyPair(l.t) }, inLog: "milan", cause: "stranger-peer",
		says: "192.0.2.1 knows our public key", others: []string{"no-answer"}},
	{name: "nobody has the endpoint's address", make: rome("192.0.2.7:", "192.0.2.99:"), inLog: "rome", cause: "endpoint-nobody",
		says: "nobody has the address of 192.0.2.99:51840", others: []string{"no-handshake"}},
	{name: "no route leads to the endpoint", make: rome("192.0.2.7:", "203.0.113.9:"), inLog: "rome", cause: "endpoint-unroutable",
		says: "this machine has no route to 203.0.113.9:51840", others: []string{"no-handshake"}},
	{name: "the endpoint's port is wrong", make: rome(":51840", ":51841"), inLog: "rome", cause: "endpoint-refused",
		says: "nothing listens at 192.0.2.7:51841", others: []string{"no-handshake"}},
	{name: "the endpoint's name is wrong", make: rome("192.0.2.7:", "gw.milan.invalid:"), inLog: "rome", cause: "endpoint-name",
		says: "wireguard.endpoint gw.milan.invalid:51840 has no address", others: []string{"no-handshake"}},
	{name: "the peer is off", make: func(l *faultLab) { l.peerOff = true }, inLog: "rome", cause: "endpoint-refused", says: "start the peer"},
	{name: "the peer goes", later: func(l *faultLab) { l.processes["milan"].stop() }, inLog: "rome", cause: "endpoint-refused", says: "start the peer"},
	{name: "the peer's port is blocked there", make: func(l *faultLab) { l.block(l.milanGateway, "input", "udp dport 51840") }, inLog: "rome", cause: "no-answer",
		says: "is UDP 51840 open there", others: []string{"no-handshake"}},
	{name: "the peer's port is blocked here", make: func(l *faultLab) { l.block(l.gateway, "output", "udp dport 51840") }, inLog: "rome", cause: "endpoint-forbidden",
		says: "this machine may not send to 192.0.2.7:51840", others: []string{"no-handshake"}},
	{name: "the peer's answers are blocked", make: func(l *faultLab) { l.block(l.gateway, "input", "udp sport 51840") }, inLog: "milan", cause: "answers-lost",
		says: "do answers reach it?", others: []string{"no-answer"}},
	{name: "both are servers", make: rome(`role: client, endpoint: "192.0.2.7:51840"`, "role: server"), inLog: "rome", cause: "no-handshake",
		says: "one side is the server, the other the client"},
	{name: "both are clients", make: milan("role: server", `role: client, endpoint: "192.0.2.1:51840"`), inLog: "rome", cause: "same-role",
		says: "it has the role client, too"},

	{name: "a node's underlay is wrong here", make: rome("underlay: 172.18.0.2", "underlay: 172.18.0.77"), inLog: "rome", cause: "node-underlay",
		says: "rome-1 sends from 172.18.0.2, configured 172.18.0.77", others: []string{"node-nobody"}},
	{name: "a node's VNI is wrong there", make: atNode("id 1 ", "id 7 "), inLog: "rome", cause: "node-vni", says: "rome-1 (172.18.0.2) sends VNI 7, configured 1"},
	{name: "a node's address is wrong here", make: rome("address: 10.80.0.2,", "address: 10.80.0.22,"), inLog: "rome", cause: "node-address",
		says: "rome-1 calls itself 10.80.0.2, configured 10.80.0.22"},
	{name: "the gateway's address is wrong there", make: func(l *faultLab) { l.script = strings.ReplaceAll(l.script, "via 10.80.0.4", "via 10.80.0.9") },
		inLog: "rome", cause: "node-gateway-address", says: "rome-1 asks for the gateway by 10.80.0.9, which is 10.80.0.4"},
	{name: "a node has no routes", make: func(l *faultLab) { l.script, _, _ = strings.Cut(l.script, "route add") }, inLog: "rome", cause: "node-no-return",
		says: "has it routes to the remote CIDRs via 10.80.0.4"},
	{name: "a node's route has no via", make: func(l *faultLab) {
		l.script = strings.NewReplacer(" via 10.80.0.4", "", " onlink", "").Replace(l.script)
	}, inLog: "rome", cause: "node-route-via",
		says: "which is behind the gateway: give that node's route a gateway"},
	{name: "a node's encapsulation is wrong here", make: rome("encap: vxlan", "encap: geneve"), inLog: "rome", cause: "node-encap",
		says: "rome-1 (172.18.0.2) sends another encapsulation than geneve"},
	{name: "a node does not forward", make: func(l *faultLab) { l.node.run("sysctl", "-qw", "net.ipv4.ip_forward=0") }, inLog: "rome", cause: "node-no-return",
		says: "does it forward (sysctl net.ipv4.ip_forward=1)"},
	{name: "the nodes' port is blocked", make: func(l *faultLab) { l.block(l.gateway, "input", "udp dport 6091") }, inLog: "rome", cause: "node-no-arp",
		says: "is UDP 6091 open here and there"},
	{name: "a node's port is wrong there", make: atNode("dstport 6091", "dstport 6081"), inLog: "rome", cause: "node-refused", says: "nothing listens on UDP 6091 of rome-1 (172.18.0.2)"},
	{name: "a node is off", make: func(l *faultLab) { l.node.ip("link set dev " + l.gateway.name + " down") }, inLog: "rome", cause: "node-nobody",
		says: "nobody has the underlay address 172.18.0.2 of rome-1"},

	{name: "a node's pods are not those here", make: rome("podCIDRs: [10.0.1.0/24]", "podCIDRs: [10.0.3.0/24]"), inLog: "rome", cause: "no-route-node",
		says: "10.0.1.5 dropped as no-route: no node has it"},
	{name: "CIDRs of nodes overlap", make: rome("    - {", "    - {name: rome-2, vni: 2, underlay: 172.18.0.3, address: 10.80.0.3, podCIDRs: [10.0.1.0/29]}\n    - {"), inLog: "rome", cause: "bad-source-node",
		says: "10.0.1.5 is an address of rome-2", others: []string{"node-nobody"}},
	{name: "pods are no local ones", make: func(l *faultLab) {
		l.rome = strings.NewReplacer("10.0.1.0/24", "10.9.1.0/24", "[10.0.0.0/16], ext", "[10.9.0.0/16], ext").Replace(l.rome) + "nat: {unknownSource: \"off\"}\n"
	}, inLog: "rome", cause: "unknown-source", says: "10.0.1.5 is no pod", others: []string{"no-route-local"}},
	{name: "the remote CIDR is wrong here", make: rome("{cidr: 10.0.0.0/16", "{cidr: 10.9.0.0/16"), inLog: "milan", cause: "no-route-local",
		says: "10.9.1.5 dropped as no-route: it is in no CIDR of network.local", others: []string{"bad-source-peer"}},
	{name: "the remote CIDR is wrong there", make: milan("{cidr: 10.0.0.0/16", "{cidr: 10.9.0.0/16"), inLog: "milan", cause: "bad-source-peer",
		says: "10.0.1.5 is in no cidr of network.remote", others: []string{"no-route-local"}},
	{name: "a node's routes are not the remaps", make: rome("remap: 10.61.0.0/16", "remap: 10.63.0.0/16"), inLog: "rome", cause: "no-route-remote",
		says: "10.61.1.5 dropped as no-route: no remote CIDR has it"},
	{name: "a rule drops", make: func(l *faultLab) { l.rome += "rules: [{name: no-ping, from: local, protocol: icmp, action: drop}]\n" }, inLog: "rome", cause: "rule-drops",
		says: "rule no-ping refuses packets"},
}

// healthyCauses are said when all is well.
const healthyCauses = "handshake-made node-heard"

// logTime is how soon after a user's first ping a fault is in the log.
const logTime = 20 * time.Second

// faultsAtOnce is how many labs are there at once: they mostly wait.
const faultsAtOnce = 12

// TestFaults: of mistakes that show only when packets flow, the log of a gateway names
// the cause with its remedy; and of two clusters without a mistake it names none.
func TestFaults(t *testing.T) {
	isolated(t, func(t *testing.T) {
		var found atomic.Int32
		t.Run("all", func(t *testing.T) {
			for i, f := range slices.Concat([]fault{{name: "nothing is wrong"}}, holes, faults) {
				t.Run(f.name, func(t *testing.T) {
					t.Parallel()
					l := newFaultLab(t, fmt.Sprintf("f%d", i))
					if f.make != nil {
						f.make(l)
					}
					l.start(f.later)
					if f.cause == "" {
						l.healthy()
					} else if l.finds(&f) {
						found.Add(1)
					}
				})
			}
		})
		t.Logf("%d of %d faults are in the log by their cause", found.Load(), len(faults)+len(holes))
		if len(faults) < 29 {
			t.Error("want 29 faults")
		}
	}, programs("ping", "ping"))
}

func newFaultLab(t *testing.T, id string) *faultLab {
	l := &faultLab{t: t, romeKey: newKeyPair(t), milanKey: newKeyPair(t), processes: make(map[string]*peerProcess)}
	for name, h := range map[string]**peerHost{"p": &l.pod, "n": &l.node, "g": &l.gateway, "mg": &l.milanGateway, "m": &l.milan1} {
		*h = newPeerHost(t, id+name)
	}
	join(l.pod, l.node, "10.0.1.5/24", "10.0.1.1/24", 1340)
	join(l.node, l.gateway, "172.18.0.2/24", "172.18.0.9/24", 1500)
	join(l.gateway, l.milanGateway, "192.0.2.1/24", "192.0.2.7/24", 1500)
	join(l.milanGateway, l.milan1, "172.19.0.9/24", "172.19.0.2/24", 1500)
	l.pod.ip("route add default via 10.0.1.1")
	l.milan1.ip("address add 10.0.1.5/32 dev lo")
	l.node.router()
	const node = `link add tunnel mtu 1340 type vxlan id 1 local 172.18.0.2 remote 172.18.0.9 dstport 6091 nolearning
address add 10.80.0.2/32 dev tunnel
link set tunnel up
route add 10.61.0.0/16 via 10.80.0.4 dev tunnel onlink
route add 10.71.0.0/16 via 10.80.0.4 dev tunnel onlink
`
	l.script = node
	l.milan1.ip(strings.NewReplacer("172.18", "172.19", "10.61", "10.62", "10.71", "10.72").Replace(node))
	const config = `cluster: rome
peer: milan
wireguard: {role: client, endpoint: "192.0.2.7:51840", listenPort: 51840, privateKeyFile: own.key, peerPublicKeyFile: peer.pub}
geneve:
  gatewayAddress: 10.80.0.4
  nodes:
    - {name: rome-1, vni: 1, underlay: 172.18.0.2, address: 10.80.0.2, podCIDRs: [10.0.1.0/24], encap: vxlan}
`
	const network = `network:
  local: {podCIDRs: [10.0.0.0/16], externalCIDRs: [10.70.0.0/16]}
  remote:
    podCIDRs: [{cidr: 10.0.0.0/16, remap: 10.61.0.0/16}]
    externalCIDRs: [{cidr: 10.70.0.0/16, remap: 10.71.0.0/16}]
`
	l.rome = config + network
	l.milan = strings.NewReplacer("cluster: rome", "cluster: milan", "peer: milan", "peer: rome", `client, endpoint: "192.0.2.7:51840"`, "server",
		"rome-1", "milan-1", "172.18", "172.19", "10.61", "10.62", "10.71", "10.72").Replace(l.rome)
	l.romePeer, l.milanPeer = l.milanKey.public, l.romeKey.public
	return l
}

// start starts what there is.
func (l *faultLab) start(later func(*faultLab)) {
	l.t.Helper()
	if !l.peerOff {
		l.processes["milan"] = l.gatewayIn(l.milanGateway, l.milan, l.milanKey, l.milanPeer)
		l.until("milan", "gateway running") // a client that finds no server waits for 5 s
	}
	l.processes["rome"] = l.gatewayIn(l.gateway, l.rome, l.romeKey, l.romePeer)
	l.node.ip(l.script)
	if later != nil {
		l.until("rome", "cause=handshake-made")
		later(l)
	}
}

// until waits for a part of a gateway's log.
func (l *faultLab) until(cluster, part string) {
	l.t.Helper()
	eventually(l.t, cluster+": "+part, func() error {
		if !strings.Contains(l.processes[cluster].output(), part) {
			return errNotYet
		}
		return nil
	})
}

// gatewayIn starts a gateway, and does not wait for it.
func (l *faultLab) gatewayIn(h *peerHost, config string, own keyPair, peer string) *peerProcess {
	l.t.Helper()
	dir := l.t.TempDir()
	for name, text := range map[string]string{"gateway.yaml": config + "\ncontrol: gateway.sock\n", "own.key": own.private + "\n", "peer.pub": peer + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			l.t.Fatal(err)
		}
	}
	return h.start(nil, os.Getenv(binaryEnv), "gateway", "--config", filepath.Join(dir, "gateway.yaml"))
}

// ping pings from both sides, as a user does, and reports whether all is answered.
func (l *faultLab) ping() (answered bool) {
	type end struct {
		from    *peerHost
		address string
	}
	all := make(chan error)
	ends := []end{{l.pod, "10.61.1.5"}, {l.milan1, "10.62.1.5"}}
	for _, e := range ends {
		go func() {
			_, err := e.from.try("", "ping", "-c", "4", "-W", "1", e.address)
			all <- err
		}()
	}
	answered = true
	for range ends {
		if err := <-all; err != nil {
			answered = false
		}
	}
	return answered
}

var causeOf = regexp.MustCompile(`level=(\w+) msg="((?:[^"\\]|\\.)*)" (?:address=\S+ )?cause=([\w-]+)`)

// said returns the sentences in a gateway's log, by cause.
func (l *faultLab) said(cluster string) map[string]string {
	said := make(map[string]string)
	if p := l.processes[cluster]; p != nil {
		for _, m := range causeOf.FindAllStringSubmatch(p.output(), -1) {
			said[m[3]] = m[2]
		}
	}
	return said
}

// finds has a user ping and waits for the fault to be named.
func (l *faultLab) finds(f *fault) bool {
	began := time.Now()
	pinged := make(chan bool, 1)
	go func() { pinged <- l.ping() }()
	eventually(l.t, f.cause, func() error {
		if l.said(f.inLog)[f.cause] == "" {
			return errNotYet
		}
		return nil
	})
	took := time.Since(began)
	<-pinged
	if sentence := l.said(f.inLog)[f.cause]; !strings.Contains(sentence, f.says) {
		l.t.Errorf("it says %q, want %q", sentence, f.says)
		return false
	}
	if took > logTime {
		l.t.Errorf("in the log after %v", took)
		return false
	}
	for cluster := range l.processes {
		for cause, sentence := range l.said(cluster) {
			expected := strings.Contains(healthyCauses, cause) || cause == f.cause
			for _, other := range f.others {
				expected = expected || cause == other
			}
			if !expected {
				l.t.Errorf("%s says too: %s: %s", cluster, cause, sentence)
			}
		}
	}
	l.t.Logf("%.0f s: %s", took.Seconds(), l.said(f.inLog)[f.cause])
	return true
}

// healthy has pings answered, and waits for what a log could say for longer than a fault
// takes to get there.
func (l *faultLab) healthy() {
	over := time.After(logTime)
	eventually(l.t, "pings", func() error {
		if !l.ping() {
			return errNotYet
		}
		return nil
	})
	<-over
	for cluster, p := range l.processes {
		for cause, sentence := range l.said(cluster) {
			if !strings.Contains(healthyCauses, cause) {
				l.t.Errorf("%s says %s: %s", cluster, cause, sentence)
			}
		}
		if strings.Contains(p.output(), "level=warning") || strings.Contains(p.output(), "level=error") {
			l.t.Errorf("%s warns", cluster)
		}
	}
}
