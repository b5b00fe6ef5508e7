package rules

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"culvert/integration/need"
	"culvert/nat/packet"
)

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// milan has overlapping pod and external CIDRs, others of other sizes, and IPv6.
func milan() *Config {
	return &Config{
		Nodes: []Node{
			{Link: 4, Name: "milan-1", Address: PairOf(addr("10.80.0.2"))},
			{Link: 9, Name: "milan-2", Address: PairOf(addr("10.80.0.3")), Device: "liqo.milan2"},
		},
		LocalPodCIDRs:      []netip.Prefix{pfx("10.200.0.0/16"), pfx("10.64.32.0/19"), pfx("fd00:200::/50")},
		LocalExternalCIDRs: []netip.Prefix{pfx("10.70.0.0/16"), pfx("fd00:70::/64")},
		Remote: []RemoteCIDR{
			{Real: pfx("10.200.0.0/16"), Remapped: pfx("10.71.0.0/16")},
			{Real: pfx("10.99.64.0/18")},
			{Real: pfx("10.70.0.0/16"), Remapped: pfx("10.74.0.0/16"), External: true},
			{Real: pfx("fd00:200::/50"), Remapped: pfx("fd00:71:0:4000::/50")},
		},
		GatewayAddress: PairOf(addr("10.80.0.4")), TunnelAddress: PairOf(addr("169.254.18.1")),
		PeerTunnelAddress: PairOf(addr("169.254.18.2")),
		UnknownSource:     PairOf(addr("10.70.0.0")),
		Routes: []Route{
			{pfx("10.200.0.0/20"), 4}, {pfx("10.200.1.0/24"), 9}, {pfx("10.200.1.77/32"), 4}, {pfx("10.64.32.0/20"), 9},
			{pfx("10.80.0.2/32"), 4}, {pfx("10.80.0.3/32"), 9}, {pfx("fd00:200:0:1::/64"), 4},
		},
		Addresses: []AddressMapping{
			{External: addr("10.70.0.9"), Internal: addr("192.0.2.10")},
			{External: addr("10.70.0.10"), Internal: addr("192.0.2.11"), Via: 9},
			{External: addr("10.70.0.11"), Internal: addr("10.200.1.3")}, // a pod
		},
		Services: []Service{{
			Name: "web", Address: addr("10.70.0.20"), Port: 80, Protocol: packet.TCP,
			Backends: []Backend{{Address: addr("10.200.1.5"), Port: 8080}, {Address: addr("198.51.100.7"),
				Port: 81, Via: 9}},
		}},
	}
}

func compiled(t testing.TB, c *Config) *Ruleset {
	t.Helper()
	need.NoError(t, c.Validate())
	r, err := newRuleset(c)
	need.NoError(t, err)
	return r
}

// The order of translations, unknown sources, the return path and routing, as rules.
func TestGeneratedWalks(t *testing.T) {
	r := compiled(t, milan())
	none := netip.Addr{}
	tests := []struct {
		name     string
		packet   view
		mark     uint32     // the connection's
		reply    bool       // not the first packet
		dst, src netip.Addr // what conntrack restores
		wantSrc  string
		wantDst  string
		out      Link // noLink: no route
		connMark uint32
		dnat     bindKind
		snat     bindKind
	}{
		{"pod to remapped pod", from(4, "10.200.1.5", "10.71.2.6"), 0, false, none, none, "10.200.1.5", "10.200.2.6",
			Tunnel, 4, bindPrefix, bindNone},
		{"pod to pod that is not remapped", from(9, "10.64.33.1", "10.99.70.1"), 0, false, none, none, "10.64.33.1",
			"10.99.70.1", Tunnel, 9, bindNone, bindNone},
		{"pod to external", from(9, "10.64.33.1", "10.74.0.5"), 0, false, none, none, "10.64.33.1", "10.70.0.5", Tunnel,
			9, bindPrefix, bindNone},
		{"IPv6 to remapped pod", from(4, "fd00:200:0:1::5", "fd00:71:0:4001::6"), 0, false, none, none,
			"fd00:200:0:1::5", "fd00:200:0:1::6", Tunnel, 4, bindPrefix, bindNone},
		{"from the tunnel", from(Tunnel, "10.200.2.6", "10.200.1.5"), 0, false, none, none, "10.71.2.6", "10.200.1.5",
			9, 0, bindNone, bindPrefix},
		{"from the tunnel, not remapped", from(Tunnel, "10.99.70.1", "10.64.33.1"), 0, false, none, none, "10.99.70.1",
			"10.64.33.1", 9, 0, bindNone, bindNone},
		{"from the tunnel, IPv6", from(Tunnel, "fd00:200:0:1::6", "fd00:200:0:1::5"), 0, false, none, none,
			"fd00:71:0:4001::6", "fd00:200:0:1::5", 4, 0, bindNone, bindPrefix},
		{"the longest prefix of all nodes wins", from(Tunnel, "10.200.2.6", "10.200.1.77"), 0, false, none, none,
			"10.71.2.6", "10.200.1.77", 4, 0, bindNone, bindPrefix},
		{"what lies around it goes to the shorter one", from(Tunnel, "10.200.2.6", "10.200.7.1"), 0, false, none, none,
			"10.71.2.6", "10.200.7.1", 4, 0, bindNone, bindPrefix},
		{"reply of a pod", from(9, "10.200.1.5", "10.71.2.6"), 0, true, addr("10.200.2.6"), none, "10.200.1.5",
			"10.200.2.6", Tunnel, 9, bindNone, bindNone},

		{"unknown source: a client", from(4, "11.11.11.7", "10.71.2.6"), 0, false, none, none, "10.70.0.0",
			"10.200.2.6", Tunnel, 4, bindPrefix, bindAddress},
		{"unknown source: the node itself", from(9, "10.80.0.3", "10.71.2.6"), 0, false, none, none, "10.70.0.0",
			"10.200.2.6", Tunnel, 9, bindPrefix, bindAddress},
		{"a source that is U keeps it", from(9, "10.70.0.0", "10.71.2.6"), 0, false, none, none, "10.70.0.0",
			"10.200.2.6", Tunnel, 9, bindPrefix, bindNone},
		{"unknown source: IPv6 has no U", from(9, "2001:db8::7", "fd00:71:0:4001::6"), 0, false, none, none,
			"2001:db8::7", "fd00:200:0:1::6", Tunnel, 9, bindPrefix, bindNoSource},
		{"reply to a client goes back to its node", from(Tunnel, "10.200.2.6", "10.70.0.0"), 4, true,
			addr("11.11.11.7"), addr("10.71.2.6"), "10.71.2.6", "11.11.11.7", 4, 4, bindNone, bindNone},
		{"reply to U goes back to its node", from(Tunnel, "10.200.2.6", "10.70.0.0"), 9, true, none, addr("10.71.2.6"),
			"10.71.2.6", "10.70.0.0", 9, 9, bindNone, bindNone},
		{"reply to a pod follows the current routes", from(Tunnel, "10.200.2.6", "10.200.1.5"), 4, true, none,
			addr("10.71.2.6"), "10.71.2.6", "10.200.1.5", 9, 4, bindNone, bindNone},
		{"reply to a pod without a route goes back to its node", from(Tunnel, "10.200.2.6", "10.200.99.5"), 9, true,
			none, addr("10.71.2.6"), "10.71.2.6", "10.200.99.5", 9, 9, bindNone, bindNone},

		{"mapped address, from the tunnel", from(Tunnel, "10.200.2.6", "10.70.0.9"), 0, false, none, none, "10.71.2.6",
			"192.0.2.10", 4, 0, bindAddress, bindPrefix},
		{"mapped address, via another node", from(Tunnel, "10.200.2.6", "10.70.0.10"), 0, false, none, none,
			"10.71.2.6", "192.0.2.11", 9, 0, bindAddress, bindPrefix},
		{"mapped pod follows its route", from(Tunnel, "10.200.2.6", "10.70.0.11"), 0, false, none, none, "10.71.2.6",
			"10.200.1.3", 9, 0, bindAddress, bindPrefix},
		{"mapped address, from a node: hairpin", from(9, "10.200.1.5", "10.70.0.9"), 0, false, none, none, "10.80.0.4",
			"192.0.2.10", 4, 0, bindAddress, bindNone},
		{"a mapped host gets its address", from(4, "192.0.2.10", "10.71.2.6"), 0, false, none, none, "10.70.0.9",
			"10.200.2.6", Tunnel, 4, bindPrefix, bindAddress},
		{"a mapped host is pinned to where it came from", from(Tunnel, "10.200.2.6", "10.70.0.10"), 4, true,
			addr("192.0.2.11"), addr("10.71.2.6"), "10.71.2.6", "192.0.2.11", 4, 4, bindNone, bindNone},
		{"a mapped pod keeps its own", from(9, "10.200.1.3", "10.71.2.6"), 0, false, none, none, "10.200.1.3",
			"10.200.2.6", Tunnel, 9, bindPrefix, bindNone},
		{"a mapping's source rule is not for the tunnel", from(Tunnel, "10.70.0.9", "10.200.1.5"), 0, false, none, none,
			"10.74.0.9", "10.200.1.5", 9, 0, bindNone, bindPrefix},
		{"nor for a host with the same address as a mapped one", from(Tunnel, "10.99.70.1", "10.70.0.9"), 0, false,
			none, none, "10.99.70.1", "192.0.2.10", 4, 0, bindAddress, bindNone},

		{"no way: pod on no node", from(Tunnel, "10.200.2.6", "10.200.99.5"), 0, false, none, none, "10.200.2.6",
			"10.200.99.5", noLink, 0, bindNone, bindNone},
		{"no way: elsewhere", from(4, "10.200.1.5", "8.8.8.8"), 0, false, none, none, "10.200.1.5", "8.8.8.8", noLink,
			0, bindNone, bindNone},
		{"no way: a real remote address that is remapped is a local one", from(4, "10.200.1.5", "10.200.99.6"), 0,
			false, none, none, "10.200.1.5", "10.200.99.6", noLink, 0, bindNone, bindNone},
		{"from the tunnel nothing goes back", from(Tunnel, "10.200.2.6", "10.99.70.1"), 0, false, none, none,
			"10.200.2.6", "10.99.70.1", noLink, 0, bindNone, bindNone},
	}
	for _, tt := range tests {
		w := walkPacket(r, tt.packet, tt.mark, !tt.reply, tt.dst, tt.src)
		if (w.outcome == NoRoute) != (tt.out == noLink) || w.out != tt.out || w.src != addr(tt.wantSrc) ||
			w.dst != addr(tt.wantDst) {
			t.Errorf("%s: %v → %v at port %d, want %s → %s at %d", tt.name, w.src, w.dst, w.out, tt.wantSrc,
				tt.wantDst, tt.out)
		}
		if w.connMark != tt.connMark || w.dnat != tt.dnat || w.snat != tt.snat {
			t.Errorf("%s: connection mark %d, bindings %d %d, want %d, %d %d", tt.name, w.connMark, w.dnat, w.snat,
				tt.connMark, tt.dnat, tt.snat)
		}
	}
}

// A service is found by its exact address, port and protocol, and from the tunnel only.
func TestGeneratedService(t *testing.T) {
	r := compiled(t, milan())
	v := from(Tunnel, "10.200.2.6", "10.70.0.20")
	v.l4 = [4]byte{200, 1, 0, 80}
	if b := r.bind(stageDNAT, &v); b.kind != bindService || b.service.Service.Name != "web" {
		t.Errorf("service: %+v", b)
	}
	for name, edit := range map[string]func(*view){
		"port":      func(v *view) { v.l4[3] = 81 },
		"protocol":  func(v *view) { v.proto = packet.UDP },
		"address":   func(v *view) { v.dst = addr("10.70.0.21") },
		"side":      func(v *view) { v.in = 4 },
		"transport": func(v *view) { v.hasL4 = false },
	} {
		other := v
		edit(&other)
		if b := r.bind(stageDNAT, &other); b.kind != bindNone {
			t.Errorf("another %s: %+v", name, b)
		}
	}
	for dst, link := range map[string]Link{"10.200.1.5": 9, "198.51.100.7": 9, "192.0.2.10": 4} {
		if hop, ok := r.route(Tunnel, 0, v.src, addr(dst)); !ok || hop.link != link {
			t.Errorf("route to %s: %+v %v, want port %d", dst, hop, ok, link)
		}
	}
}

func TestGeneratedUnknownSourceOff(t *testing.T) {
	c := milan()
	c.UnknownSource = Pair{}
	r := compiled(t, c)
	for src, want := range map[string]bindKind{
		"11.11.11.7": bindNoSource, "10.80.0.3": bindNoSource, "192.0.2.10": bindAddress, "10.200.1.5": bindNone,
		"10.70.0.0": bindNone,
	} {
		if w := walkPacket(r, from(4, src, "10.71.2.6"), 0, true, netip.Addr{}, netip.Addr{}); w.snat != want {
			t.Errorf("from %s: %v, want %v", src, w.snat, want)
		}
	}
}

func TestGeneratedFilter(t *testing.T) {
	c := milan()
	c.Rules = []FilterRule{
		{Name: "let-admin", From: FromRemote, Source: []netip.Prefix{pfx("10.99.64.0/30"), pfx("10.99.65.0/31")},
			Action: FilterAccept},
		{Name: "no-ssh-in", From: FromRemote, Protocol: packet.TCP, Ports: []PortRange{{22, 22}, {2200, 2299}},
			Action: FilterDrop},
		{Name: "no-dns-out", From: FromLocal, Protocol: packet.UDP, Ports: []PortRange{{53, 53}},
			Destination: []netip.Prefix{pfx("10.200.8.0/21")}, Action: FilterReject},
		{Name: "no-telnet", Protocol: packet.SCTP, Ports: []PortRange{{23, 23}}, Action: FilterDrop},
	}
	r := compiled(t, c)
	tests := []struct {
		in       Link
		src, dst string
		proto    uint8
		port     uint16
		verdict  ruleVerdict
		by       string
	}{
		{Tunnel, "10.200.2.6", "10.200.1.5", packet.TCP, 22, ruleDrop, "no-ssh-in"},
		{Tunnel, "10.200.2.6", "10.200.1.5", packet.TCP, 2299, ruleDrop, "no-ssh-in"},
		{Tunnel, "10.200.2.6", "10.200.1.5", packet.TCP, 2300, ruleAccept, ""},
		{Tunnel, "10.200.2.6", "10.200.1.5", packet.UDP, 22, ruleAccept, ""},
		{Tunnel, "10.99.65.1", "10.200.1.5", packet.TCP, 22, ruleAccept, "let-admin"},
		{4, "10.200.1.5", "10.71.2.6", packet.TCP, 22, ruleAccept, ""},
		// the forward hook sees the real destination
		{4, "10.200.1.5", "10.71.9.6", packet.UDP, 53, ruleReject, "no-dns-out"},
		{4, "10.200.1.5", "10.71.2.6", packet.UDP, 53, ruleAccept, ""},
		{4, "10.200.1.5", "10.71.2.6", packet.SCTP, 23, ruleDrop, "no-telnet"},
		{Tunnel, "10.200.2.6", "10.200.1.5", packet.SCTP, 23, ruleDrop, "no-telnet"},
	}
	for _, tt := range tests {
		v := from(tt.in, tt.src, tt.dst)
		v.proto, v.l4 = tt.proto, [4]byte{200, 1, byte(tt.port >> 8), byte(tt.port)}
		before := map[string]uint64{}
		for path, n := range r.counters() {
			before[path] = n.packets.Load()
		}
		if b := r.bind(stageDNAT, &v); b.addr.IsValid() {
			v.dst = b.addr
		}
		mark := uint32(outboundMark)
		if v.in.Outside() {
			mark = 0
		}
		hop, _ := r.route(v.in, mark, v.src, v.dst)
		v.out = hop.link
		e := Effects{hits: make([]*rule, 0, 8)}
		if got := r.filter(stageForward, &v, &e); got != tt.verdict {
			t.Errorf("%+v: %v", tt, got)
		}
		countRules(e.hits, false, 1, 40)
		for path, n := range r.counters() {
			if want := before[path] + map[bool]uint64{true: 1}[path == "rules/forward/"+tt.by]; n.packets.Load() !=
				want && strings.HasPrefix(path, "rules/") {
				t.Errorf("%+v: %s counts %d, want %d", tt, path, n.packets.Load(), want)
			}
		}
	}
}

func TestGeneratedMSS(t *testing.T) {
	for clamp, want := range map[MSSClamp][2]Effects{
		MSSAuto: {{routeMSS: true}, {routeMSS: true}},
		MSSOff:  {{}, {}},
		1200:    {{mss: 1200}, {mss: 1180}},
	} {
		c := milan()
		c.MSSClamp = clamp
		r := compiled(t, c)
		for i, pair := range [][2]string{{"10.200.1.5", "10.200.2.6"}, {"fd00:200:0:1::5", "fd00:200:0:1::6"}} {
			for _, links := range [][2]Link{{4, Tunnel}, {Tunnel, 9}} {
				v := from(links[0], pair[0], pair[1])
				v.out = links[1]
				var e Effects
				r.filter(stageForward, &v, &e)
				if e.mss != want[i].mss || e.routeMSS != want[i].routeMSS {
					t.Errorf("clamp %d, %v: %+v", clamp, v, e)
				}
			}
		}
	}
}

// The generated tables carry the names of Liqo's.
func TestGeneratedNames(t *testing.T) {
	c := milan()
	var names []string
	for _, table := range c.Tables() {
		names = append(names, table.Name)
	}
	for _, table := range c.PolicyTables() {
		names = append(names, "route:"+table.Name)
	}
	for _, want := range []string{
		"remap-podcidr", "remap-externalcidr", "10.70.0.9-remap-ipmapping-gw", "service-nodeport-routing",
		"mss-clamping",
		"route:gw-ext", "route:milan-1", "route:milan-2-service-nodeport-routing", "route:milan-2-extcidr",
	} {
		if !slices.Contains(names, want) {
			t.Errorf("no table %s among %v", want, names)
		}
	}
}

func TestDeviceNames(t *testing.T) {
	for _, edit := range []func(*Config){
		func(c *Config) { c.Nodes[0].Name = "liqo-tunnel" },
		func(c *Config) { c.Nodes[0].Device = "liqo.milan2" },
		func(c *Config) { c.Nodes[1].Device = "milan-1" },
	} {
		c := milan()
		edit(c)
		if _, err := newRuleset(c); err == nil || !strings.Contains(err.Error(), "is taken") {
			t.Errorf("error %v", err)
		}
	}
}
