package main

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"culvert/gateway/config"
	"culvert/gateway/node"
	"culvert/geneve"
)

// romeMilan answers every question of culvert init.
var romeMilan = []string{"--cluster", "rome", "--pods", "10.0.0.0/16", "--gateway", "172.18.0.9",
	"--nodes", "rome-1=172.18.0.2,10.0.1.0/24 rome-2=172.18.0.3,10.0.2.0/24",
	"--peer", "milan", "--peer-pods", "10.0.0.0/16", "--peer-gateway", "172.19.0.9",
	"--peer-nodes", "milan-1=172.19.0.2,10.0.1.0/24", "--endpoint", "192.0.2.7"}

// romeMilan6 has IPv6 beside IPv4 inside, and IPv6 outside.
var romeMilan6 = []string{"--cluster", "rome", "--pods", "fd00:10::/48,10.0.0.0/16", "--gateway", "fd18:1::9",
	"--nodes", "rome-1=fd18:1::2,10.0.1.0/24,fd00:10:0:1::/64 rome-2=fd18:1::3,10.0.2.0/24,fd00:10:0:2::/64",
	"--peer", "milan", "--peer-pods", "10.0.0.0/16,fd00:10::/48", "--peer-gateway", "fd18:2::",
	"--peer-nodes", "milan-1=fd18:2::2,10.0.1.0/24,fd00:10:0:1::/64", "--endpoint", "2001:db8::7"}

// alone6 has IPv6 alone.
var alone6 = []string{"--cluster", "rome", "--pods", "fd00:10::/48", "--gateway", "fd18:1::9", "--nodes", "rome-1=fd18:1::2,fd00:10:0:1::/64",
	"--peer", "milan", "--peer-pods", "fd00:10::/48", "--peer-gateway", "fd18:2::9", "--peer-nodes", "milan-1=fd18:2::2,fd00:10:0:1::/64",
	"--endpoint", "gw.milan.example"}

// changed returns the answers with one of them changed.
func changed(flag, value string) []string {
	args := append([]string(nil), romeMilan...)
	for i, a := range args {
		if a == flag {
			args[i+1] = value
		}
	}
	return args
}

// TestInit: both sides pass --check without a warning, and agree.
func TestInit(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		seen string // as what rome sees milan's pods
	}{
		{"same pods", romeMilan, "10.61.0.0/16"},
		{"other pods", changed("--peer-pods", "10.1.0.0/16"), "10.1.0.0/16"},
		{"pods where remaps would be", append(changed("--pods", "10.60.0.0/14"), "--peer-pods", "10.60.0.0/14"), "10.48.0.0/14"},
		{"IPv6 endpoint with a port", changed("--endpoint", "[2001:db8::7]:4500"), "10.61.0.0/16"},
		{"named endpoint", changed("--endpoint", "gw.milan.example"), "10.61.0.0/16"},
		{"here", []string{"--here"}, "10.61.0.0/16"},
		{"both families, over IPv6", romeMilan6, "10.61.0.0/16 fd00:61::/48"},
		{"IPv6 alone", alone6, "fd00:61::/48"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "out")
			args := tt.args
			if strings.HasPrefix(tt.seen, "10.1.") {
				args = append(args, "--peer-nodes", "milan-1=172.19.0.2,10.1.1.0/24")
			} else if strings.HasPrefix(tt.seen, "10.48.") {
				args = append(args, "--nodes", "rome-1=172.18.0.2,10.60.1.0/24", "--peer-nodes", "milan-1=172.19.0.2,10.61.1.0/24")
			}
			out, diag, status := run(t, append([]string{"init", dir}, args...)...)
			if status != 0 || diag != "" {
				t.Fatalf("status %d: %s", status, diag)
			}
			start, err := os.ReadFile(filepath.Join(dir, "START.txt"))
			if err != nil || out != string(start) || !strings.Contains(out, "gateway --config ") || !strings.Contains(out, "node --config ") {
				t.Errorf("START.txt (%v) and what was printed: %q, %q", err, start, out)
			}
			rome, milan := loadQuiet(t, dir, "rome"), loadQuiet(t, dir, "milan")
			families, remapped := len(rome.Local.PodCIDRs), ""
			for _, r := range rome.Remote[:families] {
				remapped += " " + r.Remapped.String()
			}
			if remapped != " "+tt.seen {
				t.Errorf("rome sees milan's pods as%s, want %s", remapped, tt.seen)
			}
			if rome.WireGuard.PeerPublicKey != milan.WireGuard.PrivateKey.Public() || milan.WireGuard.PeerPublicKey != rome.WireGuard.PrivateKey.Public() {
				t.Error("the keys do not belong together")
			}
			for _, side := range [][2]*config.Config{{rome, milan}, {milan, rome}} {
				own, peer := side[0], side[1]
				var routes []netip.Prefix
				for k, real := range slices.Concat(peer.Local.PodCIDRs, peer.Local.ExternalCIDRs) {
					if len(own.Remote) != 2*families || own.Remote[k].Real != real {
						t.Errorf("%s names %v, but %s has %+v", own.Cluster, own.Remote, peer.Cluster, peer.Local)
					}
					routes = append(routes, own.Remote[k].Remapped)
				}
				for _, n := range own.Geneve.Nodes {
					c, err := node.LoadConfig(filepath.Join(dir, own.Cluster, "nodes", n.Name+".yaml"))
					if err != nil {
						t.Fatal(err)
					}
					if c.VNI != uint32(n.VNI) || c.Underlay != n.Underlay || c.Address != geneve.Pair(n.Address) || c.Port != own.Geneve.ListenPort ||
						c.GatewayAddress != geneve.Pair(own.Geneve.GatewayAddress) || !slices.Equal(c.Routes, routes) {
						t.Errorf("%s: node %+v, gateway %+v", n.Name, c, n)
					}
				}
			}
		})
	}
}

// loadQuiet loads one side's gateway.yaml, which must have no errors and no warnings.
func loadQuiet(t *testing.T, dir, cluster string) *config.Config {
	t.Helper()
	c, err := config.Load(filepath.Join(dir, cluster, "gateway.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := config.Check(c); err != nil {
		t.Error(err)
	}
	for _, w := range c.Warnings {
		if !strings.Contains(w, ": mtu: ") { // of the way that this machine has to there
			t.Error(w)
		}
	}
	return c
}

// TestInitAsks: what no flag says is asked for, and the answers are the flags.
func TestInitAsks(t *testing.T) {
	answers, asked := "", 0
	for i := 3; i < len(romeMilan); i += 2 { // the first is a flag
		answers += romeMilan[i] + "\n"
		asked++
	}
	byFlags, byAnswers := filepath.Join(t.TempDir(), "d"), filepath.Join(t.TempDir(), "d")
	if _, diag, status := run(t, append([]string{"init", byFlags}, romeMilan...)...); status != 0 {
		t.Fatal(diag)
	}
	cmd := culvert(append([]string{"init", byAnswers}, romeMilan[:2]...)...)
	var diag bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(answers), &diag
	if err := cmd.Run(); err != nil || strings.Count(diag.String(), ": ") != asked {
		t.Fatalf("%v: %s", err, &diag)
	}
	for _, name := range []string{"rome/gateway.yaml", "milan/gateway.yaml", "rome/nodes/rome-2.yaml", "milan/nodes/milan-1.yaml"} {
		a, err1 := os.ReadFile(filepath.Join(byFlags, name))
		b, err2 := os.ReadFile(filepath.Join(byAnswers, name))
		if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
			t.Errorf("%s: %v, %v: %s differs from %s", name, err1, err2, a, b)
		}
	}
}

// TestInitRefuses: a bad answer is named by its flag, or by the line it led to, and
// nothing is left behind.
func TestInitRefuses(t *testing.T) {
	there := t.TempDir()
	for _, tt := range []struct {
		name, want string
		args       []string
	}{
		{"CIDR", "--pods: 10.0.0.1/16 has bits set", changed("--pods", "10.0.0.1/16")},
		{"name", "--cluster: \"a/b\" is no name", changed("--cluster", "a/b")},
		{"same names", "--peer: \"rome\" is --cluster too", changed("--peer", "rome")},
		{"two of a family", "--pods: \"10.0.0.0/16,10.1.0.0/16\" has more than one CIDR of a family", changed("--pods", "10.0.0.0/16,10.1.0.0/16")},
		{"families of the clusters", "--peer-pods: \"fd00:10::/48\" has other families than --pods \"10.0.0.0/16\"", append(changed("--peer-pods", "fd00:10::/48"), "--peer-nodes", "milan-1=172.19.0.2,fd00:10::/64")},
		{"families of a node", "--nodes: \"rome-1=172.18.0.2,fd00:10::/64\" has other families than --pods", changed("--nodes", "rome-1=172.18.0.2,fd00:10::/64")},
		{"nodes", "--nodes: \"rome-1\" is not NAME=ADDRESS,PODCIDR", changed("--nodes", "rome-1")},
		{"node's path", "--nodes: \"../x\" is no name", changed("--nodes", "../x=172.18.0.2,10.0.1.0/24")},
		{"nodes of other pods", "outside network.local.podCIDRs", changed("--nodes", "rome-1=172.18.0.2,10.9.1.0/24")},
		{"endpoint", "--endpoint: \"a b\" is neither", changed("--endpoint", "a b")},
		{"endpoint's port", "wireguard.endpoint: \"x\" is not a port", changed("--endpoint", "192.0.2.7:x")},
		{"too large", "--peer-pods: no private /8 is left", append(changed("--pods", "10.0.0.0/8"), "--peer-pods", "10.0.0.0/8")},
		{"nobody answers", "--cluster: missing", nil},
		{"here and more", "--pods: --here answers it", []string{"--here", "--pods", "10.0.0.0/16"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(there, "new")
			out, diag, status := run(t, append([]string{"init", dir}, tt.args...)...)
			if status != exitBadInput || out != "" || !strings.Contains(diag, tt.want) {
				t.Errorf("status %d, %q, %q", status, out, diag)
			}
			if _, err := os.Lstat(dir); err == nil {
				t.Error("something is left")
			}
		})
	}
	if _, diag, status := run(t, append([]string{"init", there}, romeMilan...)...); status != exitBadInput || !strings.Contains(diag, "exists") {
		t.Errorf("a folder that is there: status %d, %q", status, diag)
	}
}
