package config

import (
	"net/netip"
	"testing"

	"culvert/integration/need"
	"culvert/nat/rules"
)

// If rules come from elsewhere, the configuration makes none, and admits only the sources that it
// names.
func TestGivenRules(t *testing.T) {
	node := Node{Name: "rome-1", Device: "liqo.x", VNI: 1, Underlay: netip.MustParseAddr("192.0.2.1"),
		Address: rules.PairOf(netip.MustParseAddr("10.80.0.2"))}
	c := &Config{Peer: "milan", MTU: DefaultMTU, WireGuard: WireGuard{Role: Server, ListenPort: 1},
		Given: Given{Rules: true}}
	c.Geneve.ListenPort, c.Geneve.Nodes = 2, []Node{node}
	need.NoError(t, Check(c))
	nc := c.NAT(Links{}.Assign(c.Geneve.Nodes), 0)
	if nc.Firewall == nil || nc.Routing == nil || nc.FromTunnel == nil || nc.NotFromNodes == nil {
		t.Errorf("generated: %+v", nc)
	}
	if want := (rules.Node{Link: 1, Name: "rome-1", Device: "liqo.x", Address: node.Address}); len(nc.Nodes) != 1 ||
		nc.Nodes[0] != want {
		t.Errorf("nodes %+v, want %+v", nc.Nodes, want)
	}
	c.Given.FromTunnel = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	if nc := c.NAT(Links{}, 0); len(nc.FromTunnel) != 1 {
		t.Errorf("from the tunnel %v", nc.FromTunnel)
	}
}
