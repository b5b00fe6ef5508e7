package integration

import (
	"bufio"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"culvert/integration/need"
)

// The two clusters of the peer tests. Their pods have the same address.
//
//	rome-pod ─── rome-node ═══════ rome-gw ─────────── milan-gw ═══════ milan-node ─── milan-pod
//	10.0.1.5     172.18.0.2   172.18.0.9   192.0.2.0/24   172.19.0.9   172.19.0.130     10.0.1.5
//	seen as      10.80.0.2     10.80.0.4                  10.80.0.5    10.80.0.3        seen as
//	10.62.1.5                                                                         10.61.1.5
const (
	podAddress      = "10.0.1.5"
	romePodAtMilan  = "10.62.1.5"
	milanPodAtRome  = "10.61.1.5"
	romeInternal    = "10.80.0.4"
	milanInternal   = "10.80.0.5"
	unprivilegedUID = 65532
	metricsAddress  = "127.0.0.1:8082"
)

const romeConfig = `
cluster: rome
peer: milan
wireguard: {role: client, privateKeyFile: own.key, peerPublicKeyFile: peer.pub, endpoint: "192.0.2.7:51840", uapi: true}
geneve:
  gatewayAddress: 10.80.0.4
  nodes:
    - {name: rome-1, vni: 7340033, underlay: 172.18.0.2, address: 10.80.0.2, podCIDRs: [10.0.1.0/24]}
network:
  local: {podCIDRs: [10.0.0.0/16], externalCIDRs: [10.70.0.0/16]}
  remote:
    podCIDRs: [{cidr: 10.0.0.0/16, remap: 10.61.0.0/16}]
    externalCIDRs: [{cidr: 10.70.0.0/16, remap: 10.71.0.0/16}]
metrics: 127.0.0.1:8082
control: ""
`

const milanConfig = `
cluster: milan
peer: rome
wireguard: {role: server, privateKeyFile: own.key, peerPublicKeyFile: peer.pub}
geneve:
  gatewayAddress: 10.80.0.5
  nodes:
    - {name: milan-1, vni: 258, underlay: 172.19.0.130, address: 10.80.0.3, podCIDRs: [10.0.1.0/24]}
network:
  local: {podCIDRs: [10.0.0.0/16], externalCIDRs: [10.70.0.0/16]}
  remote:
    podCIDRs: [{cidr: 10.0.0.0/16, remap: 10.62.0.0/16}]
    externalCIDRs: [{cidr: 10.70.0.0/16, remap: 10.72.0.0/16}]
metrics: 127.0.0.1:8082
control: ""
`

// Numbers of the tunnels in those configurations.
const (
	romeVNI  = 7340033
	milanVNI = 258
)

// keyPair is a WireGuard key pair in the text form of wg(8).
type keyPair struct{ private, public string }

func newKeyPair(t *testing.T) keyPair {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	need.NoError(t, err)
	text := base64.StdEncoding.EncodeToString
	return keyPair{text(key.Bytes()), text(key.PublicKey().Bytes())}
}

// startGateway runs `culvert gateway` inside the host as a user without any
// capability, and returns when it is ready.
func startGateway(h *peerHost, config string, own keyPair, peerPublic string) *peerProcess {
	h.t.Helper()
	p := h.start(&syscall.Credential{Uid: unprivilegedUID, Gid: unprivilegedUID},
		os.Getenv(binaryEnv), "gateway", "--config", gatewayFile(h, config, own, peerPublic))
	h.t.Cleanup(func() {
		if h.t.Failed() && p.running() == nil {
			metrics, err := h.get("/metrics")
			h.t.Logf("%s: metrics that are not 0 (%v):\n%s", h.name, err, nonZero(metrics))
		}
	})
	eventually(h.t, h.name+": /readyz", func() error {
		need.NoError(h.t, p.running())
		_, err := h.get("/readyz")
		return err
	})
	return p
}

// gatewayFile writes a gateway's configuration and keys, for the unprivileged user.
func gatewayFile(h *peerHost, config string, own keyPair, peerPublic string) string {
	h.t.Helper()
	dir := h.t.TempDir()
	need.NoError(h.t, os.Chmod(filepath.Dir(dir), 0o711))
	for name, text := range map[string]string{
		"gateway.yaml": h.family.of(config), "own.key": own.private + "\n", "peer.pub": peerPublic + "\n",
	} {
		file := filepath.Join(dir, name)
		need.NoError(h.t, os.WriteFile(file, []byte(text), 0o600))
		need.NoError(h.t, os.Chown(file, unprivilegedUID, unprivilegedUID))
	}
	return filepath.Join(dir, "gateway.yaml")
}

// nonZero returns the lines of a metrics page whose value is not 0.
func nonZero(page string) string {
	var lines []string
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "culvert_") && !strings.HasSuffix(line, " 0\n") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// get fetches a page from the metrics address inside the host.
func (h *peerHost) get(path string) (string, error) { return h.getFrom(metricsAddress, path) }

func (h *peerHost) getFrom(address, path string) (string, error) {
	client := http.Client{Timeout: startTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
			return h.dial(network, address)
		},
	}}
	response, err := client.Get("http://" + address + path)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, response.Status, body)
	}
	return string(body), err
}

// metric returns the value of one series, named as on the metrics page.
func (h *peerHost) metric(series string) float64 {
	h.t.Helper()
	page, err := h.get("/metrics")
	need.NoError(h.t, err)
	scanner := bufio.NewScanner(strings.NewReader(page))
	for scanner.Scan() {
		if text, ok := strings.CutPrefix(scanner.Text(), series+" "); ok {
			var value float64
			if _, err := fmt.Sscan(text, &value); err != nil {
				h.t.Fatalf("%s: %s: %v", h.name, series, err)
			}
			return value
		}
	}
	h.t.Fatalf("%s: no series %s in\n%s", h.name, series, page)
	return 0
}

// clusters are the hosts of both clusters. The test makes rome's node, whose link to the gateway's
// underlay is "rome-gw".
type clusters struct {
	romePod, romeNode, romeGateway, milanGateway, milanNode, milanPod *peerHost
	romeKey, milanKey                                                 keyPair
	romeCulvert, milanCulvert                                         *peerProcess
}

// newMilan makes the WireGuard leg and everything behind milan's gateway. Milan's node is the
// kernel's own VXLAN link, set up by hand.
func newMilan(t *testing.T) *clusters {
	t.Helper()
	return newMilanOf(t, peerFamily{})
}

// newMilanOf is newMilan with addresses of a family.
func newMilanOf(t *testing.T, f peerFamily) *clusters {
	t.Helper()
	return newMilanAcross(t, f, func(rome, milan *peerHost) {
		join(rome, milan, "192.0.2.1/24", "192.0.2.7/24", 1500)
	})
}

// newMilanAcross is newMilan with another path between the gateways.
func newMilanAcross(t *testing.T, f peerFamily, connect func(rome, milan *peerHost)) *clusters {
	t.Helper()
	c := &clusters{
		romeGateway: newPeerHostOf(t, f, "rome-gw"), milanGateway: newPeerHostOf(t, f, "milan-gw"),
		milanNode: newPeerHostOf(t, f, "milan-node"), milanPod: newPeerHostOf(t, f, "milan-pod"),
		romeKey: newKeyPair(t), milanKey: newKeyPair(t),
	}
	connect(c.romeGateway, c.milanGateway)
	join(c.milanGateway, c.milanNode, "172.19.0.9/24", "172.19.0.130/24", 1500)
	connectPod(c.milanNode, c.milanPod)
	c.milanNode.ip(vxlanLink(milanVNI, "172.19.0.130", "172.19.0.9")...)
	c.milanNode.ip(internalAddress("10.80.0.3", milanInternal, "10.62.0.0/16", "10.72.0.0/16")...)
	c.startMilan()
	return c
}

// startMilan starts the gateway of milan.
func (c *clusters) startMilan() {
	c.milanGateway.t.Helper()
	c.milanCulvert = startGateway(c.milanGateway, milanConfig, c.milanKey, c.romeKey.public)
}

// connectPod puts a pod behind a node.
func connectPod(node, pod *peerHost) {
	node.t.Helper()
	join(node, pod, "10.0.1.1/24", podAddress+"/24", 1340)
	pod.ip("route add default via 10.0.1.1")
	node.router()
}

// vxlanLink makes the kernel's own VXLAN link, named tunnel.
func vxlanLink(vni int, local, remote string) []string {
	return []string{
		fmt.Sprintf("link add tunnel mtu 1340 type vxlan id %d local %s remote %s dstport 6091 nolearning", vni,
			local, remote),
		"link set tunnel up",
	}
}

// internalAddress gives a node its internal address, on the link named tunnel, with routes through
// the gateway.
func internalAddress(address, gateway string, routes ...string) []string {
	commands := []string{"address add " + address + "/24 dev tunnel"}
	for _, r := range routes {
		commands = append(commands, "route add "+r+" via "+gateway)
	}
	return commands
}

// newVXLANClusters makes both clusters, each with the kernel's VXLAN link as its
// node.
func newVXLANClusters(t *testing.T) *clusters {
	t.Helper()
	c := newMilan(t)
	c.addRome()
	return c
}

// addRome makes everything behind rome's gateway, with the kernel's VXLAN link as node, and starts
// the gateway.
func (c *clusters) addRome() {
	c.romeGateway.t.Helper()
	c.addRomeWith("")
}

// newRomeNode makes the node and its pod, of the gateway's family.
func (c *clusters) newRomeNode() {
	g := c.romeGateway
	g.t.Helper()
	c.romeNode, c.romePod = newPeerHostOf(g.t, g.family, "rome-node"), newPeerHostOf(g.t, g.family, "rome-pod")
}

// addRomeWith is addRome with more lines in the gateway's configuration.
func (c *clusters) addRomeWith(more string) {
	c.romeGateway.t.Helper()
	c.joinRome()
	c.startRomeWith(more)
}

// joinRome makes everything behind rome's gateway, but does not start the gateway.
func (c *clusters) joinRome() {
	c.romeGateway.t.Helper()
	c.newRomeNode()
	join(c.romeGateway, c.romeNode, "172.18.0.9/24", "172.18.0.2/24", 1500)
	connectPod(c.romeNode, c.romePod)
	c.romeNode.ip(vxlanLink(romeVNI, "172.18.0.2", "172.18.0.9")...)
	c.romeNode.ip(internalAddress("10.80.0.2", romeInternal, "10.61.0.0/16", "10.71.0.0/16")...)
}

// startRome starts the gateway of rome and waits until it has noticed that its node uses VXLAN.
func (c *clusters) startRome() {
	c.romeGateway.t.Helper()
	c.startRomeWith("")
}

func (c *clusters) startRomeWith(more string) {
	c.romeGateway.t.Helper()
	c.romeCulvert = startGateway(c.romeGateway, romeConfig+more, c.romeKey, c.milanKey.public)
}
