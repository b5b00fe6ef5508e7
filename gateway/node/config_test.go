package node

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
		Gateway: "172.18.0.9", GatewayAddress: netip.MustParseAddr("10.80.0.4"),
		VNI: 1, Address: netip.MustParseAddr("10.80.0.2"),
		MTU: 1340, Port: 6091, Mode: Auto,
		Routes:    []netip.Prefix{netip.MustParsePrefix("10.61.0.0/16"), netip.MustParsePrefix("10.71.0.0/16")},
		Interface: "culvert0",
	}
	file := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(file, []byte(goodFile), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := LoadConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	got.Warnings = nil // they are this machine's
	if diff := cmp.Diff(want, got, comparePrefixes); diff != "" {
		t.Error("full file (-want +got):\n", diff)
	}

	// What is left out has the default, except what has none.
	short := strings.NewReplacer("mtu: 1340\n", "", "port: 6091\n", "", "mode: auto\n", "", "interface: culvert0\n", "").Replace(goodFile)
	got, err = parseConfig([]byte(short))
	if err != nil {
		t.Fatal(err)
	}
	got.Warnings = nil
	if diff := cmp.Diff(want, got, comparePrefixes); diff != "" {
		t.Error("short file (-want +got):\n", diff)
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
		want       []string // substrings of the lines, in order
	}{
		{"empty", "", []string{"name: missing", "underlay: missing", "gateway.underlay: missing",
			"gateway.address: missing", "vni: missing", "address: missing"}},
		{"no YAML", "name: [", []string{"not YAML"}},
		{"unknown fields", replace("mtu:", "mut:") + "gatway: 1\n", []string{"gatway: ", "mut: "}},
		{"duplicate field", goodFile + "mtu: 1400\n", []string{"mtu"}},
		{"gateway is text", replace("{underlay: 172.18.0.9, address: 10.80.0.4}", "172.18.0.9"), []string{"gateway: want a mapping"}},
		{"routes is text", replace("[10.61.0.0/16, 10.71.0.0/16]", "10.61.0.0/16"), []string{"routes: want a list"}},
		{"underlay is a name", replace("172.18.0.2", "rome-1.example"), []string{"underlay: "}},
		{"underlay is loopback", replace("172.18.0.2", "127.0.0.1"), []string{"underlay: 127.0.0.1"}},
		{"IPv6", replace("10.80.0.2", `"fd00::2"`), []string{"address: fd00::2: IPv6 is not supported yet"}},
		{"bad gateway name", replace("172.18.0.9", "-gateway"), []string{"gateway.underlay: "}},
		{"gateway is IPv6", replace("172.18.0.9", `"fd00::9"`), []string{"gateway.underlay: fd00::9: IPv6"}},
		{"gateway is this node", replace("172.18.0.9", "172.18.0.2"), []string{"gateway.underlay: 172.18.0.2 is this node's own"}},
		{"gateway has this node's address", replace("10.80.0.4", "10.80.0.2"), []string{"gateway.address: 10.80.0.2 is this node's own"}},
		{"VNI of 25 bits", replace("vni: 1", "vni: 16777216"), []string{"vni: "}},
		{"tiny mtu", replace("1340", "575"), []string{"mtu: "}},
		{"port 0", replace("6091", "0"), []string{"port: "}},
		{"mode", replace("auto", "gre"), []string{`mode: "gre" is not one of auto, geneve, vxlan, tun`}},
		{"host bits", replace("10.71.0.0/16", "10.71.0.1/16"), []string{"routes[1]: "}},
		{"route twice", replace("10.71.0.0/16", "10.61.0.0/16"), []string{"routes[1]: 10.61.0.0/16 is routes[0] again"}},
		{"route to the underlay", replace("10.71.0.0/16", "172.18.0.2/31"), []string{"routes[1]: 172.18.0.2/31 contains underlay"}},
		{"route to the gateway", replace("10.71.0.0/16", "172.18.0.8/31"), []string{"routes[1]: 172.18.0.8/31 contains gateway.underlay"}},
		{"long interface", replace("culvert0", "sixteen-letters0"), []string{"interface: "}},
		{"interface with a slash", replace("culvert0", "a/b"), []string{"interface: "}},
		{"all at once", replace("vni: 1", "vni: x") + "colour: red\nmtu: y\n", []string{"mtu"}},
		{"three at once", strings.NewReplacer("vni: 1", "vni: x", "auto", "gre", "10.61.0.0/16", "ten").Replace(goodFile),
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
