package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"culvert/gateway/configfile"
)

// nodeLiqo says whether and how the node's links follow Liqo's resources.
type nodeLiqo struct {
	on        bool
	port      int
	daemonSet string
	metrics   string
}

func (l *nodeLiqo) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&l.on, "liqo", false, "make the links that Liqo's resources ask for")
	cmd.Flags().IntVar(&l.port, "geneve-port", 6091,
		"with --liqo or --kube: UDP `PORT` of the tunnels, Liqo's networking.genevePort")
	cmd.Flags().StringVar(&l.daemonSet, "daemonset", "",
		"`NAMESPACE/NAME` of this pod's DaemonSet; links and what serves Services go with it")
	cmd.Flags().StringVar(&l.metrics, "links-metrics", "",
		"with --liqo or --kube: listen `ADDRESS` of the links' /metrics and /healthz, host:port")
}

// check returns what is wrong with the flags.
func (l *nodeLiqo) check() error {
	if l.port < 1 || l.port > 65535 {
		return fmt.Errorf("--geneve-port: %d is out of range; want 1 to 65535", l.port)
	}
	if namespace, name, ok := strings.Cut(l.daemonSet, "/"); l.daemonSet != "" && (!ok || namespace == "" ||
		name == "" || strings.Contains(name, "/")) {
		return fmt.Errorf("--daemonset: %q is not NAMESPACE/NAME", l.daemonSet)
	}
	return nil
}

// runLinks gives the node its links until ctx ends. Meanwhile it runs beside, which serves Services
// and may be nil.
func runLinks(ctx context.Context, k *nodeKube, p *nodePeerings, status *linkStatus,
	beside func(context.Context) error) error {
	e := new(configfile.Errors)
	if e.Name("--node-name", k.name, configfile.MaxDomain); e.Err() != nil {
		return e.Err()
	}
	if p.on {
		return p.run(ctx, k, status, beside)
	}
	return p.links.run(ctx, k, status, beside)
}

// both runs beside, unless it is nil, and part until one ends, and then stops the other.
func both(ctx context.Context, beside, part func(context.Context) error) error {
	if beside == nil {
		return part(ctx)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- beside(ctx)
		stop()
	}()
	err := part(ctx)
	stop()
	return errors.Join(err, <-ended)
}
