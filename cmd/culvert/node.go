package main

import (
	"context"
	"fmt"
	"io"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"culvert/gateway"
	"culvert/gateway/node"
)

func newNodeCommand() *cobra.Command {
	var file string
	var check bool
	cmd := &cobra.Command{
		Use:   "node --config FILE",
		Short: "Run the node end of the tunnel to a gateway",
		Long: "Run the node end of the tunnel to a gateway: a Geneve, VXLAN or TUN link, its address and its\n" +
			"routes, all removed at the end unless keepLinks is true. Needs CAP_NET_ADMIN in its network namespace.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := node.LoadConfig(file)
			if err != nil {
				return err
			}
			if check {
				printNode(cmd.OutOrStdout(), file, c)
				return nil
			}
			return runNode(cmd.Context(), c)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `FILE` (YAML)")
	cmd.Flags().BoolVar(&check, "check", false, "validate the configuration, compare it with this machine, and exit")
	cmd.MarkFlagRequired("config")
	return cmd
}

func runNode(ctx context.Context, c *node.Config) error {
	log, err := newLogger("info", "text")
	if err != nil {
		return err
	}
	log.WithFields(logrus.Fields{"version": gateway.ReadVersion(), "node": c.Name}).Info("node starting")
	for _, w := range c.Warnings {
		log.Warn(w)
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

func printNode(w io.Writer, file string, c *node.Config) {
	fmt.Fprintf(w, "%s: good: %s to the gateway at %s, VNI %d, %d routes\n", file, c.Name, c.Gateway, c.VNI, len(c.Routes))
	for _, warning := range c.Warnings {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
}
