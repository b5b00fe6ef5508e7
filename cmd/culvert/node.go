package main

import (
	"context"

	"github.com/spf13/cobra"

	"culvert/gateway/node"
)

func newNodeCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "node --config FILE",
		Short: "Run the node end of the tunnel to a gateway",
		Long: "Run the node end of the tunnel to a gateway: a Geneve, VXLAN or TUN link, its address and its\n" +
			"routes, all removed at the end. Needs CAP_NET_ADMIN in its network namespace.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := node.LoadConfig(file)
			if err != nil {
				return err
			}
			return runNode(cmd.Context(), c)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `FILE` (YAML)")
	cmd.MarkFlagRequired("config")
	return cmd
}

func runNode(ctx context.Context, c *node.Config) error {
	log, err := newLogger("info", "text")
	if err != nil {
		return err
	}
	n, err := node.New(ctx, c, log)
	if err != nil {
		return err
	}
	if err := n.Run(ctx); err != nil {
		return failure{err}
	}
	return nil
}
