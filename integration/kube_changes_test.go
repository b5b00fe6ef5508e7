package integration

import (
	"errors"
	"net"
	"testing"
	"time"

	"culvert/integration/need"
)

// kubeSoon limits how long a gateway takes to obey a change.
const kubeSoon = time.Second

// A kubeProbe sends a request from a host, each time over a new connection.
type kubeProbe struct {
	from *peerHost
	to   string
	ping bool // by ICMP
}

const kubeProbePort = "5300"

// answerProbes answers probes at an address of a host until the end of the test. Each answer is the
// source address of the probe.
func answerProbes(t *testing.T, h *peerHost, address string) {
	t.Helper()
	server, err := h.listenPacket("udp4", net.JoinHostPort(address, kubeProbePort))
	need.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	go func() {
		b := make([]byte, 64)
		for {
			_, from, err := server.ReadFrom(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				server.WriteTo([]byte(from.(*net.UDPAddr).IP.String()), from)
			}
		}
	}()
}

// ask sends the probe, and returns the source address that the server saw.
func (p kubeProbe) ask() (source string, err error) {
	if p.ping {
		_, err := p.from.try("", "ping", "-c", "1", "-W", "0.1", p.to)
		return "", err
	}
	conn, err := p.from.dial("udp4", net.JoinHostPort(p.to, kubeProbePort))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := conn.Write([]byte("?")); err != nil {
		return "", err
	}
	b := make([]byte, 64)
	n, err := conn.Read(b)
	return string(b[:n]), err
}

// await sends the probe until it works, or until it fails if works is false, and returns how long
// that took.
func (p kubeProbe) await(t *testing.T, what string, works bool, limit time.Duration) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		asked := time.Since(began)
		_, err := p.ask()
		if (err == nil) == works {
			return asked
		}
		if asked > limit {
			t.Errorf("%s: after %v the probe from %s to %s works: %t, want %t (%v)", what, asked, p.from.name, p.to,
				err == nil, works, err)
			return asked
		}
	}
}

// awaitAll is await for several probes at once. It returns the time of the slowest.
func awaitAll(t *testing.T, what string, works bool, probes []kubeProbe) (slowest time.Duration) {
	t.Helper()
	took := make(chan time.Duration, len(probes))
	for _, one := range probes {
		go func() { took <- one.await(t, what, works, kubeSoon) }()
	}
	for range probes {
		slowest = max(slowest, <-took)
	}
	return slowest
}

// kubeProbes are between the second pods, nodes and clients of rome and milan.
type kubeProbes struct {
	out, in kubeProbe // pods to pods
	host    kubeProbe // a node of rome to a pod of milan
	mapping kubeProbe // to the client of rome
	theirs  kubeProbe // to the client of milan
	gateway kubeProbe // a node of rome to its gateway
}

// all returns the probes that pass through the tunnel.
func (p *kubeProbes) all() []kubeProbe { return []kubeProbe{p.out, p.in, p.host, p.mapping, p.theirs} }

// newKubeProbes answers all probes until the end of the test, and waits until each works.
func newKubeProbes(t *testing.T, rome, milan *kubeLab) *kubeProbes {
	t.Helper()
	pod2 := &kubeNodes[1]
	for _, k := range []*kubeLab{rome, milan} {
		answerProbes(t, k.pods[1], k.pod(pod2, 5))
		answerProbes(t, k.client, k.kubeEnd.client())
	}
	p := &kubeProbes{
		out:     kubeProbe{from: rome.pods[1], to: milan.seen(milan.pod(pod2, 5))},
		in:      kubeProbe{from: milan.pods[1], to: rome.seen(rome.pod(pod2, 5))},
		host:    kubeProbe{from: rome.nodes[1], to: milan.seen(milan.pod(pod2, 5))},
		mapping: kubeProbe{from: milan.pods[1], to: rome.seen(kubeMapped)},
		theirs:  kubeProbe{from: rome.pods[1], to: milan.seen(kubeMapped)},
		gateway: kubeProbe{rome.nodes[1], rome.internal, true},
	}
	for _, one := range append(p.all(), p.gateway) {
		one.await(t, "at first", true, kubeSoon)
	}
	return p
}

// holdPods is holdConnections from the first pod of rome to that of milan.
func holdPods(t *testing.T, rome, milan *kubeLab, n int) (check func(when string)) {
	t.Helper()
	pod := milan.pod(&kubeNodes[0], 5)
	return holdConnections(t, milan.pods[0], rome.pods[0], pod, milan.seen(pod), n)
}

// testKubeChanges deletes and recreates, one after another, the resources that rome's gateway
// obeys. Traffic that depends on a resource stops and returns with it; other connections stay.
func testKubeChanges(t *testing.T, rome, milan *kubeLab) {
	p := newKubeProbes(t, rome, milan)
	held := holdPods(t, rome, milan, 500)
	tenant := rome.liqo.tenant()
	var slowest time.Duration
	for _, change := range []struct {
		kind, namespace, name string
		ends                  []kubeProbe
	}{
		{"FirewallConfiguration", "default", "external-host-remap-ipmapping-gw", []kubeProbe{p.mapping}},
		{"FirewallConfiguration", tenant, "milan-remap-podcidr", []kubeProbe{p.out, p.host}},
		{"FirewallConfiguration", tenant, "milan-remap-externalcidr", []kubeProbe{p.theirs}},
		{"FirewallConfiguration", liqoNamespace, "service-nodeport-routing", nil},
		{"FirewallConfiguration", liqoNamespace, "gw-mss-clamping", nil},
		{"RouteConfiguration", tenant, "milan-gw-ext", []kubeProbe{p.out, p.host, p.theirs}},
		{"RouteConfiguration", liqoNamespace, "node2-gw-node", []kubeProbe{p.in}},
		{"RouteConfiguration", liqoNamespace, "node1-extcidr", []kubeProbe{p.mapping}},
		{"RouteConfiguration", liqoNamespace, "node2-service-nodeport-routing", nil},
		{"GeneveTunnel", tenant, "milan-node2", []kubeProbe{p.out, p.in, p.host}},
		{"InternalNode", "", "node2", []kubeProbe{p.out, p.in, p.host}},
		{"InternalFabric", tenant, "milan", p.all()},
		{"PublicKey", tenant, "milan", p.all()},
	} {
		what := change.kind + " " + change.name
		again := rome.asApplied(t, change.kind, change.namespace, change.name)
		need.NoError(t, rome.api.admin.delete(again))
		slowest = max(slowest, awaitAll(t, what+" deleted", false, change.ends))
		rome.liqo.apply(again)
		slowest = max(slowest, awaitAll(t, what+" made again", true, p.all()))
		held(what)
		rome.requireApplied(t, what, again, startTimeout)
	}
	t.Logf("each change was obeyed within %v", slowest.Round(time.Millisecond))
}
