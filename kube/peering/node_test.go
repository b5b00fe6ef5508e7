package peering

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"culvert/gateway/node/links"
	"culvert/gateway/node/remote"
	"culvert/geneve"
)

// node2 is that node of rome's cluster, with what rome's gateway has written.
func node2(t testing.TB) *Node {
	n := NewNode("node2", []netip.Addr{netip.MustParseAddr("192.0.2.60")})
	g := rome(t)
	n.peerings["milan"] = g.peering
	for name, o := range g.nodes {
		n.nodes[name] = o
	}
	n.peerings["milan"].Status.Accepted = nil // as for a new Peering
	n.services["default/kubernetes"] = readService(object(t, "{spec: {clusterIPs: [10.96.0.1]}}"))
	return n
}

// TestNodePlan: a node has a link to the gateway's node, and routes to the other cluster through
// it.
func TestNodePlan(t *testing.T) {
	d := node2(t).Plan()
	addr := netip.MustParseAddr
	if len(d.Peers) != 1 || len(d.Refused)+len(d.Waiting) > 0 {
		t.Fatalf("%+v", d)
	}
	p := d.Peers[0]
	if want := (links.Link{Of: "milan", Name: "cv-milan", VNI: 2, MTU: 1400, Remote: addr("10.244.1.9"),
		Address: geneve.PairOf(addr("10.80.0.3")), Gateway: geneve.PairOf(addr("10.80.0.1"))}); p.Link != want ||
		p.Here {
		t.Errorf("%+v, want %+v", p.Link, want)
	}
	if got := fmt.Sprint(p.Routes); got !=
		"{milan cv-milan [10.80.0.1] [10.244.0.0/16] [10.61.0.0/16 10.71.0.0/24] [] invalid IP 0}" {
		t.Error(got)
	}
	n := node2(t)
	n.peerings["milan"].Status.Active.Node = "node2"
	if p := n.Plan().Peers[0]; !p.Here || p.Routes.Pod != addr("10.244.1.9") || p.Routes.Port != 6091 {
		t.Errorf("the gateway is here: %+v", p.Routes)
	}
	n.peerings["milan"].Status.Active.Addresses = []string{"fd00::9"}
	if p := n.Plan().Peers[0]; !p.Here || p.Link.Remote != addr("fd00::9") || p.Routes.Pod != addr("fd00::9") {
		t.Errorf("the gateway is here, by IPv6: %+v, %+v", p.Link, p.Routes)
	}
}

// TestNodeDual: a node has addresses and routes of both families. It reaches the gateway by IPv4
// while it has an address of it, then by IPv6.
func TestNodeDual(t *testing.T) {
	n, addr := node2(t), netip.MustParseAddr
	p := readIn(t, dual...)
	p.Status = n.peerings["milan"].Status
	p.Status.Active.Addresses = []string{"10.244.1.9", "fd00:244:0:1::9"}
	n.peerings["milan"] = p
	d := n.Plan().Peers[0]
	if d.Link.Address != (geneve.Pair{V4: addr("10.80.0.3"), V6: addr("fd80::3")}) ||
		d.Link.Gateway != (geneve.Pair{V4: addr("10.80.0.1"), V6: addr("fd80::1")}) || d.Link.Remote != addr("10.244.1.9") {
		t.Errorf("%+v", d.Link)
	}
	if got := fmt.Sprint(d.Routes.Gateways, d.Routes.Local, d.Routes.Remote); got !=
		"[10.80.0.1 fd80::1] [10.244.0.0/16 fd00:244::/56] [10.61.0.0/16 10.71.0.0/24 fd61::/56 fd71::/112]" {
		t.Error(got)
	}
	n.nodes["node2"].addresses = []netip.Addr{addr("2001:db8::2")}
	if d := n.Plan().Peers[0]; d.Link.Remote != addr("fd00:244:0:1::9") {
		t.Errorf("a node of IPv6 alone: %+v", d.Link)
	}
	n.nodes["node1"].addresses = append(n.nodes["node1"].addresses, addr("fd61::7"))
	p.Status.Accepted = nil
	if why := n.Plan().Refused["milan"]; why != "" {
		t.Errorf("what the Peering had first: %s", why)
	}
	fresh := NewNode("node2", nil)
	fresh.peerings, fresh.nodes = n.peerings, n.nodes
	if why := fresh.Plan().Refused["milan"]; !strings.HasPrefix(why,
		"spec.remote.podCIDRs[1].remap: fd61::/56 contains fd61::7, an address of node node1; choose a remap") {
		t.Error(why)
	}
}

// TestNodeRefuses: whatever spec and status contain, a node does not route addresses of its own
// cluster to a peer, and refuses impossible gateway addresses.
func TestNodeRefuses(t *testing.T) {
	const pods = "remap: 10.61.0.0/16"
	for _, c := range []struct{ old, new, want string }{
		{pods, "remap: 172.18.0.0/16",
			"spec.remote.podCIDRs[0].remap: 172.18.0.0/16 contains 172.18.0.1, an address of node node1"},
		{pods, "remap: 10.96.0.0/16",
			"spec.remote.podCIDRs[0].remap: 10.96.0.0/16 contains 10.96.0.1, the address of Service default/kubernetes"},
		{"{cidr: 10.70.0.0/24, remap: 10.71.0.0/24}", "{cidr: 192.0.2.0/24}",
			"spec.remote.externalCIDR.cidr: 192.0.2.0/24 contains 192.0.2.60, an address of the API server"},
		{"10.80.0.0/24", "172.18.0.0/24",
			"spec.internalCIDR: 172.18.0.0/24 contains 172.18.0.1, an address of node node1"},
		{pods, "remap: 0.0.0.0/0", "spec.remote.podCIDRs[0].remap: 0.0.0.0/0 is shorter than /8"},
		{"podCIDRs: [10.244.0.0/16], ext", "podCIDRs: [10.9.0.0/16], ext", ""}, // below
	} {
		n := node2(t)
		p := readIn(t, c.old, c.new)
		p.Status = n.peerings["milan"].Status
		n.peerings["milan"] = p
		if c.want == "" { // a spec that lies about this cluster's pods
			p = readIn(t, c.old, c.new, pods, "remap: 10.244.0.0/16")
			n.peerings["milan"], c.want = p,
				"spec.remote.podCIDRs[0].cidr: 10.244.0.0/16 overlaps 10.244.1.0/24, the pods of node node1"
		}
		d := n.Plan()
		if got := d.Refused["milan"]; !strings.Contains(got, c.want) || len(d.Peers) > 0 {
			t.Errorf("%s: %q, want %q", c.new, got, c.want)
		}
	}
	for _, c := range []struct {
		change func(*Status)
		want   string
	}{
		{func(s *Status) { s.Nodes = s.Nodes[:1] }, "status.nodes: this node is not there yet"},
		{func(s *Status) { s.Nodes[1].Address = "10.99.0.1" },
			`status.nodes[1]: VNI 2 and address "10.99.0.1" are none of spec.internalCIDR`},
		{func(s *Status) { s.Nodes[1].Address = "10.80.0.1" }, "are none of spec.internalCIDR"},
		{func(s *Status) { s.Nodes[1].VNI = 1 << 24 }, "VNI 16777216"},
		{func(s *Status) { s.Active = nil }, "status.active: there is no gateway yet"},
		{func(s *Status) { s.Active.Addresses = []string{"127.0.0.1"} },
			`status.active.addresses[0]: "127.0.0.1" is no address of a host`},
		{func(s *Status) { s.Active.Addresses = []string{"::ffff:10.244.1.9"} },
			`status.active.addresses[0]: "::ffff:10.244.1.9" is no address of a host`},
		{func(s *Status) { s.Active.Addresses = []string{"fd00::9%eth0"} },
			`status.active.addresses[0]: "fd00::9%eth0" is no address of a host`},
		{func(s *Status) { s.Active.Addresses = []string{"10.61.0.9"} },
			"status.active.addresses[0]: 10.61.0.9 is an address of the other cluster"},
	} {
		n := node2(t)
		p := *n.peerings["milan"]
		p.Status.Nodes, p.Status.Active = slices.Clone(p.Status.Nodes), new(*p.Status.Active)
		c.change(&p.Status)
		n.peerings["milan"] = &p
		if d := n.Plan(); !strings.Contains(d.Waiting["milan"], c.want) || len(d.Peers) > 0 {
			t.Errorf("%q, want %q", d.Waiting["milan"], c.want)
		}
	}
}

// TestNodeFault: a Peering that works and gets a fault stays what it was on the node, follows its
// gateway, and is named. One that was made again with a fault gets nothing.
func TestNodeFault(t *testing.T) {
	n := node2(t)
	status := n.peerings["milan"].Status
	change := func(uid string, with ...string) *NodePlan {
		p := readIn(t, with...)
		p.Status, p.Metadata.UID = status, uid
		n.peerings["milan"] = p
		return n.Plan()
	}
	const endpoint = "milan.example:51840"
	was := change("1").Peers
	for _, c := range []struct {
		with []string
		want string
	}{
		{[]string{endpoint, "10.61.2.4:51840"}, "contains the address of spec.endpoint"},
		{[]string{"remap: 10.61.0.0/16", "remap: 0.0.0.0/0"}, "is shorter than /8"},
		{nil, ""},
		{[]string{endpoint, "10.61.2.4:51840"}, "contains the address of spec.endpoint"},
	} {
		d := change("1", c.with...)
		got := d.Refused["milan"]
		if !strings.Contains(got, c.want) || (got == "") != (c.want == "") || !reflect.DeepEqual(d.Peers, was) {
			t.Errorf("%q: refused %q, want %q; %+v, want %+v", c.with, got, c.want, d.Peers, was)
		}
		st := d.status([]links.Status{{Link: was[0].Link, State: links.Carried}}, []remote.Status{{Name: "milan"}})
		if p := st.Peerings[0]; !p.Ready || !strings.Contains(p.Message, c.want) {
			t.Errorf("%q: %+v", c.with, p)
		}
	}
	status.Active = new(*status.Active)
	status.Active.Addresses = []string{"10.244.1.77"}
	if d := change("1", endpoint, "10.61.2.4:51840"); len(d.Peers) != 1 ||
		d.Peers[0].Link.Remote.String() != "10.244.1.77" {
		t.Errorf("its gateway has moved: %+v", d.Peers)
	}
	if d := change("2", endpoint, "10.61.2.4:51840"); len(d.Peers) > 0 || d.Refused["milan"] == "" {
		t.Errorf("made again with a fault: %+v", d)
	}
	status.Accepted = &readIn(t).spec
	status.Active = rome(t).peering.Status.Active
	delete(n.accepted, "milan") // the agent starts
	if d := change("2", endpoint, "10.61.2.4:51840"); d.Refused["milan"] == "" || !reflect.DeepEqual(d.Peers, was) {
		t.Errorf("an agent that starts with a fault: %+v", d)
	}
	status.Accepted.Remote.PodCIDRs[0].Remap = "10.61.0.0/17"
	delete(n.accepted, "milan")
	if d := change("2", endpoint, "10.61.2.4:51840"); len(d.Peers) > 0 {
		t.Errorf("what was accepted has a fault, too: %+v", d)
	}
}

// TestNodeRefusal: of a Peering that works and whose change this node refuses, the node goes on
// with what it had, and is not ready. A Node that claims something of it later changes nothing. The
// node takes nothing of a Peering that it refuses from the beginning.
func TestNodeRefusal(t *testing.T) {
	n := node2(t)
	status := n.peerings["milan"].Status
	change := func(uid string, with ...string) *NodePlan {
		p := readIn(t, with...)
		p.Status, p.Metadata.UID = status, uid
		n.peerings["milan"] = p
		return n.Plan()
	}
	const pods, one = "podCIDRs: [{cidr: 10.244.0.0/16, remap: 10.61.0.0/16}", "{cidr: 10.244.0.0/16, remap: 10.61.0.0/16}"
	turin := readIn(t, "name: milan, namespace", "name: turin, namespace", "10.80.0.0/24", "10.81.0.0/24",
		"remap: 10.61.0.0/16", "remap: 10.62.0.0/16", "remap: 10.71.0.0/24", "remap: 10.72.0.0/24",
		"xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=", "AAAAA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=")
	turin.Metadata.Created = start.Add(-time.Hour)
	n.peerings["turin"] = turin
	was := change("1").Peers
	const before, rest = "; meanwhile this node goes on with what the Peering said before", "; meanwhile this node goes on with the rest"
	for _, c := range []struct {
		with  []string
		want  string
		claim string // an address of a new Node
	}{
		{with: []string{pods, pods + ", {cidr: 172.18.0.0/28}"}, want: "spec.remote.podCIDRs[1].cidr: 172.18.0.0/28 contains " +
			"172.18.0.1, an address of node node1; choose a remap that nothing uses" + before},
		{with: []string{one, "{cidr: 10.96.0.0/16}"}, want: "spec.remote.podCIDRs[0].cidr: 10.96.0.0/16 contains " +
			"10.96.0.1, the address of Service default/kubernetes; choose a remap that nothing uses" + before},
		{},
		{with: []string{one, "{cidr: 192.0.2.0/24}"}, want: "an address of the API server; choose a remap that nothing uses" + before},
		{with: []string{"10.80.0.0/24", "172.18.0.0/24"}, want: "spec.internalCIDR: 172.18.0.0/24 contains " +
			"172.18.0.1, an address of node node1; choose a CIDR that nothing uses" + before},
		{with: []string{one, "{cidr: 10.62.0.0/16}"}, want: "of Peering turin (10.62.0.0/16), which had it first; choose a remap " +
			"that nothing uses" + before},
		{claim: "10.61.3.4"},
		{claim: "10.80.0.9"},
		{claim: "10.61.3.4", with: []string{one, "{cidr: 10.96.0.0/16}"}, want: before},
		{},
	} {
		if delete(n.nodes, "node3"); c.claim != "" {
			n.nodes["node3"] = &node{addresses: []netip.Addr{netip.MustParseAddr(c.claim)}}
		}
		d := change("1", c.with...)
		want := slices.Clone(was)
		for i := range want {
			want[i].Behind = c.want != ""
		}
		got := d.Refused["milan"]
		if !strings.Contains(got, c.want) || (got == "") != (c.want == "") || !reflect.DeepEqual(d.Peers, want) {
			t.Errorf("%q %s: refused %q, want %q; %+v, want %+v", c.with, c.claim, got, c.want, d.Peers, want)
		}
		st := d.status([]links.Status{{Link: was[0].Link, State: links.Carried}}, []remote.Status{{Name: "milan"}})
		if p := st.Peerings[0]; p.Ready != (c.want == "") || !strings.Contains(p.Message, c.want) {
			t.Errorf("%q: %+v", c.with, p)
		}
	}
	if d := change("2", one, "{cidr: 10.96.0.0/16}"); len(d.Peers) > 0 || d.Refused["milan"] == "" ||
		strings.Contains(d.Refused["milan"], "goes on") {
		t.Errorf("made again: %+v", d)
	}
	n.nodes["node3"] = &node{addresses: []netip.Addr{netip.MustParseAddr("10.61.3.4")}}
	status.Accepted = &readIn(t).spec
	for _, c := range []struct {
		with []string
		left string
		want string
	}{
		{nil, "[10.61.0.0/16 10.71.0.0/24]", ""},
		// what the spec does not say any more is the gateway's word alone
		{[]string{one, "{cidr: 10.96.0.0/16}"}, "[10.71.0.0/24]", rest},
	} {
		clear(n.accepted) // the agent starts
		d := change("1", c.with...)
		if len(d.Peers) != 1 || fmt.Sprint(d.Peers[0].Routes.Remote) != c.left ||
			!strings.HasSuffix(d.Refused["milan"], c.want) || (d.Refused["milan"] == "") != (c.want == "") {
			t.Errorf("%q after a start: %+v, want %s, %q", c.with, d, c.left, c.want)
		}
	}
}

// TestNodeTwoPeerings: if two Peerings conflict, the older one wins.
func TestNodeTwoPeerings(t *testing.T) {
	const key = "publicKey: xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
	turin := []string{"name: milan, namespace", "name: turin, namespace", "peer: milan", "peer: turin", "10.80.0.0/24",
		"10.81.0.0/24", "remap: 10.61.0.0/16", "remap: 10.62.0.0/16",
		"remap: 10.71.0.0/24", "remap: 10.72.0.0/24", key, "mtu: 1400", "  mtu: 1400\n", ""}
	for _, c := range []struct{ old, new, want string }{
		{"", "", ""},
		{key, key, "spec.publicKey: Peering milan has it too, and is older"},
		{"remap: 10.61.0.0/16", "remap: 10.61.0.0/16",
			"spec.remote.podCIDRs[0].remap: 10.61.0.0/16 overlaps spec.remote.podCIDRs[0].remap of Peering milan (10.61.0.0/16), which is older"},
		{"10.80.0.0/24", "10.80.0.0/16",
			"spec.internalCIDR: 10.80.0.0/16 overlaps spec.internalCIDR of Peering milan (10.80.0.0/24), which is older"},
		{"remap: 10.71.0.0/24", "remap: 10.80.0.0/24",
			"spec.remote.externalCIDR.remap: 10.80.0.0/24 overlaps spec.internalCIDR of Peering milan"},
	} {
		n := node2(t)
		replace := slices.Clone(turin)
		for i := 0; i < len(replace); i += 2 {
			if replace[i] == c.old {
				replace[i+1] = c.new
			}
		}
		p := readIn(t, replace...)
		p.Metadata.Created = start.Add(time.Hour)
		p.Status = n.peerings["milan"].Status
		p.Status.Nodes = []Assigned{{Name: "node2", VNI: 1, Address: strings.TrimSuffix(p.Internal[0].Addr().String(),
			".0") + ".2"}}
		n.peerings["turin"] = p
		d := n.Plan()
		if got := d.Refused["turin"]; !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%q: %q, want %q; %q", c.new, got, c.want, d.Waiting)
		}
		if want := map[bool]int{true: 2, false: 1}[c.want == ""]; len(d.Peers) != want ||
			d.Peers[0].Peering != "milan" {
			t.Errorf("%q: %d peers, want %d", c.new, len(d.Peers), want)
		}
	}
}

// TestNodeStatus: a Peering is ready when its link carries packets and its routes are there.
func TestNodeStatus(t *testing.T) {
	d := node2(t).Plan()
	link := links.Status{Link: d.Peers[0].Link, State: links.Carried}
	route := remote.Status{Name: "milan"}
	for _, c := range []struct {
		links  []links.Status
		routes []remote.Status
		ready  bool
		want   string
	}{
		{nil, nil, false, "the link is being made"},
		{[]links.Status{link}, nil, false, "the routes are being made"},
		{[]links.Status{link}, []remote.Status{route}, true, ""},
		{[]links.Status{link}, []remote.Status{{Name: "milan", Warning: "nftables refuses"}}, true, "nftables refuses"},
		{[]links.Status{link}, []remote.Status{{Name: "milan", Err: errors.New("overlaps")}}, false, "overlaps"},
		{[]links.Status{{Link: link.Link, State: links.Refused, Err: errors.New("exists")}}, []remote.Status{route},
			false, "exists"},
		{[]links.Status{{Link: link.Link, State: links.Kernel}}, []remote.Status{route}, false, "ip link del cv-milan"},
		// of before
		{[]links.Status{{Link: links.Link{Name: "cv-milan"}, State: links.Carried}}, []remote.Status{route}, false,
			"the link is being made"},
		// as the schema takes it
		{[]links.Status{link}, []remote.Status{{Name: "milan", Err: errors.New(strings.Repeat("long ", 1000))}}, false,
			"long long"},
	} {
		s := d.status(c.links, c.routes)
		if len(s.Peerings) != 1 || s.Peerings[0].Ready != c.ready || !strings.Contains(s.Peerings[0].Message, c.want) ||
			(c.want == "") != (s.Message == "") {
			t.Errorf("%+v, want %t %q", s, c.ready, c.want)
		}
		if len(s.Peerings) == 1 && len(s.Peerings[0].Message) > maxMessage {
			t.Errorf("a message of %d bytes", len(s.Peerings[0].Message))
		}
	}
}

// TestLinkName: names are good names of devices, and those of different Peerings differ.
func TestLinkName(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{"a", "milan", "twelve-bytes", "thirteen-byte", strings.Repeat("a", 39),
		strings.Repeat("a", 40)} {
		l := linkName(name)
		if len(l) > 15 || !strings.HasPrefix(l, "cv-") || seen[l] != "" {
			t.Errorf("%s: %s, which is of %q too", name, l, seen[l])
		}
		seen[l] = name
	}
}

// TestNodeRemoves: a Peering that has gone is mentioned until the node has neither its link nor its
// routes.
func TestNodeRemoves(t *testing.T) {
	s := NewNodeSource(nil, "node2", "culvert", NodeNamespace, nil, quiet())
	link, route := links.Status{Link: node2(t).Plan().Peers[0].Link, State: links.Carried}, remote.Status{Name: "milan"}
	for _, c := range []struct {
		links  []links.Status
		routes []remote.Status
		want   int
	}{
		{[]links.Status{link}, []remote.Status{route}, 1}, {[]links.Status{link}, nil, 1}, {nil, []remote.Status{route},
			1}, {nil, nil, 0},
		{[]links.Status{{Link: links.Link{Name: "cv-milan"}}}, nil, 0}, // of an earlier run
	} {
		s.ReportLinks(c.links)
		s.ReportRoutes(c.routes)
		status := new(NodePlan).status(c.links, c.routes)
		s.addRemoved(status)
		if len(status.Peerings) != c.want || c.want == 1 && (status.Peerings[0].Name != "milan" ||
			!strings.HasSuffix(status.Peerings[0].Message, "are being removed")) {
			t.Errorf("%+v, want %d", status.Peerings, c.want)
		}
	}
}
