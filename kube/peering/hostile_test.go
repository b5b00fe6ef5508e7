package peering

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"culvert/gateway/config"
	"culvert/integration/need"
	"culvert/kube/service"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// TestLoudNode: an agent's message takes little room in the Peering's status and has no line
// breaks, so that no node can keep the gateway from writing the status.
func TestLoudNode(t *testing.T) {
	g := rome(t)
	loud := "no room\n\x1b[2J" + strings.Repeat("€", 1<<19)
	u := object(t, "metadata: {name: node2}\nspec: {local: 10.244.2.1, remote: 172.18.0.2}")
	u.Object["status"] = map[string]any{"message": loud,
		"peerings": []any{map[string]any{"name": "milan", "ready": false, "message": loud}}}
	g.tunnels["node2"] = readTunnelNode(u)
	d := g.Plan()
	if len(d.Unready) != 1 || !strings.HasPrefix(d.Unready[0], "node node2: no room  [2J€€") ||
		len(d.Unready[0]) > 400 || strings.ContainsFunc(d.Unready[0], unicode.IsControl) {
		t.Errorf("%d nodes are not ready: %.500q, want one with a short message in one line", len(d.Unready), d.Unready)
	}
	s := &GatewaySource{now: time.Now}
	for range 10_000 { // as of many nodes
		d.Faults = append(d.Faults, "TunnelNode node2: spec.remote: 172.18.0.1 is of node node1")
	}
	all := s.set(d, nil, &Condition{Type: Accepted, Status: "False", Message: strings.Join(d.Faults, "; ")})
	if n := len(all[0].Message); n > maxMessage || n < maxMessage/2 {
		t.Errorf("the message has %d bytes, want %d to %d", n, maxMessage/2, maxMessage)
	}
}

// TestPeerThatLies: a peer may send from the CIDRs that the Peering gives it to those of this
// cluster. Everything else is dropped with a reason.
func TestPeerThatLies(t *testing.T) {
	g := rome(t)
	d := g.Plan()
	c := d.Config(d.Peering.Base(base()))
	links := config.Links{}.Assign(c.Geneve.Nodes)
	e, err := nat.New([16]byte{1}, c.NAT(links, 0))
	need.NoError(t, err)
	for _, p := range []struct {
		source, destination string
		want                nat.Reason
		out                 string
	}{
		// a pod of its own, although pods here have such addresses too
		{"10.244.7.7", "10.244.2.9", nat.ReasonNone, "node2"},
		{"10.70.0.0", "10.244.2.9", nat.ReasonNone, "node2"},            // one of its hosts
		{"10.61.7.7", "10.244.2.9", nat.ReasonBadSource, ""},            // as this cluster calls its pods
		{"192.0.2.9", "10.244.2.9", nat.ReasonBadSource, ""},            // anybody
		{"172.18.0.1", "10.244.2.9", nat.ReasonBadSource, ""},           // a node here
		{"10.80.0.1", "10.244.2.9", nat.ReasonBadSource, ""},            // the gateway here
		{"10.244.7.7", "10.80.0.3", nat.ReasonToNode, ""},               // a node, by its internal address
		{"10.244.7.7", "172.18.0.2", nat.ReasonNoRoute, ""},             // a node
		{"10.244.7.7", "10.96.0.1", nat.ReasonNoRoute, ""},              // the API server's Service
		{"10.244.7.7", "10.244.99.1", nat.ReasonNoRoute, ""},            // a pod of no node
		{"10.244.7.7", "203.0.113.9", nat.ReasonNoRoute, ""},            // the Internet
		{"10.244.7.7", "10.61.1.1", nat.ReasonNoRoute, ""},              // itself
		{"10.244.7.7", "10.70.0.9", nat.ReasonNoMapping, ""},            // a Service that is not exported
		{"10.244.7.7", "255.255.255.255", nat.ReasonBadDestination, ""}, // everybody
	} {
		b := nattest.IP{Source: p.source, Destination: p.destination, TTL: 9, Body: nattest.UDP{SourcePort: 9,
			DestinationPort: 53}}.Bytes()
		var in packet.Packet
		in.Parse(b)
		v := e.Process(&in, nat.Tunnel, 1)
		if v.Reason != p.want || p.want == nat.ReasonNone && v.Out != links.ByName[p.out] {
			t.Errorf("from %s to %s: %v to %d, want %v to %q", p.source, p.destination, v.Reason, v.Out, p.want, p.out)
		}
	}
}

// TestAdmission: with admit: Exports, a peer reaches the ports of exported Services and nothing
// else, and admission follows the Peering and the exports.
func TestAdmission(t *testing.T) {
	g := rome(t)
	exportWith(t, g, "web")
	endpointsOf(t, g, "web", map[string]bool{"10.244.1.5": true})
	store(g, g.Plan())
	var e *nat.Engine
	reached := func(to string, port uint16) (reasons [2]nat.Reason) {
		t.Helper()
		d := g.Plan()
		c := d.Config(d.Peering.Base(base()))
		nc := c.NAT(config.Links{}.Assign(c.Geneve.Nodes), 0)
		var err error
		if e == nil {
			e, err = nat.New([16]byte{1}, nc)
		} else {
			err = e.Apply(nc)
		}
		need.NoError(t, err)
		for i, body := range []nattest.Body{nattest.TCP{SourcePort: 9, DestinationPort: port, Flags: nattest.SYN},
			nattest.UDP{SourcePort: 9, DestinationPort: port}} {
			var in packet.Packet
			in.Parse(nattest.IP{Source: "10.244.7.7", Destination: to, TTL: 9, Body: body}.Bytes())
			reasons[i] = e.Process(&in, nat.Tunnel, 1).Reason
		}
		return reasons
	}
	at := g.peering.Status.Exports[0].Address
	port := g.Plan().Services[0].Port
	no, both := nat.ReasonNotAdmitted, [2]nat.Reason{nat.ReasonNotAdmitted, nat.ReasonNotAdmitted}
	if got := reached("10.244.2.9", 53); got != [2]nat.Reason{} {
		t.Errorf("without admission, a pod: %v", got)
	}
	p := readIn(t, "mtu: 1400", "admit: Exports")
	p.Status = g.peering.Status
	g.put(p)
	if got := reached("10.244.2.9", 53); got != both {
		t.Errorf("a pod: %v", got)
	}
	if got := reached(at, port); got != [2]nat.Reason{nat.ReasonNone, no} {
		t.Errorf("the Service: %v", got)
	}
	if got := reached("10.244.1.5", port); got != both {
		t.Errorf("its endpoint: %v", got)
	}
	for key := range g.exported {
		delete(g.exported, key)
	}
	if got := reached(at, port); got != both {
		t.Errorf("the Service without its export: %v", got)
	}
}

// TestNodeLiesAboutItself: a node chooses its own addresses and those of its pods. With one that no
// host has as the endpoint of an exported Service, the gateway obeys everything else.
func TestNodeLiesAboutItself(t *testing.T) {
	for _, lie := range []string{"240.0.0.9", "0.0.0.9"} {
		g := rome(t)
		g.nodes["node2"] = readNode(object(t, fmt.Sprintf(nodeText, 2), "{type: Hostname",
			"{type: ExternalIP, address: "+lie+"}, {type: Hostname"))
		exportWith(t, g, "web")
		endpointsOf(t, g, "web", map[string]bool{"10.244.1.5": true, lie: true})
		store(g, g.Plan())
		d := g.Plan()
		if err := config.Check(d.Config(d.Peering.Base(base()))); err != nil {
			t.Error(err)
		}
		if len(d.Services) != 1 || len(d.Services[0].Backends) != 1 || len(d.ExportFaults) != 1 ||
			!strings.Contains(d.ExportFaults[0], "its endpoint "+lie+" is neither") {
			t.Errorf("%s: %+v, %q", lie, d.Services, d.ExportFaults)
		}
	}
}

// TestManyEndpoints: whoever may write EndpointSlices cannot have all of a gateway's memory, and
// other Services stay.
func TestManyEndpoints(t *testing.T) {
	g := rome(t)
	var ports []string
	for n := range 400 {
		ports = append(ports, fmt.Sprintf("{name: p%d, port: %d, protocol: TCP}", n, n+1))
	}
	exportWith(t, g, "large", "12:00:00Z", "11:00:00Z",
		"ports: [{name: http, port: 80, protocol: TCP, targetPort: web}]", "ports: ["+strings.Join(ports, ", ")+"]")
	exportWith(t, g, "web")
	endpointsOf(t, g, "web", map[string]bool{"10.244.1.5": true})
	store(g, g.Plan())
	for _, c := range []struct {
		endpoints, served int
		fault             string
	}{
		{163, 401, ""}, {164, 1,
			"Service shop/large: its ports have 65600 endpoints, and those of other Services 0; at most 65536 may be exported, which namespaces share"}, {9, 401, ""},
	} {
		all := map[string]bool{}
		for n := range c.endpoints {
			all[fmt.Sprint("10.244.2.", n)] = true
		}
		endpointsOf(t, g, "large", all)
		d := g.Plan()
		if !g.slices.wanted[service.Name{Namespace: "shop", Name: "large"}] { // they are listed again
			endpointsOf(t, g, "large", all)
			d = g.Plan()
		}
		for key, s := range g.slices.table {
			if counted := *s.Slice == *s.Slice.Count(); counted != (key == "shop/large-1" && c.fault != "") {
				t.Errorf("%d endpoints: of %s the number alone is kept: %t", c.endpoints, key, counted)
			}
		}
		if got := strings.Join(d.ExportFaults, "; "); len(d.Services) != c.served || got != c.fault ||
			len(d.Status.Exports) != 2 {
			t.Errorf("%d endpoints: %d ports are served, %q", c.endpoints, len(d.Services), got)
		}
	}
	far := map[string]bool{}
	for n := range 100 {
		far[fmt.Sprint("203.0.113.", n)] = true
	}
	endpointsOf(t, g, "web", far)
	if all := g.Plan().ExportFaults; len(all) != 1 || !strings.HasSuffix(all[0],
		"nor the address of a node that is connected; and 99 more") {
		t.Errorf("%q", all)
	}
}

// TestExportsShare: one namespace, with Services that are older and have their addresses, takes
// neither all ports, nor all endpoints, nor all addresses.
func TestExportsShare(t *testing.T) {
	in := func(namespace, created string, ports int) []string {
		var all []string
		for n := range ports {
			all = append(all, fmt.Sprintf("{name: p%d, port: %d, protocol: TCP}", n, n+1))
		}
		return []string{"namespace: shop", "namespace: " + namespace, "12:00:00Z", created,
			"ports: [{name: http, port: 80, protocol: TCP, targetPort: web}]",
			"ports: [" + strings.Join(all, ", ") + "]"}
	}
	served := func(g *Gateway) (all []string) {
		for range 2 { // an address is served once it is stored
			store(g, g.Plan())
		}
		for _, e := range g.Plan().Exports {
			all = append(all, e.Namespace+"/"+e.Name)
		}
		slices.Sort(all)
		return all
	}
	for _, c := range []struct {
		name     string
		services int
		ports    int
		external string
		want     int // Services of the greedy namespace beside the other two
	}{{"ports", 5, 100, "/24", 4}, {"addresses", 7, 1, "/29", 5}, {"one large Service", 1, 500, "/24", 0}} {
		g := rome(t)
		p := readIn(t, "externalCIDR: 10.70.0.0/24}", "externalCIDR: 10.70.0.0"+c.external+"}")
		p.Status = g.peering.Status
		g.put(p)
		for n := range c.services {
			exportWith(t, g, fmt.Sprint("greedy", n), in("evil", "11:00:00Z", c.ports)...)
		}
		if got := served(g); len(got) != c.services {
			t.Fatalf("%s: alone it exports %q", c.name, got)
		}
		exportWith(t, g, "web", in("shop", "12:00:00Z", 1)...)
		exportWith(t, g, "api", in("shop", "12:00:00Z", 1)...)
		got := served(g)
		if len(got) != c.want+2 || !slices.Contains(got, "shop/web") || !slices.Contains(got, "shop/api") {
			t.Errorf("%s: exported are %q", c.name, got)
		}
		if got := g.Plan(); len(got.ExportFaults) != c.services-c.want || !strings.HasPrefix(got.ExportFaults[0],
			"Service evil/greedy") {
			t.Errorf("%s: %q", c.name, got.ExportFaults)
		}
	}
	g := rome(t)
	exportWith(t, g, "greedy", in("evil", "11:00:00Z", 499)...)
	exportWith(t, g, "web")
	evil := readSlice(object(t,
		`{metadata: {name: greedy-1, namespace: evil, labels: {kubernetes.io/service-name: greedy}}, addressType: IPv4, ports: [], endpoints: [`+
			strings.Repeat("{addresses: [10.244.2.9]}, ", 131)+"]}"))
	g.slices.wanted[evil.Of] = true
	g.slices.set("evil/greedy-1", evil)
	all := map[string]bool{}
	for n := range 200 {
		all[fmt.Sprint("10.244.2.", n)] = true
	}
	endpointsOf(t, g, "web", all)
	if got := served(g); len(got) != 1 || got[0] != "shop/web" {
		t.Errorf("endpoints: exported are %q", got)
	}
}
