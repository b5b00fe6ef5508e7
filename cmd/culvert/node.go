package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"culvert/gateway"
	"culvert/gateway/node"
	"culvert/gateway/services"
)

func newNodeCommand() *cobra.Command {
	var file string
	var check bool
	cmd := &cobra.Command{
		Use:   "node --config FILE",
		Short: "Run the node end of the tunnel to a gateway, or serve Services on a node",
		Long: "Run the node end of the tunnel to a gateway: a Geneve, VXLAN or TUN link, its address and its\n" +
			"routes. With services in its file, serve them as kube-proxy does, without netfilter: cluster\n" +
			"addresses, node ports, external and load balancer addresses, by a TUN device, routes and rules of\n" +
			"policy routing; SIGHUP reads them again. All is removed at the end, but for what keepLinks and\n" +
			"services.state leave to the next run. Needs CAP_NET_ADMIN in its network namespace, and for\n" +
			"services a writable /proc/sys/net.",
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
			return runNode(cmd.Context(), file, c)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `FILE` (YAML)")
	cmd.Flags().BoolVar(&check, "check", false, "validate the configuration, compare it with this machine, and exit")
	cmd.MarkFlagRequired("config")
	return cmd
}

func runNode(ctx context.Context, file string, c *node.Config) error {
	log, err := newLogger("info", "text")
	if err != nil {
		return err
	}
	log.WithFields(logrus.Fields{"version": gateway.ReadVersion(), "node": c.Name}).Info("node starting")
	for _, w := range c.Warnings {
		log.Warn(w)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ends := make(chan error, 2)
	running := 0
	run := func(part func(context.Context) error) {
		running++
		go func() { ends <- part(ctx) }()
	}
	if c.Services != nil {
		s, err := services.New(c.Services, log)
		if err != nil {
			return err
		}
		hup := make(chan os.Signal, 1)
		signal.Notify(hup, syscall.SIGHUP)
		defer signal.Stop(hup)
		go rereadServices(ctx, hup, file, c, s, log)
		run(s.Run)
	}
	if c.Tunnel {
		n, err := node.New(ctx, c, log)
		if err != nil {
			stop()
			for range running {
				err = errors.Join(err, <-ends)
			}
			return err
		}
		run(n.Run)
	}
	for range running {
		err = errors.Join(err, <-ends)
		stop() // one does not go on without the other
	}
	if err != nil {
		return failure{err}
	}
	return nil
}

// rereadServices serves what the file says at each SIGHUP. A file that is bad in any way, or changes what is about the tunnel, changes nothing.
func rereadServices(ctx context.Context, hup <-chan os.Signal, file string, c *node.Config, s *services.Server, log logrus.FieldLogger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
		}
		next, err := node.LoadConfig(file)
		if err == nil && !c.SameTunnel(next) {
			err = errors.New("only services change while a node runs; restart it")
		}
		if err == nil {
			err = s.Apply(ctx, next.Services)
		}
		if err != nil {
			log.WithError(err).Error("configuration refused, the running one stays")
		}
	}
}

func printNode(w io.Writer, file string, c *node.Config) {
	if c.Tunnel {
		fmt.Fprintf(w, "%s: good: %s to the gateway at %s, VNI %d, %d routes\n", file, c.Name, c.Gateway, c.VNI, len(c.Routes))
	}
	if c.Services != nil {
		fmt.Fprintf(w, "%s: good: %s serves %d ports of Services\n", file, c.Name, len(c.Services.Services))
	}
	for _, warning := range c.Warnings {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
}
