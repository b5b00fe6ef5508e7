package integration

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"culvert/integration/need"
)

// testPeeringPutBack: the agent restores what others remove.
func testPeeringPutBack(t *testing.T, p *peeringLab) {
	node, route := p.nodes[0], p.remote.seenPods+" via 10.80.0.1 dev cv-"+p.remote.name
	has := func(what string, want bool, program string, args ...string) {
		eventually(t, fmt.Sprintf("%s, %t", what, want), func() error {
			out, err := node.try("", program, args...)
			if there := err == nil && strings.Contains(out, what); there != want {
				return fmt.Errorf("%v: %s", err, out)
			}
			return nil
		})
	}
	has(route, true, "ip", "route", "show")
	node.ip("route del " + p.remote.seenPods)
	has(route, true, "ip", "route", "show")
	exception := fmt.Sprintf("ip saddr %s ip daddr %s snat to ip saddr", p.podCIDR(), p.remote.seenPods)
	has(exception, true, "nft", "list", "table", "ip", "culvert")
	node.run("nft", "delete", "table", "ip", "culvert")
	has(exception, true, "nft", "list", "table", "ip", "culvert")
}

// testPeeringPodAsNode: what a pod sends to the gateway's tunnel port does not arrive, though its
// node masquerades it. Without the agent's rule it does, as the node's. The node's own datagrams
// and the pod's to other ports arrive.
func testPeeringPodAsNode(t *testing.T, p *peeringLab) {
	const truncated = `culvert_dropped_packets_total{direction="outbound",reason="truncated"}`
	at := p.kubeLab.gateway() + ":6091"
	send := func(from *peerHost, n int) {
		conn, err := from.dial("udp", at)
		need.NoError(t, err)
		defer conn.Close()
		for range n {
			_, err := conn.Write([]byte{0})
			need.NoError(t, err)
		}
	}
	// reach sends three datagrams of a pod, and then one of its node, and returns how many arrive.
	reach := func() (arrived int) {
		before := p.gatewayHost.metric(truncated)
		send(p.pods[0], 3)
		send(p.nodes[0], 1)
		eventually(t, "the node's datagram", func() error {
			if arrived = int(p.gatewayHost.metric(truncated) - before); arrived == 0 {
				return errors.New("has not arrived")
			}
			return nil
		})
		return arrived
	}
	p.awaitAgentStatus(0, "pods cannot act as this node at "+at)
	if n := reach(); n != 1 {
		t.Errorf("%d datagrams arrive, want the node's alone", n)
	}
	p.awaitAgentStatus(0, "masqueraded-pod")
	eventually(t, "the pod's datagrams, without the rule", func() error {
		p.nodes[0].run("nft", "flush", "table", "ip", "culvert")
		if n := reach(); n != 4 {
			return fmt.Errorf("%d datagrams arrive", n)
		}
		return nil
	})
	eventually(t, "the rule again", func() error {
		if n := reach(); n != 1 {
			return fmt.Errorf("%d datagrams arrive", n)
		}
		return nil
	})
}

// testPeeringWider: a Peering gets another CIDR and loses it again while it carries traffic, whose
// connections go on.
func testPeeringWider(t *testing.T, p, other *peeringLab) {
	with, spec := p.keyed()
	more := object{"cidr": "10.201.0.0/16", "remap": "10.99.0.0/16"}
	spec["remote"].(object)["podCIDRs"] = []object{{"cidr": p.remote.pods, "remap": p.remote.seenPods}, more}
	p.apply(with)
	eventually(t, "a route to the new CIDR", func() error {
		if out := p.nodes[0].run("ip", "route", "show", "10.99.0.0/16"); !strings.Contains(out, "cv-"+p.remote.name) {
			return errNotYet
		}
		return nil
	})
	spec["remote"].(object)["podCIDRs"] = []object{{"cidr": p.remote.pods, "remap": p.remote.seenPods}}
	p.apply(with)
	eventually(t, "the route has gone", func() error {
		if out := p.nodes[0].run("ip", "route", "show", "10.99.0.0/16"); out != "" {
			return errors.New(out)
		}
		return nil
	})
}

// peeringAway is how long the API server is away if longEnv is set.
const peeringAway = time.Minute

// testPeeringAway: the caller has cut off the API server. Until it is back, connections go on; then
// the agents obey what has changed meanwhile.
func testPeeringAway(t *testing.T, p *peeringLab, streams []*linkStream) {
	t.Helper()
	if os.Getenv(longEnv) != "" {
		time.Sleep(peeringAway) // this is how long it is away
	}
	requireAlive(t, "the API server is away", streams)
	with, spec := p.keyed()
	spec["remote"].(object)["podCIDRs"] = []object{{"cidr": p.remote.pods, "remap": p.remote.seenPods},
		{"cidr": "10.201.0.0/16", "remap": "10.99.0.0/16"}}
	p.apply(with)
	p.api.relay.hold(false)
	eventuallyWithin(t, kubeBack, "what has changed meanwhile is obeyed", func() error {
		for _, node := range p.nodes {
			if out := node.run("ip", "route", "show", "10.99.0.0/16"); !strings.Contains(out, "cv-"+p.remote.name) {
				return errNotYet
			}
		}
		return nil
	})
	spec["remote"].(object)["podCIDRs"] = []object{{"cidr": p.remote.pods, "remap": p.remote.seenPods}}
	p.apply(with)
	requireAlive(t, "the API server is back", streams)
}

// testPeeringChanged: when the remap changes, the other cluster is reached at its new addresses and
// no longer at the old ones. A change onto addresses of Services replaces nothing, at neither end.
func testPeeringChanged(t *testing.T, p, other *peeringLab) {
	with, spec := p.keyed()
	spec["remote"].(object)["podCIDRs"] = []object{{"cidr": p.remote.pods, "remap": "10.99.0.0/16"}}
	p.apply(with)
	eventually(t, "the route to the old remap is gone", func() error {
		if out := p.nodes[0].run("ip", "route", "show", "10.99.0.0/16"); !strings.Contains(out, "cv-"+p.remote.name) {
			return errNotYet
		}
		if out := p.nodes[0].run("ip", "route", "show", p.remote.seenPods); out != "" {
			return errors.New(out)
		}
		return nil
	})
	at := strings.SplitN(other.pod(&kubeNodes[1], 5), ".", 3)
	eventually(t, "a pod under its new address", func() error {
		_, err := p.pods[0].try("", "ping", "-c", "1", "-W", "2", "10.99."+at[2])
		return err
	})
	spec["remote"].(object)["podCIDRs"] = []object{{"cidr": p.remote.pods, "remap": "10.96.0.0/16"}}
	p.apply(with)
	p.awaitCondition("Accepted", "False Invalid: spec.remote.podCIDRs[0].remap: 10.96.0.0/16 contains ")
	p.awaitAgentStatus(0, "left out: Peering/culvert/"+p.remote.name+": spec.remote.podCIDRs[0].remap: 10.96.0.0/16")
	p.awaitCondition("NodesReady", "True")
	p.pods[0].run("ping", "-c", "3", "-i", "0.2", "-W", "2", "10.99."+at[2])
	spec["remote"].(object)["podCIDRs"] = []object{{"cidr": p.remote.pods, "remap": p.remote.seenPods}}
	p.apply(with)
	eventually(t, "a pod under its old address", func() error {
		_, err := p.pods[0].try("", "ping", "-c", "1", "-W", "2", other.seen(other.pod(&kubeNodes[1], 5)))
		return err
	})
	p.awaitCondition("Accepted", "True")
}

// testPeeringAnother: a second peering, with a cluster without Kubernetes, is added to the same
// nodes and removed.
func testPeeringAnother(t *testing.T, rome *peeringLab, streams []*linkStream) {
	again := *rome.kubeLab
	again.t, again.kubeEnd = t, &kubeRomeTurin
	again.addGateway("gw-turin")
	turin := newKubeHosts(t, &kubeTurin)
	turin.liqo = &liqo{t: t, here: &kubeTurin, remote: &kubeRomeTurin}
	again.connect(turin)
	p := &peeringLab{kubeLab: &again, remote: &kubeTurin, kubeconfigs: rome.kubeconfigs, agents: rome.agents}
	p.template("--peering=turin", "--expose=ClusterIP")
	with := p.peering()
	with["spec"].(object)["publicKey"] = base64.StdEncoding.EncodeToString(turin.key.PublicKey().Bytes())
	p.apply(with)
	p.api.awaitRight(t, p.gatewayUser(), "list", "culvert.io/tunnelnodes", agentNamespace)
	p.startGateway("gateway-turin")
	turin.startFileGateway(p.publicKey())
	turin.startTunnels()
	p.awaitCondition("NodesReady", "True")
	p.awaitCondition("Connected", "True")
	testKubePods(t, &again, turin)
	testKubePods(t, turin, &again)
	requireAlive(t, "a second peering", streams)
	need.NoError(t, p.api.admin.delete(with))
	for _, node := range p.nodes {
		eventually(t, node.name+": the link of the second peering has gone", func() error {
			if out, err := node.try("", "ip", "link", "show", "cv-turin"); err == nil {
				return errors.New(out)
			}
			return nil
		})
	}
	requireAlive(t, "the second peering gone", streams)
}

// testPeeringNodeClaims: a node that lists another one's address does not get its packets, nor cut
// it off. One that lists an address of the other cluster takes it off no node, also when agents
// start.
func testPeeringNodeClaims(t *testing.T, p, other *peeringLab) {
	claim := p.node(&kubeNodes[0])
	addresses := claim["status"].(object)["addresses"].([]object)
	claim["status"].(object)["addresses"] = append(addresses, object{"type": "ExternalIP",
		"address": p.address(kubeNodes[1].number)})
	p.apply(claim)
	p.awaitCondition("Accepted", "False Invalid: Node "+kubeNodes[0].name+": status.addresses[")
	if got, want := p.condition("Accepted"), fmt.Sprintf("%s is of node %s, which had it first",
		p.address(kubeNodes[1].number), kubeNodes[1].name); !strings.Contains(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	p.awaitCondition("NodesReady", "True")
	for i := range kubeNodes {
		if out, err := other.pods[0].try("", "ping", "-c", "3", "-i", "0.2", "-W", "2",
			p.seen(p.pod(&kubeNodes[i], 5))); err != nil {
			t.Errorf("the pod on %s: %v: %s", kubeNodes[i].name, err, out)
		}
	}
	of := other.seen(other.pod(&kubeNodes[1], 5))
	claim["status"].(object)["addresses"] = append(addresses, object{"type": "ExternalIP", "address": of})
	p.apply(claim)
	p.awaitCondition("Accepted", "False Invalid: Node "+kubeNodes[0].name+": status.addresses[1]: "+of+
		" is in spec.remote.podCIDRs[0].remap of Peering "+p.remote.name)
	for i := range kubeNodes {
		p.endAgent(i, syscall.SIGTERM)
		p.startAgent(i)
		p.awaitAgentStatus(i, "cv-"+p.remote.name, "gateway answers")
	}
	p.awaitCondition("NodesReady", "True")
	p.pods[0].run("ping", "-c", "3", "-i", "0.2", "-W", "2", of)
	p.apply(p.node(&kubeNodes[0]))
	p.awaitCondition("Accepted", "True")
}

// testPeeringPods: with podsFrom: Pods, a pod is reached from when its Pod has an address until the
// Pod ends.
func testPeeringPods(t *testing.T, p, other *peeringLab) {
	to := p.pod(&kubeNodes[1], 5)
	reached := func(want bool) {
		t.Helper()
		eventually(t, fmt.Sprintf("%s is reached: %t", to, want), func() error {
			if out, err := other.pods[0].try("", "ping", "-c", "1", "-W", "1", p.seen(to)); (err == nil) != want {
				return errors.New(out)
			}
			return nil
		})
	}
	reached(true)
	with, spec := p.keyed()
	spec["podsFrom"] = "Pods"
	p.apply(with)
	reached(false)
	pod := func(phase string) object {
		return object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": "shop", "namespace": "default"},
			"spec":   object{"nodeName": kubeNodes[1].name, "containers": []object{{"name": "shop", "image": "shop"}}},
			"status": object{"phase": phase, "podIP": to, "podIPs": []object{{"ip": to}}}}
	}
	p.apply(pod("Running"))
	reached(true)
	// The kubelet of another node gives one of its pods this address.
	thief := object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": "thief", "namespace": "aaa"},
		"spec":   object{"nodeName": kubeNodes[0].name, "containers": []object{{"name": "thief", "image": "thief"}}},
		"status": object{"phase": "Running", "podIP": to, "podIPs": []object{{"ip": to}}}}
	p.apply(namespace("aaa"), thief)
	p.awaitCondition("Accepted",
		fmt.Sprintf("False Invalid: Node %s: status.podIPs of its Pod aaa/thief: %s is of Pod default/shop on node %s, which had it first",
			kubeNodes[0].name, to, kubeNodes[1].name))
	reached(true)
	need.NoError(t, p.api.admin.delete(thief))
	p.awaitCondition("Accepted", "True")
	p.apply(pod("Succeeded"))
	reached(false)
}

// testPeeringDeleted: when a Peering is deleted, nodes remove all that belongs to it, and the
// gateway has no nodes.
func testPeeringDeleted(t *testing.T, p *peeringLab) {
	need.NoError(t, p.api.admin.delete(p.peering()))
	for _, node := range p.nodes {
		eventually(t, node.name+" has nothing of the Peering", func() error {
			for _, left := range [][]string{{"ip", "link", "show", "cv-" + p.remote.name},
				{"nft", "list", "table", "ip", "culvert"}} {
				if out, err := node.try("", left[0], left[1:]...); err == nil {
					return errors.New(out)
				}
			}
			return nil
		})
	}
	eventually(t, "the gateway has no nodes", func() error {
		page, err := p.gatewayHost.get("/metrics")
		if err == nil && strings.Contains(page, `{node="`+kubeNodes[0].name+`"}`) {
			err = errNotYet
		}
		return err
	})
}

// testPeeringGatewayEnds: a gateway that stops says so in the status, and the next one keeps the
// nodes' assignments.
func testPeeringGatewayEnds(t *testing.T, p, other *peeringLab) {
	before := fmt.Sprint(p.status("nodes"))
	need.NoError(t, p.gateway.cmd.Process.Signal(syscall.SIGTERM))
	<-p.gateway.ended
	if got := p.condition("Connected"); !strings.HasPrefix(got, "False GatewayStopped") {
		t.Errorf("Connected is %q, want False GatewayStopped", got)
	}
	p.startGateway("gateway-2")
	p.awaitCondition("Connected", "True")
	if after := fmt.Sprint(p.status("nodes")); after != before || before == "<nil>" {
		t.Errorf("the next gateway has assigned %s, want %s as before", after, before)
	}
	if pod, term := p.status("active", "pod"), p.status("active", "term"); pod != "gateway-2" ||
		fmt.Sprint(term) != "2" {
		t.Errorf("active are pod %v and term %v, want gateway-2 and 2", pod, term)
	}
	testKubePods(t, p.kubeLab, other.kubeLab)
}

// testPeeringGone: links, routes and the masquerading exception stay as long as the DaemonSet
// exists. They are removed with it, or by the command.
func testPeeringGone(t *testing.T, p *peeringLab) {
	link := "cv-" + p.remote.name
	for i := range p.nodes {
		p.endAgent(i, syscall.SIGTERM)
		p.nodes[i].run("ip", "link", "show", link)
		p.nodes[i].run("nft", "list", "table", "ip", "culvert")
	}
	p.startAgent(0)
	await(t, "the first node's link is up", func() bool { return strings.Contains(p.agents[0].output(), "link is up") })
	need.NoError(t, p.api.admin.delete(object{"apiVersion": "apps/v1", "kind": "DaemonSet",
		"metadata": object{"name": "culvert-node", "namespace": agentNamespace}}))
	p.endAgent(0, syscall.SIGTERM)
	if out := p.nodes[1].run(os.Getenv(binaryEnv), "node", "--kube", "--remove"); !strings.Contains(out,
		"removed link "+link) || !strings.Contains(out, "removed nftables table ip culvert") {
		t.Error(out)
	}
	for _, node := range p.nodes {
		for _, left := range [][]string{{"ip", "link", "show", link}, {"nft", "list", "table", "ip", "culvert"}} {
			if out, err := node.try("", left[0], left[1:]...); err == nil {
				t.Errorf("%s still has %s", node.name, out)
			}
		}
		if out := node.run("ip", "route"); strings.Contains(out, p.remote.seenPods) {
			t.Errorf("%s still has routes %s", node.name, out)
		}
	}
}

// requireWithinPeeringRoles fails if something was forbidden, or if a right was not used. Some are
// used in one of the clusters only.
func requireWithinPeeringRoles(t *testing.T, p *peeringLab) {
	t.Helper()
	for user, rights := range map[string][]string{
		p.gatewayUser(): {"get secrets", "update secrets", "list secrets", "watch secrets", "list peerings", "watch peerings", "update peerings/status",
			"list nodes", "watch nodes",
			"list tunnelnodes", "watch tunnelnodes", "list pods", "watch pods"},
		agentUser: {"list nodes", "watch nodes", "list services", "watch services", "list peerings", "watch peerings",
			"get tunnelnodes", "create tunnelnodes",
			"update tunnelnodes", "update tunnelnodes/status", "create events", "get daemonsets"},
	} {
		rights = slices.DeleteFunc(rights, func(right string) bool {
			return p.name != kubeRome.name && slices.Contains([]string{"get daemonsets", "create events",
				"update tunnelnodes"}, right) ||
				p.name != kubeMilan.name && strings.HasSuffix(right, " pods")
		})
		requireUsed(t, user, p.api.requested(t, user), rights...)
	}
}

// asAgent is a client with the token of a node's agent.
func (p *peeringLab) asAgent(n *kubeNode) *kubeClient {
	return newKubeClient(p.client, p.api.base, p.api.roots, p.agentToken(n))
}

// testPeeringSchema: the API server refuses bad Peerings.
func testPeeringSchema(t *testing.T, p *peeringLab) {
	for _, c := range []struct {
		name, want string
		change     func(spec object)
	}{
		{"no CIDR", "spec.internalCIDR: Invalid value", func(s object) { s["internalCIDR"] = "10.80.0.0" }},
		{"default route", "is shorter than /8", func(s object) {
			s["remote"].(object)["podCIDRs"] = []object{{"cidr": "0.0.0.0/0"}}
		}},
		{"IPv6", "is shorter than /8, or /16 of IPv6", func(s object) { s["internalCIDR"] = "fd00::/15" }},
		{"no tunnels", "spec.internalCIDR: missing", func(s object) { delete(s, "internalCIDR") }},
		{"another list", "does not begin with spec.internalCIDR", func(s object) { s["internalCIDRs"] = []string{"fd80::/64"} }},
		{"one family twice", "has two CIDRs of one family", func(s object) {
			s["local"].(object)["externalCIDRs"] = []string{"10.70.0.0/16", "10.72.0.0/16"}
		}},
		{"bits", "has bits to the right", func(s object) { s["internalCIDR"] = "10.80.0.1/24" }},
		{"lengths", "differ in length", func(s object) {
			s["remote"].(object)["podCIDRs"] = []object{{"cidr": "10.0.0.0/16", "remap": "10.61.0.0/17"}}
		}},
		{"key", "spec.publicKey", func(s object) { s["publicKey"] = "none" }},
		{"client", "spec.endpoint: missing", func(s object) { s["role"] = "Client"; delete(s, "endpoint") }},
		{"itself", "own ID", func(s object) { s["peer"] = s["cluster"] }},
	} {
		o := p.peering()
		o["metadata"].(object)["name"] = "bad"
		c.change(o["spec"].(object))
		if err := p.api.admin.dryRun(o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	other := p.peering()
	other["spec"].(object)["peer"] = "turin"
	if err := p.api.admin.dryRun(other); err == nil || !strings.Contains(err.Error(), "cannot change") {
		t.Errorf("spec.peer of a Peering changes: %v, want that it cannot", err)
	}
}

// tunnelNode is the TunnelNode of a node with some address.
func tunnelNode(n *kubeNode, address string) object {
	return object{"apiVersion": peeringVersion, "kind": "TunnelNode", "metadata": object{"name": n.name,
		"namespace": agentNamespace}, "spec": object{"local": address, "remote": address}}
}

// testPeeringForeignNode: an agent cannot write another node's TunnelNode, nor a message without
// end. The gateway refuses addresses that are another node's, or of a family that it has not.
func testPeeringForeignNode(t *testing.T, p *peeringLab) {
	agent := p.asAgent(&kubeNodes[0])
	put := func(o object) error {
		for {
			stored, err := p.api.admin.get(o)
			need.NoError(t, err)
			stored["spec"] = o["spec"]
			err = agent.request(http.MethodPut, pathOf(o), "application/json", stored, nil)
			// with a status that was written meanwhile
			if err == nil || !strings.Contains(err.Error(), "409 Conflict") {
				return err
			}
		}
	}
	if err := put(tunnelNode(&kubeNodes[1], p.address(1))); err == nil || !strings.Contains(err.Error(),
		"its own node alone") {
		t.Errorf("an agent writes another node's TunnelNode: %v", err)
	}
	p.endAgent(0, syscall.SIGTERM) // which would put it right
	if err := put(tunnelNode(&kubeNodes[0], p.address(kubeNodes[1].number))); err != nil {
		t.Error(err)
	}
	p.awaitCondition("Accepted", "False Invalid: TunnelNode node1: ")
	if got := p.condition("Accepted"); !strings.Contains(got, p.address(2)+" is of node node2") {
		t.Error(got)
	}
	if err := put(tunnelNode(&kubeNodes[0], "2001:db8::9")); err != nil {
		t.Error(err)
	}
	eventually(t, "an address to which the gateway cannot send is refused", func() error {
		if got := p.condition("Accepted"); !strings.Contains(got,
			"the gateway's pod has no address of the family of 2001:db8::9") {
			return errors.New(got)
		}
		return nil
	})
	stored := mustObject(t)(p.api.admin.get(tunnelNode(&kubeNodes[0], "")))
	stored["status"] = object{"message": strings.Repeat("x", 1<<20), "peerings": []object{}}
	if err := agent.replaceStatus(stored); err == nil || !strings.Contains(err.Error(), "Too long") {
		t.Errorf("an agent writes a message of a megabyte: %v", err)
	}
	if err := put(tunnelNode(&kubeNodes[0], p.address(1))); err != nil {
		t.Error(err)
	}
	p.awaitCondition("Accepted", "True")
	p.startAgent(0)
}

// testPeeringLeftOut: agents refuse CIDRs that the node uses otherwise, and a key that another
// Peering has. They log it and write an Event.
func testPeeringLeftOut(t *testing.T, p *peeringLab) {
	key, _ := field(mustObject(t)(p.api.admin.get(p.peering())), "spec", "publicKey").(string)
	for _, c := range []struct{ name, remap, internal, key, want string }{
		{"nodes", "172.18.0.0/16", "10.81.0.0/24", "", "spec.remote.podCIDRs[0].remap: 172.18.0.0/16 contains " +
			p.address(60) + ", an address of the API server"},
		{"pods", "10.244.1.0/24", "10.81.0.0/24", "",
			"spec.remote.podCIDRs[0].remap: 10.244.1.0/24 overlaps spec.local.podCIDRs[0]"},
		{"services", "10.96.0.0/16", "10.81.0.0/24", "", "the address of Service culvert/culvert-" + p.remote.name},
		{"another", p.remote.seenPods, "10.81.0.0/24", "", "spec.remote.podCIDRs[0].remap: " + p.remote.seenPods +
			" overlaps spec.remote.podCIDRs[0].remap of Peering " + p.remote.name},
		{"tunnel", "10.99.0.0/16", "10.80.0.0/16", "",
			"spec.internalCIDR: 10.80.0.0/16 overlaps spec.internalCIDR of Peering " + p.remote.name},
		{"key", "10.99.0.0/16", "10.81.0.0/24", key, "spec.publicKey: Peering " + p.remote.name +
			" has it too, and had it first"},
	} {
		o := p.peering()
		o["metadata"].(object)["name"] = "bad-" + c.name
		spec := o["spec"].(object)
		bits := c.remap[strings.IndexByte(c.remap, '/'):]
		spec["peer"], spec["internalCIDR"] = "turin", c.internal
		spec["remote"] = object{"podCIDRs": []object{{"cidr": "10.200.0.0" + bits, "remap": c.remap}}}
		if c.key != "" {
			spec["publicKey"] = c.key
		}
		p.apply(o)
		awaitLeftOut(t, p, "bad-"+c.name, c.want)
		if c.name == "services" {
			p.awaitAgentStatus(1, "left out: Peering/culvert/bad-services: spec.remote.podCIDRs[0].remap")
		}
		need.NoError(t, p.api.admin.delete(o))
	}
	const another = "bad-another: spec.remote.podCIDRs[0].remap"
	p.api.awaitEvent(t, startTimeout, agentNamespace, another, func(_ object, message string) bool {
		return strings.HasPrefix(message, another)
	})
	if out := p.nodes[1].run("ip", "link"); strings.Contains(out, "cv-bad") {
		t.Errorf("a refused Peering has a link: %s", out)
	}
}

// awaitLeftOut waits until the agent of the second node says why it leaves out a Peering.
func awaitLeftOut(t *testing.T, p *peeringLab, name, why string) {
	t.Helper()
	eventually(t, name+": "+why, func() error {
		stored, err := p.api.admin.get(tunnelNode(&kubeNodes[1], ""))
		if err != nil {
			return err
		}
		all, _ := field(stored, "status", "peerings").([]any)
		for _, x := range all {
			if x := x.(object); x["name"] == name && x["ready"] == false &&
				strings.Contains(fmt.Sprint(x["message"]), why) {
				return nil
			}
		}
		return fmt.Errorf("%v", all)
	})
}

// mustObject returns a function that returns an object, or ends the test if there is an error.
func mustObject(t *testing.T) func(object, error) object {
	return func(o object, err error) object {
		t.Helper()
		need.NoError(t, err)
		return o
	}
}
