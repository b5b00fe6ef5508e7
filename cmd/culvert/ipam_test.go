package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"culvert/cmd/internal/cli"
	"culvert/integration/need"
	"culvert/ipam"
)

// autoFolder is folder with everything auto that can be, and milan's side as milan.yaml.
func autoFolder(t *testing.T) (dir, config string) {
	t.Helper()
	dir, _ = folder(t)
	edit(t, dir, "remote: {podCIDRs: [{cidr: 10.0.0.0/16, remap: 10.61.0.0/16}]}",
		"remote: {podCIDRs: [{cidr: 10.0.0.0/16, remap: auto}], externalCIDRs: [{cidr: 10.70.0.0/16, remap: auto}]}")
	edit(t, dir, `metrics: ""`, `metrics: ""
state: state
ipam: {pools: [10.0.0.0/8], reserved: [10.96.0.0/16]}
nat:
  addresses: [{external: auto, internal: 192.0.2.10}]
  services:
    - {name: web, address: auto, port: 80, backends: [{address: 10.0.1.5, port: 8080}]}
    - {name: web, address: auto, port: 443, backends: [{address: 10.0.1.5, port: 8443}]}`)
	return dir, filepath.Join(dir, "gateway.yaml")
}

// knownFile is what a gateway of autoFolder wrote, for other networks too.
const knownFile = `{
  "version": 1,
  "given": [
    {"peer": "milan", "kind": "pod", "real": "10.0.0.0/16", "remapped": "10.61.0.0/16", "since": "2026-11-21T12:00:00Z"},
    {"peer": "milan", "kind": "external", "real": "10.70.0.0/16", "remapped": "10.62.0.0/16", "since": "2026-11-21T12:00:00Z"},
    {"peer": "milan", "kind": "address", "real": "192.0.2.10", "network": "10.70.0.0/16", "remapped": "10.70.0.1", "since": "2026-11-21T12:00:00Z"},
    {"peer": "milan", "kind": "service", "real": "web", "network": "10.70.0.0/16", "remapped": "10.70.0.2", "since": "2026-11-21T12:00:00Z"},
    {"peer": "paris", "kind": "pod", "real": "10.0.0.0/16", "remapped": "10.64.0.0/16", "since": "2026-11-21T12:00:00Z"}
  ],
  "last": [
    {"network": "10.70.0.0/16", "address": "10.70.0.2"}
  ]
}
`

func writeKnown(t *testing.T, dir, text string) (file string) {
	t.Helper()
	file = filepath.Join(dir, "state", "ipam.json")
	need.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	need.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// refuses runs a command that must fail with status 2, print nothing and say want.
func refuses(t *testing.T, want string, args ...string) {
	t.Helper()
	out, diag, status := run(t, args...)
	if status != cli.ExitBadInput || out != "" || !strings.Contains(diag, want) {
		t.Errorf("%s: status %d, %q\nstandard error %s\nwant %q in it", args, status, out, diag, want)
	}
}

// TestBadMemory: every command that uses a damaged file of remaps refuses it, names file, line
// and field, and leaves the file as it is.
func TestBadMemory(t *testing.T) {
	for _, tt := range []struct{ name, old, new, want string }{
		{"empty", knownFile, "", "1: not JSON"},
		{"torn", knownFile[500:], "", "7: given[3].network: not JSON: a text without its end"},
		{"half a line lost", `"remapped": "10.61.0.0/16", `, "", "4: given[0]: remapped: missing"},
		{"zeros at the end", "\n}\n", "\n}\n\x00\x00\x00", `14: not JSON: "\x00" after the end`},
		{"written twice", "\n}\n", "\n}\n" + knownFile, `14: not JSON: "{" after the end`},
		{"another program's", knownFile, `{"networks": []}`, "1: networks: no such field"},
		{"later version", `"version": 1`, `"version": 2`, "2: version: 2 is of a later culvert"},
		{"no version", `"version": 1,`, "", "14: version: missing"},
		{"list lost", `"last"`, `"lost"`, "10: lost: no such field"},
		{"merge by hand", "  \"last\"", "<<<<<<< ours\n  \"last\"", `10: not JSON: want """, found "<"`},
		{"key twice", `"last": [`, `"version": 1, "last": [`, "10: version: is there twice"},
		{"unknown kind", `"external"`, `"extern"`, `5: given[1]: kind: "extern" is not one of pod, external`},
		{"no CIDR", `"10.61.0.0/16"`, `"10.61.0.0.0/16"`, `4: given[0]: remapped: "10.61.0.0.0/16" is not understood`},
		{"host bits", `"10.61.0.0/16"`, `"10.61.0.1/16"`,
			"4: given[0]: remapped: 10.61.0.1/16 is no CIDR without host bits"},
		{"unequal lengths", `"10.61.0.0/16"`, `"10.61.0.0/17"`,
			"4: given[0]: remapped: 10.61.0.0/17 and 10.0.0.0/16 differ in length"},
		{"other family", `"10.61.0.0/16"`, `"fd00::/16"`, "4: given[0]: remapped: fd00::/16 and 10.0.0.0/16 differ"},
		{"overlap", `"10.64.0.0/16"`, `"10.62.0.0/16"`, "8: remapped: 10.62.0.0/16 overlaps 10.62.0.0/16 in line 5"},
		{"owner twice", `"paris"`, `"milan"`, "8: milan pod 10.0.0.0/16 is in line 4 too"},
		{"address twice", `"10.70.0.2", "since"`, `"10.70.0.1", "since"`,
			"7: remapped: 10.70.0.1 overlaps 10.70.0.1 in line 6"},
		{"address outside its network", `"10.70.0.2", "since"`, `"10.71.0.2", "since"`,
			"7: given[3]: remapped: 10.71.0.2 is not in 10.70.0.0/16"},
		{"U given away", `"10.70.0.2", "since"`, `"10.70.0.0", "since"`,
			"7: given[3]: remapped: 10.70.0.0 is the first"},
		{"path as a name", `"paris"`, `"../paris"`, `8: given[4]: peer: "../paris" is no name`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, config := autoFolder(t)
			if !strings.Contains(knownFile, tt.old) {
				t.Fatalf("no %q in the file", tt.old)
			}
			text := strings.Replace(knownFile, tt.old, tt.new, 1)
			file := writeKnown(t, dir, text)
			want := "memory of remaps: " + file + ":"
			for _, args := range [][]string{
				{"gateway", "--config", config}, {"gateway", "--check", "--config", config},
				{"ipam", "list", "--file", file}, {"ipam", "list", "--config", config, "-o", "json"},
				{"ipam", "acquire", "--file", file, "oslo", "pod", "10.9.0.0/16"}, {"ipam", "release", "--file",
					file, "milan"},
			} {
				refuses(t, want+tt.want, args...)
			}
			if after, err := os.ReadFile(file); err != nil || string(after) != text {
				t.Errorf("the file is\n%s\n%v", after, err)
			}
		})
	}
}

// TestContradictions: a configuration that contradicts itself or what is remembered starts
// nothing and changes nothing.
func TestContradictions(t *testing.T) {
	release := "change it, or give another remap: culvert ipam release --file "
	for _, tt := range []struct{ name, old, new, want string }{
		{"local pods over a remap", "podCIDRs: [10.0.0.0/16]", "podCIDRs: [10.0.0.0/16, 10.61.0.0/16]",
			"network.local.podCIDRs[1]: overlap of 10.61.0.0/16 with 10.61.0.0/16, the remap of milan pod 10.0.0.0/16; " + release},
		{"local pods over a part", "podCIDRs: [10.0.0.0/16]", "podCIDRs: [10.0.0.0/16, 10.61.7.0/24]",
			"network.local.podCIDRs[1]: overlap of 10.61.7.0/24 with 10.61.0.0/16"},
		{"local external over a remap", "externalCIDRs: [10.70.0.0/16]}",
			"externalCIDRs: [10.70.0.0/16, 10.62.0.0/15]}",
			"network.local.externalCIDRs[1]: overlap of 10.62.0.0/15 with 10.62.0.0/16"},
		{"another peering's remap", "reserved: [10.96.0.0/16]", "reserved: [10.64.0.0/10]",
			"the remap of paris pod 10.0.0.0/16; " + release},
		{"reserved over a remap", "reserved: [10.96.0.0/16]", "reserved: [10.61.128.0/17]",
			"ipam.reserved[0]: overlap of 10.61.128.0/17 with 10.61.0.0/16"},
		{"node in a remap", "address: 10.80.0.2", "address: 10.61.0.2",
			"geneve.nodes[0].address: overlap of 10.61.0.2/32 with 10.61.0.0/16"},
		{"gateway in a remap", "gatewayAddress: 10.80.0.4", "gatewayAddress: 10.62.0.4",
			"geneve.gatewayAddress: overlap of 10.62.0.4/32 with 10.62.0.0/16"},
		{"underlay in a remap", "underlay: 127.0.0.2", "underlay: 10.62.0.2", "geneve.nodes[0].underlay: overlap"},
		{"endpoint in a remap", "127.0.0.1:9", "10.62.0.2:9", "wireguard.endpoint: overlap"},
		{"written remap over another's", "cidr: 10.0.0.0/16, remap: auto", "cidr: 10.0.0.0/16, remap: 10.64.0.0/16",
			"network.remote.podCIDRs[0]: overlap of 10.64.0.0/16 with 10.64.0.0/16, the remap of paris"},
		{"seen as it is over another's", "cidr: 10.0.0.0/16, remap: auto", "cidr: 10.64.4.0/24",
			"network.remote.podCIDRs[0]: overlap of 10.64.4.0/24"},
		{"address that is given", "nat:\n  addresses: [",
			"nat:\n  addresses: [{external: 10.70.0.2, internal: 192.0.2.11}, ",
			"nat.addresses[0].external: overlap of 10.70.0.2/32 with 10.70.0.2, the remap of milan service web"},
		{"unknown source that is given", "nat:\n", "nat:\n  unknownSource: 10.70.0.1\n",
			"nat.unknownSource: overlap of 10.70.0.1/32 with 10.70.0.1, the remap of milan address 192.0.2.10"},
		{"address of a CIDR that is gone", "externalCIDRs: [10.70.0.0/16]}", "externalCIDRs: [10.71.0.0/16]}",
			"nat.addresses[0].external: auto chose 10.70.0.1, which is in no CIDR of network.local.externalCIDRs any more; add one with it there, or choose again after: culvert ipam release --file "},
		{"no memory", "state: state\n", "",
			"network.remote.podCIDRs[0].remap: auto needs a file that remembers the choice: set state"},
		{"state is a file", "state: state\n", "state: rome.key\n", "not a directory"},
		{"nothing to choose addresses from", "externalCIDRs: [10.70.0.0/16]}", "externalCIDRs: []}",
			"nat.addresses[0].external: auto needs an IPv4 CIDR in network.local.externalCIDRs to choose from"},
		{"pools overlap", "pools: [10.0.0.0/8]", "pools: [10.0.0.0/8, 10.1.0.0/16]",
			"ipam.pools[1]: 10.1.0.0/16 overlaps ipam.pools[0]"},
		{"pool with host bits", "pools: [10.0.0.0/8]", "pools: [10.1.0.0/8]",
			"ipam.pools[0]: 10.1.0.0/8 has host bits set"},
		{"pool too small", "podCIDRs: [{cidr: 10.0.0.0/16, remap: auto}",
			"podCIDRs: [{cidr: 10.0.0.0/16, remap: auto}, {cidr: 32.0.0.0/3, remap: auto}",
			"network.remote.podCIDRs[1].remap: no space: milan pod 32.0.0.0/3 needs a free /3 in 10.0.0.0/8; the largest free block is a /9"},
		{"one remote CIDR twice", "podCIDRs: [{cidr: 10.0.0.0/16, remap: auto}",
			"podCIDRs: [{cidr: 10.0.0.0/16, remap: auto}, {cidr: 10.0.0.0/16, remap: auto}",
			"network.remote.podCIDRs[1].cidr: 10.0.0.0/16 overlaps"},
		{"one port of one service twice", "port: 443", "port: 80",
			"nat.services[1].port: 10.70.0.2 port 80 is nat.services[0].port too"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, config := autoFolder(t)
			file := writeKnown(t, dir, knownFile)
			edit(t, dir, tt.old, tt.new)
			refuses(t, tt.want, "gateway", "--check", "--config", config)
			refuses(t, tt.want, "gateway", "--config", config)
			if after, err := os.ReadFile(file); err != nil || string(after) != knownFile {
				t.Errorf("the file is\n%s\n%v", after, err)
			}
		})
	}
}

// TestRememberedRemaps: --check shows what would be chosen and writes nothing; acquire
// writes it; then it is remembered, whatever becomes free.
func TestRememberedRemaps(t *testing.T) {
	dir, config := autoFolder(t)
	chosenBy := func(args ...string) (view checked) {
		t.Helper()
		out, diag, status := run(t, append(args, "-o", "json", "--config", config)...)
		if status != 0 || json.Unmarshal([]byte(out), &view) != nil {
			t.Fatalf("%v: %d, %s%s", args, status, out, diag)
		}
		return view
	}
	first := chosenBy("gateway", "--check")
	if len(first.Chosen) != 5 || !first.Chosen[0].New || !first.Chosen[4].New ||
		first.Nodes[0].Routes[0].String() != first.Chosen[0].Remapped {
		t.Errorf("at first: %+v", first)
	}
	if first.Chosen[3].Remapped != first.Chosen[4].Remapped {
		t.Errorf("two services of one name are %s and %s", first.Chosen[3].Remapped, first.Chosen[4].Remapped)
	}
	if _, err := os.Stat(filepath.Join(dir, "state")); err == nil {
		t.Error("--check made the state folder")
	}
	if out, diag, status := run(t, "ipam", "acquire", "--config", config); status != 0 ||
		strings.Count(out, " new\n") != 5 {
		t.Fatalf("acquire: %d, %s%s", status, out, diag)
	}
	// What was chosen first would fit better now.
	edit(t, dir, "local:  {podCIDRs: [10.0.0.0/16]", "local:  {podCIDRs: [10.200.0.0/16]")
	edit(t, dir, "podCIDRs: [10.0.1.0/24]", "podCIDRs: [10.200.1.0/24]")
	again := chosenBy("gateway", "--check")
	for i, c := range again.Chosen {
		if c.New || c.Remapped != first.Chosen[i].Remapped {
			t.Errorf("then: %+v, was %+v", c, first.Chosen[i])
		}
	}
	text, _, _ := run(t, "gateway", "--check", "--config", config)
	if !strings.Contains(text, "network.remote.podCIDRs[0].remap: "+first.Chosen[0].Remapped+", remembered\n") {
		t.Errorf("--check says %s", text)
	}
}

// TestIPAMCommands: what list, acquire and release do, and say.
func TestIPAMCommands(t *testing.T) {
	dir, config := autoFolder(t)
	file := writeKnown(t, dir, knownFile)
	for _, tt := range []struct {
		args   string
		status int
		want   string // a regular expression
	}{
		{"list --file FILE", 0, `(?m)^milan  external  10.70.0.0/16  10.62.0.0/16  2026-11-21T12:00:00Z  known$`},
		{"list --config CONFIG", 0,
			`(?s)paris  pod .* unused\n.*milan  service   web           10.70.0.2     2026-11-21T12:00:00Z  used\n`},
		{"list --config CONFIG -o json", 0, `(?s)"peer": "paris".*"state": "unused"`},
		{"list", 2, "at least one of the flags in the group .file config. is required"},
		{"list --file FILE --config CONFIG", 2, "none of the others can be"},
		{"list --file FILE -o xml", 2, "--output: want text or json"},
		{"acquire --file FILE oslo pod 10.9.0.0/16 --want 10.63.0.0/16", 0,
			`\noslo  pod   10.9.0.0/16  10.63.0.0/16  2.*Z  new\n$`},
		{"acquire --file FILE oslo pod 10.9.0.0/16", 0, "10.63.0.0/16 .* remembered"},
		{"acquire --config CONFIG oslo address 192.0.2.1 --network 10.70.0.0/16 -o json", 0,
			`(?s)"remapped": "10.70.0.3".*"state": "new"`},
		{"acquire --file FILE oslo service dns --network 10.70.0.0/16", 0, "10.70.0.4 .* new"},
		{"acquire --file FILE oslo service sip", 2, `--network: "" is no CIDR`},
		{"acquire --file FILE oslo pod 10.9.0.0/16 --want 10.63.0.0/17", 0, "10.63.0.0/16 .* remembered"},
		{"acquire --file FILE oslo pod 10.10.0.0/16 --want 10.63.0.0/17", 2, "differ in length"},
		{"acquire --file FILE oslo pod 10.9.1.0/16", 2, `real: "10.9.1.0/16" is no CIDR`},
		{"acquire --file FILE oslo node x", 2, `kind: "node" is not one of pod`},
		{"acquire --file FILE ../oslo pod 10.9.0.0/16", 2, `peer: "../oslo" is no name`},
		{"acquire --file FILE oslo pod", 2, "2 arguments"},
		{"acquire --file FILE", 2, "without --config, name an owner"},
		{"release --file FILE oslo pod 10.8.0.0/16", 2, "never given: oslo pod 10.8.0.0/16; culvert ipam list shows"},
		{"release --file FILE bonn", 2, "never given: anything to peer bonn"},
		{"release --file FILE ../bonn", 2, `"../bonn" is no name`},
		{"release --file FILE oslo pod 10.9.0.0/16", 0, `\noslo .* 10.63.0.0/16 .* released\n$`},
		{"release --file FILE oslo -o json", 0, `(?s)"kind": "address".*"kind": "service"`},
		{"release --file FILE oslo", 2, "never given"},
	} {
		args := append([]string{"ipam"}, strings.Fields(strings.NewReplacer("FILE", file, "CONFIG",
			config).Replace(tt.args))...)
		out, diag, status := run(t, args...)
		if status != tt.status || !regexp.MustCompile(tt.want).MatchString(out+diag) {
			t.Errorf("%s: status %d, want %d\n%s%s\nwant %s", tt.args, status, tt.status, out, diag, tt.want)
		}
		for line := range strings.Lines(out) {
			if len(line) > 101 {
				t.Errorf("%s: a line of %d columns: %s", tt.args, len(line)-1, line)
			}
		}
	}
	want := strings.Replace(knownFile, `"address": "10.70.0.2"`, `"address": "10.70.0.4"`, 1)
	if after, _ := os.ReadFile(file); sorted(string(after)) != sorted(want) {
		t.Errorf("the file is\n%s\nwant\n%s", after, want)
	}
}

// sorted is a text without order and commas, since entries go by what was given.
func sorted(text string) string {
	lines := strings.Split(strings.ReplaceAll(text, ",\n", "\n"), "\n")
	for i := range lines {
		for j := range lines[:i] {
			if lines[i] < lines[j] {
				lines[i], lines[j] = lines[j], lines[i]
			}
		}
	}
	return strings.Join(lines, "\n")
}

// TestReleaseBesideGateway: what a running gateway may use is kept, unless by force; a
// kill frees it. Another SIGHUP gives a new remote CIDR its remap, and leaves the rest.
func TestReleaseBesideGateway(t *testing.T) {
	dir, config := autoFolder(t)
	edit(t, dir, `metrics: ""`, "metrics: \"\"\nlog: {format: json}")
	cmd := culvert("gateway", "--config", config)
	diag, err := cmd.StderrPipe()
	need.NoError(t, err)
	need.NoError(t, cmd.Start())
	kill := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer kill.Stop()
	lines := bufio.NewScanner(diag)
	await := func(want string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), want) {
				return
			}
		}
		t.Fatalf("no %q before the end", want)
	}
	await("gateway running")
	file := filepath.Join(dir, "state", "ipam.json")
	before, err := ipam.Open(file).Read()
	if err != nil || len(before.Entries()) != 4 {
		t.Fatalf("%v, %v", before, err)
	}
	refuses(t, "gateway is running: the one towards milan uses what was given for it; stop it first, or add --force",
		"ipam", "release", "--config", config, "milan")
	refuses(t, "never given", "ipam", "release", "--config", config, "paris")

	edit(t, dir, "podCIDRs: [{cidr: 10.0.0.0/16, remap: auto}]", "podCIDRs: [{cidr: 10.77.0.0/24, remap: auto}]")
	cmd.Process.Signal(syscall.SIGHUP)
	await("configuration applied")
	after, err := ipam.Open(file).Read()
	if err != nil || len(after.Entries()) != 5 {
		t.Fatalf("%v, %v", after, err)
	}
	for _, e := range before.Entries() {
		if got, _ := after.Find(e.Owner); got != e {
			t.Errorf("%v became %v", e, got)
		}
	}
	// A refused file leaves no trace in the memory either.
	edit(t, dir, "{cidr: 10.77.0.0/24, remap: auto}", "{cidr: 10.78.0.0/24, remap: auto}")
	edit(t, dir, "cluster: rome", "mtu: 1300\ncluster: rome")
	cmd.Process.Signal(syscall.SIGHUP)
	await("mtu: cannot change")
	if l, _ := ipam.Open(file).Read(); len(l.Entries()) != 5 {
		t.Errorf("after a refused file: %v", l.Entries())
	}
	if out, diag, status := run(t, "ipam", "release", "--file", file, "milan", "pod", "10.77.0.0/24",
		"--force"); status != 0 {
		t.Errorf("by force: %d, %s%s", status, out, diag)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if out, diag, status := run(t, "ipam", "release", "--file", file, "milan"); status != 0 ||
		strings.Count(out, "released") != 4 {
		t.Errorf("after a kill: %d, %s%s", status, out, diag)
	}
}

// TestGatewayClaimsFirst: a gateway that starts while its remaps are being released waits,
// and then chooses anew.
func TestGatewayClaimsFirst(t *testing.T) {
	dir, config := autoFolder(t)
	file := writeKnown(t, dir, knownFile)
	lock, err := ipam.Open(file).Exclude(context.Background(), "milan")
	need.NoError(t, err)
	edit(t, dir, `metrics: ""`, "metrics: \"\"\nlog: {format: json}")
	cmd := culvert("gateway", "--config", config)
	diag, err := cmd.StderrPipe()
	need.NoError(t, err)
	need.NoError(t, cmd.Start())
	err = ipam.Open(file).Update(context.Background(), func(l *ipam.Ledger) error { return l.ReleasePeer("milan") })
	lock.Close()
	need.NoError(t, err)
	lines := bufio.NewScanner(diag)
	chosen := 0
	for lines.Scan() && !strings.Contains(lines.Text(), "gateway running") {
		chosen += strings.Count(lines.Text(), "remap chosen")
	}
	cmd.Process.Signal(syscall.SIGTERM)
	cmd.Wait()
	if chosen != 5 {
		t.Errorf("%d remaps chosen, want 5", chosen)
	}
}

// TestIPAMCheck: what two clusters overlap with, what each would see, and the lines.
func TestIPAMCheck(t *testing.T) {
	rome := `cluster: rome
peer: milan
geneve: {gatewayAddress: 10.80.0.4, nodes: [{name: rome-1, vni: 1, underlay: 172.18.0.2, address: 10.80.0.2}]}
network:
  local: {podCIDRs: [10.0.0.0/16], externalCIDRs: [10.70.0.0/16]}
ipam: {reserved: [10.96.0.0/12]}
`
	milan := strings.NewReplacer("rome", "milan", "milan", "rome").Replace(rome)
	disjoint := strings.NewReplacer("10.0.0.0/16", "10.8.0.0/16", "10.70.", "10.71.", "10.80", "10.81").Replace(milan)
	remote := func(c, pods, externals string) string {
		return strings.Replace(c, "ipam:", "  remote:\n    podCIDRs: ["+pods+"]\n    externalCIDRs: ["+externals+
			"]\nipam:", 1)
	}
	for _, tt := range []struct {
		name        string
		rome, milan string
		status      int
		want        []string
	}{
		{"everything overlaps", rome, milan, 1, []string{
			"rome (rome.yaml) towards milan\n  overlap: pod 10.0.0.0/16 with network.local.podCIDRs[0], 10.0.0.0/16\n  overlap: external 10.70.0.0/16 with network.local.externalCIDRs[0], 10.70.0.0/16\n",
			"  sees pod 10.0.0.0/16 as 10.", ", new\n", "          - {cidr: 10.70.0.0/16, remap: 10.",
			"milan (milan.yaml) towards rome\n", "ipam check: remaps needed"}},
		{"nothing overlaps, nothing written", rome, disjoint, 1,
			[]string{"  sees pod 10.8.0.0/16 as 10.8.0.0/16, as it is\n", "          - {cidr: 10.8.0.0/16}\n"}},
		{"nothing overlaps, all written", remote(rome, "{cidr: 10.8.0.0/16}", "{cidr: 10.71.0.0/16}"),
			remote(disjoint, "{cidr: 10.0.0.0/16}", "{cidr: 10.70.0.0/16}"), 0, nil},
		{"remapped by hand", remote(rome, "{cidr: 10.0.0.0/16, remap: 10.61.0.0/16}",
			"{cidr: 10.70.0.0/16, remap: 10.62.0.0/16}"),
			remote(milan, "{cidr: 10.0.0.0/16, remap: 10.61.0.0/16}", "{cidr: 10.70.0.0/16, remap: 10.62.0.0/16}"), 0,
			[]string{"as 10.61.0.0/16, configured"}},
		{"auto, with state", remote(rome, "{cidr: 10.0.0.0/16, remap: auto}", "{cidr: 10.70.0.0/16, remap: auto}") +
			"state: none\n", "", 0, []string{", new\n"}},
		{"auto, without state", remote(rome, "{cidr: 10.0.0.0/16, remap: auto}", "{cidr: 10.70.0.0/16, remap: auto}"),
			"", 1, []string{"- {cidr: 10.0.0.0/16, remap: 10."}},
		{"lines may say auto with state", rome + "state: none\n", milan, 1,
			[]string{"- {cidr: 10.0.0.0/16, remap: auto}"}},
		{"a remap that hides services", remote(rome, "{cidr: 10.0.0.0/16, remap: 10.97.0.0/16}",
			"{cidr: 10.70.0.0/16, remap: 10.62.0.0/16}"), "", 1,
			[]string{"sees external 10.70.0.0/16 as 10.62.0.0/16, configured"}},
		{"services", strings.Replace(rome, "10.96.0.0/12", "10.8.0.0/16", 1), disjoint, 1,
			[]string{"overlap: pod 10.8.0.0/16 with ipam.reserved[0], 10.8.0.0/16"}},
		{"internal addresses", rome, strings.Replace(disjoint, "10.8.0.0/16", "10.80.0.0/16", 1), 1,
			[]string{"overlap: pod 10.80.0.0/16 with geneve.gatewayAddress, 10.80.0.4/32"}},
		{"node networks", rome, strings.Replace(disjoint, "10.8.0.0/16", "172.18.0.0/16", 1), 1,
			[]string{"overlap: pod 172.18.0.0/16 with geneve.nodes[0].underlay, 172.18.0.2/32"}},
		{"no room", strings.Replace(rome, "reserved: [10.96.0.0/12]", "pools: [10.0.0.0/16]", 1), milan, 2,
			[]string{"no space: milan pod 10.0.0.0/16 needs a free /16 in 10.0.0.0/16; nothing is free"}},
		{"one cluster twice", rome, rome, 2, []string{`milan.yaml: cluster: "rome" is also the cluster of rome.yaml`}},
		{"nothing known of the peer", rome, "", 2, []string{"rome.yaml: network.remote.podCIDRs: missing"}},
		{"bad file", strings.Replace(rome, "10.0.0.0/16", "10.0.0.0", 1), "", 2,
			[]string{`rome.yaml:5:22: network.local.podCIDRs[0]: "10.0.0.0" is not a CIDR`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			args := []string{"ipam", "check", "rome.yaml"}
			os.WriteFile("rome.yaml", []byte(tt.rome), 0o600)
			if tt.milan != "" {
				os.WriteFile("milan.yaml", []byte(tt.milan), 0o600)
				args = append(args, "milan.yaml")
			}
			out, diag, status := run(t, args...)
			if status != tt.status {
				t.Errorf("status %d, want %d", status, tt.status)
			}
			for _, want := range tt.want {
				if !strings.Contains(out+diag, want) {
					t.Errorf("no %q", want)
				}
			}
			if tt.status == 0 && strings.Contains(out, "write into") {
				t.Error("lines, though nothing is to do")
			}
			for line := range strings.Lines(out) {
				if len(line) > 101 {
					t.Errorf("a line of %d columns", len(line)-1)
				}
			}
			asJSON, _, _ := run(t, append(args, "-o", "json")...)
			var sides []checkedSide
			if err := json.Unmarshal([]byte(asJSON), &sides); err != nil && tt.status < 2 {
				t.Errorf("%v: %s", err, asJSON)
			}
			if entries, _ := os.ReadDir("."); len(entries) != len(args)-2 {
				t.Errorf("it wrote: %v", entries)
			}
			if t.Failed() {
				t.Logf("%s%s", out, diag)
			}
		})
	}
}
