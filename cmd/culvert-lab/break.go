package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/integration/lab/fault"
	"culvert/integration/lab/holder"
)

func newBreakCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "break [FAULT…]",
		Short: "Make faults in the running lab, to learn from them; without arguments, list all",
		Long: "Make faults in the running lab, in addition to those that it has. culvert-lab mend removes them.\n" +
			"Without arguments, list all faults.",
		Example:           "  culvert-lab break\n  culvert-lab break missing-route\n  culvert-lab mend",
		ValidArgsFunction: completeFaults(false),
	}
	isJSON := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		asJSON, err := isJSON()
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		if len(names) == 0 && asJSON {
			return json.NewEncoder(out).Encode(fault.All())
		} else if len(names) == 0 {
			return printFaults(out)
		}
		s, err := holder.Break(cmd.Context(), names)
		if err != nil {
			return cli.Failed(err)
		}
		if asJSON {
			return json.NewEncoder(out).Encode(s)
		}
		for _, f := range fault.All() {
			if slices.Contains(names, f.Name) {
				fmt.Fprintf(out, "%s: %s\nnow %s\n", f.Name, f.Does, f.Symptom)
			}
		}
		fmt.Fprintln(out, "try: culvert-lab exec rome/pod1 ping milan/pod1; logs are in", s.Dir+"/logs")
		fmt.Fprintln(out, "to remove it: culvert-lab mend")
		return nil
	}
	return cmd
}

func printFaults(out io.Writer) error {
	w := cli.NewTable(out)
	for _, f := range fault.All() {
		fmt.Fprintf(w, "%s\t%s\n", f.Name, f.Does)
	}
	return w.Flush()
}

func newMendCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "mend [FAULT…]",
		Short:             "Remove the named faults that break made, or all of them",
		Example:           "  culvert-lab mend\n  culvert-lab mend missing-route",
		ValidArgsFunction: completeFaults(true),
		RunE: func(cmd *cobra.Command, names []string) error {
			s, err := holder.Mend(cmd.Context(), names)
			if err != nil {
				return cli.Failed(err)
			}
			if len(s.Broken) > 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "mended; left:", strings.Join(s.Broken, ", "))
				return nil
			}
			fmt.Fprintln(cmd.OutOrStdout(), "mended; the lab has no fault")
			return nil
		},
	}
}

func newRestartCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "restart CLUSTER/HOST",
		Short:             "Restart a gateway or node of the running lab",
		Long:              "Restart a gateway or node of the running lab with the current contents of its file, or start it if it was killed.",
		Example:           "  culvert-lab restart rome/gateway",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeFirst(culvertHosts()...),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := holder.Restart(cmd.Context(), args[0]); err != nil {
				return cli.Failed(err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: restarted\n", args[0])
			return nil
		},
	}
}
