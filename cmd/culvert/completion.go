package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"culvert/integration/lab"
)

// flagValues are the values that a shell completes of flags.
var flagValues = map[string][]string{
	"mode":     {"geneve", "vxlan", "tun", "all"},
	"offloads": {"on", "off", "both"},
	"output":   {"text", "json"},
}

// addCompletion lets shells complete hosts and faults of the lab, and values of
// flags. Where nothing is offered, shells offer files, unless there are no arguments.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	if cmd, _, err := root.Find([]string{"completion", "powershell"}); err == nil {
		cmd.Parent().RemoveCommand(cmd) // culvert is for Linux
	}
	visit(root, func(cmd *cobra.Command) {
		if cmd.ValidArgsFunction == nil && !strings.Contains(cmd.Use, " ") {
			cmd.ValidArgsFunction = cobra.NoFileCompletions
		}
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if values := flagValues[f.Name]; values != nil {
				cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
			}
		})
	})
}

func visit(cmd *cobra.Command, each func(*cobra.Command)) {
	each(cmd)
	for _, c := range cmd.Commands() {
		visit(c, each)
	}
}

// completeFirst offers names for the first argument, and files after it.
func completeFirst(names ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFaults offers the faults that the lab has, or those that it has not.
func completeFaults(made bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (offers []string, _ cobra.ShellCompDirective) {
		broken := []string{}
		if s, err := lab.GetStatus(cmd.Context()); err == nil {
			broken = s.Broken
		}
		for _, f := range lab.Faults() {
			if slices.Contains(broken, f.Name) == made && !slices.Contains(args, f.Name) {
				offers = append(offers, f.Name+"\t"+f.Does)
			}
		}
		return offers, cobra.ShellCompDirectiveNoFileComp
	}
}

// culvertHosts are the hosts in which a gateway or node runs.
func culvertHosts() []string {
	return slices.DeleteFunc(lab.HostNames(), func(name string) bool {
		return !strings.Contains(name, "/node") && !strings.HasSuffix(name, "/gateway")
	})
}
