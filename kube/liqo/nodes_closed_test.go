package liqo

import (
	"os"
	"testing"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
)

// TestNodesClosed: under Liqo's own rules the peer reaches a node's internal address. With the
// FirewallConfiguration that docs/liqo.md names it does not, while answers to nodes and what is
// sent to pods go on.
func TestNodesClosed(t *testing.T) {
	text, err := os.ReadFile("../manifests/nodes-closed.yaml")
	need.NoError(t, err)
	const node = "10.80.0.2" // n1
	syn := nattest.IP{Source: remotePod, Destination: node, Body: nattest.TCP{SourcePort: 4321, DestinationPort: 10250,
		Flags: nattest.SYN}}
	expectSent(t, capturedEngine(t, gatewayOf("cluster-b")), nat.Tunnel, syn, remotePodHere, node, linkN1)

	e := capturedEngine(t, gatewayOf("cluster-b"), object(t, string(text)))
	expectDropped(t, e, nat.Tunnel, syn, nat.ReasonFiltered)
	expectSent(t, e, linkN1, udp(nodeOfItsOwn, remotePodHere, 4000, 80), unknownAddress, remotePod, nat.Tunnel)
	expectSent(t, e, nat.Tunnel, udp(remotePod, unknownAddress, 80, 4000), remotePodHere, nodeOfItsOwn, linkN1)
	expectSent(t, e, nat.Tunnel, udp(remotePod, podN2, 7, 80), remotePodHere, podN2, linkN2)
}
