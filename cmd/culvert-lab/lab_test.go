package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway/control"
	"culvert/integration/lab/fault"
	"culvert/integration/lab/holder"
	"culvert/integration/need"
)

var update = flag.Bool("update", false, "write the generated files of docs/")

// TestGeneratedDocs: the page of faults is made from their list; go test ./cmd/culvert-lab -run
// TestGeneratedDocs -update writes it.
func TestGeneratedDocs(t *testing.T) {
	const name = "../../docs/faults.md"
	want := cli.WrapLines(fault.Page(), 100)
	if *update {
		need.NoError(t, os.WriteFile(name, []byte(want), 0o644))
	}
	if got, err := os.ReadFile(name); err != nil || string(got) != want {
		t.Errorf("%s is not what the list of faults makes (%v); run this test with -update", name, err)
	}
}

// TestHelp: every command has a sentence and an example that starts with its own name.
func TestHelp(t *testing.T) {
	commands := 0
	cli.Visit(newRootCommand(), func(cmd *cobra.Command) {
		commands++
		if !cmd.Hidden && (cmd.Short == "" || !strings.Contains(cmd.Example, "culvert-lab ")) {
			t.Errorf("%s: short help %q, example %q", cmd.CommandPath(), cmd.Short, cmd.Example)
		}
	})
	for path := range examples {
		if cmd, _, err := newRootCommand().Find(strings.Fields(path)[1:]); err != nil || cmd.CommandPath() != path {
			t.Errorf("an example of %q, which is no command", path)
		}
	}
	if commands < 12 {
		t.Errorf("%d commands", commands)
	}
}

// TestHelpFits: no line of a command's help is wider than 100 columns, which many terminals have.
func TestHelpFits(t *testing.T) {
	cli.Visit(newRootCommand(), func(cmd *cobra.Command) {
		var help strings.Builder
		if cmd.SetOut(&help); cmd.Help() != nil || !strings.Contains(help.String(), "Usage:\n  "+cmd.CommandPath()) {
			t.Errorf("%s: %s", cmd.CommandPath(), help.String())
		}
		for line := range strings.Lines(help.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 100 {
				t.Errorf("%s --help: %d columns: %s", cmd.CommandPath(), n, line)
			}
		}
	})
}

func TestShellsComplete(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir()) // there is no lab
	for _, test := range []struct{ words, has, hasNot string }{
		{"", "break", "probe-all"},
		{"exec ", "milan/pod2", "missing-route"},
		{"exec milan/pod2 ", "", "milan/pod2"}, // files
		{"restart ", "rome/gateway", "rome/pod1"},
		{"break ", "missing-route", "rome/pod1"},
		{"break missing-route ", "node-off", "missing-route"},
		{"mend ", "", "missing-route"}, // there is none to mend
		{"check --mode ", "vxlan", "on"},
		{"up --offloads ", "off", "vxlan"},
		{"status -o ", "json", "vxlan"},
		{"check --", "--brief", "--config"},
		{"completion ", "fish", "powershell"},
	} {
		root := newRootCommand()
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetArgs(append([]string{"__complete"}, strings.Split(test.words, " ")...))
		if err := root.Execute(); err != nil {
			t.Fatalf("%s: %v", test.words, err)
		}
		var offers []string
		for line := range strings.Lines(out.String()) {
			name, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			offers = append(offers, name)
		}
		if test.has != "" && !slices.Contains(offers, test.has) || slices.Contains(offers, test.hasNot) {
			t.Errorf("culvert-lab %s: %v, want %q among it and not %q", test.words, offers, test.has, test.hasNot)
		}
	}
}

// TestProgram: a lab runs the culvert that --culvert names, if its version is that of the lab.
func TestProgram(t *testing.T) {
	own, err := json.Marshal(control.ReadVersion())
	need.NoError(t, err)
	dir := t.TempDir()
	for _, tt := range []struct{ name, script, want string }{
		{"same", fmt.Sprintf("echo '%s'", own), ""},
		{"other", `echo '{"version": "v0.0.1", "revision": "0123456789abcdef"}'`,
			"other is culvert v0.0.1, commit 0123456789ab of "},
		{"no-culvert", "echo hello", "does not print its version"},
		{"fails", "exit 3", "exit status 3"},
	} {
		file := filepath.Join(dir, tt.name)
		need.NoError(t, os.WriteFile(file, []byte("#!/bin/sh\n[ \"$*\" = 'version -o json' ] || exit 9\n"+tt.script+
			"\n"), 0o755))
		p := program{file}
		got, err := p.find(newUpCommandIn(t))
		if tt.want == "" && (err != nil || got != file) {
			t.Errorf("%s: %q, %v", tt.name, got, err)
		} else if tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), "--culvert: ") ||
			!strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	// Nothing lies beside the binary of a test.
	for _, args := range [][]string{{"up"}, {"check"}, {"bench"}, {"up", "--culvert", filepath.Join(dir, "none")}} {
		root := newRootCommand()
		root.SetArgs(args)
		if err := root.Execute(); err == nil || !strings.Contains(err.Error(), "--culvert: ") ||
			!strings.Contains(err.Error(), "no such file") {
			t.Errorf("culvert-lab %s: %v", strings.Join(args, " "), err)
		}
	}
}

// TestStatusFits: a long folder does not widen the tables of the status.
func TestStatusFits(t *testing.T) {
	s := &holder.Status{Description: "nodes vxlan, offloads on (super-frames)", Dir: "/" + strings.Repeat("d", 100),
		Broken: []string{"wrong-vni"},
		Hosts:  []holder.HostStatus{{Name: "milan/pod2", Address: "10.0.130.7", Seen: "10.61.130.7"}},
		Processes: []holder.ProcessStatus{{Name: "culvert gateway in rome/gateway", Log: "logs/rome-gateway.log",
			Running: true}}}
	var text strings.Builder
	need.NoError(t, printStatus(&text, s))
	want := s.Description + "; files in " + s.Dir + `
HOST        ADDRESS     SEEN BY THE OTHER CLUSTER AS
milan/pod2  10.0.130.7  10.61.130.7
PROCESS                          LOG                    STATE
culvert gateway in rome/gateway  logs/rome-gateway.log  running
FAULTS  wrong-vni; culvert-lab mend
`
	if text.String() != want {
		t.Errorf("%s\nwant:\n%s", text.String(), want)
	}
}

// TestBadOptions: options that do not make sense are refused before anything starts.
func TestBadOptions(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"check --named wrong-vin", `--named: no fault "wrong-vin"; did you mean wrong-vni?`},
		{"check --named all --faults", "[faults named] were all set"},
		{"check --verbose", "--verbose: works only with --brief"},
		{"bench --runs 0", "--runs: want at least 1"},
		{"bench --runs=-1", "--runs: want at least 1"},
		{"bench --growth --cpus", "[cpus growth] were all set"},
	} {
		root := newRootCommand()
		root.SetArgs(strings.Fields(tt.args))
		if err := root.Execute(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("culvert-lab %s: %v, want %q", tt.args, err, tt.want)
		}
	}
}

func newUpCommandIn(t *testing.T) *cobra.Command {
	cmd := newUpCommand()
	cmd.SetContext(t.Context())
	return cmd
}

// TestExecArguments: what follows the host is the command's, with "--" before it or
// without.
func TestExecArguments(t *testing.T) {
	for _, tt := range []struct {
		args string
		want string // "" = refused
	}{
		{"rome/pod1 ip -br a", "rome/pod1: ip -br a"},
		{"rome/pod1 -- ip -br a", "rome/pod1: ip -br a"},
		{"-- rome/pod1 ip -br a", "rome/pod1: ip -br a"},
		{"rome/pod1 sh -c exit -- -x", "rome/pod1: sh -c exit -- -x"},
		{"rome/pod1 ls --help", "rome/pod1: ls --help"},
		{"rome/pod1", ""},
		{"rome/pod1 --", ""},
		{"-br rome/pod1 ip", ""},
	} {
		cmd := newExecCommand()
		err := cmd.ParseFlags(strings.Fields(tt.args))
		got := ""
		if err == nil {
			host, command, splitErr := splitExec(cmd.Flags().Args())
			if err = splitErr; err == nil {
				got = host + ": " + strings.Join(command, " ")
			}
		}
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s: %q, want %q (%v)", tt.args, got, tt.want, err)
		}
	}
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	root := newRootCommand()
	root.SetArgs([]string{"exec", "rome/pod1", "ip", "-br", "a"})
	if err := root.Execute(); err == nil || !strings.Contains(err.Error(), "none is up") {
		t.Errorf("exec with flags after the host: %v", err)
	}
}
