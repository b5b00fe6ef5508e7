package integration

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"

	"culvert/integration/need"
)

// A kubeLab is a running cluster: its hosts, its API server, and a stand-in for Liqo's controllers.
type kubeLab struct {
	*kubeEnd
	t                            *testing.T
	network, gatewayHost, client *peerHost
	nodes, pods                  []*peerHost
	links                        *kubeLinks     // makes the nodes' links in place of startTunnels
	culvert                      *peerProcess   // its gateway under Liqo
	nodeProcesses                []*peerProcess // of this peering
	api                          *kubeAPI
	liqo                         *liqo            // of this peering
	key                          *ecdh.PrivateKey // of its gateway
}

// newKubeLabs builds rome and milan, without gateways.
func newKubeLabs(t *testing.T) (rome, milan *kubeLab) {
	t.Helper()
	rome, milan = newKubeLab(t, &kubeRome, &kubeMilan), newKubeLab(t, &kubeMilan, &kubeRome)
	rome.connect(milan)
	return rome, milan
}

// newKubeLab builds a cluster under Liqo.
func newKubeLab(t *testing.T, here, remote *kubeEnd) *kubeLab {
	t.Helper()
	k := newKubeHosts(t, here)
	k.api = startKubeAPI(k.join("api", k.kubeEnd.api()), k.kubeEnd.api())
	k.liqo = &liqo{t: t, api: k.api, here: here, remote: remote, nodes: kubeNodes}
	k.liqo.install()
	k.liqo.admit()
	return k
}

// newKubeHosts builds a cluster without Kubernetes.
func newKubeHosts(t *testing.T, here *kubeEnd) *kubeLab {
	t.Helper()
	k := &kubeLab{kubeEnd: here, t: t}
	k.network = newPeerHost(t, here.name+"-net")
	k.network.ip("link add underlay type bridge", "link set underlay up")
	k.client = k.join("client", here.client())
	for i := range kubeNodes {
		k.addNode(&kubeNodes[i])
	}
	k.client.ip("route add default via " + here.address(kubeNodes[0].number))
	k.addGateway("gw")
	return k
}

// addGateway makes the host of a gateway, and its key.
func (k *kubeLab) addGateway(name string) {
	k.t.Helper()
	k.gatewayHost = k.join(name, k.gateway())
	k.gatewayHost.confined = true
	var err error
	if k.key, err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
		k.t.Fatal(err)
	}
}

// connect links the gateways of two clusters.
func (k *kubeLab) connect(other *kubeLab) {
	k.t.Helper()
	join(k.gatewayHost, other.gatewayHost, k.peering+"/24", other.peering+"/24", 1500)
}

// peerAgain returns another end of an existing cluster, for a second peering with a gateway of its
// own.
func (k *kubeLab) peerAgain(here, remote *kubeEnd) *kubeLab {
	k.t.Helper()
	again := *k
	again.kubeEnd, again.nodeProcesses = here, nil
	again.liqo = &liqo{t: k.t, api: k.api, here: here, remote: remote, nodes: kubeNodes}
	again.liqo.admit()
	again.addGateway("gw-" + remote.name)
	return &again
}

// join adds a host to the underlay.
func (k *kubeLab) join(name string, addresses ...string) *peerHost {
	k.t.Helper()
	h := newPeerHost(k.t, k.name+"-"+name)
	join(k.network, h, "", addresses[0]+"/24", 1500)
	k.network.ip("link set " + h.name + " master underlay")
	for _, a := range addresses[1:] {
		h.ip(fmt.Sprintf("address add %s/24 dev %s", a, k.network.name))
	}
	return h
}

// addNode makes a node with its pod.
func (k *kubeLab) addNode(n *kubeNode) {
	k.t.Helper()
	local, remote := k.outer(n)
	node, pod := k.join(n.name, remote, local), newPeerHost(k.t, fmt.Sprintf("%s-pod%d", k.name, n.number))
	join(node, pod, k.pod(n, 1)+"/24", k.pod(n, 5)+"/24", kubeMTU)
	pod.ip("route add default via " + k.pod(n, 1))
	for i := range kubeNodes {
		if other := &kubeNodes[i]; other != n {
			node.ip(fmt.Sprintf("route add %s/24 via %s", k.pod(other, 0), k.address(other.number)))
		}
	}
	node.router()
	k.nodes, k.pods = append(k.nodes, node), append(k.pods, pod)
}

// liqoSteps runs the steps of Liqo's controllers in their order, up to the peer's key.
func (k *kubeLab) liqoSteps() {
	k.t.Helper()
	k.liqo.nodesJoin()
	k.liqo.configure()
	k.liqo.gatewayRuns()
	k.liqo.nodesMeasured()
	k.liqo.mapHost()
	for i := range kubeNodes {
		k.liqo.podsRun(&kubeNodes[i], k.pod(&kubeNodes[i], 5))
	}
}

// remote is the other end of the peering.
func (k *kubeLab) remote() *kubeEnd { return k.liqo.remote }

// tunnelAddress returns the address of a node's end of the tunnel.
func (e *kubeEnd) tunnelAddress(n *kubeNode) string {
	local, remote := e.outer(n)
	if n == &kubeNodes[e.on] {
		return local
	}
	return remote
}

// startNodes does the work of Liqo's agents on the nodes: a tunnel to the gateway, with routes, and
// translations in the nodes' kernels.
func (k *kubeLab) startNodes() {
	k.t.Helper()
	if k.links != nil {
		k.routeLinks()
	} else {
		k.startTunnels()
	}
	remote := k.remote()
	for _, h := range k.nodes {
		h.feed(fmt.Sprintf(`table ip liqo-%[7]s {
	chain prerouting { type nat hook prerouting priority -100; ip daddr %[1]s dnat to %[2]s; }
	chain pre-postrouting {
		type nat hook postrouting priority 99
		ip daddr { %[3]s, %[4]s } ip saddr %[5]s accept
		ip daddr { %[3]s, %[4]s } snat to %[6]s
		ip daddr %[2]s masquerade
	}
}`, kubeMapped, k.kubeEnd.client(), remote.seenPods, remote.seenExt, k.kubeEnd.pods, k.unknown(), remote.name),
			"nft", "-f", "-")
	}
}

// startTunnels makes the nodes' tunnels to the gateway at its present address.
func (k *kubeLab) startTunnels() {
	k.t.Helper()
	remote := k.remote()
	k.nodeProcesses = nil
	for i, h := range k.nodes {
		n := &kubeNodes[i]
		text, err := yaml.Marshal(object{
			"name": n.name, "underlay": k.tunnelAddress(n), "gateway": object{"underlay": k.gateway(),
				"address": k.internal},
			"vni": k.vni(n), "address": n.internal, "mtu": kubeMTU, "mode": "tun", "interface": "liqo-" + remote.name,
			"routes": []string{remote.seenPods, remote.seenExt},
		})
		need.NoError(k.t, err)
		file := filepath.Join(k.t.TempDir(), n.name+".yaml")
		need.NoError(k.t, os.WriteFile(file, text, 0o600))
		k.nodeProcesses = append(k.nodeProcesses, h.start(nil, os.Getenv(binaryEnv), "node", "--config", file))
	}
}

// nodePort makes each node forward what arrives at one of its ports to a remote pod.
func (k *kubeLab) nodePort(port int, to string) {
	k.t.Helper()
	for _, h := range k.nodes {
		h.feed(
			fmt.Sprintf("table ip nodeport { chain prerouting { type nat hook prerouting priority -100; fib daddr type local tcp dport %d dnat to %s; }; }\n", port, to),
			"nft", "-f", "-")
	}
}

// startLiqoGateway starts the gateway as its pod would: with a user ID of its own, without any
// capability, on a read-only root.
func (k *kubeLab) startLiqoGateway(uid, gid uint32, more ...string) *peerProcess {
	k.t.Helper()
	dir := k.t.TempDir()
	need.NoError(k.t, os.Chmod(filepath.Dir(dir), 0o711))
	// All processes of a pod may read a Secret's files.
	for name, text := range map[string][]byte{"privateKey": k.key.Bytes(), "publicKey": k.key.PublicKey().Bytes()} {
		need.NoError(k.t, os.WriteFile(filepath.Join(dir, name), text, 0o644))
	}
	args := []string{
		"gateway", "--liqo", "--name=" + k.liqo.account(), "--namespace=" + k.liqo.tenant(),
		"--remote-cluster-id=" + k.remote().name,
		"--gateway-uid=" + kubeGatewayUID, "--mode=" + k.mode, "--node-name=" + kubeNodes[k.on].name,
		"--pod-name=" + k.liqo.podName(),
		fmt.Sprintf("--mtu=%d", kubeMTU), "--keys-dir=" + dir, "--metrics-address=" + metricsAddress,
		"--health-probe-bind-address=" + healthAddress, "--kubeconfig=" + k.api.kubeconfigOf(k.liqo.tenant(),
			k.liqo.account()),
	}
	if k.mode == "client" {
		args = append(args, "--endpoint-address="+k.remote().peering)
	}
	k.culvert = k.gatewayHost.startAs(uid, gid, os.Getenv(binaryEnv), append(args, more...)...)
	return k.culvert
}

// startFileGateway starts a gateway with a file, in a cluster without Kubernetes.
func (k *kubeLab) startFileGateway(peer *ecdh.PublicKey) *peerProcess {
	k.t.Helper()
	remote := k.remote()
	wireguard := object{"role": k.mode, "privateKeyFile": "own.key", "peerPublicKeyFile": "peer.pub"}
	if k.mode == "client" {
		wireguard["endpoint"] = remote.peering + ":51840"
	}
	var nodes []object
	for i := range kubeNodes {
		n := &kubeNodes[i]
		nodes = append(nodes, object{"name": n.name, "vni": k.vni(n), "underlay": k.tunnelAddress(n),
			"address":  n.internal,
			"podCIDRs": []string{k.pod(n, 0) + "/24"}})
	}
	text, err := yaml.Marshal(object{
		"cluster": k.name, "peer": remote.name, "mtu": kubeMTU, "wireguard": wireguard,
		"geneve": object{"gatewayAddress": k.internal, "nodes": nodes},
		"network": object{
			"local": object{"podCIDRs": []string{k.kubeEnd.pods}, "externalCIDRs": []string{k.external}},
			"remote": object{
				"podCIDRs":      []object{{"cidr": remote.pods, "remap": remote.seenPods}},
				"externalCIDRs": []object{{"cidr": remote.external, "remap": remote.seenExt}},
			},
		},
		"metrics": metricsAddress,
	})
	need.NoError(k.t, err)
	encode := base64.StdEncoding.EncodeToString
	own := keyPair{encode(k.key.Bytes()), encode(k.key.PublicKey().Bytes())}
	return startGateway(k.gatewayHost, string(text), own, encode(peer.Bytes()))
}

const (
	kubeGatewayUID = "8d0ea94e-9020-47b4-93be-eba9663e60ac"
	healthAddress  = "127.0.0.1:8083"
)
