package integration

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"culvert/integration/need"
)

// TestKubeGateways: traffic of pods passes between two clusters with the same CIDRs, through
// gateways that know only what the API servers tell them.
func TestKubeGateways(t *testing.T) {
	isolated(t, func(t *testing.T) {
		rome, milan := newKubeLabs(t)
		labs := []*kubeLab{rome, milan}
		// One runs as the image's user, one as a user of OpenShift's restricted-v2.
		for _, g := range []struct {
			*kubeLab
			uid, gid uint32
		}{{rome, unprivilegedUID, unprivilegedUID}, {milan, 1000680000, 0}} {
			p := g.startLiqoGateway(g.uid, g.gid)
			// Liqo waits for a ready pod before it makes anything else.
			g.ready(p)
			p.requireConfined(t, g.uid, g.gid)
		}
		for _, k := range labs {
			k.liqoSteps()
			k.startNodes()
		}
		began := time.Now()
		// The server gets its key first: a client whose handshake finds no peer tries again only
		// after five seconds.
		milan.liqo.keysExchanged(rome.key.PublicKey().Bytes())
		rome.liqo.keysExchanged(milan.key.PublicKey().Bytes())
		for _, k := range labs {
			k.connected()
		}
		t.Logf("connected %v after the keys", time.Since(began).Round(time.Millisecond))
		idle := rome.culvert.resident(t)
		if t.Logf("%d MiB resident", idle>>20); idle > kubeIdle {
			t.Errorf("%d bytes resident, want at most %d", idle, kubeIdle)
		}
		for _, test := range kubeTraffic {
			for _, way := range [][2]*kubeLab{{rome, milan}, {milan, rome}} {
				t.Run(test.name+", "+way[0].name+" to "+way[1].name, func(t *testing.T) { test.run(t, way[0], way[1]) })
			}
		}

		// A second peering, with a gateway of its own, to a cluster without Liqo.
		again, turin := rome.peerWithTurin()
		for _, way := range [][2]*kubeLab{{again, turin}, {turin, again}} {
			testKubePods(t, way[0], way[1])
			testKubeHosts(t, way[0], way[1])
		}
		t.Run("container restarts", func(t *testing.T) { testKubeRestart(t, rome, milan) })
		t.Run("changes", func(t *testing.T) { testKubeChanges(t, rome, milan) })
		t.Run("edits", func(t *testing.T) { testKubeEdits(t, rome, milan) })
		t.Run("keys", func(t *testing.T) { testKubeKeys(t, rome, milan) })
		t.Run("writers", func(t *testing.T) { testKubeWriters(t, rome, rome, again) })
		t.Run("watches cut", func(t *testing.T) { testKubeCut(t, rome, milan) })
		t.Run("API server away", func(t *testing.T) { testKubeAway(t, rome, milan) })
		t.Run("gateway moves", func(t *testing.T) { testKubeMove(t, rome, milan) })
		for _, k := range []*kubeLab{rome, milan, again} {
			k.requireWithinRole(t)
		}
	}, kubernetes, liqoMode)
}

// kubeTraffic lists the traffic that must pass from each cluster to the other.
var kubeTraffic = []struct {
	name string
	run  func(t *testing.T, from, to *kubeLab)
}{
	{"pods", testKubePods}, {"NodePort", testKubeNodePort}, {"hosts", testKubeHosts},
	{"mapping", testKubeMapping}, {"MSS", testKubeMSS}, {"ICMP errors", testKubeErrors},
}

// liqoMode probes for a culvert that runs under Liqo.
var liqoMode = probe{"liqo", func(t testing.TB) error {
	binary, err := culvertBinary()
	if err != nil {
		return err
	}
	out, err := need.Command(t, binary, "gateway", "--help").CombinedOutput()
	if err == nil && !strings.Contains(string(out), "--liqo") {
		err = errors.New("culvert gateway has no --liqo")
	}
	return err
}}

// peerWithTurin adds a peering, with a gateway of its own, to a cluster without Liqo.
func (k *kubeLab) peerWithTurin() (again, turin *kubeLab) {
	k.t.Helper()
	again, turin = k.peerAgain(&kubeRomeTurin, &kubeTurin), newKubeHosts(k.t, &kubeTurin)
	turin.liqo = &liqo{t: k.t, here: &kubeTurin, remote: &kubeRomeTurin}
	again.connect(turin)
	again.ready(again.startLiqoGateway(unprivilegedUID, unprivilegedUID))
	again.liqo.configure()
	again.liqo.gatewayRuns()
	again.liqo.nodesMeasured()
	again.liqo.keysExchanged(turin.key.PublicKey().Bytes())
	turin.startFileGateway(again.key.PublicKey())
	again.startNodes()
	turin.startNodes()
	again.connected()
	return again, turin
}

// ready waits until the gateway says that it is ready.
func (k *kubeLab) ready(p *peerProcess) {
	k.t.Helper()
	eventually(k.t, k.gatewayHost.name+": /readyz", func() error {
		need.NoError(k.t, p.running())
		_, err := k.gatewayHost.getFrom(healthAddress, "/readyz")
		return err
	})
}

// connected waits until the gateway reports in its Connection that it is connected.
func (k *kubeLab) connected() {
	k.t.Helper()
	eventually(k.t, k.name+": Connection", k.isConnected)
}

// isConnected returns an error unless the Connection says that the gateway is connected.
func (k *kubeLab) isConnected() error {
	stored, err := k.api.admin.get(resource("Connection", k.liqo.tenant(), "gw-"+k.liqo.account(), nil))
	if err != nil {
		return err
	}
	if status := field(stored, "status", "value"); status != "Connected" {
		return fmt.Errorf("its status is %v, want Connected", status)
	}
	return nil
}

// requireWithinRole reads the audit log: the gateway must not have requested anything outside its
// role.
func (k *kubeLab) requireWithinRole(t *testing.T) {
	t.Helper()
	events := k.api.audit(t, k.liqo.user())
	rights := withinRole(t)
	for _, e := range events {
		forbidden := e.ResponseStatus.Code == http.StatusForbidden && !k.api.starting(e.Received)
		if forbidden || e.ObjectRef.Resource != "" && !rights[e.right()] {
			t.Errorf("%s: %s %s is not within the role's rights: status %d", k.name, e.Verb, e.RequestURI,
				e.ResponseStatus.Code)
		}
	}
	if len(events) == 0 {
		t.Errorf("%s: the audit log has no request of %s", k.name, k.liqo.user())
	}
}

const kubeBytes = 1 << 20

// testKubePods: pods of both nodes reach pods of both nodes.
func testKubePods(t *testing.T, from, to *kubeLab) {
	for i, pod := range from.pods {
		for j, other := range to.pods {
			target := to.seen(to.pod(&kubeNodes[j], 5))
			pingThrough(pod, target)
			e := exchange{from: pod, to: other, listen: to.pod(&kubeNodes[j], 5), dial: target,
				source: from.seen(from.pod(&kubeNodes[i], 5)), bytes: kubeBytes}
			e.run(t)
			e.datagrams(t, 1, 1312, 4000)
		}
	}
}

// testKubeNodePort: when a remote pod is reached through a NodePort, its replies come back through
// the same node.
func testKubeNodePort(t *testing.T, from, to *kubeLab) {
	from.nodePort(5201, to.seen(to.pod(&kubeNodes[1], 5)))
	for _, n := range kubeNodes {
		e := exchange{from: from.client, to: to.pods[1], listen: to.pod(&kubeNodes[1], 5), dial: from.address(n.number),
			source: from.seen(from.unknown()), bytes: kubeBytes}
		e.run(t)
	}
}

// testKubeHosts: the remote pod sees the address for unknown sources as the source of the nodes'
// own packets.
func testKubeHosts(t *testing.T, from, to *kubeLab) {
	for _, node := range from.nodes {
		e := exchange{from: node, to: to.pods[0], listen: to.pod(&kubeNodes[0], 5),
			dial:   to.seen(to.pod(&kubeNodes[0], 5)),
			source: from.seen(from.unknown()), bytes: kubeBytes}
		e.run(t)
	}
}

// testKubeMapping: an external address stands for a host outside the cluster, which is reached
// through the gateway's node.
func testKubeMapping(t *testing.T, from, to *kubeLab) {
	e := exchange{from: from.pods[1], to: to.client, listen: to.kubeEnd.client(), dial: to.seen(kubeMapped),
		source: to.address(kubeNodes[to.on].number), bytes: kubeBytes}
	e.run(t)
}

// testKubeMSS: no arriving segment is larger than the tunnels can carry, although the pods assume
// larger ones.
func testKubeMSS(t *testing.T, from, to *kubeLab) {
	l, err := to.pods[0].listen("tcp4", to.pod(&kubeNodes[0], 5)+":5202")
	need.NoError(t, err)
	defer l.Close()
	for _, end := range []*kubeLab{from, to} {
		link := "link set " + end.nodes[0].name + " mtu "
		end.pods[0].ip(link + "1500")
		defer end.pods[0].ip(fmt.Sprint(link, kubeMTU))
	}
	conn, err := from.pods[0].dial("tcp4", to.seen(to.pod(&kubeNodes[0], 5))+":5202")
	need.NoError(t, err)
	defer conn.Close()
	accepted, err := l.Accept()
	need.NoError(t, err)
	defer accepted.Close()
	want := fmt.Sprintf("mss:%d ", kubeMTU-40-12) // with timestamps
	for pod, port := range map[*peerHost]string{from.pods[0]: "dport", to.pods[0]: "sport"} {
		if out := pod.run("ss", "-tinH", port, "=", ":5202"); !strings.Contains(out, want) {
			t.Errorf("%s: want %q in %s", pod.name, want, out)
		}
	}
}

// testKubeErrors: the ICMP error of a remote pod arrives, and quotes the packet that was sent.
func testKubeErrors(t *testing.T, from, to *kubeLab) {
	conn, err := from.pods[0].dial("udp4", to.seen(to.pod(&kubeNodes[1], 5))+":5203")
	need.NoError(t, err)
	defer conn.Close()
	eventually(t, "port unreachable", func() error {
		if _, err := conn.Write([]byte("nobody listens")); errors.Is(err, syscall.ECONNREFUSED) {
			return nil
		}
		return errNotYet
	})
	// A node sends ARP requests for three seconds, if it tries at all. Kernels send few ICMP errors
	// a second.
	nobody := to.seen(to.pod(&kubeNodes[0], 99))
	eventually(t, "the address "+nobody+" of no pod is unreachable", func() error {
		out, err := from.pods[0].try("", "ping", "-c", "1", "-W", "5", nobody)
		if err == nil {
			t.Fatalf("ping of %s is answered: %s", nobody, out)
		}
		if !strings.Contains(err.Error(), "Unreachable") {
			return err
		}
		return nil
	})
}
