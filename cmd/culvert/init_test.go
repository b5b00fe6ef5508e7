package main

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"culvert/cmd/internal/cli"
	"culvert/gateway/config"
	"culvert/gateway/node"
	"culvert/geneve"
	"culvert/integration/need"
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
var alone6 = []string{"--cluster", "rome", "--pods", "fd00:10::/48", "--gateway", "fd18:1::9", "--nodes",
	"rome-1=fd18:1::2,fd00:10:0:1::/64",
	"--peer", "milan", "--peer-pods", "fd00:10::/48", "--peer-gateway", "fd18:2::9", "--peer-nodes",
	"milan-1=fd18:2::2,fd00:10:0:1::/64",
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
		{"pods where remaps would be", append(changed("--pods", "10.60.0.0/14"), "--peer-pods", "10.60.0.0/14"),
			"10.48.0.0/14"},
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
				args = append(args, "--nodes", "rome-1=172.18.0.2,10.60.1.0/24", "--peer-nodes",
					"milan-1=172.19.0.2,10.61.1.0/24")
			}
			out, diag, status := run(t, append([]string{"init", dir}, args...)...)
			if status != 0 || diag != "" {
				t.Fatalf("status %d: %s", status, diag)
			}
			start, err := os.ReadFile(filepath.Join(dir, "START.txt"))
			if err != nil || out != string(start) || !strings.Contains(out, "gateway --config ") ||
				!strings.Contains(out, "node --config ") {
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
			if rome.WireGuard.PeerPublicKey != milan.WireGuard.PrivateKey.Public() ||
				milan.WireGuard.PeerPublicKey != rome.WireGuard.PrivateKey.Public() {
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
					need.NoError(t, err)
					if c.VNI != uint32(n.VNI) || c.Underlay != n.Underlay || c.Address != geneve.Pair(n.Address) ||
						c.Port != own.Geneve.ListenPort ||
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
	need.NoError(t, err)
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

// answer runs culvert init with what a user types, and returns what it printed.
func answer(t *testing.T, typed string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, diag bytes.Buffer
	cmd := culvert(append([]string{"init"}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(typed), &out, &diag
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), diag.String(), cmd.ProcessState.ExitCode()
}

// sameFiles compares files of two folders.
func sameFiles(t *testing.T, one, other string, names ...string) {
	t.Helper()
	for _, name := range names {
		a, err1 := os.ReadFile(filepath.Join(one, name))
		b, err2 := os.ReadFile(filepath.Join(other, name))
		if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
			t.Errorf("%s: %v, %v: %s differs from %s", name, err1, err2, a, b)
		}
	}
}

// TestInitAsks: init asks for what no flag gives, with names and an example, and again after a bad
// answer; answers have the same effect as flags.
func TestInitAsks(t *testing.T) {
	bad := map[string]string{"--pods": "10.0.0.1/16", "--nodes": "rome-1", "--peer": "rome", "--peer-pods": "fd00::/48",
		"--endpoint": "a b"}
	typed, asked := "", 0
	for i := 3; i < len(romeMilan); i += 2 { // the first is a flag
		if wrong := bad[romeMilan[i-1]]; wrong != "" {
			typed += wrong + "\n"
			asked++
		}
		typed += romeMilan[i] + "\n"
		asked++
	}
	byFlags, byAnswers := filepath.Join(t.TempDir(), "d"), filepath.Join(t.TempDir(), "d")
	if _, diag, status := run(t, append([]string{"init", byFlags}, romeMilan...)...); status != 0 {
		t.Fatal(diag)
	}
	_, diag, status := answer(t, typed, append([]string{byAnswers}, romeMilan[:2]...)...)
	if status != 0 || strings.Count(diag, ", such as ") < asked {
		t.Fatalf("status %d: %s", status, diag)
	}
	for _, want := range []string{
		"CIDR of rome's pods, or one of IPv4 and one of IPv6 with a comma between, such as 10.0.0.0/16: ",
		"address of milan's gateway, by which its nodes reach it, such as 172.19.0.9: ",
		"such as milan-1=172.19.0.2,10.0.1.0/24: ",
		"address or name of milan's gateway, by which rome's reaches it, with :PORT unless 51840, such as 192.0.2.7: ",
		"--pods: 10.0.0.1/16 has host bits set", "--endpoint: \"a b\" is neither",
	} {
		if !strings.Contains(diag, want) {
			t.Errorf("%q is not in %s", want, diag)
		}
	}
	sameFiles(t, byFlags, byAnswers, "rome/gateway.yaml", "milan/gateway.yaml", "rome/nodes/rome-2.yaml",
		"milan/nodes/milan-1.yaml")
}

// TestInitKeeps: after an init that ended too early, the next one does not ask for the same answers
// again.
func TestInitKeeps(t *testing.T) {
	dir, byFlags := filepath.Join(t.TempDir(), "d"), filepath.Join(t.TempDir(), "d")
	_, diag, status := answer(t, "rome\n10.0.0.0/16\n172.18.0.9\n", dir)
	if status != cli.ExitBadInput || !strings.Contains(diag, "--nodes: missing; rome's nodes") ||
		!strings.Contains(diag, "continue with: culvert init "+dir) {
		t.Fatalf("status %d: %s", status, diag)
	}
	typed := ""
	for i := 7; i < len(romeMilan); i += 2 {
		typed += romeMilan[i] + "\n"
	}
	if _, diag, status = answer(t, typed, dir); status != 0 || strings.Contains(diag, "rome's pods, or") {
		t.Fatalf("status %d: %s", status, diag)
	}
	if _, diag, status := run(t, append([]string{"init", byFlags}, romeMilan...)...); status != 0 {
		t.Fatal(diag)
	}
	sameFiles(t, byFlags, dir, "rome/gateway.yaml", "milan/gateway.yaml", "rome/nodes/rome-1.yaml",
		"milan/nodes/milan-1.yaml")
	if _, diag, status := answer(t, "", dir); status != cli.ExitBadInput ||
		!strings.Contains(diag, "exists and is not changed") {
		t.Errorf("a folder that is complete: status %d: %s", status, diag)
	}
}

// sideOf are the flags of one side, out of those of both.
func sideOf(both []string, server bool) (args []string) {
	for i := 0; i < len(both); i += 2 {
		flag, peer := strings.CutPrefix(both[i], "--peer-")
		switch {
		case both[i] == "--peer":
			flag, peer = "cluster", true
		case both[i] == "--endpoint":
			flag, peer = "endpoint", true
		}
		if peer == server {
			args = append(args, "--"+strings.TrimPrefix(flag, "--"), both[i+1])
		}
	}
	return args
}

// introduction is the line for the other side.
func introduction(t *testing.T, out string) []string {
	t.Helper()
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "    --peer ") {
			return strings.Fields(line)
		}
	}
	t.Fatalf("no line for the other side in %s", out)
	return nil
}

// TestInitSide: two sides that exchange one line each get what one init makes for both, and no side
// has the other's private key.
func TestInitSide(t *testing.T) {
	for name, flags := range map[string][]string{"IPv4": romeMilan, "both families": romeMilan6, "IPv6 alone": alone6} {
		t.Run(name, func(t *testing.T) {
			both, rome, milan := filepath.Join(t.TempDir(), "d"), filepath.Join(t.TempDir(), "d"),
				filepath.Join(t.TempDir(), "d")
			if _, diag, status := run(t, append([]string{"init", both}, flags...)...); status != 0 {
				t.Fatal(diag)
			}
			// rome's user gives flags twice; milan's is asked, and types a wrong line first.
			out, diag, status := run(t, append([]string{"init", rome, "--side", "client"}, sideOf(flags, false)...)...)
			if status != 0 || !strings.Contains(out, "go on with: culvert init "+rome+" LINE") {
				t.Fatalf("status %d: %s%s", status, out, diag)
			}
			said := introduction(t, out)
			typed := ""
			for i, text := range sideOf(flags, true) {
				if i%2 == 1 {
					typed += text + "\n"
				}
			}
			out, diag, status = answer(t, typed+"--peer rome\n"+strings.Join(said, " ")+"\n", milan, "--side", "server")
			if status != 0 || !strings.Contains(diag, "--peer-key: missing; it is in the line") {
				t.Fatalf("status %d: %s%s", status, out, diag)
			}
			if _, diag, status = run(t, append([]string{"init", rome}, introduction(t, out)...)...); status != 0 {
				t.Fatal(diag)
			}
			sameFiles(t, both, rome, "rome/gateway.yaml", "rome/nodes/rome-1.yaml")
			sameFiles(t, both, milan, "milan/gateway.yaml", "milan/nodes/milan-1.yaml")
			a, b := loadQuiet(t, rome, "rome").WireGuard, loadQuiet(t, milan, "milan").WireGuard
			if a.PeerPublicKey != b.PrivateKey.Public() || b.PeerPublicKey != a.PrivateKey.Public() {
				t.Error("the keys do not belong together")
			}
			for dir, other := range map[string]string{rome: "milan", milan: "rome"} {
				if _, err := os.Lstat(filepath.Join(dir, other)); err == nil {
					t.Errorf("%s has a folder of %s", dir, other)
				}
			}
		})
	}
}

// TestInitSideMoves: CIDRs of the peer that overlap this side are remapped, external CIDRs too.
func TestInitSideMoves(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	args := append([]string{"init", dir, "--side", "server", "--endpoint", "192.0.2.7"}, romeMilan[:8]...)
	line := strings.Fields("--peer milan --peer-pods 10.1.0.0/16 --peer-external 10.71.0.0/16 --peer-key " +
		strings.Repeat("Q", 42) + "E=")
	out, diag, status := run(t, append(args, line...)...)
	if status != 0 || !strings.Contains(out, "10.1.0.0/16 of milan is 10.1.0.0/16 in rome") {
		t.Fatalf("status %d: %s%s", status, out, diag)
	}
	c := loadQuiet(t, dir, "rome")
	if external := c.Local.ExternalCIDRs[0]; len(c.Remote) != 2 || c.Remote[1].Real != external ||
		c.Remote[1].Remapped.Overlaps(external) {
		t.Errorf("the peer has our external CIDR %v and is seen as %+v", external, c.Remote)
	}
}

// TestInitSideRefuses: a line that cannot be right is refused with the reason, and the key stays.
func TestInitSideRefuses(t *testing.T) {
	for _, side := range []string{"client", "server"} {
		dir := filepath.Join(t.TempDir(), "d")
		args := append([]string{"init", dir, "--side", side}, romeMilan[:8]...)
		own := ""
		if side == "server" {
			own = " --endpoint 192.0.2.7"
		}
		out, diag, status := run(t, append(args, strings.Fields(own)...)...)
		if status != 0 {
			t.Fatal(diag)
		}
		key, err := os.ReadFile(filepath.Join(dir, "rome", "gateway.key"))
		need.NoError(t, err)
		other := strings.Repeat("Q", 42) + "E="
		line := "--peer milan --peer-pods 10.0.0.0/16 --peer-external 10.71.0.0/16 --peer-key "
		if side == "client" {
			own = " --endpoint 192.0.2.7"
		} else {
			own = ""
		}
		for name, tt := range map[string]struct{ line, want string }{
			"own line":    {strings.Join(introduction(t, out)[:8], " ") + own, "is the other cluster's name too"},
			"own key":     {line + introduction(t, out)[7] + own, "--peer-key: it is the key of this side"},
			"no key":      {line + "x" + own, "--peer-key: not a WireGuard key"},
			"half a line": {"--peer milan" + own, "--peer-pods: missing; it is in the line"},
			"families": {strings.Replace(line, "10.71.0.0/16", "fd00:71::/48", 1) + other + own,
				"--peer-external: \"fd00:71::/48\" has other families than milan's pods"},
			"the same role": {line + other + map[string]string{"client": "",
				"server": " --endpoint 192.0.2.1:51840"}[side], "again, with --side"},
		} {
			_, diag, status := run(t, append([]string{"init", dir}, strings.Fields(tt.line)...)...)
			if status != cli.ExitBadInput || !strings.Contains(diag, tt.want) {
				t.Errorf("%s, %s: status %d: %s; want %q", side, name, status, diag, tt.want)
			}
		}
		if now, err := os.ReadFile(filepath.Join(dir, "rome", "gateway.key")); err != nil || !bytes.Equal(now, key) {
			t.Errorf("%s: the key has changed: %v", side, err)
		}
		if _, diag, status := run(t, append([]string{"init", dir}, strings.Fields(line+other+own)...)...); status != 0 {
			t.Errorf("%s: %s", side, diag)
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
		{"CIDR", "--pods: 10.0.0.1/16 has host bits set", changed("--pods", "10.0.0.1/16")},
		{"name", "--cluster: \"a/b\" is no name", changed("--cluster", "a/b")},
		{"same names", "--peer: \"rome\" is the other cluster's name too", changed("--peer", "rome")},
		{"two of a family", "--pods: \"10.0.0.0/16,10.1.0.0/16\" has more than one CIDR of a family",
			changed("--pods", "10.0.0.0/16,10.1.0.0/16")},
		{"families of the clusters", "--peer-pods: \"fd00:10::/48\" has other families than rome's pods",
			append(changed("--peer-pods", "fd00:10::/48"), "--peer-nodes", "milan-1=172.19.0.2,fd00:10::/64")},
		{"families of a node", "--nodes: \"rome-1=172.18.0.2,fd00:10::/64\" has other families than rome's pods",
			changed("--nodes", "rome-1=172.18.0.2,fd00:10::/64")},
		{"nodes", "--nodes: \"rome-1\" is not NAME=ADDRESS,PODCIDR", changed("--nodes", "rome-1")},
		{"node's path", "--nodes: \"../x\" is no name", changed("--nodes", "../x=172.18.0.2,10.0.1.0/24")},
		{"nodes of other pods", "--nodes: \"rome-1=172.18.0.2,10.9.1.0/24\": 10.9.1.0/24 is outside rome's pods",
			changed("--nodes", "rome-1=172.18.0.2,10.9.1.0/24")},
		{"endpoint", "--endpoint: \"a b\" is neither", changed("--endpoint", "a b")},
		{"endpoint's port", "--endpoint: \"x\" is not a port", changed("--endpoint", "192.0.2.7:x")},
		{"gateway's address", "--nodes: \"rome-1=172.18.0.9,10.0.1.0/24\": 172.18.0.9 is the address of rome's gateway",
			changed("--nodes", "rome-1=172.18.0.9,10.0.1.0/24")},
		{"one address twice", "\"b=172.18.0.2,10.0.2.0/24\" has the name or the address of a",
			changed("--nodes", "a=172.18.0.2,10.0.1.0/24 b=172.18.0.2,10.0.2.0/24")},
		{"no such side", "--side: want client or server", append([]string{"--side", "rome"}, romeMilan...)},
		{"both and a side", "--side: --here makes both", []string{"--side", "client", "--here"}},
		{"too large", "--peer-pods: no private /8 is free", append(changed("--pods", "10.0.0.0/8"), "--peer-pods",
			"10.0.0.0/8")},
		{"nobody answers", "--cluster: missing", nil},
		{"here and more", "--pods: --here answers it", []string{"--here", "--pods", "10.0.0.0/16"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(there, "new")
			out, diag, status := run(t, append([]string{"init", dir}, tt.args...)...)
			if status != cli.ExitBadInput || out != "" || !strings.Contains(diag, tt.want) {
				t.Errorf("status %d, %q, %q", status, out, diag)
			}
			if _, err := os.Lstat(dir); err == nil {
				t.Error("something is left")
			}
		})
	}
	if _, diag, status := run(t, append([]string{"init", there}, romeMilan...)...); status != cli.ExitBadInput ||
		!strings.Contains(diag, "exists") {
		t.Errorf("a folder that is there: status %d, %q", status, diag)
	}
}
