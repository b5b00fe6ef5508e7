package node

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"culvert/geneve"
	"culvert/integration/need"
)

const goodFile = `
name: rome-1
underlay: 172.18.0.2
gateway: {underlay: 172.18.0.9, address: 10.80.0.4}
vni: 1
address: 10.80.0.2
mtu: 1340
port: 6091
mode: auto
routes: [10.61.0.0/16, 10.71.0.0/16]
interface: culvert0
`

var comparePrefixes = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func TestLoadConfig(t *testing.T) {
	want := &Config{
		Name: "rome-1", Underlay: netip.MustParseAddr("172.18.0.2"),
		Gateway: "172.18.0.9", GatewayAddress: geneve.Pair{V4: netip.MustParseAddr("10.80.0.4")},
		VNI: 1, Address: geneve.Pair{V4: netip.MustParseAddr("10.80.0.2")},
		MTU: 1340, Port: 6091, Mode: Auto,
		Routes:    []netip.Prefix{netip.MustParsePrefix("10.61.0.0/16"), netip.MustParsePrefix("10.71.0.0/16")},
		Interface: "culvert0", CPUs: 1, Tunnel: true,
	}
	file := filepath.Join(t.TempDir(), "node.yaml")
	need.NoError(t, os.WriteFile(file, []byte(goodFile), 0o600))
	got, err := LoadConfig(file)
	need.NoError(t, err)
	got.Warnings = nil // warnings depend on this machine
	if diff := cmp.Diff(want, got, comparePrefixes); diff != "" {
		t.Error("full file (-want +got):\n", diff)
	}

	// Omitted fields have their default, except those without one.
	short := strings.NewReplacer("mtu: 1340\n", "", "port: 6091\n", "", "mode: auto\n", "", "interface: culvert0\n",
		"").Replace(goodFile)
	got, err = parseConfig([]byte(short))
	need.NoError(t, err)
	got.Warnings = nil
	if diff := cmp.Diff(want, got, comparePrefixes); diff != "" {
		t.Error("short file (-want +got):\n", diff)
	}
}

// dual makes a file one with both families.
var dual = strings.NewReplacer("address: 10.80.0.4", `address: [10.80.0.4, "fd80::4"]`, "address: 10.80.0.2",
	`address: ["fd80::2", 10.80.0.2]`,
	"10.71.0.0/16", "10.71.0.0/16, \"fd00:61::/48\"")

// v6only makes a file one with IPv6 alone.
var v6only = strings.NewReplacer("10.80.0.4", `"fd80::4"`, "10.80.0.2", `"fd80::2"`, "10.61.0.0/16, 10.71.0.0/16",
	`"fd00:61::/48"`)

func TestLoadFamilies(t *testing.T) {
	four, six := netip.MustParseAddr("10.80.0.2"), netip.MustParseAddr("fd80::2")
	for _, tt := range []struct {
		name, file string
		want       geneve.Pair
		routes     int
	}{
		{"IPv4", goodFile, geneve.Pair{V4: four}, 2},
		{"IPv6", v6only.Replace(goodFile), geneve.Pair{V6: six}, 1},
		{"both", dual.Replace(goodFile), geneve.Pair{V4: four, V6: six}, 3},
	} {
		c, err := parseConfig([]byte(tt.file))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		} else if c.Address != tt.want || len(c.Routes) != tt.routes {
			t.Errorf("%s: address %v, %d routes; want %v, %d", tt.name, c.Address, len(c.Routes), tt.want, tt.routes)
		}
	}
}

func TestConfigRefuses(t *testing.T) {
	replace := func(old, new string) string {
		if !strings.Contains(goodFile, old) {
			t.Fatalf("%q is not in the file", old)
		}
		return strings.Replace(goodFile, old, new, 1)
	}
	for _, test := range []struct {
		name, file string
		want       []string // parts of the lines, in order
	}{
		{"empty", "", []string{"name: missing", "underlay: missing", "gateway.underlay: missing",
			"gateway.address: missing", "vni: missing", "address: missing"}},
		{"no YAML", "name: [", []string{"not YAML"}},
		{"one name for two links", goodFile + "services: {interface: culvert0, addresses: [172.18.0.2]}\n",
			[]string{"services.interface: culvert0 is interface too"}},
		{"unknown fields", replace("mtu:", "mut:") + "gatway: 1\n", []string{"gatway: ", "mut: "}},
		{"duplicate field", goodFile + "mtu: 1400\n", []string{"mtu"}},
		{"gateway is text", replace("{underlay: 172.18.0.9, address: 10.80.0.4}", "172.18.0.9"),
			[]string{"gateway: want a mapping"}},
		{"routes is text", replace("[10.61.0.0/16, 10.71.0.0/16]", "10.61.0.0/16"), []string{"routes: want a list"}},
		{"underlay is a name", replace("172.18.0.2", "rome-1.example"), []string{"underlay: "}},
		{"underlay is loopback", replace("172.18.0.2", "127.0.0.1"), []string{"underlay: 127.0.0.1"}},
		{"ends of unlike families", replace("10.80.0.2", `"fd80::2"`), []string{
			"address: has no IPv4 address like 10.80.0.4, that of the other end",
			"gateway.address: has no IPv6 address like fd80::2, that of the other end",
			"routes[0]: 10.61.0.0/16 is IPv4, and address is not", "routes[1]: 10.71.0.0/16 is IPv4"}},
		{"one end has more", replace("10.80.0.2", `[10.80.0.2, "fd80::2"]`),
			[]string{"gateway.address: has no IPv6 address like fd80::2"}},
		{"two of one family", replace("10.80.0.2", "[10.80.0.2, 10.80.0.3]"),
			[]string{"address[1]: 10.80.0.3 is a second IPv4 address beside 10.80.0.2"}},
		{"three addresses", replace("10.80.0.2", `[10.80.0.2, "fd80::2", "fd80::3"]`),
			[]string{"address: 3 addresses; write one, or a list of one"}},
		{"IPv6 without room", dual.Replace(replace("1340", "1279")),
			[]string{"mtu: 1279, and address is IPv6, which needs 1280"}},
		{"link-local address", v6only.Replace(strings.NewReplacer("10.80.0.2", `"fe80::2"`).Replace(goodFile)),
			[]string{"address: fe80::2 is an address of one link; write one of a unique local prefix"}},
		{"group as gateway", strings.NewReplacer("fd80::4", "ff02::4").Replace(v6only.Replace(goodFile)),
			[]string{"gateway.address: ff02::4 is no host's address"}},
		{"gateway has this node's IPv6 address", strings.NewReplacer("fd80::4",
			"fd80::2").Replace(dual.Replace(goodFile)), []string{"gateway.address: fd80::2 is this node's own"}},
		{"IPv6 route without address", replace("10.71.0.0/16", `"fd00:61::/48"`),
			[]string{"routes[1]: fd00:61::/48 is IPv6, and address is not; write a list"}},
		{"underlays of two families", replace("underlay: 172.18.0.2", `underlay: "fd00::2"`),
			[]string{
				"gateway.underlay: 172.18.0.9 is IPv4, and underlay fd00::2 is not; write addresses of one family"}},
		{"underlay is link-local", replace("underlay: 172.18.0.2", `underlay: "fe80::2"`),
			[]string{"underlay: fe80::2 is link-local, and a tunnel cannot say on which link; write another address"}},
		{"bad gateway name", replace("172.18.0.9", "-gateway"), []string{"gateway.underlay: "}},
		{"gateway is link-local", replace("172.18.0.9", `"fe80::9"`),
			[]string{"gateway.underlay: fe80::9 is link-local"}},
		{"gateway with a zone", replace("172.18.0.9", `"fd00::9%eth0"`),
			[]string{"gateway.underlay: fd00::9 has a zone, which tunnels do not have; leave it out"}},
		{"gateway is this node", replace("172.18.0.9", "172.18.0.2"),
			[]string{"gateway.underlay: 172.18.0.2 is this node's own"}},
		{"gateway has this node's address", replace("10.80.0.4", "10.80.0.2"),
			[]string{"gateway.address: 10.80.0.2 is this node's own"}},
		{"VNI of 25 bits", replace("vni: 1", "vni: 16777216"), []string{"vni: "}},
		{"tiny mtu", replace("1340", "575"), []string{"mtu: "}},
		{"port 0", replace("6091", "0"), []string{"port: "}},
		{"mode", replace("auto", "gre"), []string{`mode: "gre" is not one of auto, geneve, vxlan, tun`}},
		{"host bits", replace("10.71.0.0/16", "10.71.0.1/16"), []string{"routes[1]: "}},
		{"route twice", replace("10.71.0.0/16", "10.61.0.0/16"),
			[]string{"routes[1]: 10.61.0.0/16 is routes[0] again"}},
		{"route to the underlay", replace("10.71.0.0/16", "172.18.0.2/31"),
			[]string{"routes[1]: 172.18.0.2/31 contains underlay"}},
		{"route to the gateway", replace("10.71.0.0/16", "172.18.0.8/31"),
			[]string{"routes[1]: 172.18.0.8/31 contains gateway.underlay"}},
		{"long interface", replace("culvert0", "sixteen-letters0"), []string{"interface: "}},
		{"interface with a slash", replace("culvert0", "a/b"), []string{"interface: "}},
		{"all at once", replace("vni: 1", "vni: x") + "colour: red\nmtu: y\n", []string{"mtu"}},
		{"three at once", strings.NewReplacer("vni: 1", "vni: x", "auto", "gre", "10.61.0.0/16",
			"ten").Replace(goodFile),
			[]string{"vni: ", "mode: ", "routes[0]: "}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := parseConfig([]byte(test.file))
			if err == nil {
				t.Fatal("accepted")
			}
			lines := strings.Split(err.Error(), "\n")
			for i, want := range test.want {
				if i >= len(lines) || !strings.Contains(lines[i], want) {
					t.Fatalf("line %d does not have %q in:\n%v", i+1, want, err)
				}
			}
			if len(lines) != len(test.want) {
				t.Errorf("%d lines, want %d:\n%v", len(lines), len(test.want), err)
			}
		})
	}
}

// A file with services needs no tunnel; one that names any part of a tunnel must name all parts.
func TestServicesAlone(t *testing.T) {
	const alone = "name: n1\nservices: {addresses: [172.18.0.2]}\n"
	c, err := parseConfig([]byte(alone))
	if err != nil || c.Tunnel || c.Services == nil || c.Services.Node != "n1" {
		t.Fatalf("%+v, %v", c, err)
	}
	for text, want := range map[string]string{
		alone + "vni: 1\n":                                  "underlay: missing",
		"name: n1\n":                                        "underlay: missing",
		"services: {addresses: [172.18.0.2]}\n":             "name: missing",
		"name: n1\nservices: {}\n":                          "services.addresses: missing",
		"name: n1\nservices: {adresses: [172.18.0.2]}\n":    "did you mean addresses",
		goodFile + "services: {addresses: [not-address]}\n": "services.addresses[0]",
	} {
		if _, err := parseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	both, err := parseConfig([]byte(goodFile + "services: {addresses: [172.18.0.2]}\n"))
	if err != nil || !both.Tunnel || both.Services == nil {
		t.Fatalf("%+v, %v", both, err)
	}
	tunnel, err := parseConfig([]byte(goodFile))
	if err != nil || both.SameTunnel(tunnel) || !both.SameTunnel(both) {
		t.Error("a reload may not tell what has changed")
	}
}
