package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"culvert/gateway/configfile"
	"culvert/gateway/wgkey"
	"culvert/geneve"
	"culvert/integration/need"
	"culvert/nat/rules"
)

// goodFile has a value for nearly every field.
const goodFile = `
cluster: rome
peer: milan
mtu: 1400
wireguard:
  role: client
  privateKeyFile: rome.key
  peerPublicKeyFile: milan.pub
  endpoint: "192.0.2.7:51840"
  keepalive: 10s
geneve:
  gatewayAddress: 10.80.0.4
  nodes:
    - {name: rome-1, vni: 1, underlay: 172.18.0.2, address: 10.80.0.2, podCIDRs: [10.0.1.0/24], inner: ip}
    - {name: rome-2, vni: 16777215, underlay: 172.18.0.3, address: 10.80.0.3, podCIDRs: [10.0.2.0/24, 10.0.64.0/18], encap: vxlan}
network:
  local:  {podCIDRs: [10.0.0.0/16], externalCIDRs: [10.70.0.0/16]}
  remote:
    podCIDRs:      [{cidr: 10.0.0.0/16,  remap: 10.61.0.0/16}, {cidr: 10.200.0.0/20}]
    externalCIDRs: [{cidr: 10.70.0.0/16, remap: 10.71.0.0/16}]
nat:
  addresses: [{external: 10.70.0.9, internal: 192.0.2.10, via: rome-2}]
  services:
    - {name: web, address: 10.70.0.20, port: 80, backends: [{address: 10.0.1.5, port: 8080, weight: 3}]}
  admit: exports
  exports: [{cidr: 10.70.0.9/32, port: 9090}, {cidr: 10.70.0.128/25, protocol: icmp}]
rules:
  - {name: no-ssh-in, from: remote, protocol: tcp, ports: "22,8000-8080", action: drop}
mssClamp: 1200
metrics: ""
log: {level: debug, format: json}
`

// keyFolder holds the two key files that goodFile names.
func keyFolder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	raw := wgkey.NewPrivate()
	for name, content := range map[string]string{
		"rome.key":  string(raw[:]),
		"milan.pub": wgkey.NewPrivate().Public().Base64() + "\n",
		"short.key": "c2hvcnQ=",
	} {
		need.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return dir
}

func TestParse(t *testing.T) {
	c, err := parseText([]byte(goodFile), keyFolder(t))
	need.NoError(t, err)
	if c.MTU != 1400 || c.WireGuard.Role != Client || c.WireGuard.ListenPort != 0 ||
		c.WireGuard.Keepalive != 10*time.Second {
		t.Errorf("got mtu %d, %+v", c.MTU, c.WireGuard)
	}
	if len(c.Geneve.Nodes) != 2 || c.Geneve.ListenPort != 6091 {
		t.Fatalf("got %+v", c.Geneve)
	}
	first, second := c.Geneve.Nodes[0], c.Geneve.Nodes[1]
	if first.Inner != geneve.IP || first.Encap != geneve.Auto || second.VNI != 1<<24-1 ||
		second.Encap != geneve.VXLAN || len(second.PodCIDRs) != 2 {
		t.Errorf("got nodes %+v", c.Geneve.Nodes)
	}
	if want := rules.PairOf(netip.MustParseAddr("10.70.0.0")); c.UnknownSource != want {
		t.Errorf("unknown source %v, want %v", c.UnknownSource, want)
	}
	if c.Remote[1].Remapped != c.Remote[1].Real {
		t.Errorf("without remap, %v is seen as %v", c.Remote[1].Real, c.Remote[1].Remapped)
	}
	rule := c.Rules[0]
	if rule.Action != rules.FilterDrop || rule.From != rules.FromRemote || rule.Protocol != 6 ||
		rule.Ports[1] != (rules.PortRange{First: 8000, Last: 8080}) {
		t.Errorf("got rule %+v", rule)
	}
	nc := c.NAT(Links{}, 1)
	if want := (rules.Endpoint{Prefix: netip.MustParsePrefix("10.70.0.9/32"), Protocol: 6, Port: 9090}); len(
		nc.Admit) != 2 || nc.Admit[0] != want || nc.Admit[1].Protocol != 1 {
		t.Errorf("admits %+v", nc.Admit)
	}
	if c.Exports = nil; c.NAT(Links{}, 1).Admit == nil {
		t.Error("admit: exports without exports admits everything")
	}
	if c.Admit = AdmitAll; c.NAT(Links{}, 1).Admit != nil {
		t.Error("admit: all admits something only")
	}
	if c.MSSClamp != 1200 || c.Metrics != "" || c.Log.Format != "json" {
		t.Errorf("got clamp %v, metrics %q, log %+v", c.MSSClamp, c.Metrics, c.Log)
	}
}

// TestKeyNamesOf32Bytes: the name of a file is no key, however long it is.
func TestKeyNamesOf32Bytes(t *testing.T) {
	dir, name := keyFolder(t), strings.Repeat("k", 28)
	need.NoError(t, os.Rename(filepath.Join(dir, "rome.key"), filepath.Join(dir, name+".key")))
	need.NoError(t, os.Rename(filepath.Join(dir, "milan.pub"), filepath.Join(dir, name+".pub")))
	text := strings.NewReplacer("rome.key", name+".key", "milan.pub", name+".pub").Replace(goodFile)
	if _, err := parseText([]byte(text), dir); err != nil {
		t.Error(err)
	}
	text = strings.Replace(text, "peerPublicKeyFile: ", "peerPublicKey: ", 1)
	if _, err := parseText([]byte(text), dir); err == nil || !strings.Contains(err.Error(),
		"wireguard.peerPublicKey: not a WireGuard key; want 44 characters of base64") {
		t.Errorf("the name of a file in place of a key: %v", err)
	}
}

// TestKeysAreNotPrinted: a key in the wrong field is refused, and not shown.
func TestKeysAreNotPrinted(t *testing.T) {
	dir := keyFolder(t)
	b, err := os.ReadFile(filepath.Join(dir, "rome.key"))
	need.NoError(t, err)
	private, err := wgkey.ParseStored(b)
	need.NoError(t, err)
	key := private.Base64()
	for _, tt := range []struct{ old, new, want string }{
		{"privateKeyFile: rome.key", "privateKeyFile: " + key,
			"wireguard.privateKeyFile: this is a key; write it into a file"},
		{"peerPublicKeyFile: milan.pub", "peerPublicKeyFile: " + key,
			"wireguard.peerPublicKeyFile: this is a key; write it into a file"},
		{"peerPublicKeyFile: milan.pub", "peerPublicKeyFile: rome.key",
			"wireguard.peerPublicKey: this is this gateway's private key"},
		{"peerPublicKeyFile: milan.pub", "peerPublicKey: " + key,
			"wireguard.peerPublicKey: this is this gateway's private key"},
	} {
		_, err := parseText([]byte(strings.Replace(goodFile, tt.old, tt.new, 1)), dir)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.want, err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), key) {
			t.Errorf("%s: the key is printed", tt.want)
		}
	}
}

// TestProxyProtocol: nat learns which backends get headers.
func TestProxyProtocol(t *testing.T) {
	text := strings.NewReplacer("via: rome-2}]",
		"via: rome-2, proxyProtocol: v2}, {external: 10.70.0.10, internal: 192.0.2.11}]",
		"- {name: web,",
		"- {name: told, address: 10.70.0.21, port: 80, proxyProtocol: v2, backends: [{address: 10.0.1.6, port: 80}]}\n    - {name: web,").Replace(goodFile)
	c, err := parseText([]byte(text), keyFolder(t))
	need.NoError(t, err)
	nc := c.NAT(Links{}.Assign(c.Geneve.Nodes), 1)
	if a, s := nc.Addresses, nc.Services; !a[0].ProxyProtocol || a[1].ProxyProtocol || !s[0].ProxyProtocol ||
		s[1].ProxyProtocol {
		t.Errorf("mappings %+v, services %+v", a, s)
	}
}

// TestParseErrors: each edit of goodFile is refused with exactly one error, which has the path of
// the field and names the cause.
func TestParseErrors(t *testing.T) {
	for _, tt := range []struct{ name, old, new, want string }{
		{"not YAML", "cluster: rome", "cluster: [rome", "not YAML"},
		{"unknown field", "mtu: 1400", "mtu: 1400\nmtuu: 3", "mtuu: no such field"},
		{"unknown nested field", "encap: vxlan}", "encap: vxlan, zone: a}", "geneve.nodes[1].zone: no such field"},
		{"duplicate field", "mtu: 1400", "mtu: 1400\nmtu: 1300", "already"},
		{"wrong shape", "  nodes:\n", "  nodes: 3\n  other:\n", "geneve.nodes: want a list, not one number"},
		{"peer is itself", "peer: milan", "peer: rome", "peer: "},
		{"mtu", "mtu: 1400", "mtu: 90000", "mtu: \"90000\" is not a number from 576 to 9000"},
		{"role", "role: client", "role: middle", "wireguard.role: \"middle\" is not one of client, server"},
		{"missing key file", "rome.key", "paris.key", "wireguard.privateKeyFile: "},
		{"short key", "rome.key", "short.key", "wireguard.privateKeyFile: "},
		{"two peer keys", "peerPublicKeyFile: milan.pub", "peerPublicKeyFile: milan.pub\n  peerPublicKey: x",
			"wireguard.peerPublicKeyFile: "},
		{"endpoint", `"192.0.2.7:51840"`, "192.0.2.7", "wireguard.endpoint: \"192.0.2.7\" is not host:port"},
		{"endpoint of no host", `"192.0.2.7:51840"`, "0.0.0.0:51840",
			"wireguard.endpoint: 0.0.0.0 is not the address of a host; give the peer's"},
		{"multicast endpoint", `"192.0.2.7:51840"`, "224.0.0.1:51840",
			"wireguard.endpoint: 224.0.0.1 is not the address of a host"},
		{"broadcast endpoint", `"192.0.2.7:51840"`, "255.255.255.255:51840",
			"wireguard.endpoint: 255.255.255.255 is not the address of a host"},
		{"broadcast underlay", "underlay: 172.18.0.3", "underlay: 255.255.255.255",
			"geneve.nodes[1].underlay: 255.255.255.255 is not the address of a host"},
		{"loopback pods", "externalCIDRs: [10.70.0.0/16]", "externalCIDRs: [10.70.0.0/16, 127.0.0.0/16]",
			"network.local.externalCIDRs[1]: 127.0.0.0/16 overlaps the loopback addresses (127.0.0.0/8)"},
		{"multicast remap", "remap: 10.61.0.0/16", "remap: 239.1.0.0/16",
			"network.remote.podCIDRs[0].remap: 239.1.0.0/16 overlaps the multicast and reserved addresses (224.0.0.0/3)"},
		{"folder as a key", "rome.key", ".", "is a directory; name a file with a key"},
		{"server with endpoint", "role: client", "role: server", "wireguard.endpoint: a server learns"},
		{"keepalive", "keepalive: 10s", "keepalive: 10", "wireguard.keepalive: "},
		{"same ports", "keepalive: 10s", "listenPort: 6091", "geneve.listenPort: 6091 is wireguard.listenPort too"},
		{"VNI too large", "vni: 16777215", "vni: 16777216", "geneve.nodes[1].vni: "},
		{"duplicate VNI", "vni: 16777215", "vni: 1", "geneve.nodes[1].vni: 1 is geneve.nodes[0].vni too"},
		{"duplicate node", "name: rome-1", "name: rome-2", "geneve.nodes[1].name: "},
		{"duplicate node address", "address: 10.80.0.3", "address: 10.80.0.2", "geneve.nodes[1].address: "},
		{"node address in a pod CIDR", "address: 10.80.0.3", "address: 10.0.7.7", "geneve.nodes[1].address: "},
		{"node is the gateway", "address: 10.80.0.3", "address: 10.80.0.4", "geneve.nodes[1].address: "},
		{"foreign pod CIDR", "10.0.64.0/18", "10.9.64.0/18", "geneve.nodes[1].podCIDRs[1]: "},
		{"host bits", "podCIDRs: [10.0.0.0/16]", "podCIDRs: [10.0.0.5/16]",
			"network.local.podCIDRs[0]: 10.0.0.5/16 has host bits set; write 10.0.0.0/16"},
		{"unequal prefixes", "remap: 10.61.0.0/16", "remap: 10.61.0.0/17", "network.remote.podCIDRs[0].remap: "},
		{"overlap without remap", "externalCIDRs: [10.70.0.0/16]", "externalCIDRs: [10.70.0.0/16, 10.200.0.0/24]",
			"network.remote.podCIDRs[1].cidr: "},
		{"remap onto local", "remap: 10.61.0.0/16", "remap: 10.70.0.0/16", "network.remote.podCIDRs[0].remap: "},
		{"remaps overlap", "remap: 10.71.0.0/16", "remap: 10.61.0.0/16", "network.remote.externalCIDRs[0].remap: "},
		{"remap auto", "remap: 10.71.0.0/16", "remap: auto",
			"network.remote.externalCIDRs[0].remap: auto needs a file that remembers"},
		{"pools overlap", "mssClamp: 1200", "ipam: {pools: [10.0.0.0/8, 10.1.0.0/16]}",
			"ipam.pools[1]: 10.1.0.0/16 overlaps ipam.pools[0]"},
		{"pool with host bits", "mssClamp: 1200", "ipam: {pools: [10.0.0.1/8]}", "ipam.pools[0]: "},
		{"empty state", "mssClamp: 1200", "state: ''", "state: missing"},
		{"control in ipam.file", "mssClamp: 1200", `ipam: {file: "a\nb"}`, "ipam.file: "},
		{"external auto without memory", "external: 10.70.0.9", "external: auto",
			"nat.addresses[0].external: auto needs a file that remembers"},
		{"address auto without memory", "address: 10.70.0.20", "address: auto",
			"nat.services[0].address: auto needs a file that remembers"},
		{"control characters in control", "mssClamp: 1200", `control: "a\nb"`, "control: "},
		{"control too long", "mssClamp: 1200", "control: /" + strings.Repeat("x", 107), "control: "},
		{"connection check", "mssClamp: 1200", "connectionCheck: 2s", "connectionCheck: "},
		{"mapping outside", "external: 10.70.0.9", "external: 10.72.0.9", "nat.addresses[0].external: "},
		{"mapping of U", "external: 10.70.0.9", "external: 10.70.0.0", "nat.addresses[0].external: "},
		{"mapping by unknown node", "via: rome-2", "via: rome-9", "nat.addresses[0].via: \"rome-9\" is no node"},
		{"service on a mapping", "address: 10.70.0.20", "address: 10.70.0.9", "nat.services[0].address: "},
		{"service port", "port: 80,", "port: 0,", "nat.services[0].port: "},
		{"admission", "admit: exports", "admit: some", "nat.admit: \"some\" is not one of all, exports"},
		{"export of a host", "cidr: 10.70.0.9/32", "cidr: 10.70.0.9", "nat.exports[0].cidr: "},
		{"export outside", "cidr: 10.70.0.9/32", "cidr: 10.72.0.9/32",
			"nat.exports[0].cidr: 10.72.0.9/32 is in no CIDR of network.local"},
		{"port of ICMP", "protocol: icmp}", "protocol: icmp, port: 7}", "nat.exports[1].port: icmp has no ports"},
		{"ICMP of the other family", "protocol: icmp}", "protocol: icmpv6}",
			"nat.exports[1].protocol: icmpv6, but cidr is of the other family; write icmp"},
		{"export twice", "{cidr: 10.70.0.128/25, protocol: icmp}", "{cidr: 10.70.0.9/32, port: 9090}",
			"nat.exports[1].cidr: the same as nat.exports[0]"},
		{"PROXY protocol of UDP", "port: 80, backends", "port: 80, protocol: udp, proxyProtocol: v2, backends",
			"nat.services[0].proxyProtocol: v2 needs protocol: tcp"},
		{"PROXY protocol, version 1", "via: rome-2}", "via: rome-2, proxyProtocol: v1}",
			"nat.addresses[0].proxyProtocol: \"v1\" is not one of none, v2"},
		{"ports without protocol", "protocol: tcp, ports", "ports", "rules[0].ports: "},
		{"port range backwards", "8000-8080", "8080-8000", "rules[0].ports: "},
		{"action", "action: drop", "action: explode", "rules[0].action: "},
		{"log level", "level: debug", "level: loud", "log.level: "},
		{"two internal addresses", "via: rome-2}", "via: rome-2}, {external: 10.70.0.8, internal: 192.0.2.10}",
			"nat.addresses[1].internal: 192.0.2.10 is nat.addresses[0].internal too"},
		{"internal multicast", "internal: 192.0.2.10", "internal: 224.0.0.1",
			"nat.addresses[0].internal: routers do not forward packets to 224.0.0.1"},
		{"backend loopback", "{address: 10.0.1.5,", "{address: 127.0.0.1,", "nat.services[0].backends[0].address: "},
		{"gateway address unspecified", "gatewayAddress: 10.80.0.4", "gatewayAddress: 0.0.0.0",
			"geneve.gatewayAddress: routers do not forward packets to 0.0.0.0"},
		{"node address broadcast", "address: 10.80.0.3", "address: 255.255.255.255", "geneve.nodes[1].address: "},
		{"IP in VXLAN", "encap: vxlan", "encap: vxlan, inner: ip",
			"geneve.nodes[1].inner: VXLAN carries Ethernet only"},
		{"source check", "gatewayAddress: 10.80.0.4", "gatewayAddress: 10.80.0.4\n  sourceCheck: pod",
			"geneve.sourceCheck: \"pod\" is not one of node, cluster"},
		{"node named as the tunnel", "name: rome-1", "name: liqo-tunnel",
			"geneve.nodes[0].name: \"liqo-tunnel\" is a name of the gateway's own"},
		{"node named as a table", "name: rome-1", "name: gw-ext", "geneve.nodes[0].name: "},
		{"node named as another's table", "name: rome-1", "name: rome-2-extcidr", "geneve.nodes[0].name: "},
		{"node named as another's return table", "name: rome-1", "name: rome-2-service-nodeport-routing",
			"geneve.nodes[0].name: "},
		{"line break in the cluster's name", "cluster: rome", `cluster: "rome\nlevel=error msg=forged"`,
			`cluster: "rome\nlevel=error msg=forged" is no name`},
		{"path in the cluster's name", "cluster: rome", "cluster: /../../x", `cluster: "/../../x" is no name`},
		{"folder in the cluster's name", "cluster: rome", "cluster: ..", `cluster: ".." is no name`},
		{"NUL in the peer's name", "peer: milan", `peer: "mi\0lan"`, `peer: "mi\x00lan" is no name`},
		{"escape sequence in a node's name", "name: rome-1", `name: "rome\e[31m"`,
			`geneve.nodes[0].name: "rome\x1b[31m" is no name`},
		{"slash in a service's name", "name: web", "name: a/b", `nat.services[0].name: "a/b" is no name`},
		{"blank in a rule's name", "name: no-ssh-in", "name: no ssh", `rules[0].name: "no ssh" is no name`},
		{"long name", "cluster: rome", "cluster: " + strings.Repeat("a", 64),
			"cluster: 64 characters; a name here has at most 63"},
		{"long name of a node", "name: rome-1", "name: " + strings.Repeat("a", 254),
			"geneve.nodes[0].name: 254 characters"},
		{"second document", "mtu: 1400", "mtu: 1400\n---\nmtu: 1300", "the file holds more than one YAML document"},
		{"empty second document", "log: {level: debug, format: json}\n", "log: {level: debug, format: json}\n---\n",
			"the file holds more than one YAML document"},
		{"text behind the document", "log: {level: debug, format: json}\n",
			"log: {level: debug, format: json}\n...\nmtu: 1\n", "the file holds more than one YAML document"},
		{"escape sequence in a field's name", "mtu: 1400", `"\e[31m": 3`, `\x1b[31m: no such field`},
		{"line break in a key file's name", "rome.key", `"rome\nforged"`,
			`\nforged": no such file or directory; make a key with culvert keygen`},
		{"line break in a remapped CIDR", "{cidr: 10.70.0.0/16, remap: 10.71.0.0/16}",
			`{cidr: "10.70.0.0/16\nforged", remap: 10.71.0.0/16}`,
			`network.remote.externalCIDRs[0].cidr: "10.70.0.0/16\nforged" is not a CIDR`},
		{"line break in a zone", "gatewayAddress: 10.80.0.4", `gatewayAddress: "fe80::1%a\nforged"`,
			"geneve.gatewayAddress: fe80::1 has a zone"},
		{"line break in the endpoint's host", `"192.0.2.7:51840"`, `"milan\nforged:51840"`,
			`wireguard.endpoint: "milan\nforged" is neither an address nor a host name`},
		{"line break in the endpoint's zone", `"192.0.2.7:51840"`, `"[fe80::1%a\nforged]:51840"`,
			`wireguard.endpoint: "fe80::1%a\nforged" is neither`},
		{"metrics without a port", `metrics: ""`, "metrics: 127.0.0.1", `metrics: "127.0.0.1" is not host:port`},
		{"metrics port", `metrics: ""`, "metrics: 127.0.0.1:99999", `metrics: "99999" is not a port`},
		{"metrics host", `metrics: ""`, "metrics: \"a b:1\"", `metrics: "a b" is neither`},
		{"too many combinations", "- {name: no-ssh-in, from: remote, protocol: tcp, ports: \"22,8000-8080\"",
			"- {name: no-ssh-in, from: remote, protocol: tcp, src: [" +
				strings.Repeat("10.0.0.0/8,", 1024) + "], dst: [" + strings.Repeat("10.0.0.0/8,", 513) + "]",
			"rules: more than 524288 combinations"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			edited := strings.Replace(goodFile, tt.old, tt.new, 1)
			if edited == goodFile {
				t.Fatalf("the edit of %q does nothing", tt.old)
			}
			_, err := parseText([]byte(edited), keyFolder(t))
			if err == nil {
				t.Fatal("accepted")
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != 1 || !strings.Contains(lines[0], tt.want) {
				t.Errorf("got %q\nwant one line with %q", lines, tt.want)
			}
		})
	}
}

// TestParseAllAtOnce: errors of every kind are reported in one run.
func TestParseAllAtOnce(t *testing.T) {
	edited := strings.NewReplacer(
		"mtu: 1400", "mtu: x\nmtuu: 3",
		"vni: 16777215", "vni: 1",
		"remap: 10.61.0.0/16", "remap: 10.61.0.0/17",
		"{cidr: 10.200.0.0/20}", "{cidr: 10.70.16.0/20}",
		"action: drop", "action: explode",
	).Replace(goodFile)
	_, err := parseText([]byte(edited), keyFolder(t))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, path := range []string{"mtu:", "mtuu:", "geneve.nodes[1].vni:", "network.remote.podCIDRs[0].remap:",
		"network.remote.podCIDRs[1].cidr:", "rules[0].action:"} {
		if !strings.Contains("\n"+err.Error(), "\n"+path) {
			t.Errorf("no error for %s in\n%v", path, err)
		}
	}
}

func TestEmptyFile(t *testing.T) {
	_, err := parseText(nil, t.TempDir())
	if err == nil {
		t.Fatal("accepted")
	}
	for _, path := range []string{"cluster:", "peer:", "wireguard.role:", "wireguard.privateKeyFile:",
		"geneve.gatewayAddress:",
		"geneve.nodes:", "network.local.podCIDRs:", "network.remote.podCIDRs:"} {
		if !strings.Contains("\n"+err.Error(), "\n"+path+" missing") {
			t.Errorf("no error for %s in\n%v", path, err)
		}
	}
}

// TestValueMayLack: a Config without a file may lack what a source learns while the gateway runs,
// each part alone and all together. A file may lack none of it.
func TestValueMayLack(t *testing.T) {
	full, err := parseText([]byte(goodFile), keyFolder(t))
	need.NoError(t, err)
	lacks := map[string]func(*Config){
		"cluster":                 func(c *Config) { c.Cluster = "" },
		"wireguard.peerPublicKey": func(c *Config) { c.WireGuard.PeerPublicKey = wgkey.Key{} },
		"geneve.gatewayAddress":   func(c *Config) { c.Geneve.GatewayAddress = rules.Pair{} },
		"geneve.nodes":            func(c *Config) { c.Geneve.Nodes, c.Addresses = nil, nil }, // which need one
		"network.remote.podCIDRs": func(c *Config) { c.Remote = nil },
		"network.local.podCIDRs": func(c *Config) {
			c.Local, c.UnknownSource, c.Addresses, c.Services, c.Exports = LocalNetwork{}, rules.Pair{}, nil, nil, nil
			c.Geneve.Nodes = slices.Clone(c.Geneve.Nodes)
			for i := range c.Geneve.Nodes {
				c.Geneve.Nodes[i].PodCIDRs = nil
			}
		},
	}
	all := *full
	for name, lack := range lacks {
		one := *full
		lack(&one)
		lack(&all)
		if err := Check(&one); err != nil {
			t.Errorf("without %s: %v", name, err)
		}
		if err := one.ChangesLive(full); (err != nil) != (name == "cluster") {
			t.Errorf("%s comes or goes: %v", name, err)
		}
	}
	if err := Check(&all); err != nil {
		t.Errorf("without all: %v", err)
	}
	if tunnels := all.Tunnels(Links{}); len(tunnels) > 0 {
		t.Errorf("%d tunnels of a gateway without an address", len(tunnels))
	}
}

// TestConnectionCheckValue: the memory of the check is bounded.
func TestConnectionCheckValue(t *testing.T) {
	c, err := parseText([]byte(goodFile), keyFolder(t))
	need.NoError(t, err)
	for _, tt := range []struct {
		check ConnectionCheck
		good  bool
	}{
		{ConnectionCheck{}, true}, {LiqoConnectionCheck, true},
		{ConnectionCheck{Interval: time.Second, Threshold: 1000}, true},
		{ConnectionCheck{Interval: time.Second}, false}, {ConnectionCheck{Interval: -1, Threshold: 5}, false},
		{ConnectionCheck{Interval: time.Second, Threshold: 1001}, false},
		{ConnectionCheck{Interval: time.Millisecond, Threshold: 5}, false},
	} {
		c.ConnectionCheck = tt.check
		if err := c.Validate(); (err == nil) != tt.good {
			t.Errorf("%+v: %v", tt.check, err)
		}
	}
	with, err := parseText([]byte(goodFile+"connectionCheck: true\n"), keyFolder(t))
	if err != nil || with.ConnectionCheck != LiqoConnectionCheck {
		t.Errorf("%+v, %v", with, err)
	}
}

// TestOff: off means the same with quotes and without, though YAML takes the latter for a
// boolean.
func TestOff(t *testing.T) {
	for _, off := range []string{"off", `"off"`} {
		text := strings.NewReplacer("mssClamp: 1200", "mssClamp: "+off, "nat:\n", "nat:\n  unknownSource: "+off+"\n").
			Replace(goodFile)
		c, err := parseText([]byte(text), keyFolder(t))
		if err != nil {
			t.Errorf("%s: %v", off, err)
		} else if c.MSSClamp != rules.MSSOff || c.UnknownSource.IsValid() {
			t.Errorf("%s: clamp %v, unknown source %v", off, c.MSSClamp, c.UnknownSource)
		}
	}
}

// TestLeadingMarker: a document may begin with its marker, and text may contain lines that look
// like markers.
func TestLeadingMarker(t *testing.T) {
	dir := keyFolder(t)
	for _, text := range []string{"---" + goodFile, "# rome\n---" + goodFile, "%YAML 1.1\n---" + goodFile,
		goodFile + "...\n", goodFile + "...\n# end\n"} {
		if _, err := parseText([]byte(text), dir); err != nil {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}

// TestMillionNodes: a file with a million nodes is refused before it costs much, whether the file
// is large or its nodes are small.
func TestMillionNodes(t *testing.T) {
	name := filepath.Join(t.TempDir(), "gateway.yaml")
	node := "    - {name: rome-1, vni: 1, underlay: 172.18.0.2, address: 10.80.0.2, podCIDRs: [10.0.1.0/24]}\n"
	need.NoError(t, errors.Join(os.WriteFile(name, []byte(goodFile), 0o600), os.Truncate(name, int64(len(node))*1e6)))
	if _, err := Load(name); err == nil || !strings.Contains(err.Error(), "larger than 8388608 bytes") {
		t.Errorf("large nodes: %v", err)
	}
	var f file
	f.Geneve.Nodes = make([]fileNode, 1e6)
	e := new(configfile.Errors)
	if c := f.config(e, ""); len(c.Geneve.Nodes) > 0 {
		t.Errorf("%d nodes were read", len(c.Geneve.Nodes))
	}
	if err := e.Err(); !strings.Contains(err.Error(), "geneve.nodes: 1000000 of them; a gateway takes at most 32768") {
		t.Errorf("small nodes: %v", err)
	}
}

// TestManyErrors: of very many errors in a file, the first ones are reported.
func TestManyErrors(t *testing.T) {
	bad := strings.Replace(goodFile, "rules:\n", "rules:\n"+strings.Repeat("  - {}\n", 5000), 1)
	_, err := parseText([]byte(bad), keyFolder(t))
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 1000 || lines[999] != "and more; fix these first" {
		t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
	}
}

// FuzzParse: any text gives a configuration that every layer accepts, or errors
// of one printable line each.
func FuzzParse(f *testing.F) {
	f.Add(goodFile)
	f.Add("geneve: {nodes: [{vni: 0x10, podCIDRs: [null, 1, {}]}]}")
	f.Add("nat: {services: [{backends: []}]}\nrules: [{ports: \"1-,-2\"}]")
	f.Add("cluster: \"a\\/b\"\nmtu: 1e9\nlog: []")
	dir := keyFolder(f)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseText([]byte(text), dir)
		if err == nil {
			if err := Check(c); err != nil {
				t.Errorf("accepted, then: %v", err)
			}
			return
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if strings.TrimSpace(line) == "" || strings.ContainsFunc(line,
				func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%q of %q", line, err)
			}
		}
	})
}

// TestCredentials: a credential of the service manager takes precedence over a file beside the
// configuration, about which there is then no warning.
func TestCredentials(t *testing.T) {
	dir, given := t.TempDir(), t.TempDir()
	t.Setenv("CREDENTIALS_DIRECTORY", given)
	need.NoError(t, os.WriteFile(filepath.Join(given, "gateway.key"), nil, 0o400))
	for name, want := range map[string]string{
		"gateway.key": filepath.Join(given, "gateway.key"), "peer.pub": filepath.Join(dir, "peer.pub"),
		"keys/gateway.key": filepath.Join(dir, "keys/gateway.key"),
	} {
		if got := keyPath(dir, name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}

	dir = keyFolder(t)
	key, err := os.ReadFile(filepath.Join(dir, "rome.key"))
	need.NoError(t, err)
	need.NoError(t, os.WriteFile(filepath.Join(given, "rome.key"), key, 0o400))
	need.NoError(t, os.Chmod(filepath.Join(dir, "rome.key"), 0o644))
	c, err := parseText([]byte(goodFile), dir)
	if err != nil || slices.ContainsFunc(c.Warnings,
		func(w string) bool { return strings.Contains(w, "wireguard.privateKeyFile") }) {
		t.Errorf("%v, %q", err, c.Warnings)
	}
}

// TestPresharedKey: a pre-shared key comes from a file, may change while the gateway runs, and is
// neither shown nor part of what replicas compare.
func TestPresharedKey(t *testing.T) {
	dir, key := keyFolder(t), wgkey.NewPrivate()
	file := filepath.Join(dir, "psk.key")
	need.NoError(t, os.WriteFile(file, []byte(key.Base64()+"\n"), 0o600))
	without, err := parseText([]byte(goodFile), dir)
	need.NoError(t, err)
	with := func(name string) (*Config, error) {
		return parseText([]byte(strings.Replace(goodFile, "  role: client\n", "  role: client\n  presharedKeyFile: "+
			name+"\n", 1)), dir)
	}
	warning := func(c *Config) string { // others are about this machine's links
		i := slices.IndexFunc(c.Warnings, func(w string) bool {
			return strings.HasPrefix(w, "wireguard.") &&
				!strings.HasPrefix(w, "wireguard.endpoint")
		})
		if i < 0 {
			return ""
		}
		return c.Warnings[i]
	}
	c, err := with("psk.key")
	need.NoError(t, err)
	if c.WireGuard.PresharedKey != key || without.WireGuard.PresharedKey != (wgkey.Key{}) || warning(c) != "" {
		t.Errorf("without: none %t; warning %q", without.WireGuard.PresharedKey == wgkey.Key{}, warning(c))
	}
	if got := c.Changes(without); got != "wireguard.presharedKeyFile changed" || c.ChangesLive(without) != nil {
		t.Errorf("%s; %v", got, c.ChangesLive(without))
	}
	if c.identity() != without.identity() {
		t.Error("replicas with and without the key do not admit the same")
	}
	b, err := json.Marshal(c)
	need.NoError(t, err)
	if text := fmt.Sprintf("%s %+v", b, c); strings.Contains(text, key.Base64()) ||
		strings.Contains(text, fmt.Sprintf("%x", key[:])) || strings.Contains(text, fmt.Sprint(key[:])) {
		t.Errorf("the key is shown: %s", text)
	}

	need.NoError(t, os.Chmod(file, 0o644))
	if c, err = with("psk.key"); err != nil || !strings.HasPrefix(warning(c), "wireguard.presharedKeyFile: ") ||
		!strings.Contains(warning(c), "(mode 0644); chmod 600 it") {
		t.Errorf("open to everybody: %v, %q", err, warning(c))
	}
	for name, want := range map[string]string{
		"none.key":   "no such file or directory; make a key with wg genpsk, one for both gateways",
		"short.key":  "not a WireGuard key; want 44 characters of base64 as wg(8) prints",
		"rome.key":   "this is the private or the public key of a gateway; make a key with wg genpsk",
		"milan.pub":  "this is the private or the public key of a gateway; make a key with wg genpsk",
		key.Base64(): "this is a key; write it into a file of mode 0600",
	} {
		_, err := with(name)
		if err == nil || strings.Count(err.Error(), "\n") > 0 || !strings.Contains(err.Error(), want) ||
			!strings.HasPrefix(err.Error(), "wireguard.presharedKeyFile: ") {
			t.Errorf("%s: %v, want %s", strings.ReplaceAll(name, key.Base64(), "a key"), err, want)
		} else if strings.Contains(err.Error(), key.Base64()) {
			t.Error("an error shows the key")
		}
	}
}
