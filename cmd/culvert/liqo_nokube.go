//go:build nokube

package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
)

func runLiqo(context.Context, *liqoFlags) error {
	return errors.New("--liqo: this culvert was built with the tag nokube; build it without")
}

// kubeCommands are those that need Kubernetes.
func kubeCommands() []*cobra.Command { return nil }
