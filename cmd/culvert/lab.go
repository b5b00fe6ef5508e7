package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// newLabCommand executes culvert-lab in the same folder, if it exists.
func newLabCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "lab COMMAND…",
		Short:              "Run culvert-lab: two clusters in network namespaces, to explore",
		Example:            "  culvert lab --help\n  culvert lab up",
		DisableFlagParsing: true, // culvert-lab parses them
		RunE:               func(_ *cobra.Command, args []string) error { return becomeLab(args) },
		ValidArgsFunction: func(_ *cobra.Command, args []string, toComplete string) ([]string,
			cobra.ShellCompDirective) {
			becomeLab(append(append(os.Args[1:2:2], args...), toComplete)) // __complete
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// becomeLab replaces this process by culvert-lab. It returns only if that fails.
func becomeLab(args []string) error {
	own, err := os.Executable()
	if err != nil {
		return err
	}
	program := filepath.Join(filepath.Dir(own), "culvert-lab")
	err = unix.Exec(program, append([]string{"culvert-lab"}, args...), os.Environ())
	return fmt.Errorf("lab: the lab is a program of its own, culvert-lab, which must lie beside this one: %s: %w; "+
		"make build makes both", program, err)
}
