package main

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway/config"
	"culvert/gateway/configfile"
	"culvert/gateway/node"
	"culvert/integration/need"
)

var update = flag.Bool("update", false, "write the generated files of docs/")

// TestGeneratedDocs: the pages of docs/ that are generated from the types are up to date;
// go test ./cmd/culvert -run TestGeneratedDocs -update writes them.
func TestGeneratedDocs(t *testing.T) {
	for name, want := range map[string]string{
		"config.md":                  configReference(),
		"schema/gateway.schema.json": string(configfile.Schema("culvert gateway", config.Fields())),
		"schema/node.schema.json":    string(configfile.Schema("culvert node", node.Fields())),
	} {
		name = filepath.Join("../../docs", name)
		if *update {
			need.NoError(t, os.WriteFile(name, []byte(want), 0o644))
		}
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s is not what the types make (%v); run this test with -update", name, err)
		}
	}
	if out, _, status := run(t, "help", "config"); status != 0 ||
		!strings.Contains(out, strings.TrimSuffix(configReference(), "\n")) {
		t.Error("culvert help config prints another page")
	}
}

// TestHelp: every command has a sentence and an example that begins with its own name.
func TestHelp(t *testing.T) {
	cli.Visit(newRootCommand(), func(cmd *cobra.Command) {
		if !cmd.Hidden && (cmd.Short == "" || !strings.Contains(cmd.Example, "culvert ")) {
			t.Errorf("%s: short help %q, example %q", cmd.CommandPath(), cmd.Short, cmd.Example)
		}
	})
	for path := range examples {
		if cmd, _, err := newRootCommand().Find(strings.Fields(path)[1:]); err != nil || cmd.CommandPath() != path {
			t.Errorf("an example of %q, which is no command", path)
		}
	}
}

// TestHelpFits: no line of a command's help is wider than 100 columns, which many terminals have.
func TestHelpFits(t *testing.T) {
	cli.Visit(newRootCommand(), func(cmd *cobra.Command) {
		if cmd.IsAdditionalHelpTopicCommand() {
			return // a page of docs/
		}
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

// TestUsageErrors: one line that says what was meant, exit status 2.
func TestUsageErrors(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"gatewya", "did you mean culvert gateway?"},
		{"gateway --confg x", "did you mean --config?"},
		{"node --chek", "did you mean --check?"},
		{"frobnicate", "see culvert --help"},
		{"gateway", "see culvert gateway --help"},
		{"keygen", "see culvert keygen --help"},
		{"gateway -o json --config nowhere", "add --check"},
		{"gateway --output=text --config nowhere", "add --check"},
		{"node --config nowhere --daemonset=a/b", "--daemonset: only with --services, --liqo or --kube; add that"},
		{"node --config nowhere --node-name=n1", "--node-name: only with --services, --liqo or --kube"},
		{"node --config nowhere --kubeconfig=x", "--kubeconfig: only with --services, --liqo or --kube"},
		{"node --config nowhere --services=off --daemonset=a/b", "--daemonset: only with"},
		{"node --services --node-name=n1 --geneve-port=6091", "--geneve-port: only with --liqo or --kube"},
		{"node --services --node-name=n1 --links-metrics=:9000", "--links-metrics: only with --liqo or --kube"},
		{"node --services --node-name=n1 --node-namespace=x", "--node-namespace: only with --kube"},
		{"node --services --node-name=n1 --peering-namespace=x", "--peering-namespace: only with --kube"},
		{"node --kube --node-name=n1 --lease-namespace=x", "--lease-namespace: only with --services"},
	} {
		out, diag, status := run(t, strings.Fields(tt.args)...)
		if status != cli.ExitBadInput || out != "" || strings.Count(diag, "\n") != 1 ||
			!strings.Contains(diag, tt.want) {
			t.Errorf("culvert %s: status %d, %q, %q; want %q", tt.args, status, out, diag, tt.want)
		}
	}
}

// TestWarnings: --check prints warnings, and they do not change its exit status.
func TestWarnings(t *testing.T) {
	dir, _ := folder(t)
	edit(t, dir, "podCIDRs: [10.0.1.0/24]", "podCIDRs: []")
	out, diag, status := run(t, "gateway", "--check", "--config", filepath.Join(dir, "gateway.yaml"))
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if status != 0 || diag != "" || len(lines) != 2 || !slices.ContainsFunc(lines, func(l string) bool {
		return strings.HasPrefix(l, "warning: ") && strings.Contains(l, "gateway.yaml:7:75: geneve.nodes[0].podCIDRs: ")
	}) {
		t.Errorf("status %d, %q, %q", status, out, diag)
	}
}

// TestManualNamesCommands: go doc of the command lists each of them, and their subcommands.
func TestManualNamesCommands(t *testing.T) {
	manual, err := os.ReadFile("doc.go")
	need.NoError(t, err)
	for _, c := range newRootCommand().Commands() {
		if !c.IsAvailableCommand() {
			continue
		}
		// Either alone, or behind others on its line.
		named := `(?m)^//\tculvert ([a-z]+ \| )*` + c.Name() + `\b`
		if !regexp.MustCompile(named).Match(manual) {
			t.Errorf("doc.go does not name culvert %s", c.Name())
		}
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() && !regexp.MustCompile(named+`.*\b`+sub.Name()+`\b`).Match(manual) {
				t.Errorf("doc.go does not name %s", sub.CommandPath())
			}
		}
	}
}

// TestManualNamesVariables: go doc of the command names each environment variable that product code
// reads.
func TestManualNamesVariables(t *testing.T) {
	manual, err := os.ReadFile("doc.go")
	need.NoError(t, err)
	_, section, _ := strings.Cut(string(manual), "\n// # Environment\n")
	reads := regexp.MustCompile(`\b(?:os|syscall|unix)\.(?:Getenv|LookupEnv)\(([^)]*)\)`)
	found := 0
	for _, folder := range []string{".", "../internal", "../../gateway", "../../geneve", "../../ipam", "../../kube",
		"../../nat"} {
		need.NoError(t, filepath.WalkDir(folder, func(file string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return err
			}
			code, err := os.ReadFile(file)
			for _, m := range reads.FindAllSubmatch(code, -1) {
				found++
				name, err := strconv.Unquote(string(m[1]))
				if err != nil || !regexp.MustCompile(`\b`+name+`\b`).MatchString(section) {
					t.Errorf("%s reads the variable %s; doc.go does not name it under Environment", file, m[1])
				}
			}
			return err
		}))
	}
	if found < 10 {
		t.Errorf("only %d places that read variables were found", found)
	}
}
