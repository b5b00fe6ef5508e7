package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/integration/lab/netns"
)

// newProbeCommand tells tests which of them may be skipped.
func newProbeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "probe", Short: "Show what labs can use on this machine", Args: cobra.NoArgs}
	isJSON := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := isJSON()
		if err != nil {
			return err
		}
		return inHolder(cmd, func(string) error {
			results := make([]probeResult, 0, len(netns.Probes))
			for _, name := range netns.Probes {
				r := probeResult{Name: name, Answer: "yes"}
				if err := netns.Probe(name); errors.Is(err, errors.ErrUnsupported) {
					r.Answer, r.Reason = "kernel cannot", err.Error()
				} else if err != nil {
					r.Answer, r.Reason = "refused here", err.Error()
				}
				results = append(results, r)
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(results)
			}
			w := cli.NewTable(cmd.OutOrStdout())
			for _, r := range results {
				fmt.Fprintf(w, "%s\t%s\t%s\n", r.Name, r.Answer, r.Reason)
			}
			return w.Flush()
		})
	}
	return cmd
}

// probeResult is one line of probe.
type probeResult struct {
	Name   string `json:"name"`
	Answer string `json:"answer"` // yes, kernel cannot, refused here
	Reason string `json:"reason,omitempty"`
}
