package integration

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"culvert/integration/need"
)

// kubeEdit changes a resource in place.
type kubeEdit struct {
	what string
	edit func(object)
	ends []kubeProbe // what stops working
}

// An editedResource is edited in several ways, one after another.
type editedResource struct {
	kind, namespace, name string
	edits                 []kubeEdit
}

// testKubeEdits changes, one after another, the fields that rome's gateway obeys, and changes them
// back. Traffic that depends on a field follows; other traffic stays, and no connection of other
// pods is cut.
func testKubeEdits(t *testing.T, rome, milan *kubeLab) {
	p := newKubeProbes(t, rome, milan)
	held := holdPods(t, rome, milan, 500)
	var slowest time.Duration
	edits := 0
	for _, of := range slices.Concat(firewallEdits(rome, milan, p), routeEdits(rome, p),
		tunnelEdits(t, rome, milan, p)) {
		was := rome.asApplied(t, of.kind, of.namespace, of.name)
		for _, e := range of.edits {
			what := of.kind + " " + of.name + ": " + e.what
			changed := cloneObject(t, was)
			e.edit(changed)
			rome.liqo.apply(changed)
			works, lasting := e.ends == nil, e.ends
			if works {
				lasting = p.all()
			}
			slowest = max(slowest, awaitAll(t, what, works, lasting))
			rome.liqo.apply(was)
			slowest = max(slowest, awaitAll(t, what+", and back", true, append(p.all(), p.gateway)))
			edits++
		}
		held(of.kind + " " + of.name)
		rome.requireApplied(t, of.name, was, kubeSoon)
	}
	rome.testKubeUnknown(t, p, milan)
	rome.testKubeClamp(t, milan)
	t.Logf("%d edits, each obeyed within %v", edits, slowest.Round(time.Millisecond))
}

// removedCIDR is where edits point traffic that shall no longer arrive.
const removedCIDR = "10.99.0.0/16"

// firewallEdits change translations, marks and filters.
func firewallEdits(rome, milan *kubeLab, p *kubeProbes) []editedResource {
	ofPod := matchIP("eq", "dst", milan.pod(&kubeNodes[1], 5))
	fromNode2 := []kubeProbe{p.out, p.host}
	natRule := func(chain int, rest ...any) []any {
		return append([]any{"spec", "table", "chains", chain, "rules", "natRules", 0}, rest...)
	}
	filterRule := func(chain, rule int, rest ...any) []any {
		return append([]any{"spec", "table", "chains", chain, "rules", "filterRules", rule}, rest...)
	}
	return []editedResource{
		{"FirewallConfiguration", "default", "external-host-remap-ipmapping-gw", []kubeEdit{
			{"another host", put(rome.address(51), natRule(0, "to")...), []kubeProbe{p.mapping}},
			{"another address", put("10.70.0.9", natRule(0, "match", 0, "ip", "value")...), []kubeProbe{p.mapping}},
			{"the source's address", put("src", natRule(0, "match", 0, "ip", "position")...), []kubeProbe{p.mapping}},
			{"another rule's name", put("other", natRule(0, "name")...), nil},
			{"another chain's name", put("other", "spec", "table", "chains", 0, "name"), nil},
			{"another priority", put(-99, "spec", "table", "chains", 0, "priority"), nil},
			{"family INET", put("INET", "spec", "table", "family"), nil},
			{"no rule", put([]any{}, "spec", "table", "chains", 0, "rules", "natRules"), []kubeProbe{p.mapping}},
			{"another category", put("fabric", "metadata", "labels", liqoLabel+"firewall-category"),
				[]kubeProbe{p.mapping}},
			{"another subcategory", put("other", "metadata", "labels", liqoLabel+"firewall-subcategory"),
				[]kubeProbe{p.mapping}},
		}},
		{"FirewallConfiguration", rome.liqo.tenant(), "milan-remap-podcidr", []kubeEdit{
			{"a part of the CIDR", put("10.71.1.0/24", natRule(0, "match", 0, "ip", "value")...), fromNode2},
			{"from the tunnel", put("eq", natRule(0, "match", 2, "op")...), fromNode2},
			{"another cluster's", put("turin", "metadata", "labels", liqoLabel+"firewall-unique"), fromNode2},
		}},
		{"FirewallConfiguration", rome.liqo.tenant(), "milan-remap-externalcidr", []kubeEdit{
			{"another CIDR", put(removedCIDR, natRule(0, "to")...), []kubeProbe{p.theirs}},
			{"from another device", put(kubeNodes[1].device, natRule(0, "match", 1, "dev", "value")...),
				[]kubeProbe{p.theirs}},
		}},
		{"FirewallConfiguration", liqoNamespace, "service-nodeport-routing", []kubeEdit{
			{"another mark", put("9", filterRule(0, 1, "value")...), []kubeProbe{p.host}},
			// culvert routes replies back without this rule
			{"another action", put("accept", filterRule(0, 1, "action")...), nil},
		}},
		{"FirewallConfiguration", liqoNamespace, "gw-mss-clamping", []kubeEdit{
			{"drop of a pod", putFilter("drop", ofPod), fromNode2},
			{"reject of a pod", putFilter("reject", ofPod), fromNode2},
			{"accept of a pod", putFilter("accept", ofPod), nil},
			{"policy drop", put("drop", "spec", "table", "chains", 0, "policy"), p.all()},
			{"another hook", put("postrouting", "spec", "table", "chains", 0, "hook"), nil},
			{"counter", put(false, filterRule(0, 0, "counter")...), nil},
		}},
		{"FirewallConfiguration", liqoNamespace, "gw-mss-clamping", matchEdits(rome, p)},
	}
}

// routeEdits change routes and the rules that lead to them.
func routeEdits(rome *kubeLab, p *kubeProbes) []editedResource {
	fromNode2, toPod2 := []kubeProbe{p.out, p.host}, []kubeProbe{p.in}
	rule := func(rule int, rest ...any) []any { return append([]any{"spec", "table", "rules", rule}, rest...) }
	return []editedResource{
		{"RouteConfiguration", rome.liqo.tenant(), "milan-gw-ext", []kubeEdit{
			// The table has the route for both rules: changing only one rule would leave the
			// other's.
			{"another router", all(put("169.254.18.9", rule(0, "routes", 0, "gw")...),
				put("169.254.18.9", rule(2, "routes", 0, "gw")...)), fromNode2},
			{"from another device", put("liqo.nobody", rule(2, "iif")...), fromNode2},
			{"another destination", put(removedCIDR, rule(2, "dst")...), fromNode2},
			{"another source", put(removedCIDR, rule(2, "src")...), fromNode2},
			{"another mark", put(77, rule(2, "fwmark")...), fromNode2},
			{"a priority", put(100, rule(2, "priority")...), nil},
			{"another cluster's", put("turin", "metadata", "labels", liqoLabel+"route-unique"),
				append([]kubeProbe{p.theirs}, fromNode2...)},
		}},
		{"RouteConfiguration", liqoNamespace, "node2-gw-node", []kubeEdit{
			{"another pod", put(rome.pod(&kubeNodes[1], 6)+"/32", rule(1, "routes", 0, "dst")...), toPod2},
			{"another node", put("10.80.0.77", rule(1, "routes", 0, "gw")...), toPod2},
			{"from another device", put("liqo.nobody", rule(1, "iif")...), toPod2},
			{"to nothing", put([]any{}, rule(1, "routes")...), toPod2},
			{"another subcategory", put("other", "metadata", "labels", liqoLabel+"route-subcategory"), toPod2},
		}},
		{"RouteConfiguration", liqoNamespace, "node1-extcidr", []kubeEdit{
			{"another host", put(rome.address(51)+"/32", rule(1, "routes", 0, "dst")...), []kubeProbe{p.mapping}},
			{"another node's", put("node2", "metadata", "labels", liqoLabel+"route-unique"), []kubeProbe{p.mapping}},
		}},
		{"RouteConfiguration", liqoNamespace, "node2-service-nodeport-routing", []kubeEdit{
			{"another mark", put(9, rule(0, "fwmark")...), []kubeProbe{p.host}},
			{"another address", put("10.70.0.9/32", rule(0, "dst")...), []kubeProbe{p.host}},
		}},
	}
}

// tunnelEdits change the nodes' tunnels and the peer's key.
func tunnelEdits(t *testing.T, rome, milan *kubeLab, p *kubeProbes) []editedResource {
	t.Helper()
	fromNode2, toPod2 := []kubeProbe{p.out, p.host}, []kubeProbe{p.in}
	return []editedResource{
		{"GeneveTunnel", rome.liqo.tenant(), "milan-node2", []kubeEdit{
			{"another VNI", put(77, "spec", "id"), append(toPod2, fromNode2...)},
			{"another node", put("node9", "spec", "internalNodeRef", "name"), append(toPod2, fromNode2...)},
			{"another fabric", put("other", "spec", "internalFabricRef", "name"), append(toPod2, fromNode2...)},
		}},
		{"InternalNode", "", "node2", []kubeEdit{
			{"another device", put("liqo.other", "spec", "interface", "gateway", "name"), fromNode2},
			{"another internal address", put("10.80.0.77", "spec", "interface", "node", "ip"), toPod2},
			{"another address", put(rome.address(77), "status", "nodeIP", "remote"), toPod2},
			{"another address on itself", put(rome.address(77), "status", "nodeIP", "local"), nil},
		}},
		{"InternalNode", "", "node1", []kubeEdit{
			{"another address on itself", put(rome.address(77), "status", "nodeIP", "local"), []kubeProbe{p.mapping}},
			{"another address", put(rome.address(77), "status", "nodeIP", "remote"), nil},
		}},
		{"InternalFabric", rome.liqo.tenant(), "milan", []kubeEdit{
			{"another MTU", put(1300, "spec", "mtu"), nil},
			{"another cluster's", put("turin", "metadata", "labels", "liqo.io/remote-cluster-id"), p.all()},
			{"another internal address", put("10.80.0.44", "spec", "interface", "gateway", "ip"),
				[]kubeProbe{p.gateway}},
			{"fewer remote CIDRs", put([]string{milan.seenPods}, "spec", "remoteCIDRs"), nil},
		}},
		{"PublicKey", rome.liqo.tenant(), "milan", []kubeEdit{
			{"another key", put(newPublicKey(t), "spec", "publicKey"), p.all()},
			{"a key of two bytes", put("AAE=", "spec", "publicKey"), nil},
			{"another cluster's", put("turin", "metadata", "labels", "liqo.io/remote-cluster-id"), p.all()},
		}},
	}
}

// testKubeKeys changes the keys of the peer, and deletes the Connection by hand.
func testKubeKeys(t *testing.T, rome, milan *kubeLab) {
	p := newKubeProbes(t, rome, milan)
	first := rome.asApplied(t, "PublicKey", rome.liqo.tenant(), "milan")
	second := resource("PublicKey", rome.liqo.tenant(), "second", object{"publicKey": newPublicKey(t)},
		"liqo.io/remote-cluster-id", "milan", liqoLabel+"gateway-resource", "true")
	rome.liqo.apply(second)
	awaitAll(t, "a second key, of nobody", false, p.all())
	rome.requireEvent(t, first, "PublicKey second is newer and in use")
	need.NoError(t, rome.api.admin.delete(second))
	awaitAll(t, "the second key is gone", true, p.all())

	spoilt := cloneObject(t, first)
	put("AAE=", "spec", "publicKey")(spoilt)
	rome.liqo.apply(spoilt)
	rome.requireEvent(t, first, "spec.publicKey: 2 bytes, not 32")
	awaitAll(t, "a key of two bytes", true, p.all())
	rome.liqo.apply(first)

	connection := resource("Connection", rome.liqo.tenant(), "gw-milan", nil)
	need.NoError(t, rome.api.admin.delete(connection))
	eventuallyWithin(t, kubeBack, "Connection is made again", rome.isConnected)
	awaitAll(t, "the Connection was deleted", true, p.all())
}

// testKubeMove moves the gateway of rome to another address, as when its pod is recreated, and
// gives milan's another key.
func testKubeMove(t *testing.T, rome, milan *kubeLab) {
	p := newKubeProbes(t, rome, milan)
	held := holdPods(t, rome, milan, 100)
	works := func(what string) {
		t.Helper()
		for _, one := range p.all() {
			one.await(t, what, true, kubeBack)
		}
		held(what)
	}

	moved := *rome.kubeEnd
	moved.gatewayN = 19
	link := rome.network.name
	rome.culvert.stop()
	rome.gatewayHost.ip(fmt.Sprintf("address del %s/24 dev %s", rome.gateway(), link),
		fmt.Sprintf("address add %s/24 dev %s", moved.gateway(), link))
	rome.kubeEnd, rome.liqo.here = &moved, &moved
	rome.ready(rome.startLiqoGateway(unprivilegedUID, unprivilegedUID))
	rome.liqo.gatewayRuns()
	for _, node := range rome.nodeProcesses {
		node.stop()
	}
	rome.startTunnels()
	works("the gateway has moved")

	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	need.NoError(t, err)
	milan.culvert.stop()
	milan.key = key
	milan.ready(milan.startLiqoGateway(1000680000, 0))
	awaitAll(t, "milan has another key, and rome the old one", false, p.all())
	rome.liqo.keysExchanged(key.PublicKey().Bytes())
	works("milan has another key")
	rome.connected()
	milan.connected()
}

// asApplied returns a resource as the stand-in for Liqo's controllers would write it.
func (k *kubeLab) asApplied(t *testing.T, kind, namespace, name string) object {
	t.Helper()
	stored, err := k.api.admin.get(resource(kind, namespace, name, nil))
	need.NoError(t, err)
	o := resource(kind, namespace, name, stored["spec"].(object))
	o["metadata"].(object)["labels"] = field(stored, "metadata", "labels")
	if kind == "InternalNode" {
		o["status"] = stored["status"]
	}
	return o
}

// requireEvent waits for an Event on a resource whose message contains what.
func (k *kubeLab) requireEvent(t *testing.T, o object, what string) {
	t.Helper()
	meta := o["metadata"].(object)
	k.api.awaitEvent(t, kubeBack, meta["namespace"].(string), what, func(e object, message string) bool {
		return field(e, "involvedObject", "kind") == o["kind"] && field(e, "involvedObject", "name") == meta["name"] &&
			e["type"] == "Warning" && strings.Contains(message, what)
	})
}

// newPublicKey returns a public key that belongs to no gateway.
func newPublicKey(t *testing.T) string {
	t.Helper()
	return newKeyPair(t).public
}

func cloneObject(t *testing.T, o object) (clone object) {
	t.Helper()
	text, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(text, &clone)
	}
	need.NoError(t, err)
	return clone
}

// put returns an edit that sets the field at a path of names and indices.
func put(value any, path ...any) func(object) {
	return func(o object) {
		var at any = o
		for _, step := range path[:len(path)-1] {
			if i, ok := step.(int); ok {
				at = at.([]any)[i]
			} else {
				at = at.(object)[step.(string)]
			}
		}
		at.(object)[path[len(path)-1].(string)] = value
	}
}

// all joins several edits into one.
func all(edits ...func(object)) func(object) {
	return func(o object) {
		for _, edit := range edits {
			edit(o)
		}
	}
}

// putFilter returns an edit that puts a rule before the others of a table.
func putFilter(action string, match ...object) func(object) {
	return func(o object) {
		rules := o["spec"].(object)["table"].(object)["chains"].([]any)[0].(object)["rules"].(object)
		rules["filterRules"] = append([]any{filterRule("first", action, "", true, match...)},
			rules["filterRules"].([]any)...)
	}
}
