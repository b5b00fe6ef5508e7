package peering

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/wgkey"
	"culvert/integration/need"
	"culvert/kube"
	"culvert/nat/rules"
)

func base() *config.Config {
	c := &config.Config{ConnectionCheck: config.LiqoConnectionCheck, Log: config.Log{Level: "info", Format: "text"}}
	c.WireGuard.PrivateKey = wgkey.NewPrivate()
	c.WireGuard.ListenPort, c.Geneve.ListenPort = config.DefaultWireGuardPort, config.DefaultGenevePort
	return c
}

// TestConfig: the objects make a configuration that every layer of a gateway accepts.
func TestConfig(t *testing.T) {
	g := rome(t)
	d := g.Plan()
	if len(d.Faults)+len(d.Waiting)+len(d.Unready) > 0 {
		t.Fatalf("faults %q, waiting %q, unready %q", d.Faults, d.Waiting, d.Unready)
	}
	c := d.Config(d.Peering.Base(base()))
	need.NoError(t, config.Check(c))
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	want := []config.Node{
		// the gateway's own
		{Name: "node1", VNI: 1, Underlay: addr("10.244.1.1"), Address: rules.PairOf(addr("10.80.0.2")),
			PodCIDRs: []netip.Prefix{prefix("10.244.1.0/24")}},
		{Name: "node2", VNI: 2, Underlay: addr("172.18.0.2"), Address: rules.PairOf(addr("10.80.0.3")),
			PodCIDRs: []netip.Prefix{prefix("10.244.2.0/24")}},
	}
	if fmt.Sprint(c.Geneve.Nodes) != fmt.Sprint(want) {
		t.Errorf("nodes %v, want %v", c.Geneve.Nodes, want)
	}
	if c.Cluster != "rome" || c.Peer != "milan" || c.MTU != 1400 || c.WireGuard.Role != config.Client ||
		c.WireGuard.Endpoint != "milan.example:51840" ||
		c.UnknownSource != rules.PairOf(addr("10.70.0.0")) ||
		c.Geneve.GatewayAddress != rules.PairOf(addr("10.80.0.1")) {
		t.Errorf("%+v", c)
	}
	if want := []rules.RemoteCIDR{{Real: prefix("10.244.0.0/16"), Remapped: prefix("10.61.0.0/16")},
		{Real: prefix("10.70.0.0/24"), Remapped: prefix("10.71.0.0/24"), External: true}}; !slices.Equal(
		c.Remote, want) {
		t.Errorf("remote %v, want %v", c.Remote, want)
	}
	if a := d.Status.Active; text(t, a) != `{"pod":"gw-1","node":"node1","addresses":["10.244.1.9"],"term":1}` ||
		d.Status.NodesReady != "2/2" {
		t.Errorf("active %s, ready %s", text(t, a), d.Status.NodesReady)
	}
}

// TestBadPeering: each fault names its field, and the former configuration stays.
func TestBadPeering(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"cluster: rome", "cluster: ro/me", `spec.cluster: "ro/me"`},
		{"peer: milan", "peer: rome", `spec.peer: "rome" is this cluster's own ID`},
		{"role: Client", "role: Peer", `spec.role: "Peer" is neither Server nor Client`},
		{"  endpoint: milan.example:51840\n", "", "spec.endpoint: missing"},
		{"milan.example:51840", "milan.example", `spec.endpoint: "milan.example" is not host:port`},
		{"milan.example:51840", "milan.example:0", "is not host:port"},
		{"milan.example:51840", "mil_an!:1", `"mil_an!" is neither an address nor a host name`},
		{"xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=", "AAAA", "spec.publicKey: not a WireGuard key"},
		{"mtu: 1400", "mtu: 100", "spec.mtu: 100 is out of range"},
		{"mtu: 1400", "mtu: {}", "spec.mtu: a object, where a number belongs"},
		{"mtu: 1400", "podsFrom: Calico", `spec.podsFrom: "Calico" is neither Nodes nor Pods`},
		{"mtu: 1400", "admit: Some", `spec.admit: "Some" is neither All nor Exports`},
		{"10.80.0.0/24", "10.80.0.0/31", "spec.internalCIDR: 10.80.0.0/31 has no room"},
		{"10.80.0.0/24", "fd80::/64", "spec.local.podCIDRs[0]: 10.244.0.0/16 is IPv4, of which spec.internalCIDRs has no CIDR"},
		{"10.80.0.0/24", "fd80::/127", "spec.internalCIDR: fd80::/127 has no room"},
		{"  internalCIDR: 10.80.0.0/24\n", "", "spec.internalCIDR: missing"},
		{"10.80.0.0/24", "10.80.0.1/24",
			"spec.internalCIDR: 10.80.0.1/24 has bits to the right of its length; want 10.80.0.0/24"},
		{"podCIDRs: [10.244.0.0/16]", "podCIDRs: []", "spec.local.podCIDRs: missing"},
		{"remap: 10.61.0.0/16", "remap: 10.61.0.0/17",
			"spec.remote.podCIDRs[0].remap: 10.61.0.0/17 and 10.244.0.0/16 differ in length"},
		{"remap: 10.61.0.0/16", "remap: 0.0.0.0/0", "spec.remote.podCIDRs[0].remap: 0.0.0.0/0 is shorter than /8"},
		{"remap: 10.61.0.0/16", "remap: 169.254.0.0/16",
			"spec.remote.podCIDRs[0].remap: 169.254.0.0/16 has addresses that routers do not forward to"},
		{"remap: 10.61.0.0/16", "remap: 10.80.0.0/16",
			"spec.remote.podCIDRs[0].remap: 10.80.0.0/16 overlaps spec.internalCIDR (10.80.0.0/24)"},
		{", remap: 10.61.0.0/16", "",
			"spec.remote.podCIDRs[0].cidr: 10.244.0.0/16 overlaps spec.local.podCIDRs[0] (10.244.0.0/16); choose a remap"},
		{"remap: 10.71.0.0/24", "remap: 10.61.7.0/24",
			"spec.remote.externalCIDR.remap: 10.61.7.0/24 overlaps spec.remote.podCIDRs[0].remap (10.61.0.0/16)"},
		{"milan.example:51840", "10.61.2.4:51840",
			"spec.remote.podCIDRs[0].remap: 10.61.0.0/16 contains the address of spec.endpoint, 10.61.2.4: the gateway's packets"},
	} {
		g := rome(t)
		before := g.Plan()
		g.put(readIn(t, c.old, c.new))
		d := g.Plan()
		if len(d.Faults) == 0 || !strings.Contains(d.Faults[0], c.want) {
			t.Errorf("%q for %q: %q, want %q", c.new, c.old, d.Faults, c.want)
		}
		if d.Peering != before.Peering {
			t.Errorf("%q for %q: the former configuration is replaced", c.new, c.old)
		}
	}
	own := readIn(t)
	own.Status.PublicKey = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
	u := object(t, romeToMilan)
	u.Object["status"] = map[string]any{"publicKey": own.Status.PublicKey}
	if p := PeeringOf(u); !strings.Contains(p.Fault(), "spec.publicKey: is the key of this cluster's own gateway") {
		t.Errorf("its own key: %q", p.Fault())
	}
}

// TestBadFamilies: of IPv6, each fault names its field, and what to write.
func TestBadFamilies(t *testing.T) {
	const pods, internal = "podCIDRs: [10.244.0.0/16], ext", "internalCIDR: 10.80.0.0/24"
	const remap, ours = "{cidr: 10.244.0.0/16, remap: 10.61.0.0/16}", "podCIDRs: [10.244.0.0/16, 'fd00:244::/56'], ext"
	const dual = "internalCIDRs: [10.80.0.0/24, 'fd80::/64']"
	peers := func(cidr, remap string) string {
		return fmt.Sprintf("{cidr: 10.244.0.0/16, remap: 10.61.0.0/16}, {cidr: '%s', remap: '%s'}", cidr, remap)
	}
	for _, c := range []struct {
		with []string
		want string // "": nothing is wrong
	}{
		{[]string{internal, dual, pods, ours, remap, peers("fd00:244::/56", "fd61::/56")}, ""},
		{[]string{internal, internal + "\n  " + dual, pods, ours, remap, peers("fd00:244::/56", "fd61::/56")}, ""},
		{[]string{internal, "internalCIDR: 10.81.0.0/24\n  " + dual},
			"spec.internalCIDRs[0]: 10.80.0.0/24 is not spec.internalCIDR, 10.81.0.0/24; the list begins with what that has"},
		{[]string{internal, "internalCIDRs: [10.80.0.0/24, 10.81.0.0/24]"},
			"spec.internalCIDRs[1]: 10.81.0.0/24 is IPv4, as 10.80.0.0/24 is; want at most one of each family"},
		{[]string{pods, ours}, "spec.local.podCIDRs[1]: fd00:244::/56 is IPv6, of which spec.internalCIDRs has no CIDR; add one, or " +
			"leave this one out"},
		{[]string{remap, peers("fd00:244::/56", "fd61::/56")}, "spec.remote.podCIDRs[1].remap: fd61::/56 is IPv6, of which"},
		{[]string{internal, dual, remap, peers("fd00:244::/56", "2001:db8::/56")},
			"spec.remote.podCIDRs[1].remap: 2001:db8::/56 is not within fc00::/7; a remap has unique local addresses"},
		{[]string{internal, dual, remap, peers("fd00:244::/56", "fd61::/48")},
			"spec.remote.podCIDRs[1].remap: fd61::/48 and fd00:244::/56 differ in length; a remap is 1:1, want a /56"},
		{[]string{internal, dual, remap, peers("fd00:244::/56", "10.62.0.0/16")},
			"spec.remote.podCIDRs[1].remap: 10.62.0.0/16 is IPv4, and fd00:244::/56 is not; nothing translates"},
		{[]string{internal, dual, remap, peers("64:ff9b::/96", "fd61::/96")},
			"spec.remote.podCIDRs[1].cidr: 64:ff9b::/96 overlaps 64:ff9b::/96, whose addresses stand for those of IPv4 (NAT64)"},
		{[]string{internal, dual, remap, peers("fe80::/64", "fd61::/64")},
			"spec.remote.podCIDRs[1].cidr: fe80::/64 has addresses that routers do not forward to"},
		{[]string{internal, dual, remap, peers("::ffff:10.0.0.0/112", "fd61::/112")}, "spec.remote.podCIDRs[1].cidr: "},
		{[]string{internal, dual, remap, peers("fd00::/8", "fd00::/8")},
			"spec.remote.podCIDRs[1].cidr: fd00::/8 is shorter than /16"},
		{[]string{internal, dual, remap, peers("fd00:244::1/128", "fd61::1/128")}, ""},
		{[]string{internal, dual, remap, peers("fd00:244::/48", "fd61::/48")}, ""},
		{[]string{internal, "internalCIDRs: [10.80.0.0/24, 'fd80::/128']"},
			"spec.internalCIDRs[1]: fd80::/128 has no room for a gateway and a node"},
		{[]string{internal, dual, "mtu: 1400", "mtu: 1279"},
			"spec.mtu: 1279, and spec.internalCIDRs[1] is IPv6, which needs 1280; write that or more"},
		{[]string{internal, dual, "externalCIDR: {cidr: 10.70.0.0/24, remap: 10.71.0.0/24}",
			"externalCIDRs: [{cidr: 10.70.0.0/24, remap: 10.71.0.0/24}, {cidr: 'fd70::/112', remap: 'fd80::/112'}]"},
			"spec.remote.externalCIDRs[1].remap: fd80::/112 overlaps spec.internalCIDRs[1] (fd80::/64); choose a remap"},
	} {
		if got := readIn(t, c.with...).Fault(); !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%q: %q, want %q", c.with, got, c.want)
		}
	}
}

// dual are changes of romeToMilan for both families.
var dual = []string{"internalCIDR: 10.80.0.0/24", "internalCIDRs: [10.80.0.0/24, 'fd80::/64']",
	"podCIDRs: [10.244.0.0/16], externalCIDR: 10.70.0.0/24",
	"podCIDRs: [10.244.0.0/16, 'fd00:244::/56'], externalCIDRs: [10.70.0.0/24, 'fd70::/112']",
	"remap: 10.61.0.0/16}", "remap: 10.61.0.0/16}, {cidr: 'fd00:244::/56', remap: 'fd61::/56'}",
	"externalCIDR: {cidr: 10.70.0.0/24, remap: 10.71.0.0/24}",
	"externalCIDRs: [{cidr: 10.70.0.0/24, remap: 10.71.0.0/24}, {cidr: 'fd70::/112', remap: 'fd71::/112'}]"}

// TestDual: a Peering that gets IPv6 keeps what was assigned, its gateway and nodes have addresses
// of both families, and one that loses it is as before.
func TestDual(t *testing.T) {
	g := rome(t)
	before := g.Plan()
	for n := 1; n <= 2; n++ {
		g.nodes[fmt.Sprint("node", n)] = readNode(object(t, fmt.Sprintf(nodeText, n), fmt.Sprintf("podCIDRs: [10.244.%d.0/24]", n),
			fmt.Sprintf("podCIDRs: ['fd00:244:0:%d::/64', 10.244.%[1]d.0/24]", n)))
	}
	if d := g.Plan(); len(d.Faults) > 0 || text(t, d.Nodes) != text(t, before.Nodes) {
		t.Errorf("CIDRs of IPv6 that the Peering does not carry: %q, %v", d.Faults, d.Nodes)
	}
	p := readIn(t, dual...)
	p.Status = before.Status
	g.put(p)
	d := g.Plan()
	if len(d.Faults)+len(d.Unready) > 0 || text(t, d.Status.Nodes) != text(t, before.Status.Nodes) {
		t.Fatalf("%q, %q, %s", d.Faults, d.Unready, text(t, d.Status.Nodes))
	}
	c := d.Config(d.Peering.Base(base()))
	need.NoError(t, config.Check(c))
	if got := fmt.Sprint(c.Geneve.GatewayAddress, c.UnknownSource, c.Geneve.Nodes[1].Address,
		c.Geneve.Nodes[1].PodCIDRs, c.Remote[1], c.Remote[3]); got != "10.80.0.1, fd80::1 10.70.0.0, fd70:: 10.80.0.3, fd80::3 "+
		"[fd00:244:0:2::/64 10.244.2.0/24] {fd00:244::/56 fd61::/56 false} {fd70::/112 fd71::/112 true}" {
		t.Error(got)
	}
	if d.Status.PodsSeenAs != "10.61.0.0/16, fd61::/56" {
		t.Error(d.Status.PodsSeenAs)
	}
	delete(g.nodes, "node1")
	g.nodes["node1"] = nodeObject(t, 1)
	if d = g.Plan(); len(d.Faults) != 1 || d.Faults[0] != "Node node1: spec.podCIDRs: none of IPv6, of which "+
		"spec.local.podCIDRs of Peering milan has some; give the node one, or leave IPv6 out there" ||
		len(d.Nodes) != 2 {
		t.Errorf("a node without IPv6: %q", d.Faults)
	}
	p = readIn(t)
	p.Status = before.Status
	g.put(p)
	if d = g.Plan(); text(t, d.Nodes[1].Address) != text(t, before.Nodes[1].Address) {
		t.Errorf("IPv6 is gone: %v", d.Nodes)
	}
	// a cluster of IPv6 alone has the same numbers
	g.put(readIn(t, "internalCIDR: 10.80.0.0/24", "internalCIDR: 'fd80::/64'",
		"podCIDRs: [10.244.0.0/16], externalCIDR: 10.70.0.0/24", "podCIDRs: ['fd00:244::/56']",
		"{cidr: 10.244.0.0/16, remap: 10.61.0.0/16}", "{cidr: 'fd00:244::/56', remap: 'fd61::/56'}",
		"    externalCIDR: {cidr: 10.70.0.0/24, remap: 10.71.0.0/24}\n", ""))
	if d = g.Plan(); text(t, d.Status.Nodes) !=
		`[{"name":"node1","vni":1,"address":"fd80::2"},{"name":"node2","vni":2,"address":"fd80::3"}]` {
		t.Errorf("%q, %s", d.Faults, text(t, d.Status.Nodes))
	}
}

// TestNodesAddressesStay: a change that takes addresses of Nodes, which agents refuse, replaces
// nothing; another may, and so may this one once no Node has them. What runs is not judged by what
// Nodes say later, and a gateway that starts with nothing accepted takes nothing of theirs.
func TestNodesAddressesStay(t *testing.T) {
	const remap = "remap: 10.61.0.0/16"
	taken := []string{remap, "remap: 172.18.0.0/16"}
	for _, c := range []struct {
		with   []string
		change func(*Gateway)
		want   string // a fault
		remap  string
	}{
		{taken, nil, "spec.remote.podCIDRs[0].remap: 172.18.0.0/16 contains 172.18.0.1, an address of node node1; choose a " +
			"remap that nothing uses", "10.61.0.0/16"},
		{[]string{remap, "remap: 10.244.0.0/16", "podCIDRs: [10.244.0.0/16], ext", "podCIDRs: [10.9.0.0/16], ext"}, nil,
			"10.244.0.0/16 overlaps 10.244.1.0/24, the pods of node node1", "10.61.0.0/16"},
		{[]string{"10.80.0.0/24", "172.18.0.0/24"}, nil, "spec.internalCIDR: 172.18.0.0/24 contains", "10.61.0.0/16"},
		{[]string{remap, "remap: 10.62.0.0/16"}, nil, "", "10.62.0.0/16"},
		{taken, func(g *Gateway) { clear(g.nodes) }, "", "172.18.0.0/16"},
		{taken, func(g *Gateway) { g.good = nil }, // it starts again
			"172.18.0.0/16 contains 172.18.0.1", "10.61.0.0/16"},
		{taken, func(g *Gateway) { g.good, g.peering.Status.Accepted = nil, nil }, "172.18.0.0/16 contains 172.18.0.1", ""},
		{nil, func(g *Gateway) {
			g.nodes["node2"].addresses = append(g.nodes["node2"].addresses, netip.MustParseAddr("10.61.3.4"))
		}, "Node node2: status.addresses[1]: 10.61.3.4 is in spec.remote.podCIDRs[0].remap of Peering milan", "10.61.0.0/16"},
	} {
		g := rome(t)
		if c.change != nil {
			c.change(g)
		}
		p := readIn(t, c.with...)
		p.Status = g.peering.Status
		g.put(p)
		d := g.Plan()
		remap := ""
		if d.Peering != nil {
			remap = d.Peering.Remote[0].Remapped.String()
		}
		if got := strings.Join(d.Faults, "\n"); !strings.Contains(got, c.want) || (got == "") != (c.want == "") ||
			remap != c.remap {
			t.Errorf("%q: %q, want %q; remap %v, want %s", c.with, got, c.want, remap, c.remap)
		}
	}
}

// TestAssignment: a Node keeps its VNI and address when other Nodes are added or removed.
func TestAssignment(t *testing.T) {
	g := rome(t)
	r := rand.New(rand.NewPCG(1, 2))
	have := map[string]Assigned{}
	for round := range 500 {
		for range r.IntN(4) {
			if n := 1 + r.IntN(200); r.IntN(3) == 0 {
				delete(g.nodes, fmt.Sprint("node", n))
			} else {
				g.nodes[fmt.Sprint("node", n)] = nodeObject(t, n)
			}
		}
		d := g.Plan()
		vnis, addresses := map[uint32]bool{}, map[string]bool{"10.80.0.1": true, "10.80.0.0": true, "10.80.0.255": true}
		for _, a := range d.Status.Nodes {
			if vnis[a.VNI] || addresses[a.Address] ||
				!netip.MustParsePrefix("10.80.0.0/24").Contains(netip.MustParseAddr(a.Address)) {
				t.Fatalf("round %d: %+v has a VNI or an address that is taken or out of range", round, a)
			}
			vnis[a.VNI], addresses[a.Address] = true, true
			if was, ok := have[a.Name]; ok && was != a {
				t.Fatalf("round %d: assigned is %+v, want %+v as before", round, a, was)
			}
		}
		if len(d.Status.Nodes) != len(g.nodes) {
			t.Fatalf("round %d: %d of %d nodes are assigned, want all", round, len(d.Status.Nodes), len(g.nodes))
		}
		clear(have)
		for _, a := range d.Status.Nodes {
			have[a.Name] = a
		}
		store(g, d)
	}
}

// TestAssignmentFull: without room, a node is left out and named.
func TestAssignmentFull(t *testing.T) {
	g := rome(t)
	g.put(readIn(t, "10.80.0.0/24", "10.80.0.0/29"))
	for n := 1; n <= 6; n++ {
		g.nodes[fmt.Sprint("node", n)] = nodeObject(t, n)
	}
	d := g.Plan()
	if len(d.Status.Nodes) != 5 || len(d.Faults) != 1 ||
		d.Faults[0] != "spec.internalCIDR: 10.80.0.0/29 has no address left for node node6" {
		t.Errorf("%d nodes, %q", len(d.Status.Nodes), d.Faults)
	}
	if !strings.Contains(strings.Join(d.Unready, "\n"), "node node6: spec.internalCIDR") ||
		d.Status.NodesReady != "0/6" {
		t.Errorf("%s %q", d.Status.NodesReady, d.Unready)
	}
}

// TestNodesThatAreNotReady: each is reported with what is missing. Only a node with false claims is
// left out.
func TestNodesThatAreNotReady(t *testing.T) {
	for _, c := range []struct {
		name, unready, fault string
		change               func(*Gateway)
		left                 int // nodes that are connected
	}{
		{"no agent", "node node2: its agent has not told its address", "",
			func(g *Gateway) { delete(g.tunnels, "node2") }, 1},
		{"no address", "node node2: TunnelNode: no spec.remote yet", "", func(g *Gateway) {
			g.tunnels["node2"] = tunnelObject(t, 2, "{local: 10.244.2.1, remote: 172.18.0.2}", "{}")
		}, 1},
		{"no remote address", "node node2: TunnelNode: no spec.remote yet", "", func(g *Gateway) {
			g.tunnels["node2"] = tunnelObject(t, 2, ", remote: 172.18.0.2", "")
		}, 2},
		{"no local address", "node node1: TunnelNode: no spec.local yet", "", func(g *Gateway) {
			g.tunnels["node1"] = tunnelObject(t, 1, "local: 10.244.1.1, ", "")
		}, 2},
		{"another node's address", "node node2: TunnelNode: spec.remote: 172.18.0.1 is of node node1",
			"TunnelNode node2: spec.remote: 172.18.0.1 is of node node1", func(g *Gateway) {
				g.tunnels["node2"] = tunnelObject(t, 2, "172.18.0.2", "172.18.0.1")
			}, 1},
		{"another node's pod", "node node2: TunnelNode: spec.remote: 10.244.1.7 is of node node1", "TunnelNode node2: spec.remote",
			func(g *Gateway) {
				g.tunnels["node2"] = tunnelObject(t, 2, "172.18.0.2", "10.244.1.7")
			}, 1},
		{"multicast", `node node2: TunnelNode: spec.remote: "224.0.0.1"`, "TunnelNode node2: spec.remote",
			func(g *Gateway) {
				g.tunnels["node2"] = tunnelObject(t, 2, "172.18.0.2", "224.0.0.1")
			}, 1},
		{"another family", "node node2: TunnelNode: spec.remote: the gateway's pod has no address of the family of 2001:db8::2",
			"TunnelNode node2: spec.remote: the gateway's pod has no", func(g *Gateway) {
				g.tunnels["node2"] = tunnelObject(t, 2, "172.18.0.2", `"2001:db8::2"`)
			}, 1},
		{"a younger node's address", "node node1: TunnelNode: spec.local: 172.18.0.2 is of node node2",
			"TunnelNode node1: spec.local: 172.18.0.2 is of node node2", func(g *Gateway) {
				g.nodes["node1"].addresses = append(g.nodes["node1"].addresses, g.nodes["node2"].addresses...)
				g.nodes["node1"].meta.Created, g.nodes["node2"].meta.Created = start, start.Add(time.Hour)
				g.tunnels["node1"] = tunnelObject(t, 1, "10.244.1.1", "172.18.0.2")
			}, 1},
		{"a node that lists another's address", "",
			"Node node1: status.addresses[1]: 172.18.0.2 is of node node2, which had it first", func(g *Gateway) {
				g.nodes["node1"].addresses = append(g.nodes["node1"].addresses, g.nodes["node2"].addresses...)
				g.nodes["node1"].meta.Created, g.nodes["node2"].meta.Created = start, start.Add(time.Hour)
			}, 2},
		{"a shared address that no tunnel has", "", "", func(g *Gateway) {
			for _, n := range g.nodes {
				n.addresses = append(n.addresses, netip.MustParseAddr("203.0.113.9"))
			}
		}, 2},
		{"a pod CIDR within an older one", "",
			"Node node2: spec.podCIDRs[0]: 10.244.1.128/25 is of node node1 too, which is older", func(g *Gateway) {
				g.nodes["node2"].pods = []netip.Prefix{netip.MustParsePrefix("10.244.1.128/25")}
			}, 2},
		{"a pod CIDR around an older one", "",
			"Node node1: spec.podCIDRs[0]: 10.244.0.0/22 is of node node2 too, which is older", func(g *Gateway) {
				g.nodes["node1"].pods = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/22")}
				g.nodes["node2"].meta.Created, g.nodes["node1"].meta.Created = start, start.Add(time.Hour)
			}, 2},
		{"not told", "node node2: its assignment is being written", "",
			func(g *Gateway) { g.peering.Status.Nodes = g.peering.Status.Nodes[:1] }, 1},
		{"refused", "node node2: no room", "", func(g *Gateway) {
			g.tunnels["node2"] = tunnelObject(t, 2, "ready: true", "ready: false, message: no room")
		}, 2},
		{"outside", "", "Node node2: spec.podCIDRs[0]: 10.245.2.0/24 is outside spec.local.podCIDRs of Peering milan",
			func(g *Gateway) {
				g.nodes["node2"].pods = []netip.Prefix{netip.MustParsePrefix("10.245.2.0/24")}
			}, 2},
		{"no pod CIDR", "", "Node node2: spec.podCIDRs: missing; set spec.podsFrom of Peering milan to Pods",
			func(g *Gateway) { g.nodes["node2"].pods = nil }, 2},
		{"IPv6 alone", "", "Node node2: spec.podCIDRs: none of IPv4, of which spec.local.podCIDRs of Peering milan has some",
			func(g *Gateway) {
				g.nodes["node2"].pods = []netip.Prefix{netip.MustParsePrefix("fd00:244:2::/64")}
			}, 2},
		{"two families", "", "", func(g *Gateway) {
			g.nodes["node2"].pods = append(g.nodes["node2"].pods, netip.MustParsePrefix("fd00:244:2::/64"))
		}, 2},
		{"a pod CIDR of two", "", "Node node2: spec.podCIDRs[0]: 10.244.1.0/24 is of node node1 too, which is older",
			func(g *Gateway) { g.nodes["node2"].pods = g.nodes["node1"].pods }, 2},
	} {
		g := rome(t)
		c.change(g)
		d := g.Plan()
		if !strings.Contains(strings.Join(d.Unready, "\n"), c.unready) || (c.unready == "") != (len(d.Unready) == 0) {
			t.Errorf("%s: unready %q, want %q", c.name, d.Unready, c.unready)
		}
		if !strings.Contains(strings.Join(d.Faults, "\n"), c.fault) || (c.fault == "") != (len(d.Faults) == 0) {
			t.Errorf("%s: faults %q, want %q", c.name, d.Faults, c.fault)
		}
		if len(d.Nodes) != c.left {
			t.Errorf("%s: %d nodes, want %d", c.name, len(d.Nodes), c.left)
		}
		if err := config.Check(d.Config(d.Peering.Base(base()))); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestNodeTakesNoAddress: a node that comes to list another's address takes neither its tunnel nor
// its exported endpoint, whoever is older, and the next gateway knows who had it.
func TestNodeTakesNoAddress(t *testing.T) {
	for _, liar := range []string{"listed", "told too"} {
		g := rome(t)
		g.nodes["node1"].meta.Created, g.nodes["node2"].meta.Created = start, start.Add(time.Hour)
		exportWith(t, g, "web")
		endpointsOf(t, g, "web", map[string]bool{"172.18.0.2": true})
		store(g, g.Plan())
		g.nodes["node1"].addresses = append(g.nodes["node1"].addresses, g.nodes["node2"].addresses...)
		if liar == "told too" {
			g.tunnels["node1"] = tunnelObject(t, 1, "local: 10.244.1.1, remote: 172.18.0.1",
				"local: 10.244.1.1, remote: 172.18.0.2")
		}
		store(g, g.Plan())
		next := rome(t)
		next.nodes, next.tunnels, next.exported, next.slices, next.exportsKnown = g.nodes, g.tunnels, g.exported,
			g.slices, true
		next.put(g.peering)
		for _, g := range []*Gateway{g, next} {
			d := g.Plan()
			at := slices.IndexFunc(d.Nodes, func(n config.Node) bool { return n.Name == "node2" })
			if at < 0 || d.Nodes[at].Underlay != netip.MustParseAddr("172.18.0.2") || len(d.Services) != 1 ||
				d.Services[0].Backends[0].Via != "node2" {
				t.Errorf("%s: %v, %+v, %q", liar, d.Nodes, d.Services, d.Faults)
			}
			if !strings.Contains(strings.Join(d.Faults, "\n"),
				"Node node1: status.addresses[1]: 172.18.0.2 is of node node2, which had it first") {
				t.Errorf("%s: %q", liar, d.Faults)
			}
		}
	}
}

// TestVirtualNodes: no agent runs on a virtual node, so that the gateway waits for none there.
func TestVirtualNodes(t *testing.T) {
	s := NewGatewaySource(nil, rome(t).self, NodeNamespace, quiet())
	nodes := kube.Sink{Loop: s.loop, Set: s.members()}
	text := fmt.Sprintf(nodeText, 1)
	for i, label := range []string{"{}", "{liqo.io/type: virtual-node}", "{a: b}", "{type: virtual-kubelet}"} {
		u := object(t, text, "uid: u1", "uid: u1, labels: "+label)
		if i > 1 { // as a list does
			nodes.Trim(u)
		}
		need.NoError(t, nodes.Add(u))
		if want := 1 - i%2; len(s.state.nodes) != want {
			t.Errorf("labels %s: %d nodes, want %d", label, len(s.state.nodes), want)
		}
	}
}

// TestPodsFrom: without pod CIDRs of Nodes, each pod's address leads to its node, except for pods
// of the host's network and pods that have ended.
func TestPodsFrom(t *testing.T) {
	g := rome(t)
	p := readIn(t, "mtu: 1400", "podsFrom: Pods")
	p.Status = g.peering.Status
	g.put(p)
	for i, spec := range []string{
		`{spec: {nodeName: node2}, status: {phase: Running, podIPs: [{ip: 10.244.9.1}, {ip: "fd00::1"}]}}`,
		`{spec: {nodeName: node1}, status: {phase: Pending, podIPs: [{ip: 10.244.9.2}]}}`,
		`{spec: {nodeName: node1, hostNetwork: true}, status: {phase: Running, podIPs: [{ip: 172.18.0.1}]}}`,
		`{spec: {nodeName: node1}, status: {phase: Succeeded, podIPs: [{ip: 10.244.9.4}]}}`,
		`{spec: {nodeName: node1}, status: {phase: Running, podIPs: [{ip: 10.99.0.1}]}}`,
		`{spec: {}, status: {phase: Pending}}`,
		// the second pod with this address
		`{spec: {nodeName: node1}, status: {phase: Running, podIPs: [{ip: 10.244.9.1}]}}`,
	} {
		g.pods.set(fmt.Sprint("default/pod", i), readPod(object(t, spec)))
	}
	d := g.Plan()
	got := map[string]string{}
	for _, n := range d.Nodes {
		got[n.Name] = fmt.Sprint(n.PodCIDRs)
	}
	if want := map[string]string{"node1": "[10.244.9.2/32]", "node2": "[10.244.9.1/32]"}; fmt.Sprint(got) !=
		fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
	if err := config.Check(d.Config(d.Peering.Base(base()))); err != nil {
		t.Error(err)
	}
}

// TestActive: each gateway that starts takes the next term, and gives way to one with a later term.
func TestActive(t *testing.T) {
	g := rome(t)
	if d := g.Plan(); d.Ousted || d.Status.Active.Term != 1 {
		t.Fatalf("%+v", d.Status.Active)
	}
	next := NewGateway(Self{Name: "milan", Namespace: "culvert", Node: "node2", Pod: "gw-2",
		Addresses: []netip.Addr{netip.MustParseAddr("10.244.2.9")}})
	next.nodesKnown, next.othersKnown = true, true
	next.put(g.peering)
	d := next.Plan()
	if text(t, d.Status.Active) != `{"pod":"gw-2","node":"node2","addresses":["10.244.2.9"],"term":2}` || d.Ousted {
		t.Fatalf("%s", text(t, d.Status.Active))
	}
	store(next, d)
	if d := next.Plan(); d.Ousted || d.Status.Active.Term != 2 {
		t.Errorf("%+v", d.Status.Active)
	}
	g.put(next.peering)
	if d := g.Plan(); !d.Ousted || d.Again || d.Status.Active.Pod != "gw-2" {
		t.Errorf("%+v", d.Status.Active)
	}
	again := rome(t) // it has ended, and Kubernetes has started it again
	again.put(next.peering)
	d = again.Plan()
	store(again, d)
	next.put(again.peering)
	if d := next.Plan(); !d.Ousted || !d.Again || d.Status.Active.Pod != again.self.Pod {
		t.Errorf("%+v", d.Status.Active)
	}
}

// TestActiveFirst: nodes use the first address, which is one of IPv4 if the pod has any.
func TestActiveFirst(t *testing.T) {
	addr := netip.MustParseAddr
	g := NewGateway(Self{Name: "milan", Namespace: "culvert", Node: "node1", Pod: "gw-1",
		Addresses: []netip.Addr{addr("fd00::9"), addr("10.244.1.9")}})
	g.nodesKnown, g.othersKnown = true, true
	g.put(readIn(t))
	if got := g.Plan().Status.Active.Addresses; !slices.Equal(got, []string{"10.244.1.9", "fd00::9"}) {
		t.Errorf("%q", got)
	}
}

// TestNoPeering: without a Peering there is no peer, and the next Peering starts afresh.
func TestNoPeering(t *testing.T) {
	g := rome(t)
	g.put(nil)
	if d := g.Plan(); d.Peering != nil || d.Current != nil || len(d.Waiting) != 1 ||
		d.Waiting[0] != "Peering culvert/milan" {
		t.Errorf("%+v", d)
	}
	g.put(readIn(t, "role: Client", "role: Peer"))
	if d := g.Plan(); d.Peering != nil {
		t.Error("the deleted Peering still has effect")
	}
	g.put(readIn(t, "  publicKey: xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n", ""))
	if d := g.Plan(); len(d.Waiting) != 1 || !strings.HasPrefix(d.Waiting[0], "the peer's key") {
		t.Errorf("%q", d.Waiting)
	}
}

// TestInvited: a Peering whose peer has not answered is good, and has neither a key nor remote
// CIDRs; a key without CIDRs is a fault.
func TestInvited(t *testing.T) {
	remote := romeToMilan[strings.Index(romeToMilan, "  remote:"):]
	p := readIn(t, remote, "", "  publicKey: xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n", "")
	if p.Fault() != "" || len(p.Remote) != 0 {
		t.Error(p.Fault(), p.Remote)
	}
	if got := readIn(t, remote, "").Fault(); got != "spec.remote.podCIDRs: missing" {
		t.Error(got)
	}
}

// TestTroubles: a problem on the path to a node is reported as the node's, unless the node reports
// one itself.
func TestTroubles(t *testing.T) {
	g := rome(t)
	g.tunnels["node1"] = tunnelObject(t, 1, "ready: true", "ready: false, message: no route")
	d := g.Plan()
	d.troubles(map[string]string{"node1": "silent", "node2": "node2 (172.18.0.2) sends VNI 9, configured 2",
		"node3": "nobody"})
	if want := []string{"node node1: no route",
		"node node2: node2 (172.18.0.2) sends VNI 9, configured 2"}; !slices.Equal(d.Unready, want) ||
		d.Status.NodesReady != "0/2" {
		t.Errorf("%s: %q", d.Status.NodesReady, d.Unready)
	}
	g.put(nil)
	if d := g.Plan(); d.Status.NodesReady != "" {
		t.Errorf("without a Peering: %q", d.Status.NodesReady)
	} else if d.troubles(map[string]string{"node1": "silent"}); d.Status.NodesReady != "" || d.Unready != nil {
		t.Errorf("without a Peering: %+v", d)
	}
}
