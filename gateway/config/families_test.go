package config

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"culvert/integration/need"
	"culvert/nat/rules"
)

// dualFile is goodFile with IPv6 beside IPv4.
var dualFile = strings.NewReplacer(
	"gatewayAddress: 10.80.0.4", `gatewayAddress: [10.80.0.4, "fd80::4"]`,
	"address: 10.80.0.2, podCIDRs: [10.0.1.0/24]",
	`address: [10.80.0.2, "fd80::2"], podCIDRs: [10.0.1.0/24, "fd00:10:0:1::/64"]`,
	"address: 10.80.0.3, podCIDRs: [10.0.2.0/24",
	`address: ["fd80::3", 10.80.0.3], podCIDRs: [10.0.2.0/24, "fd00:10:0:2::/64"`,
	"local:  {podCIDRs: [10.0.0.0/16], externalCIDRs: [10.70.0.0/16]}",
	`local:  {podCIDRs: [10.0.0.0/16, "fd00:10::/48"], externalCIDRs: [10.70.0.0/16, "fd00:70::/48"]}`,
	"{cidr: 10.200.0.0/20}]", `{cidr: 10.200.0.0/20}, {cidr: "fd00:10::/48", remap: "fd00:61::/48"}]`,
	"remap: 10.71.0.0/16}]", `remap: 10.71.0.0/16}, {cidr: "fd00:70::/48", remap: "fd00:71::/48"}]`,
	"via: rome-2}]", `via: rome-2}, {external: [10.70.0.10, "fd00:70::9"], internal: ["2001:db8::10", 192.0.2.11]}]`,
	"weight: 3}]}", `weight: 3}]}
    - {name: both, address: [10.70.0.21, "fd00:70::20"], port: 80, backends: [{address: 10.0.1.6, port: 80}, {address: "fd00:10:0:1::5", port: 8080}]}`,
	"action: drop}", `action: drop}
  - {name: no-ping-in, from: remote, protocol: icmpv6, src: ["fd00:10::/48"], action: drop}`,
).Replace(goodFile)

func TestParseDual(t *testing.T) {
	c, err := parseText([]byte(dualFile), keyFolder(t))
	need.NoError(t, err)
	pair := func(v4, v6 string) rules.Pair {
		return rules.PairOf(netip.MustParseAddr(v6), netip.MustParseAddr(v4))
	}
	if c.Geneve.GatewayAddress != pair("10.80.0.4", "fd80::4") || c.Geneve.Nodes[1].Address != pair("10.80.0.3",
		"fd80::3") || c.UnknownSource != pair("10.70.0.0", "fd00:70::") {
		t.Errorf("gateway %v, second node %v, unknown source %v", c.Geneve.GatewayAddress, c.Geneve.Nodes[1].Address,
			c.UnknownSource)
	}
	if c.Rules[1].Protocol != 58 {
		t.Errorf("protocol %d", c.Rules[1].Protocol)
	}
	if err := Check(c); err != nil {
		t.Error(err)
	}
	nc := c.NAT(Links{}.Assign(c.Geneve.Nodes), 1)
	for _, want := range []string{"10.80.0.2/32", "fd80::2/128", "fd00:10:0:1::/64"} {
		if !slices.ContainsFunc(nc.Routes, func(r rules.Route) bool {
			return r.Link == 1 &&
				r.Prefix == netip.MustParsePrefix(want)
		}) {
			t.Errorf("no route to %s: %v", want, nc.Routes)
		}
	}
}

// TestParseIPv6: a file without inner IPv4 addresses describes a gateway that uses IPv6 only.
func TestParseIPv6(t *testing.T) {
	const file = `
cluster: rome
peer: milan
wireguard: {role: client, privateKeyFile: rome.key, peerPublicKeyFile: milan.pub, endpoint: "192.0.2.7:51840"}
geneve:
  gatewayAddress: fd80::4
  nodes:
    - {name: rome-1, vni: 1, underlay: 172.18.0.2, address: ["fd80::2"], podCIDRs: ["fd00:10:0:1::/64"]}
network:
  local: {podCIDRs: ["fd00:10::/48"], externalCIDRs: ["fd00:70::/48"]}
  remote: {podCIDRs: [{cidr: "fd00:10::/48", remap: "fd00:61::/48"}]}
nat: {unknownSource: "fd00:70::1"}
`
	c, err := parseText([]byte(file), keyFolder(t))
	need.NoError(t, err)
	if err := Check(c); err != nil {
		t.Error(err)
	}
	if len(c.Warnings) > 0 {
		t.Errorf("warnings %q", c.Warnings)
	}
	six := func(a string) rules.Pair { return rules.Pair{V6: netip.MustParseAddr(a)} }
	if c.Geneve.GatewayAddress != six("fd80::4") || c.Geneve.Nodes[0].Address != six("fd80::2") ||
		c.UnknownSource != six("fd00:70::1") {
		t.Errorf("gateway %v, node %v, unknown source %v", c.Geneve.GatewayAddress, c.Geneve.Nodes[0].Address,
			c.UnknownSource)
	}
}

// hasRemedy matches the part of an error that says what to write or do instead.
var hasRemedy = regexp.MustCompile(
	`[;,] (write|give|choose|add|leave|keep|say|want) |need a CIDR of their own|such as 192`)

// TestParseDualErrors: as TestParseErrors, for edits of dualFile; each error says what to do.
func TestParseDualErrors(t *testing.T) {
	for _, tt := range []struct{ name, old, new, want string }{
		{"link-local underlay", "underlay: 172.18.0.3", "underlay: \"fe80::3\"",
			"geneve.nodes[1].underlay: fe80::3 is link-local, and a tunnel cannot say on which link; write another address of that machine"},
		{"underlay with a zone", "underlay: 172.18.0.3", "underlay: \"fe80::3%eth0\"",
			"geneve.nodes[1].underlay: fe80::3 has a zone, which tunnels do not have; leave it out"},
		{"mapped underlay", "underlay: 172.18.0.3", "underlay: \"::ffff:172.18.0.3\"",
			"geneve.nodes[1].underlay: ::ffff:172.18.0.3 is IPv4 mapped into IPv6; write 172.18.0.3"},
		{"multicast underlay", "underlay: 172.18.0.3", "underlay: \"ff02::1\"",
			"geneve.nodes[1].underlay: ff02::1 is not the address of a host; write the one by which"},
		{"link-local endpoint", `"192.0.2.7:51840"`, `"[fe80::7]:51840"`,
			"wireguard.endpoint: fe80::7 is link-local; add the interface that leads to it, such as [fe80::7%eth0]:51840"},
		{"endpoint without brackets", `"192.0.2.7:51840"`, `"2001:db8::7:51840"`,
			"wireguard.endpoint: \"2001:db8::7:51840\" is not host:port; write an IPv6 address in brackets, such as [2001:db8::7]:51840"},
		{"mapped endpoint", `"192.0.2.7:51840"`, `"[::ffff:192.0.2.7]:51840"`,
			"wireguard.endpoint: ::ffff:192.0.2.7 is IPv4 mapped into IPv6; write 192.0.2.7"},
		{"metrics without brackets", `metrics: ""`, `metrics: "::1:8082"`,
			"metrics: \"::1:8082\" is not host:port; write an IPv6 address in brackets"},
		{"three addresses", `[10.80.0.4, "fd80::4"]`, `[10.80.0.4, "fd80::4", "fd80::5"]`,
			"geneve.gatewayAddress: 3 addresses; write one, or a list of one IPv4 and one IPv6 address"},
		{"two of one family", `[10.80.0.4, "fd80::4"]`, `["fd80::5", "fd80::4"]`,
			"geneve.gatewayAddress[1]: fd80::4 is a second IPv6 address beside fd80::5; keep one of each family"},
		{"no list's element", `[10.80.0.4, "fd80::4"]`, `[10.80.0.4, fd80]`,
			`geneve.gatewayAddress[1]: "fd80" is not an IP address such as 192.0.2.1`},
		{"empty list", `[10.80.0.4, "fd80::4"]`, `[]`,
			"geneve.gatewayAddress: missing; want IP address, or a list of one of each family: "},
		{"mapping in place of a list", `[10.80.0.4, "fd80::4"]`, `{ipv4: 10.80.0.4}`, "geneve.gatewayAddress: "},
		{"IPv4 mapped into IPv6", `"fd80::4"`, `"::ffff:10.80.0.5"`,
			"geneve.gatewayAddress[1]: ::ffff:10.80.0.5 is IPv4 mapped into IPv6; write 10.80.0.5"},
		{"zone", `"fd80::4"`, `"fe80::4%eth0"`,
			"geneve.gatewayAddress[1]: fe80::4 has a zone, which tunnels do not have; leave it out"},
		{"link-local gateway", `"fd80::4"`, `"fe80::4"`,
			"geneve.gatewayAddress: routers do not forward packets to fe80::4"},
		{"multicast gateway", `"fd80::4"`, `"ff02::4"`,
			"geneve.gatewayAddress: routers do not forward packets to ff02::4"},
		{"gateway of no host", `"fd80::4"`, `"::"`, "geneve.gatewayAddress: routers do not forward packets to ::"},
		{"node of one family", `[10.80.0.2, "fd80::2"]`, `10.80.0.2`,
			"geneve.nodes[0].address: only 10.80.0.2, and geneve.gatewayAddress has fd80::4 too; add an IPv6 address here, or remove that one"},
		{"node of the other family", `[10.80.0.2, "fd80::2"]`, `"fd80::2"`,
			"geneve.nodes[0].address: only fd80::2, and geneve.gatewayAddress has 10.80.0.4 too; add an IPv4 address here, or remove that one"},
		{"node is the gateway", `"fd80::2"`, `"fd80::4"`,
			"geneve.nodes[0].address: fd80::4 is geneve.gatewayAddress too; give each its own"},
		{"nodes of one address", `"fd80::3"`, `"fd80::2"`,
			"geneve.nodes[1].address: fd80::2 is geneve.nodes[0].address too"},
		{"node among pods", `"fd80::3"`, `"fd00:10:0:2::1"`,
			"geneve.nodes[1].address: fd00:10:0:2::1 lies in network.local.podCIDRs[1] (fd00:10::/48); internal addresses need a CIDR of their own"},
		{"remap into the other family", `remap: "fd00:61::/48"`, `remap: 10.99.0.0/16`,
			"network.remote.podCIDRs[2].remap: 10.99.0.0 is IPv4, and fd00:10:: is not; nothing translates between IPv4 and IPv6, give both one family"},
		{"remap of another length", `remap: "fd00:61::/48"`, `remap: "fd00:61::/56"`,
			"network.remote.podCIDRs[2].remap: fd00:61::/56 and fd00:10::/48 differ in length; a remap is 1:1, write a /48"},
		{"remap with host bits", `remap: "fd00:61::/48"`, `remap: "fd00:61::1/48"`,
			"network.remote.podCIDRs[2].remap: fd00:61::1/48 has host bits set; write fd00:61::/48"},
		{"remap onto local", `remap: "fd00:61::/48"`, `remap: "fd00:70::/48"`,
			"network.remote.podCIDRs[2].remap: fd00:70::/48 overlaps network.local.externalCIDRs[1] (fd00:70::/48); choose an unused CIDR"},
		{"overlap without remap", `{cidr: "fd00:10::/48", remap: "fd00:61::/48"}`, `{cidr: "fd00:10::/48"}`,
			"network.remote.podCIDRs[2].cidr: fd00:10::/48 overlaps network.local.podCIDRs[1] (fd00:10::/48); give it a remap to an unused CIDR of the same length"},
		{"remap among link-local", `remap: "fd00:61::/48"`, `remap: "fe80::/48"`,
			"network.remote.podCIDRs[2].remap: fe80::/48 overlaps the link-local addresses, of which the tunnel has some (fe80::/10)"},
		{"external CIDR of multicast", `10.70.0.0/16, "fd00:70::/48"]}`, `10.70.0.0/16, "fd00:70::/48", "ff00::/16"]}`,
			"network.local.externalCIDRs[2]: ff00::/16 overlaps the multicast addresses (ff00::/8); choose another CIDR"},
		{"CIDR mapped into IPv6", `10.70.0.0/16, "fd00:70::/48"]}`,
			`10.70.0.0/16, "fd00:70::/48", "::ffff:10.1.0.0/112"]}`,
			"network.local.externalCIDRs[2]: ::ffff:10.1.0.0/112 is IPv4 mapped into IPv6; write it as IPv4"},
		{"no MTU for IPv6", "mtu: 1400", "mtu: 1279",
			"mtu: 1279, and geneve.gatewayAddress is IPv6, which needs 1280; write 1280 or more, or remove the IPv6 addresses"},
		{"unequal pairs of a mapping", `internal: ["2001:db8::10", 192.0.2.11]`, "internal: 192.0.2.11",
			"nat.addresses[1].internal: 192.0.2.11 and 10.70.0.10, fd00:70::9 are not of the same families; write an address of each family of the other"},
		{"mapping into the other family",
			`external: [10.70.0.10, "fd00:70::9"], internal: ["2001:db8::10", 192.0.2.11]`,
			`external: 10.70.0.10, internal: "2001:db8::10"`,
			"nat.addresses[1].internal: 2001:db8::10 and 10.70.0.10 are not of the same families; write an address of each family of the other"},
		{"mapping onto the unknown source", `"fd00:70::9"`, `"fd00:70::"`,
			"nat.addresses[1].external: fd00:70:: is the unknown-source address; choose another"},
		{"service without backend of a family", `{address: "fd00:10:0:1::5", port: 8080}`,
			"{address: 10.0.1.5, port: 8080}",
			"nat.services[1].address: fd00:70::20 has no IPv6 backend; add one, or remove the address"},
		{"backend of the other family", `[10.70.0.21, "fd00:70::20"]`, "10.70.0.21",
			"nat.services[1].backends[1].address: fd00:10:0:1::5 is IPv6, and the service has only 10.70.0.21; add an IPv6 address to it"},
		{"unknown source elsewhere", "nat:\n", "nat:\n  unknownSource: [10.70.0.1, \"fd00:99::1\"]\n",
			"nat.unknownSource: fd00:99::1 is in no CIDR of network.local.externalCIDRs; choose an address of one"},
		{"rule between families", `protocol: icmpv6, src: ["fd00:10::/48"]`, `src: ["fd00:10::/48"], dst: [10.0.0.0/8]`,
			"rules[1].dst: src and dst have no family in common, so no packet matches; write a rule for each family"},
		{"ICMP of the other family", "protocol: icmpv6", "protocol: icmp",
			"rules[1].protocol: icmp, but the addresses in src or dst are of the other family, so no packet matches; write icmpv6"},
		{"ports of ICMPv6", "protocol: icmpv6", "protocol: icmpv6, ports: 22",
			"rules[1].ports: ports need protocol: tcp, udp or sctp; add one, or leave ports out"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := strings.Replace(dualFile, tt.old, tt.new, 1)
			if text == dualFile {
				t.Fatal("nothing was replaced")
			}
			_, err := parseText([]byte(text), keyFolder(t))
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("got %v, want %s", err, tt.want)
			}
			if !hasRemedy.MatchString(err.Error()) {
				t.Errorf("no remedy in %v", err)
			}
		})
	}
}

// TestFamilyWithoutGateway: anything of a family requires an address of the gateway in that family.
func TestFamilyWithoutGateway(t *testing.T) {
	text := strings.NewReplacer(`[10.80.0.4, "fd80::4"]`, "10.80.0.4", `[10.80.0.2, "fd80::2"]`, "10.80.0.2",
		`["fd80::3", 10.80.0.3]`, "10.80.0.3").Replace(dualFile)
	_, err := parseText([]byte(text), keyFolder(t))
	if err == nil {
		t.Fatal("accepted")
	}
	const words = " is IPv6, and geneve.gatewayAddress has no address of this family; add one there and to each node"
	want := []string{"network.local.podCIDRs[1]: fd00:10::" + words,
		"network.local.externalCIDRs[1]: fd00:70::" + words,
		"network.remote.podCIDRs[2].cidr: fd00:10::" + words, "network.remote.externalCIDRs[1].cidr: fd00:70::" + words}
	if got := strings.Split(err.Error(), "\n"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestAutoOfAFamily: an address that auto chooses for a mapped host or a service has the family of
// that host or service.
func TestAutoOfAFamily(t *testing.T) {
	edit := strings.NewReplacer(`external: [10.70.0.10, "fd00:70::9"]`, "external: auto",
		`address: [10.70.0.21, "fd00:70::20"]`, "address: auto", "mssClamp: 1200", "state: s")
	if _, err := parseText([]byte(edit.Replace(dualFile)), keyFolder(t)); err != nil {
		t.Error(err)
	}
	without := strings.Replace(edit.Replace(dualFile), `, "fd00:70::/48"]}`, "]}", 1)
	_, err := parseText([]byte(without), keyFolder(t))
	want := []string{"nat.addresses[1].external: auto needs an IPv6 CIDR in network.local.externalCIDRs to choose from",
		"nat.services[1].address: auto needs an IPv6 CIDR in network.local.externalCIDRs to choose from"}
	if err == nil || !slices.Equal(strings.Split(err.Error(), "\n"), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}
