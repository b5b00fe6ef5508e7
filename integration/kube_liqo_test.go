package integration

import (
	"encoding/base64"
	"fmt"
	"maps"
	"path/filepath"
	"strconv"
	"testing"
)

const (
	liqoVersion   = "networking.liqo.io/v1beta1"
	liqoNamespace = "liqo"
	liqoTunnel    = "liqo-tunnel" // Liqo's name of the WireGuard tunnel
	liqoHost      = "eth0"        // Liqo's name of the gateway pod's own link
	liqoLabel     = "networking.liqo.io/"
)

// liqo stands in for Liqo's controllers in one cluster with one peering. Its steps write the same
// resources in the same order: nodesJoin, configure, gatewayRuns, nodesMeasured, mapHost, podsRun,
// keysExchanged. Each may be repeated after a change.
type liqo struct {
	t      *testing.T
	api    *kubeAPI
	here   *kubeEnd
	remote *kubeEnd
	nodes  []kubeNode
	pod    int // which replica of the gateway
}

// tenant is the namespace of the peering.
func (l *liqo) tenant() string { return "liqo-tenant-" + l.remote.name }

// peerTunnel is the address of the other gateway inside the tunnel.
func (l *liqo) peerTunnel() string {
	if l.here.mode == "server" {
		return "169.254.18.2"
	}
	return "169.254.18.1"
}

func (l *liqo) apply(objects ...object) {
	l.t.Helper()
	for _, o := range objects {
		if err := l.api.admin.apply(o); err != nil {
			l.t.Fatalf("%s: %v", l.here.name, err)
		}
	}
}

// install makes what Liqo's chart contains: resource definitions, its namespace, and the role of a
// gateway.
func (l *liqo) install() {
	l.t.Helper()
	files, err := filepath.Glob("testdata/liqo-crds/networking.liqo.io_*.yaml")
	if err != nil || len(files) == 0 {
		l.t.Fatalf("no resource definitions: %v", err)
	}
	var definitions []object
	for _, file := range files {
		o := readYAML(l.t, file)
		l.apply(o)
		definitions = append(definitions, o)
	}
	for _, o := range definitions {
		kind := field(o, "spec", "names", "kind").(string)
		eventually(l.t, kind+" is served", func() error {
			_, err := l.api.admin.list(liqoVersion, kind, "")
			return err
		})
	}
	rules := readYAML(l.t, "testdata/liqo-crds/liqo-gateway-ClusterRole.rules.yaml")["rules"]
	l.apply(
		object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": liqoNamespace}},
		object{"apiVersion": rbac + "/v1", "kind": "ClusterRole", "metadata": object{"name": "liqo-gateway"},
			"rules": rules},
	)
}

const rbac = "rbac.authorization.k8s.io"

// admit makes what Liqo's operator makes first for a gateway: its namespace, and an account with
// the role. Nothing else is granted.
func (l *liqo) admit() {
	l.t.Helper()
	l.apply(
		object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": l.tenant()}},
		object{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": object{"name": l.account(),
			"namespace": l.tenant()}},
		object{"apiVersion": rbac + "/v1", "kind": "ClusterRoleBinding",
			"metadata": object{"name": "liqo-gateway-" + l.tenant() + "-" + l.account()},
			"roleRef":  object{"apiGroup": rbac, "kind": "ClusterRole", "name": "liqo-gateway"},
			"subjects": []object{{"kind": "ServiceAccount", "name": l.account(), "namespace": l.tenant()}}},
	)
	l.api.awaitRight(l.t, l.user(), "list", "networking.liqo.io/firewallconfigurations", l.tenant())
}

// account is the name of the gateway's ServiceAccount; it is also the gateway's name.
func (l *liqo) account() string { return l.remote.name }

// user is the API server's name for that account.
func (l *liqo) user() string { return "system:serviceaccount:" + l.tenant() + ":" + l.account() }

// nodesJoin writes what depends only on the nodes. The addresses that they send from are not known
// yet.
func (l *liqo) nodesJoin() {
	l.t.Helper()
	var marks []object
	for i := range l.nodes {
		n := &l.nodes[i]
		mark := strconv.Itoa(n.number)
		l.apply(resource("InternalNode", "", n.name,
			object{"interface": object{"gateway": object{"name": n.device}, "node": object{"ip": n.internal}}}))
		l.podsRun(n)
		l.externalRoutes(n)
		l.applyRoutes(n.name+"-service-nodeport-routing", n.name+"-service-nodeport-routing", fabricRoutes, object{
			"dst": l.here.unknown() + "/32", "fwmark": n.number, "targetRef": object{"kind": "InternalNode",
				"name": n.name},
			"routes": []object{{"dst": l.here.unknown() + "/32", "gw": n.internal, "dev": n.device}},
		})
		marks = append(marks, filterRule(n.name, "ctmark", mark, false, matchIP("eq", "src", l.here.unknown()),
			matchDevice("eq", "in", n.device)))
	}
	l.apply(
		firewall(liqoNamespace, "service-nodeport-routing", "service-nodeport-routing", subcategory("fabric"),
			chain("mark-to-conntrack", "filter", "forward", 0, marks...),
			chain("conntrack-mark-to-meta-mark", "filter", "prerouting", 0,
				filterRule("conntrack-mark-to-meta-mark", "metamarkfromctmark", "", false,
					matchIP("eq", "dst", l.here.unknown()), matchDevice("eq", "in", liqoTunnel)))),
		l.mssClamping(),
	)
}

// mssClamping returns the resource of Liqo's chart.
func (l *liqo) mssClamping() object {
	toTunnel := matchDevice("eq", "out", liqoTunnel)
	toTunnel["proto"] = object{"value": "tcp"}
	return firewall(liqoNamespace, "gw-mss-clamping", "mss-clamping", subcategory("all-gateways"),
		chain("mss-clamping", "filter", "forward", 0, filterRule("mss-clamping-out", "tcpmssclamp", "0",
			true, toTunnel)))
}

// configure writes what depends on the CIDRs of both clusters.
func (l *liqo) configure() {
	l.t.Helper()
	l.apply(
		l.remap("podcidr", l.remote.seenPods, l.remote.pods),
		l.remap("externalcidr", l.remote.seenExt, l.remote.external),
	)
}

// remap returns the translation between a remote CIDR and its remapped form. Where both are the
// same, the chains exist but are empty.
func (l *liqo) remap(what, seen, real string) object {
	table := "remap-" + what
	outgoing, incoming := chain("outgoing", "nat", "prerouting", -100), chain("incoming", "nat", "postrouting", 100)
	if seen != real {
		outgoing = chain("outgoing", "nat", "prerouting", -100, natRule("to-"+what, "dnat", real,
			matchIP("eq", "dst", seen), matchDevice("neq", "in", liqoHost), matchDevice("neq", "in", liqoTunnel)))
		incoming = chain("incoming", "nat", "postrouting", 100, natRule("from-"+what, "snat", seen,
			matchDevice("neq", "out", liqoHost), matchIP("eq", "src", real), matchDevice("eq", "in", liqoTunnel)))
	}
	return firewall(l.tenant(), l.remote.name+"-"+table, table, l.unique("firewall"), outgoing, incoming)
}

// gatewayRuns writes what depends on the address of the gateway's pod. It is repeated when the
// address changes.
func (l *liqo) gatewayRuns() {
	l.t.Helper()
	l.apply(l.gatewayPod(liqoLabel+"active", "true"), l.fabric(l.here.gateway()))
	for i := range l.nodes {
		l.apply(l.tunnel(&l.nodes[i]))
	}
	l.externalTraffic()
}

// gatewayPod returns the gateway's pod, with more labels than those of all gateways.
func (l *liqo) gatewayPod(more ...string) object {
	labels := append(more, "app.kubernetes.io/name", l.account(), liqoLabel+"component", "gateway",
		liqoLabel+"gateway-name", l.account(), liqoLabel+"gateway-namespace", l.tenant())
	return object{
		"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": l.podName(), "namespace": l.tenant(),
			"labels": pairs(labels...)},
		"spec": object{"nodeName": kubeNodes[l.here.on].name, "serviceAccountName": l.account(),
			"containers": []object{{"name": "gateway", "image": "culvert"}}},
		"status": object{"phase": "Running", "podIP": l.here.gateway(), "podIPs": []object{{"ip": l.here.gateway()}}},
	}
}

// fabric returns the InternalFabric that tells all nodes the address of the gateway.
func (l *liqo) fabric(gateway string) object {
	return resource("InternalFabric", l.tenant(), l.remote.name, object{
		"mtu": kubeMTU, "remoteCIDRs": []string{l.remote.seenPods, l.remote.seenExt}, "gatewayIP": gateway,
		"interface": object{"gateway": object{"ip": l.here.internal}, "node": object{"name": "liqo." + l.remote.name}},
	}, "liqo.io/remote-cluster-id", l.remote.name)
}

func (l *liqo) podName() string { return fmt.Sprintf("gw-%s-%d", l.account(), l.pod) }

// tunnel returns the resource of the tunnel between the gateway and a node.
func (l *liqo) tunnel(n *kubeNode) object {
	return resource("GeneveTunnel", l.tenant(), l.remote.name+"-"+n.name, object{
		"id":                l.here.vni(n),
		"internalFabricRef": object{"name": l.remote.name, "namespace": l.tenant()},
		"internalNodeRef":   object{"name": n.name},
	}, liqoLabel+"internal-fabric-name", l.remote.name, liqoLabel+"internal-node-name", n.name)
}

// externalTraffic writes the resources that route traffic into the tunnel.
func (l *liqo) externalTraffic() {
	l.t.Helper()
	var rules []object
	for _, n := range l.nodes {
		for _, cidr := range []string{l.remote.pods, l.remote.external} { // as the remote cluster names them
			rules = append(rules, object{"iif": n.device, "dst": cidr,
				"routes": []object{{"dst": cidr, "gw": l.peerTunnel()}}})
		}
	}
	l.apply(resource("RouteConfiguration", l.tenant(), l.remote.name+"-gw-ext", routeTable(l.remote.name, rules...),
		l.unique("route")...))
}

// nodesMeasured writes the address that each node sends from to the pod of the gateway. Agents on
// the nodes find it out for the active pod alone: each node has one address until a pod was active
// on it, or until all were elsewhere for once.
func (l *liqo) nodesMeasured() {
	l.t.Helper()
	if err := l.measure(); err != nil {
		l.t.Fatalf("%s: %v", l.here.name, err)
	}
}

func (l *liqo) measure() error {
	for i := range l.nodes {
		n := &l.nodes[i]
		local, remote := l.here.outer(n)
		node := resource("InternalNode", "", n.name,
			object{"interface": object{"gateway": object{"name": n.device}, "node": object{"ip": n.internal}}})
		known := object{}
		if stored, err := l.api.admin.get(node); err == nil {
			if was, ok := field(stored, "status", "nodeIP").(map[string]any); ok {
				maps.Copy(known, was)
			}
		}
		if n.name == kubeNodes[l.here.on].name {
			known["local"] = local
		} else {
			known["remote"] = remote
		}
		node["status"] = object{"nodeIP": known}
		if err := l.api.admin.apply(node); err != nil {
			return err
		}
	}
	return nil
}

// mapHost writes the mapping of an external address to the client.
func (l *liqo) mapHost() {
	l.t.Helper()
	l.apply(l.mapping("external-host", kubeMapped, l.here.client()))
}

// mapping returns the mapping of one address to one host, which all gateways of a cluster share.
func (l *liqo) mapping(name, external, host string) object {
	const suffix = "-remap-ipmapping-gw"
	return firewall("default", name+suffix, name+suffix+"-default", subcategory("ip-mapping"),
		chain("prerouting", "nat", "prerouting", -100, natRule(name, "dnat", host, matchIP("eq", "dst", external))),
		chain("postrouting", "nat", "postrouting", 100, natRule(name, "snat", host, matchIP("eq", "src", external))))
}

// externalRoutes routes traffic from the tunnel to mapped hosts, and to other clusters, through a
// node. Only a gateway on that node obeys it.
func (l *liqo) externalRoutes(n *kubeNode) {
	l.t.Helper()
	via := func(cidr string) object { return object{"dst": cidr, "gw": n.internal, "dev": n.device} }
	l.applyRoutes(n.name+"-extcidr", n.name+"-extcidr",
		[]string{liqoLabel + "route-category", "gateway", liqoLabel + "route-subcategory", "fabric-node",
			liqoLabel + "route-unique", n.name},
		object{"iif": liqoTunnel, "dst": l.remote.seenPods, "routes": []object{via(l.remote.seenPods)}},
		object{"iif": liqoTunnel, "routes": []object{via(l.here.client() + "/32")}})
}

// podsRun routes traffic from the tunnel to a node's pods.
func (l *liqo) podsRun(n *kubeNode, pods ...string) {
	l.t.Helper()
	l.apply(l.podRoutes(n, pods...))
}

func (l *liqo) podRoutes(n *kubeNode, pods ...string) object {
	rules := []object{{"dst": n.internal + "/32", "routes": []object{{"dst": n.internal + "/32", "dev": n.device,
		"scope": "link"}}}}
	if len(pods) > 0 {
		var routes []object
		for _, pod := range pods {
			routes = append(routes, object{"dst": pod + "/32", "gw": n.internal, "targetRef": object{"kind": "Pod",
				"namespace": "default", "name": "pod-" + pod}})
		}
		rules = append(rules, object{"iif": liqoTunnel, "routes": routes})
	}
	return resource("RouteConfiguration", liqoNamespace, n.name+"-gw-node", routeTable(n.name, rules...),
		fabricRoutes...)
}

// keysExchanged gives the gateway the key of the other one: the last step.
func (l *liqo) keysExchanged(public []byte) {
	l.t.Helper()
	l.apply(l.publicKey(l.remote.name, public))
}

func (l *liqo) publicKey(name string, public []byte) object {
	return resource("PublicKey", l.tenant(), name, object{"publicKey": base64.StdEncoding.EncodeToString(public)},
		"liqo.io/remote-cluster-id", l.remote.name, liqoLabel+"gateway-resource", "true")
}

// unique returns the labels of resources that only the gateway to one cluster obeys.
func (l *liqo) unique(what string) []string {
	return []string{liqoLabel + what + "-category", "gateway", liqoLabel + what + "-unique", l.remote.name}
}

func (l *liqo) applyRoutes(name, table string, labels []string, rules ...object) {
	l.t.Helper()
	l.apply(resource("RouteConfiguration", liqoNamespace, name, routeTable(table, rules...), labels...))
}
