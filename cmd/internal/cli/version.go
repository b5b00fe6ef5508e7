package cli

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"culvert/gateway/control"
)

// NewVersionCommand prints the program's build.
func NewVersionCommand(program string) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this build",
		Example: fmt.Sprintf("  %[1]s version\n  %[1]s version -o json", program),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch b := control.ReadVersion(); output {
			case "text":
				_, err := fmt.Fprintln(cmd.OutOrStdout(), b)
				return err
			case "json":
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetIndent("", "  ")
				return encoder.Encode(b)
			case "yaml":
				text, err := yaml.Marshal(b)
				if err == nil {
					_, err = cmd.OutOrStdout().Write(text)
				}
				return err
			}
			return errors.New("--output: want text, json or yaml")
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text, json or yaml")
	FlagValues(cmd, "output", "text", "json", "yaml")
	return cmd
}
