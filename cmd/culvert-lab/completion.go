package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"culvert/integration/lab/fault"
	"culvert/integration/lab/holder"
	"culvert/integration/lab/plan"
)

// completeFirst completes names for the first argument, and files for others.
func completeFirst(names ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFaults completes the faults that the lab has, or those that it lacks.
func completeFaults(made bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (offers []string, _ cobra.ShellCompDirective) {
		broken := []string{}
		if s, err := holder.GetStatus(cmd.Context()); err == nil {
			broken = s.Broken
		}
		for _, f := range fault.All() {
			if slices.Contains(broken, f.Name) == made && !slices.Contains(args, f.Name) {
				offers = append(offers, f.Name+"\t"+f.Does)
			}
		}
		return offers, cobra.ShellCompDirectiveNoFileComp
	}
}

// culvertHosts returns the hosts that run a gateway or node.
func culvertHosts() []string {
	return slices.DeleteFunc(plan.HostNames(), func(name string) bool {
		return !strings.Contains(name, "/node") && !strings.HasSuffix(name, "/gateway")
	})
}
