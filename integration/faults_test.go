package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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
	script                                   string // makes rome-1 a node
	romeKey, milanKey                        keyPair
	romePeer, milanPeer                      string // public keys, as each is configured
	peerOff                                  bool   // milan's gateway does not start
	processes                                map[string]*peerProcess
}

// A fault is a mistake that cannot be seen in the files, and what a gateway's log says about it.
type fault struct {
	name   string
	make   func(l *faultLab) // before the gateways start
	later  func(l *faultLab) // when the tunnel is up
	inLog  string            // the gateway whose log is searched
	cause  string
	says   string   // part of the sentence
	others []string // causes that are also reported, rightly
}

// healthyCauses are reported when all is well.
const healthyCauses = "handshake-made node-heard"

// logTime is how soon after a user's first ping a fault is in the log.
const logTime = 20 * time.Second

// faultsAtOnce is how many labs run at once. They spend most of their time waiting.
const faultsAtOnce = 12

// TestHoles: of paths that swallow large packets the log of a gateway names the cause with its
// remedy; and of two clusters without a fault it names none. All other faults are the lab's.
func TestHoles(t *testing.T) {
	beside(t, func(t *testing.T) {
		var found atomic.Int32
		t.Run("all", func(t *testing.T) {
			for i, f := range append([]fault{{name: "nothing is wrong"}}, holeFaults()...) {
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
		t.Logf("%d of %d holes are in the log by their cause", found.Load(), len(holes))
	}, programs("ping", "ping"), programs("nft", "nft"))
}

func newFaultLab(t *testing.T, id string) *faultLab {
	l := newFaultLabOf(t, peerFamily{}, id)
	join(l.node, l.gateway, "172.18.0.2/24", "172.18.0.9/24", 1500)
	join(l.gateway, l.milanGateway, "192.0.2.1/24", "192.0.2.7/24", 1500)
	return l
}

// newFaultLabOf makes a lab of a family. The caller joins rome's gateway with its node and with
// milan's gateway.
func newFaultLabOf(t *testing.T, f peerFamily, id string) *faultLab {
	l := &faultLab{t: t, romeKey: newKeyPair(t), milanKey: newKeyPair(t), processes: make(map[string]*peerProcess)}
	for name, h := range map[string]**peerHost{"p": &l.pod, "n": &l.node, "g": &l.gateway, "mg": &l.milanGateway,
		"m": &l.milan1} {
		*h = newPeerHostOf(t, f, id+name)
	}
	join(l.pod, l.node, "10.0.1.5/24", "10.0.1.1/24", 1340)
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
	l.milan = strings.NewReplacer("cluster: rome", "cluster: milan", "peer: milan", "peer: rome",
		`client, endpoint: "192.0.2.7:51840"`, "server",
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
	await(l.t, cluster+": "+part, func() bool { return strings.Contains(l.processes[cluster].output(), part) })
}

// gatewayIn starts a gateway, and does not wait for it.
func (l *faultLab) gatewayIn(h *peerHost, config string, own keyPair, peer string) *peerProcess {
	l.t.Helper()
	return l.gatewayBy([]string{os.Getenv(binaryEnv), "gateway"}, h, config, own, peer)
}

// gatewayBy starts a gateway by a command that takes its file.
func (l *faultLab) gatewayBy(command []string, h *peerHost, config string, own keyPair, peer string) *peerProcess {
	l.t.Helper()
	dir := l.t.TempDir()
	for name, text := range map[string]string{"gateway.yaml": h.family.of(config) + "\ncontrol: gateway.sock\n",
		"own.key": own.private + "\n", "peer.pub": peer + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			l.t.Fatal(err)
		}
	}
	return h.start(nil, command[0], command[1], "--config", filepath.Join(dir, "gateway.yaml"))
}

// ping pings from both sides, as a user would, and reports whether all pings are answered.
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

// finds pings as a user would, and waits until the log names the fault.
func (l *faultLab) finds(f *fault) bool {
	began := time.Now()
	pinged := make(chan bool, 1)
	go func() { pinged <- l.ping() }()
	await(l.t, f.cause, func() bool { return l.said(f.inLog)[f.cause] != "" })
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

// healthy sends pings, which are answered, for longer than a fault takes to reach the log, and
// fails if the log reports anything.
func (l *faultLab) healthy() {
	over := time.After(logTime)
	await(l.t, "pings", func() bool { return l.ping() })
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
