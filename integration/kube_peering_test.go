package integration

import (
	"crypto/ecdh"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"sigs.k8s.io/yaml"

	"culvert/integration/need"
)

const (
	peeringVersion   = "culvert.io/v1alpha1"
	peeringNamespace = "culvert"
	agentNamespace   = "culvert-nodes"
	agentUser        = "system:serviceaccount:" + agentNamespace + ":culvert-node"
)

// peeringLab is a cluster with culvert's own kinds of objects. Gateways and agents have only the
// rights of the manifests.
type peeringLab struct {
	*kubeLab
	remote      *kubeEnd
	kubeconfigs []string  // of the agents, by node
	runtime     [2]string // folders of the agents' sockets
	agents      []*peerProcess
	gateway     *peerProcess
	imports     string // namespace for what the peer exports
	services    object // spec.services
	// families of what the objects say; nil: IPv4
	families []peerFamily
}

// all returns a text in each family.
func (p *peeringLab) all(text string) (texts []string) {
	for _, f := range p.families {
		texts = append(texts, f.of(text))
	}
	if texts == nil {
		texts = []string{text}
	}
	return texts
}

// newPeeringLabs builds two clusters with the same CIDRs. flags are more flags of rome's API
// server.
func newPeeringLabs(t *testing.T, flags ...string) (rome, milan *peeringLab) {
	t.Helper()
	rome, milan = newPeeringLab(t, &kubeRome, &kubeMilan, flags...), newPeeringLab(t, &kubeMilan, &kubeRome)
	rome.connect(milan.kubeLab)
	return rome, milan
}

func newPeeringLab(t *testing.T, here, remote *kubeEnd, flags ...string) *peeringLab {
	t.Helper()
	k := newKubeHosts(t, here)
	k.api = startKubeAPI(k.join("api", k.kubeEnd.api()), k.kubeEnd.api(), flags...)
	p := &peeringLab{kubeLab: k, remote: remote, kubeconfigs: make([]string, len(kubeNodes)),
		agents: make([]*peerProcess, len(kubeNodes))}
	for i := range kubeNodes {
		p.apply(p.node(&kubeNodes[i]))
	}
	return p
}

func (p *peeringLab) apply(all ...object) {
	p.t.Helper()
	for _, o := range all {
		if err := p.api.admin.apply(o); err != nil {
			p.t.Fatalf("%s: %v", p.name, err)
		}
	}
}

// node is a Node as kubelet and the controller manager make it.
func (p *peeringLab) node(n *kubeNode) object {
	addresses := []object{{"type": "Hostname", "address": n.name}}
	for i, a := range p.all(p.address(n.number)) { // an apply has one of each type
		addresses = append(addresses, object{"type": []string{"InternalIP", "ExternalIP"}[i], "address": a})
	}
	return object{"apiVersion": "v1", "kind": "Node", "metadata": object{"name": n.name},
		"spec":   object{"podCIDR": p.all(p.pod(n, 0) + "/24")[0], "podCIDRs": p.all(p.pod(n, 0) + "/24")},
		"status": object{"addresses": addresses}}
}

// template applies what culvert kube template prints.
func (p *peeringLab) template(args ...string) {
	p.t.Helper()
	out := p.client.run(os.Getenv(binaryEnv),
		append([]string{"kube", "template", "--image=registry.example/culvert:test"}, args...)...)
	for _, document := range strings.Split(out, "\n---\n") {
		var o object
		need.NoError(p.t, yaml.Unmarshal([]byte(document), &o))
		eventually(p.t, fmt.Sprint("apply ", field(o, "kind"), " ", field(o, "metadata", "name")), func() error {
			err := p.api.admin.apply(o)
			if refused := new(kubeError); err != nil && !errors.As(err, &refused) {
				p.t.Fatal(err)
			}
			return err
		})
	}
}

// peering returns the Peering of this cluster.
func (p *peeringLab) peering() object {
	remaps := func(cidr, remap string) (all []object) {
		for i, c := range p.all(cidr) {
			all = append(all, object{"cidr": c, "remap": p.all(remap)[i]})
		}
		return all
	}
	internal, external := p.all(p.internalCIDR()), p.all(p.external)
	remote := remaps(p.remote.external, p.remote.seenExt)
	spec := object{
		"cluster": p.name, "peer": p.remote.name, "role": "Server", "mtu": kubeMTU, "internalCIDR": internal[0],
		"local":  object{"podCIDRs": p.all(p.podCIDR()), "externalCIDR": external[0]},
		"remote": object{"podCIDRs": remaps(p.remote.pods, p.remote.seenPods), "externalCIDR": remote[0]},
	}
	if len(internal) > 1 {
		spec["internalCIDRs"] = internal
		spec["local"].(object)["externalCIDRs"], spec["remote"].(object)["externalCIDRs"] = external, remote
	}
	if p.mode == "client" {
		spec["role"], spec["endpoint"] = "Client", p.all(p.remote.peering + ":51840")[0]
	}
	if p.imports != "" {
		spec["imports"] = p.imports
	}
	if p.services != nil {
		spec["services"] = p.services
	}
	return object{"apiVersion": peeringVersion, "kind": "Peering", "metadata": object{"name": p.remote.name,
		"namespace": peeringNamespace}, "spec": spec}
}

// keyed returns the same Peering, and its spec, with the peer's key that is stored in the API
// server.
func (p *peeringLab) keyed() (peering, spec object) {
	p.t.Helper()
	stored := mustObject(p.t)(p.api.admin.get(p.peering()))
	peering = p.peering()
	spec = peering["spec"].(object)
	spec["publicKey"] = field(stored, "spec", "publicKey")
	return peering, spec
}

// internalCIDR differs among the Peerings of a cluster.
func (p *peeringLab) internalCIDR() string {
	if p.on > 0 {
		return "10.81.0.0/24"
	}
	return "10.80.0.0/24"
}

func (p *peeringLab) podCIDR() string { return p.kubeEnd.pods }

// install applies the manifests and the Peering, and writes the kubeconfigs of the agents.
func (p *peeringLab) install(more ...string) {
	p.t.Helper()
	p.template(append(more, "--peering="+p.remote.name)...)
	p.requireRestricted()
	eventually(p.t, "the API server accepts the Peering", func() error { return p.api.admin.apply(p.peering()) })
	p.awaitRights()
	for i := range kubeNodes {
		p.kubeconfigs[i] = p.api.kubeconfig(p.agentToken(&kubeNodes[i]))
	}
}

// awaitRights waits until the API server has read the rights of gateways and agents.
func (p *peeringLab) awaitRights() {
	p.t.Helper()
	for _, right := range []struct{ user, verb, resource, namespace string }{
		{p.gatewayUser(), "list", "/nodes", ""}, {p.gatewayUser(), "list", "culvert.io/tunnelnodes", agentNamespace},
		{p.gatewayUser(), "create", "/events", peeringNamespace},
		{p.gatewayUser(), "list", "culvert.io/peerings", peeringNamespace},
		{agentUser, "list", "/services", ""}, {agentUser, "list", "culvert.io/peerings", peeringNamespace},
		{agentUser, "create", "culvert.io/tunnelnodes", agentNamespace},
	} {
		p.api.awaitRight(p.t, right.user, right.verb, right.resource, right.namespace)
	}
}

// requireRestricted: in a namespace that enforces "restricted", the API server accepts the
// gateway's pod, and refuses one with hostNetwork.
func (p *peeringLab) requireRestricted() {
	p.t.Helper()
	deployment := mustObject(p.t)(p.api.admin.get(object{"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": object{"name": "culvert-" + p.remote.name, "namespace": peeringNamespace}}))
	spec := field(deployment, "spec", "template", "spec").(object)
	pod := object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": "gateway",
		"namespace": peeringNamespace}, "spec": spec}
	if err := p.api.admin.dryRun(pod); err != nil {
		p.t.Error(err)
	}
	spec["hostNetwork"] = true
	if err := p.api.admin.dryRun(pod); err == nil || !strings.Contains(err.Error(), "violates PodSecurity") {
		p.t.Errorf("a pod with the node's network: %v", err)
	}
}

func (p *peeringLab) gatewayUser() string {
	return "system:serviceaccount:" + peeringNamespace + ":culvert-" + p.remote.name
}

// agentToken returns the token that kubelet gives the agent's pod on a node. It is bound to that
// pod, and so to the node.
func (p *peeringLab) agentToken(n *kubeNode) string {
	p.t.Helper()
	pod := object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": "culvert-node-" + n.name,
		"namespace": agentNamespace, "labels": object{"app": "culvert-node"}},
		"spec": object{"nodeName": n.name, "serviceAccountName": "culvert-node", "hostNetwork": true,
			"containers": []object{{"name": "culvert", "image": "culvert"}}}}
	p.apply(pod)
	token, err := p.api.boundToken(pod, "culvert-node")
	need.NoError(p.t, err)
	return token
}

// startGateway starts the gateway's pod.
func (p *peeringLab) startGateway(pod string) {
	p.t.Helper()
	p.gateway = p.gatewayHost.startAs(unprivilegedUID, unprivilegedUID, os.Getenv(binaryEnv), "gateway", "--kube",
		"--name="+p.remote.name, "--namespace="+peeringNamespace,
		"--node-name="+kubeNodes[p.on].name, "--pod-name="+pod,
		"--pod-ips="+strings.Join(p.all(p.kubeLab.gateway()), ","),
		"--metrics-address="+metricsAddress,
		"--health-probe-bind-address="+healthAddress, "--kubeconfig="+p.api.kubeconfigOf(peeringNamespace,
			"culvert-"+p.remote.name))
}

func (p *peeringLab) startAgent(i int, more ...string) {
	if p.runtime[i] == "" {
		p.runtime[i] = p.t.TempDir()
	}
	p.agents[i] = p.nodes[i].start(nil, "env", append([]string{"XDG_RUNTIME_DIR=" + p.runtime[i], os.Getenv(binaryEnv),
		"node", "--kube", "--node-name", kubeNodes[i].name,
		"--kubeconfig", p.kubeconfigs[i], "--daemonset", agentNamespace + "/culvert-node"}, more...)...)
}

// awaitAgentStatus waits until the output of culvert status on a node contains all texts of what.
func (p *peeringLab) awaitAgentStatus(i int, what ...string) {
	p.t.Helper()
	eventually(p.t, fmt.Sprint("culvert status on node ", i+1), func() error {
		out, err := p.nodes[i].try("", "env", "XDG_RUNTIME_DIR="+p.runtime[i], os.Getenv(binaryEnv), "status")
		for _, want := range what {
			if !strings.Contains(out, want) {
				return fmt.Errorf("no %q: %v: %s", want, err, out)
			}
		}
		return err
	})
}

func (p *peeringLab) endAgent(i int, signal syscall.Signal) {
	p.t.Helper()
	need.NoError(p.t, p.agents[i].cmd.Process.Signal(signal))
	<-p.agents[i].ended
}

// status reads a field of the Peering's status.
func (p *peeringLab) status(path ...string) any {
	p.t.Helper()
	stored, err := p.api.admin.get(p.peering())
	need.NoError(p.t, err)
	return field(stored, append([]string{"status"}, path...)...)
}

// condition returns a condition of the Peering as "status reason: message", or "none".
func (p *peeringLab) condition(kind string) string {
	p.t.Helper()
	all, _ := p.status("conditions").([]any)
	for _, c := range all {
		if c := c.(object); c["type"] == kind {
			return fmt.Sprintf("%v %v: %v", c["status"], c["reason"], c["message"])
		}
	}
	return "none"
}

func (p *peeringLab) awaitCondition(kind, beginning string) {
	p.t.Helper()
	eventually(p.t, p.name+": "+kind+" "+beginning, func() error {
		if got := p.condition(kind); !strings.HasPrefix(got, beginning) {
			return fmt.Errorf("it is %q; gateway: %s agents: %s", got, p.gateway.output(), p.said())
		}
		return nil
	})
}

func (p *peeringLab) said() (all string) {
	for _, a := range p.agents {
		if a != nil {
			all += a.output()
		}
	}
	return all
}

// meet gives this gateway the key of the other one.
func (p *peeringLab) meet(other *peeringLab) {
	p.t.Helper()
	var key string
	eventually(p.t, other.name+": its key", func() error {
		if key, _ = other.status("publicKey").(string); key == "" {
			return fmt.Errorf("none: %s", other.gateway.output())
		}
		return nil
	})
	with := p.peering()
	with["spec"].(object)["publicKey"] = key
	p.apply(with)
}

// publicKey waits for the gateway's key.
func (p *peeringLab) publicKey() (key *ecdh.PublicKey) {
	p.t.Helper()
	eventually(p.t, p.name+": its key", func() error {
		text, _ := p.status("publicKey").(string)
		raw, err := base64.StdEncoding.DecodeString(text)
		if err == nil {
			key, err = ecdh.X25519().NewPublicKey(raw)
		}
		return err
	})
	return key
}

// masquerade makes the nodes do what CNIs do: packets between pods and other addresses get the
// node's address as their source.
func (p *peeringLab) masquerade() {
	p.t.Helper()
	for _, node := range p.nodes {
		for _, c := range p.all(p.podCIDR()) {
			family := "ip"
			if strings.Contains(c, ":") {
				family = "ip6"
			}
			node.feed(fmt.Sprintf(`table %[2]s cni { chain postrouting { type nat hook postrouting priority 100
	%[2]s saddr %[1]s %[2]s daddr != %[1]s masquerade
	%[2]s saddr != %[1]s %[2]s daddr %[1]s masquerade
}; }
`, c, family), "nft", "-f", "-")
		}
	}
}

// TestKubePeering joins two clusters with the same CIDRs, each with a real API server, the
// manifests, and a CNI that masquerades. Gateways and agents have only the rights of the manifests.
func TestKubePeering(t *testing.T) {
	isolated(t, func(t *testing.T) {
		rome, milan := newPeeringLabs(t)
		labs := []*peeringLab{rome, milan}
		for _, p := range labs {
			p.install()
			p.masquerade()
			p.startGateway("gateway-1")
			for i := range kubeNodes {
				p.startAgent(i)
			}
		}
		rome.awaitCondition("Connected", "False NoPeerKey")
		rome.awaitAgentStatus(0, "node node1, up ")
		rome.meet(milan)
		milan.meet(rome)
		for _, p := range labs {
			p.awaitCondition("Accepted", "True")
			p.awaitCondition("NodesReady", "True")
			p.awaitCondition("Connected", "True")
			p.gateway.requireConfined(t, unprivilegedUID, unprivilegedUID)
			for i := range kubeNodes {
				p.awaitAgentStatus(i, "node "+kubeNodes[i].name+", up ", "cv-"+p.remote.name, "gateway answers")
			}
		}
		for _, way := range [][2]*peeringLab{{rome, milan}, {milan, rome}} {
			testKubePods(t, way[0].kubeLab, way[1].kubeLab)
			testKubeHosts(t, way[0].kubeLab, way[1].kubeLab)
			testKubeNodePort(t, way[0].kubeLab, way[1].kubeLab)
		}
		streams := linkStreams(t, rome.kubeLab, milan.kubeLab, 20)
		t.Run("put back", func(t *testing.T) { testPeeringPutBack(t, rome) })
		requireAlive(t, "routes and exception removed", streams)
		t.Run("pod as node", func(t *testing.T) { testPeeringPodAsNode(t, rome) })
		for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			for i := range rome.nodes {
				rome.endAgent(i, signal)
				rome.startAgent(i)
			}
			requireAlive(t, signal.String()+" and start of agents", streams)
		}
		t.Run("another CIDR", func(t *testing.T) { testPeeringWider(t, rome, milan) })
		requireAlive(t, "another CIDR of the peer", streams)
		t.Run("another peering", func(t *testing.T) { testPeeringAnother(t, rome, streams) })
		t.Run("schema", func(t *testing.T) { testPeeringSchema(t, rome) })
		t.Run("foreign node", func(t *testing.T) { testPeeringForeignNode(t, rome) })
		t.Run("left out", func(t *testing.T) { testPeeringLeftOut(t, rome) })
		requireAlive(t, "bad objects", streams)
		rome.api.relay.hold(true)
		rome.endAgent(0, syscall.SIGKILL)
		rome.startAgent(0)
		requireAlive(t, "an agent starts without the API server", streams)
		testPeeringAway(t, rome, streams)
		t.Run("gateway ends", func(t *testing.T) { testPeeringGatewayEnds(t, rome, milan) })
		t.Run("changed remap", func(t *testing.T) { testPeeringChanged(t, milan, rome) })
		t.Run("node claims", func(t *testing.T) { testPeeringNodeClaims(t, milan, rome) })
		t.Run("Pods", func(t *testing.T) { testPeeringPods(t, milan, rome) })
		t.Run("deleted", func(t *testing.T) { testPeeringDeleted(t, milan) })
		t.Run("uninstall", func(t *testing.T) { testPeeringGone(t, rome) })
		requireWithinPeeringRoles(t, milan)
		requireWithinPeeringRoles(t, rome)
	}, kubernetes)
}
