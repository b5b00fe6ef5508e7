package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"culvert/gateway/wgkey"
)

func newKeygenCommand() *cobra.Command {
	var public bool
	cmd := &cobra.Command{
		Use:   "keygen FILE",
		Short: "Write a new WireGuard private key to FILE and print its public key",
		Long: "Write a new WireGuard private key to FILE (mode 0600) and print its public key, which the peer's configuration\n" +
			"needs. An existing FILE is never overwritten.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := readOrMakeKey(args[0], public)
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

func readOrMakeKey(name string, existing bool) (wgkey.Key, error) {
	if existing {
		text, err := os.ReadFile(name)
		if err != nil {
			return wgkey.Key{}, err
		}
		key, err := wgkey.ParseStored(text)
		if err != nil {
			return wgkey.Key{}, fmt.Errorf("%s: %w", name, err)
		}
		return key, nil
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return wgkey.Key{}, fmt.Errorf("%s exists and is not overwritten; --public prints its public key", name)
	}
	if err != nil {
		return wgkey.Key{}, err
	}
	key := wgkey.NewPrivate()
	if _, err := fmt.Fprintln(f, key.Base64()); err != nil {
		f.Close()
		os.Remove(name)
		return wgkey.Key{}, err
	}
	return key, f.Close()
}
