package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"culvert/gateway/configfile"
)

// examples are what --help shows of each command.
var examples = map[string]string{
	"culvert":               "  culvert lab up\n  culvert init rome-milan --here\n  culvert help config",
	"culvert gateway":       "  culvert gateway --config rome/gateway.yaml --check\n  culvert gateway --config rome/gateway.yaml",
	"culvert node":          "  culvert node --config rome/nodes/rome-1.yaml --check\n  sudo culvert node --config rome/nodes/rome-1.yaml",
	"culvert status":        "  culvert status\n  culvert status --watch\n  culvert status --socket rome -o json | jq .tunnel.state",
	"culvert keygen":        "  culvert keygen rome.key > rome.pub\n  culvert keygen --public rome.key",
	"culvert ipam":          "  culvert ipam check rome/gateway.yaml milan/gateway.yaml\n  culvert ipam list --config rome/gateway.yaml",
	"culvert ipam list":     "  culvert ipam list --config rome/gateway.yaml",
	"culvert ipam acquire":  "  culvert ipam acquire milan pod 10.0.0.0/16 --config rome/gateway.yaml",
	"culvert ipam release":  "  culvert ipam release milan --config rome/gateway.yaml",
	"culvert ipam check":    "  culvert ipam check rome/gateway.yaml milan/gateway.yaml",
	"culvert lab":           "  culvert lab check\n  culvert lab up --mode vxlan",
	"culvert lab check":     "  culvert lab check --brief\n  culvert lab check --mode tun --offloads off",
	"culvert lab up":        "  culvert lab up --mode vxlan\n  culvert lab exec rome/pod1 ping -c 3 milan/pod1",
	"culvert lab down":      "  culvert lab down",
	"culvert lab status":    "  culvert lab status -o json",
	"culvert lab probe":     "  culvert lab probe",
	"culvert lab bench":     "  culvert lab bench --quick",
	"culvert lab reference": "  culvert lab bench",

	"culvert completion":      "  source <(culvert completion bash)",
	"culvert completion bash": "  source <(culvert completion bash)\n  culvert completion bash > /etc/bash_completion.d/culvert",
	"culvert completion zsh":  "  source <(culvert completion zsh)",
	"culvert completion fish": "  culvert completion fish | source",
}

// addHelp gives each command its example, and lets mistyped flags suggest the right ones.
func addHelp(cmd *cobra.Command) {
	if cmd.Example == "" {
		cmd.Example = examples[cmd.CommandPath()]
	}
	cmd.SetFlagErrorFunc(flagError)
	for _, c := range cmd.Commands() {
		addHelp(c)
	}
}

// flagError names the flag that was probably meant.
func flagError(cmd *cobra.Command, err error) error {
	unknown := new(pflag.NotExistError)
	if !errors.As(err, &unknown) {
		return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	name := strings.TrimPrefix(unknown.GetSpecifiedName(), "no-")
	if near := configfile.Closest(name, names); near != "" && len(name) > 1 {
		return fmt.Errorf("%w; did you mean --%s?", err, near)
	}
	return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
}

// usageError adds to an error about arguments what to do, in the same line.
func usageError(cmd *cobra.Command, err error) error {
	text := err.Error()
	switch {
	case strings.HasPrefix(text, "unknown command "):
		_, rest, _ := strings.Cut(text, `"`)
		word, _, _ := strings.Cut(rest, `"`)
		var names []string
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				names = append(names, c.Name())
			}
		}
		if near := configfile.Closest(word, names); near != "" {
			return fmt.Errorf("%w; did you mean %s %s?", err, cmd.CommandPath(), near)
		}
	case !strings.HasPrefix(text, "required flag(s) ") && !strings.Contains(text, " arg(s), "):
		return err
	}
	return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
}
