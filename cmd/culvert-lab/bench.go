package main

import (
	"errors"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/integration/lab"
	"culvert/integration/lab/bench"
	"culvert/integration/lab/reference"
)

func newBenchCommand() *cobra.Command {
	var o bench.Options
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the path between two pods against a kernel-based gateway",
		Long: "Measure the path between two pods through culvert's gateways, and through reference gateways in\n" +
			"their place: kernel VXLAN, nftables and the same wireguard-go on a TUN device. Prints medians and\n" +
			"ranges of alternating runs, ratios and budgets; progress goes to standard error. The reference\n" +
			"needs root, nft and /dev/net/tun; without them the rest is measured.",
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&o.Quick, "quick", false, "fewer and shorter runs, in under 3 minutes instead of 20")
	cmd.Flags().BoolVar(&o.Growth, "growth", false, "also measure culvert with many connections, nodes and pod routes")
	cmd.Flags().BoolVar(&o.CPUs, "cpus", false, "instead, compare gateways on 1, 2, 4 … CPUs of this machine")
	cmd.Flags().IntVar(&o.Runs, "runs", 0, "alternating `runs` of each gateway (default 5, quick 2)")
	cmd.MarkFlagsMutuallyExclusive("growth", "cpus")
	var culvert program
	culvert.add(cmd)
	isJSON := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if o.JSON, err = isJSON(); err != nil {
			return err
		}
		if cmd.Flags().Changed("runs") && o.Runs < 1 {
			return errors.New("--runs: want at least 1")
		}
		if o.Culvert, err = culvert.find(cmd); err != nil {
			return err
		}
		return inHolder(cmd, func(dir string) error {
			if err := bench.Run(cmd.Context(), dir, o, cmd.OutOrStdout(), cmd.ErrOrStderr()); err != nil {
				return cli.Failed(err)
			}
			return nil
		})
	}
	return cmd
}

// newReferenceCommand runs the reference gateway, for bench.
func newReferenceCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "reference --config FILE", Short: "Run the reference gateway of bench", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return reference.Run(cmd.Context(), file) },
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `FILE` of a culvert gateway")
	cmd.MarkFlagRequired("config")
	return cmd
}

// newWithoutOffloadsCommand lets bench test as on a kernel without offloads.
func newWithoutOffloadsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "without-offloads -- PROGRAM ARGUMENT…", Short: "Run a program without UDP_GRO and UDP_SEGMENT",
		Hidden: true, Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return lab.ExecWithoutOffloads(args) },
	}
}
