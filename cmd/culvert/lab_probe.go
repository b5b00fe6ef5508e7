package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"culvert/integration/lab"
)

// newLabProbeCommand is for the tests, which must know what they may skip.
func newLabProbeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "probe", Short: "Tell what labs can use on this machine", Args: cobra.NoArgs}
	isJSON := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := isJSON()
		if err != nil {
			return err
		}
		return inHolder(cmd, func(string) error {
			results := make([]probeResult, 0, len(lab.Probes))
			for _, name := range lab.Probes {
				r := probeResult{Name: name, Answer: "yes"}
				if err := lab.Probe(name); errors.Is(err, errors.ErrUnsupported) {
					r.Answer, r.Reason = "kernel cannot", err.Error()
				} else if err != nil {
					r.Answer, r.Reason = "refused here", err.Error()
				}
				results = append(results, r)
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(results)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, r := range results {
				fmt.Fprintf(w, "%s\t%s\t%s\n", r.Name, r.Answer, r.Reason)
			}
			return w.Flush()
		})
	}
	return cmd
}

// probeResult is one line of lab probe.
type probeResult struct {
	Name   string `json:"name"`
	Answer string `json:"answer"` // yes, kernel cannot, refused here
	Reason string `json:"reason,omitempty"`
}
