package peering

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"culvert/integration/need"
)

var start = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// romeToMilan is a Peering that nothing is wrong with.
const romeToMilan = `
apiVersion: culvert.io/v1alpha1
kind: Peering
metadata: {name: milan, namespace: culvert, uid: u-milan, generation: 3, creationTimestamp: "2026-11-23T12:00:00Z"}
spec:
  cluster: rome
  peer: milan
  role: Client
  publicKey: xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=
  endpoint: milan.example:51840
  mtu: 1400
  internalCIDR: 10.80.0.0/24
  local: {podCIDRs: [10.244.0.0/16], externalCIDR: 10.70.0.0/24}
  remote:
    podCIDRs: [{cidr: 10.244.0.0/16, remap: 10.61.0.0/16}]
    externalCIDR: {cidr: 10.70.0.0/24, remap: 10.71.0.0/24}
`

// object reads YAML as the API server sends it; pairs of texts replace others first.
func object(t testing.TB, text string, replace ...string) *unstructured.Unstructured {
	t.Helper()
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(text, replace[i]) {
			t.Fatalf("no %q in %s", replace[i], text)
		}
	}
	text = strings.NewReplacer(replace...).Replace(text)
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return u
}

func readIn(t testing.TB, replace ...string) *Peering {
	t.Helper()
	return PeeringOf(object(t, romeToMilan, replace...))
}

// nodeText is a Node with its part of the pod CIDR, and tunnelText what its agent tells; both are
// formats of its number.
const (
	nodeText = `
apiVersion: v1
kind: Node
metadata: {name: node%[1]d, uid: u%[1]d}
spec: {podCIDR: 10.244.%[1]d.0/24, podCIDRs: [10.244.%[1]d.0/24]}
status: {addresses: [{type: InternalIP, address: 172.18.0.%[1]d}, {type: Hostname, address: node%[1]d}]}
`
	tunnelText = `
apiVersion: culvert.io/v1alpha1
kind: TunnelNode
metadata: {name: node%[1]d, namespace: culvert-nodes}
spec: {local: 10.244.%[1]d.1, remote: 172.18.0.%[1]d}
status: {message: "", peerings: [{name: milan, ready: true}]}
`
)

func nodeObject(t testing.TB, n int) *node { return readNode(object(t, fmt.Sprintf(nodeText, n))) }

func tunnelObject(t testing.TB, n int, replace ...string) *tunnelNode {
	return readTunnelNode(object(t, fmt.Sprintf(tunnelText, n), replace...))
}

// rome is a gateway on node1 of a cluster of two nodes, whose status the API server has.
func rome(t testing.TB) *Gateway {
	g := NewGateway(Self{Name: "milan", Namespace: "culvert", Node: "node1", Pod: "gw-1",
		Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.9")}})
	for n := 1; n <= 2; n++ {
		g.nodes[fmt.Sprint("node", n)], g.tunnels[fmt.Sprint("node", n)] = nodeObject(t, n), tunnelObject(t, n)
	}
	g.nodesKnown, g.othersKnown = true, true
	g.put(readIn(t))
	store(g, g.Plan())
	return g
}

// store writes the status that a plan asks for to the API server.
func store(g *Gateway, d *Plan) {
	p := *g.peering
	p.Status = d.Status
	g.put(&p)
}

func text(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	need.NoError(t, err)
	return string(b)
}
