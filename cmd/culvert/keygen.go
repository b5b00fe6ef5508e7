package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"culvert/gateway/wgkey"
)

func newKeygenCommand() *cobra.Command {
	var public bool
	cmd := &cobra.Command{
		Use:   "keygen FILE",
		Short: "Write a new WireGuard private key to FILE and print its public key",
		Long: "Write a new WireGuard private key to FILE (mode 0600) and print its public key, which the peer's " +
			"configuration needs. An existing FILE is never overwritten.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := wgkey.Stored(args[0], public)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), key.Public().Base64())
			return err
		},
	}
	cmd.Flags().BoolVar(&public, "public", false, "print the public key of an existing FILE")
	return cmd
}
