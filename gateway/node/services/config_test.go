package services

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"culvert/gateway/configfile"
	"culvert/gateway/node/services/steer"
	"culvert/integration/need"
	"culvert/nat/rules"
)

const good = `
addresses: [172.18.0.2, "fd18::2"]
pods: [10.244.0.0/16]
serviceCIDRs: [10.96.0.0/12]
serve:
- {name: web, clusterIP: 10.96.0.10, port: 80, nodePort: 30080, endpoints: [{address: 10.244.1.5, port: 8080, node: n1}]}
- {name: dns, protocol: udp, clusterIP: 10.96.0.10, port: 80, nodePort: 30080, loadBalancerIPs: [203.0.113.7], sourceRanges: [198.51.100.0/24]}
`

// parse reads a section, with old replaced by new.
func parse(t *testing.T, change ...string) (*Config, error) {
	t.Helper()
	text := good
	for i := 0; i < len(change); i += 2 {
		if !strings.Contains(text, change[i]) {
			t.Fatalf("%q is not there", change[i])
		}
		text = strings.Replace(text, change[i], change[i+1], 1)
	}
	return parseText(t, text)
}

func parseText(t *testing.T, text string) (*Config, error) {
	t.Helper()
	var f File
	need.NoError(t, yaml.UnmarshalStrict([]byte(text), &f))
	e := &configfile.Errors{File: "node.yaml", Fields: Fields}
	c := f.Config(e, "n1")
	return c, e.Err()
}

func TestConfig(t *testing.T) {
	if _, err := parse(t); err != nil {
		t.Fatal(err)
	}
	for _, test := range [][3]string{ // old text, new text, and the path of the fault
		{`addresses: [172.18.0.2, "fd18::2"]`, "", "services.addresses"},
		{"172.18.0.2", "127.0.0.1", "services.addresses[0]"},
		{"172.18.0.2", "10.96.0.1", "services.serviceCIDRs[0]"},
		{"clusterIP: 10.96.0.10", "clusterIP: 127.0.0.10", "services.serve[0].clusterIP"},
		{"clusterIP: 10.96.0.10", "clusterIP: 224.0.0.10", "services.serve[0].clusterIP"},
		{"10.96.0.0/12", "10.244.1.0/24", "services.serviceCIDRs[0]"},
		{"10.244.0.0/16", "10.244.0.1/16", "services.pods[0]"},
		{"serve:", "clientPorts: 61000\nserve:", "services.clientPorts"},
		{"serve:", "clientPorts: 61000-61010\nserve:", "services.clientPorts"},
		{"serve:", "clientPorts: 61000-65535\nserve:", "services.clientPorts"},
		{"serve:", "mtu: 500\nserve:", "services.mtu"},
		{"node: n1", "node: n1, weight: 0", "services.serve[0].endpoints[0].weight"},
		{"node: n1", "node: n1, weight: 1001", "services.serve[0].endpoints[0].weight"},
		{"serve:", "interface: a/b\nserve:", "services.interface"},
		{"serve:", "state: run\nserve:", "services.state"},
		{"serve:", "metrics: 8083\nserve:", "services.metrics"},
		{"serve:", "metrics: 127.0.0.1:80833\nserve:", "services.metrics"},
		{"serve:", "metrics: a_b:8083\nserve:", "services.metrics"},
		{"name: web", "name: dns", "services.serve[1].name"},
		{"protocol: udp", "protocol: tcp", "services.serve[1].clusterIP"},
		{"protocol: udp, clusterIP: 10.96.0.10, port: 80", "protocol: tcp, port: 80", "services.serve[1].nodePort"},
		{"protocol: udp", "protocol: icmp", "services.serve[1].protocol"},
		{"port: 80,", "", "services.serve[0].port"},
		{"nodePort: 30080, endpoints", "nodePort: 61000, endpoints", "services.serve[0].nodePort"},
		{"nodePort: 30080, endpoints", "nodePort: 65535, endpoints", "services.serve[0].nodePort"},
		{"clusterIP: 10.96.0.10, port: 80, nodePort: 30080, endpoints", "port: 80, endpoints",
			"services.serve[0].clusterIP"},
		{"clusterIP: 10.96.0.10, port: 80, nodePort: 30080, endpoints", "port: 80, clusterIP: 172.18.0.2, endpoints",
			"services.serve[0].clusterIP"},
		{"loadBalancerIPs: [203.0.113.7], ", "", "services.serve[1].sourceRanges"},
		{"address: 10.244.1.5", "address: 224.0.0.1", "services.serve[0].endpoints[0].address"},
		{"port: 8080", "port: 0", "services.serve[0].endpoints[0].port"},
		{"nodePort: 30080, endpoints", "nodePort: 30080, proxyProtocol: v1, endpoints",
			"services.serve[0].proxyProtocol"},
		{"nodePort: 30080, loadBalancerIPs", "nodePort: 30080, proxyProtocol: v2, loadBalancerIPs",
			"services.serve[1].proxyProtocol"},
		{"serve:", "announce: [203.0.113.7]\nserve:", "services.announce[0]"},
		{"serve:", "announce: [203.0.113.0/25, 198.51.100.0/24]\nserve:", "services.announce[1]"},
		{`addresses: [172.18.0.2, "fd18::2"]`, "announce: [203.0.113.7/32, \"fd99::/64\"]\naddresses: [172.18.0.2]",
			"services.announce[1]"},
		{"serve:", "announceOn: [eth0]\nserve:", "services.announceOn"},
		{"serve:", "announce: [203.0.113.7/32]\nannounceOn: [eth0, a/b]\nserve:", "services.announceOn[1]"},
		{"serve:", "announce: [203.0.113.7/32]\nannounceOn: [eth0, eth0]\nserve:", "services.announceOn[1]"},
		{"serve:", "announce: [203.0.113.7/32]\nannounceOn: [culvert1]\nserve:", "services.announceOn[0]"},
	} {
		if _, err := parse(t, test[0], test[1]); err == nil || !strings.Contains(err.Error(), test[2]+":") {
			t.Errorf("%s: %v", test[2], err)
		}
	}
}

// The routes to the device and the engine's configuration follow from the file and the node's
// addresses.
func TestPlan(t *testing.T) {
	c, err := parse(t, "203.0.113.7", "203.0.113.7, 172.18.0.9", "port: 80,", "port: 80, proxyProtocol: v2,",
		"sourceRanges: [198.51.100.0/24]",
		"endpoints: [{address: 10.244.1.5, port: 8080}, {address: 10.244.1.6, port: 8080}]")
	need.NoError(t, err)
	own := []netip.Addr{netip.MustParseAddr("172.18.0.2"), netip.MustParseAddr("172.18.0.9"),
		netip.MustParseAddr("fd18::2")}
	c.Services[1].Endpoints[1].Port = 65535 // no rule can name it
	p := c.plan(own, orphans{})
	if want := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"),
		netip.MustParsePrefix("203.0.113.7/32")}; !slices.Equal(p.Routes, want) {
		t.Errorf("routes %v, want %v", p.Routes, want)
	}
	lead := func(prefix string, from bool, protocol uint8, first, last uint16) steer.Match {
		s := steer.Match{To: netip.MustParsePrefix(prefix), Protocol: protocol,
			Ports: rules.PortRange{First: first, Last: last}}
		if from {
			s.From, s.To = s.To, s.From
		}
		return s
	}
	answers := func(to string, protocol uint8, last uint16) steer.Match {
		s := lead("10.244.0.0/16", true, protocol, 1, last)
		s.Ends = rules.PortRange{First: 8080, Last: 8080}
		if to != "" {
			s.To = netip.MustParsePrefix(to)
		}
		return s
	}
	front := []steer.Match{
		lead("172.18.0.9/32", false, 17, 80, 80), // one of the node's own addresses needs a rule
		lead("172.18.0.2/32", false, 6, 30080, 30080), lead("fd18::2/128", false, 6, 30080, 30080),
		lead("172.18.0.2/32", false, 17, 30080, 30080), lead("fd18::2/128", false, 17, 30080, 30080),
		lead("172.18.0.2/32", false, 6, 61000, 65534), lead("fd18::2/128", false, 6, 61000, 65534),
		lead("172.18.0.2/32", false, 17, 61000, 65534), lead("fd18::2/128", false, 17, 61000, 65534),
		answers("172.18.0.2/32", 6, 1023), answers("172.18.0.2/32", 17, 1023),
	}
	if !slices.Equal(p.Front, front) {
		t.Errorf("in front %v", p.Front)
	}
	behind := []steer.Match{
		lead("10.244.0.0/16", true, 6, 61000, 65534), lead("10.244.0.0/16", true, 17, 61000, 65534),
		answers("", 6, 1023), answers("", 17, 32767),
	}
	if !slices.Equal(p.Behind, behind) {
		t.Errorf("behind %v", p.Behind)
	}
	if err := p.nat.Config.Validate(); err != nil {
		t.Error(err)
	}
	local := 0
	for _, s := range p.nat.Services {
		if s.ProxyProtocol != (s.Name == "web") {
			t.Errorf("%s at %s: ProxyProtocol %t", s.Name, s.Address, s.ProxyProtocol)
		}
		for _, b := range s.Backends {
			if b.Local {
				local++
			}
		}
	}
	if local != 2 { // at the cluster address and at the node port
		t.Errorf("%d local backends", local)
	}
}

// However many ports endpoints have, few rules lead what comes from them to the device.
func TestFewEndpointPorts(t *testing.T) {
	c := &Config{Addresses: []netip.Addr{netip.MustParseAddr("172.18.0.2")},
		Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Ports: defaultPorts}
	x := Service{Port: 80, Protocol: 6}
	for i := range uint16(1000) {
		x.Endpoints = append(x.Endpoints, Endpoint{Address: netip.MustParseAddr("10.244.1.5"), Port: 1000 + 2*i})
	}
	c.Services = []Service{x}
	p := c.plan(c.Addresses, orphans{})
	if n := len(p.Front) + len(p.Behind); n > 2*maxEndpointPorts+2 {
		t.Errorf("%d rules", n)
	}
	for _, e := range x.Endpoints {
		for _, list := range [][]steer.Match{p.Front, p.Behind} {
			if !slices.ContainsFunc(list, func(r steer.Match) bool {
				return r.Ends.First <= e.Port &&
					e.Port <= r.Ends.Last
			}) {
				t.Errorf("endpoint port %d is left out", e.Port)
			}
		}
	}
}

func TestRanges(t *testing.T) {
	got := ranges([]portOf{{17, 53}, {6, 82}, {6, 80}, {6, 81}, {6, 80}, {6, 90}})
	want := []portsOf{{6, rules.PortRange{First: 80, Last: 82}}, {6, rules.PortRange{First: 90, Last: 90}},
		{17, rules.PortRange{First: 53, Last: 53}}}
	if !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

// If there are more node ports than the kernel should check rules for, neighbouring ones become one
// range. None is omitted, and no range spans protocols.
func TestFewerRanges(t *testing.T) {
	of := func(protocol uint8, first, last uint16) portsOf {
		return portsOf{protocol, rules.PortRange{First: first, Last: last}}
	}
	apart := []portsOf{of(6, 30000, 30000), of(6, 30010, 30012), of(6, 30014, 30014), of(6, 30100, 30100),
		of(17, 30101, 30101)}
	for most, want := range map[int][]portsOf{
		5: apart,
		4: {of(6, 30000, 30000), of(6, 30010, 30014), of(6, 30100, 30100), of(17, 30101, 30101)},
		3: {of(6, 30000, 30014), of(6, 30100, 30100), of(17, 30101, 30101)},
		1: {of(6, 30000, 30100), of(17, 30101, 30101)},
	} {
		if got := fewer(slices.Clone(apart), most); !slices.Equal(got, want) {
			t.Errorf("at most %d: %v, want %v", most, got, want)
		}
	}
	c := &Config{Addresses: []netip.Addr{netip.MustParseAddr("172.18.0.2")}, Ports: defaultPorts}
	for i := range uint16(2 * maxNodePorts) {
		c.Services = append(c.Services, Service{NodePort: 30000 + 2*i, Port: 80, Protocol: 6})
	}
	p := c.plan(nil, orphans{})
	if n := len(p.Front); n > maxNodePorts+1 {
		t.Errorf("%d rules in front of the local table", n)
	}
	for _, s := range c.Services {
		if !slices.ContainsFunc(p.Front, func(r steer.Match) bool {
			return r.Protocol == 6 && r.Ports.First <= s.NodePort && s.NodePort <= r.Ports.Last
		}) {
			t.Errorf("node port %d is left out", s.NodePort)
		}
	}
	for i := range c.Services { // whoever may write a Service may give it the node's own address
		s := &c.Services[i]
		s.Port, s.NodePort, s.ExternalIPs = s.NodePort, 0, c.Addresses
	}
	p = c.plan(c.Addresses, orphans{})
	if n := len(p.Front); n > maxNodePorts+1 {
		t.Errorf("%d rules for external addresses in front of the local table", n)
	}
	for _, s := range c.Services {
		if !slices.ContainsFunc(p.Front, func(r steer.Match) bool {
			return r.Ports.First <= s.Port &&
				s.Port <= r.Ports.Last
		}) {
			t.Errorf("port %d is left out", s.Port)
		}
	}
}

// A node port has the families of the cluster addresses.
func TestNodePortFamilies(t *testing.T) {
	for _, test := range []struct {
		addresses string
		v4, v6    bool
	}{{"10.96.0.10", true, false}, {`"fd96::10"`, false, true}, {`[10.96.0.10, "fd96::10"]`, true, true},
		{"", true, true}} {
		old, next := "clusterIP: 10.96.0.10, port: 80, nodePort: 30080, endpoints",
			"port: 80, nodePort: 30080, endpoints"
		if test.addresses != "" {
			next = "clusterIP: " + test.addresses + ", " + next
		}
		c, err := parse(t, old, next)
		need.NoError(t, err)
		at := c.Services[0].unspecified()
		if slices.Contains(at, netip.IPv4Unspecified()) != test.v4 ||
			slices.Contains(at, netip.IPv6Unspecified()) != test.v6 {
			t.Errorf("clusterIP %s: node port at %v", test.addresses, at)
		}
	}
}

// Sockets serve node ports, and those addresses that belong to the machine.
func TestSocketsConfig(t *testing.T) {
	bare := []string{"serviceCIDRs: [10.96.0.0/12]\n", "mode: sockets\n", "clusterIP: 10.96.0.10, ", "",
		"clusterIP: 10.96.0.10, ", ""}
	c, err := parse(t, bare...)
	need.NoError(t, err)
	own := []netip.Addr{netip.MustParseAddr("172.18.0.2"), netip.MustParseAddr("fd18::2"),
		netip.MustParseAddr("203.0.113.7")}
	c.Services[1].Endpoints = c.Services[0].Endpoints
	var got []string
	for _, p := range c.Places(own) {
		got = append(got, p.Service+" "+p.Field+" "+p.At.String())
	}
	// there are no IPv6 endpoints
	want := []string{"web nodePort 172.18.0.2:30080", "dns nodePort 172.18.0.2:30080",
		"dns loadBalancerIPs 203.0.113.7:80"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for _, test := range [][3]string{
		{"mode: sockets", "mode: socket", "services.mode"},
		{"mode: sockets", "mode: sockets\nserviceCIDRs: [10.96.0.0/12]", "services.serviceCIDRs"},
		{"mode: sockets", "mode: sockets\nclientPorts: 61000-62000", "services.clientPorts"},
		{"mode: sockets", "mode: sockets\nbridged: [10.244.1.0/24]", "services.bridged"},
		{"mode: sockets", "mode: sockets\nstate: /run/culvert", "services.state"},
		{"mode: sockets", "mode: sockets\nannounce: [203.0.113.0/24]", "services.announce"},
		{"mode: sockets", "mode: sockets\nannounceOn: [eth1]", "services.announceOn"},
		{"mode: sockets", "mode: sockets\ninterface: culvert1", "services.interface"},
		{"mode: sockets", "mode: sockets\nmtu: 1400", "services.mtu"},
		{"name: web,", "name: web, clusterIP: 10.96.0.10,", "services.serve[0].clusterIP"},
		{"name: web,", "name: web, protocol: sctp,", "services.serve[0].protocol"},
	} {
		_, err := parse(t, append(slices.Clone(bare), test[0], test[1])...)
		if err == nil || !strings.Contains(err.Error(), test[2]+":") || strings.Count(err.Error(), "\n") > 0 {
			t.Errorf("%q: %v, want %s alone", test[1], err, test[2])
		}
	}
	if _, err := parse(t, append(slices.Clone(bare), "nodePort: 30080, endpoints",
		"nodePort: 61005, endpoints")...); err != nil {
		t.Errorf("a port that only a device reserves: %v", err)
	}
}

// The weight in the file is the weight of the engine's backend.
func TestWeights(t *testing.T) {
	c, err := parse(t, "node: n1}]", "node: n1, weight: 3}, {address: 10.244.2.5, port: 8080}]")
	need.NoError(t, err)
	frontends := 0
	for _, s := range c.NAT(c.Addresses).Services {
		if s.Name != "web" {
			continue
		}
		frontends++
		if len(s.Backends) != 2 || s.Backends[0].Weight != 3 || s.Backends[1].Weight != 1 {
			t.Errorf("%s: %+v", s.Address, s.Backends)
		}
	}
	if frontends != 2 {
		t.Errorf("%d frontends", frontends)
	}
}
