//go:build nokube

package main

import (
	"context"
	"errors"
	"io"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"culvert/gateway/gather"
	"culvert/gateway/node/services"
)

func runLiqo(context.Context, *liqoFlags) error {
	return errNoLiqo
}

var errNoPeerings = errors.New("--kube: this culvert was built with the tag nokube; build it without")

func runKube(context.Context, *kubeFlags) error { return errNoPeerings }

func (p *nodePeerings) run(context.Context, *nodeKube, *linkStatus, func(context.Context) error) error {
	return errNoPeerings
}

func gatherClusters(context.Context, *gather.Archive, string, []string) error {
	return errors.New("--context: this culvert was built with the tag nokube; build it without")
}

// kubeCommands returns the commands that need Kubernetes.
func kubeCommands() []*cobra.Command { return nil }

func (k *nodeKube) serve(*services.Config, shower, *logrus.Logger) (func(context.Context) error,
	func(context.Context, *services.Config) error, error) {
	return nil, nil, errors.New("--services: this culvert was built with the tag nokube; build it without")
}

var errNoLiqo = errors.New("--liqo: this culvert was built with the tag nokube; build it without")

func (l *nodeLiqo) run(context.Context, *nodeKube, *linkStatus, func(context.Context) error) error {
	return errNoLiqo
}

func (l *nodeLiqo) leaveServices(context.Context, *nodeKube) error { return nil }

func removeLinks(io.Writer) error { return errNoLiqo }

// errNoSockets: this build is for the packet path of a gateway.
var errNoSockets = errors.New("services.mode: sockets: this culvert was built with the tag nokube; build it without")

func newSockets(*services.Config, bool, *logrus.Logger) (server, error) { return nil, errNoSockets }

func checkSockets(*services.Config) []error { return []error{errNoSockets} }
