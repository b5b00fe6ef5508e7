package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"culvert/cmd/internal/cli"
	"culvert/gateway/config"
	"culvert/gateway/node"
	"culvert/integration/need"
)

// romeAnd answers the questions of culvert init for another peer of rome's.
func romeAnd(peer string) []string {
	args := append([]string(nil), romeMilan...)
	for i, a := range args {
		args[i] = strings.ReplaceAll(a, "milan", peer)
	}
	return args
}

// requireApart requires that two peerings of rome share nothing on its nodes and on a gateway's
// machine.
func requireApart(t *testing.T, one, other string) {
	t.Helper()
	a, b := loadQuiet(t, one, "rome"), loadQuiet(t, other, "rome")
	if a.Geneve.ListenPort == b.Geneve.ListenPort || a.Metrics == b.Metrics || a.WireGuard.ListenPort != 0 &&
		a.WireGuard.ListenPort == b.WireGuard.ListenPort {
		t.Errorf("ports %d, %d, metrics %s, %s, WireGuard %d, %d", a.Geneve.ListenPort, b.Geneve.ListenPort, a.Metrics,
			b.Metrics, a.WireGuard.ListenPort, b.WireGuard.ListenPort)
	}
	var prefixes [2][]netip.Prefix
	for i, x := range []*config.Config{a, b} {
		for _, r := range x.Remote {
			prefixes[i] = append(prefixes[i], r.Remapped)
		}
		prefixes[i] = append(prefixes[i], x.Local.ExternalCIDRs...)
		for at := range x.Geneve.GatewayAddress.All() {
			prefixes[i] = append(prefixes[i], netip.PrefixFrom(at, at.BitLen()))
		}
		for _, n := range x.Geneve.Nodes {
			for at := range n.Address.All() {
				prefixes[i] = append(prefixes[i], netip.PrefixFrom(at, at.BitLen()))
			}
		}
	}
	for _, p := range prefixes[0] {
		for _, q := range prefixes[1] {
			if p.Overlaps(q) {
				t.Errorf("%s has %s, and %s has %s", one, p, other, q)
			}
		}
	}
	for _, n := range a.Geneve.Nodes {
		var links [2]*node.Config
		for i, dir := range []string{one, other} {
			var err error
			if links[i], err = node.LoadConfig(filepath.Join(dir, "rome", "nodes", n.Name+".yaml")); err != nil {
				t.Fatal(err)
			}
		}
		if links[0].Interface == links[1].Interface || links[0].Port == links[1].Port {
			t.Errorf("%s: interfaces %s, %s, ports %d, %d", n.Name, links[0].Interface, links[1].Interface,
				links[0].Port, links[1].Port)
		}
	}
}

// TestInitFurther: a further peering of a cluster collides with none in the folders beside it,
// whether made by one init or by two; folders of another cluster change nothing.
func TestInitFurther(t *testing.T) {
	for name, flags := range map[string]func(string) []string{
		"IPv4": romeAnd,
		"both families": func(peer string) []string {
			return strings.Split(strings.ReplaceAll(strings.Join(romeMilan6, "\n"), "milan", peer), "\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			var dirs []string
			for i, peer := range []string{"milan", "turin", "genoa"} {
				dir := filepath.Join(parent, "rome-"+peer)
				out, diag, status := run(t, append([]string{"init", dir}, flags(peer)...)...)
				if status != 0 {
					t.Fatal(diag)
				}
				if said := strings.Contains(out, "rome has other peerings here (rome-"); said != (i > 0) ||
					strings.Contains(out, "<beside>") {
					t.Errorf("%s: %s", peer, out)
				}
				for _, other := range dirs {
					requireApart(t, other, dir)
				}
				dirs = append(dirs, dir)
			}
		})
	}
	parent := t.TempDir()
	server := func(peer string, more ...string) (dir, out string) {
		dir = filepath.Join(parent, "rome-"+peer)
		args := append([]string{"init", dir, "--side", "server", "--endpoint", "192.0.2.7"}, romeMilan[:8]...)
		line := strings.Fields("--peer " + peer + " --peer-pods 10.1.0.0/16 --peer-external 10.71.0.0/16 --peer-key " +
			strings.Repeat("Q", 42) + "E=")
		out, diag, status := run(t, append(append(args, line...), more...)...)
		if status != 0 {
			t.Fatal(diag)
		}
		return dir, out
	}
	milan, _ := server("milan")
	turin, out := server("turin")
	requireApart(t, milan, turin)
	if !strings.Contains(out, "--endpoint 192.0.2.7:51841\n") {
		t.Errorf("the other side is not told the port: %s", out)
	}
	file := filepath.Join(milan, "rome", "gateway.yaml")
	_, diag, status := run(t, "init", filepath.Join(parent, "genoa"), "--side", "server", "--cluster", "rome", "--pods",
		"10.0.0.0/16", "--gateway", "172.18.0.9",
		"--nodes", "rome-1=172.18.0.2,10.0.1.0/24", "--endpoint", "192.0.2.7:51840")
	if want := fmt.Sprintf("--endpoint: port 51840 is of %s already; choose another, such as 51842",
		file); status != cli.ExitBadInput || !strings.Contains(diag, want) {
		t.Errorf("status %d: %s, want %s", status, diag, want)
	}
	need.NoError(t, os.WriteFile(file, []byte("junk: {"), 0o600))
	_, diag, status = run(t, append([]string{"init", filepath.Join(parent, "genoa")}, romeAnd("genoa")...)...)
	if status != cli.ExitBadInput || !strings.Contains(diag, file+" is another peering of rome, and cannot be read: ") {
		t.Errorf("status %d: %s", status, diag)
	}
}
