//go:build nokube

package main

import (
	"context"
	"errors"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"culvert/gateway/services"
)

func runLiqo(context.Context, *liqoFlags) error {
	return errors.New("--liqo: this culvert was built with the tag nokube; build it without")
}

// kubeCommands are those that need Kubernetes.
func kubeCommands() []*cobra.Command { return nil }

func (k *nodeKube) serve(*services.Config, *logrus.Logger) (func(context.Context) error, func(context.Context, *services.Config) error, error) {
	return nil, nil, errors.New("--services: this culvert was built with the tag nokube; build it without")
}

// errNoSockets: the packet path of a gateway is what this build is for.
var errNoSockets = errors.New("services.mode: sockets: this culvert was built with the tag nokube; build it without")

func newSockets(*services.Config, bool, *logrus.Logger) (server, error) { return nil, errNoSockets }

func checkSockets(*services.Config) []error { return []error{errNoSockets} }
