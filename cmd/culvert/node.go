package main

import (
	"cmp"
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
	"culvert/gateway/configfile"
	"culvert/gateway/node"
	"culvert/gateway/services"
)

func newNodeCommand() *cobra.Command {
	var file string
	var check bool
	k := &nodeKube{}
	cmd := &cobra.Command{
		Use:   "node --config FILE | --services[=all]",
		Short: "Run the node end of the tunnel to a gateway, or serve Services on a node",
		Long: "Run the node end of the tunnel to a gateway: a Geneve, VXLAN or TUN link, its address and its\n" +
			"routes. With services in its file, serve them as kube-proxy does, without netfilter: cluster\n" +
			"addresses, node ports, external and load balancer addresses, by a TUN device, routes and rules of\n" +
			"policy routing; SIGHUP reads them again. All is removed at the end, but for what keepLinks and\n" +
			"services.state leave to the next run. Needs CAP_NET_ADMIN in its network namespace, but not for\n" +
			"services alone with mode: sockets.\n\n" +
			"With --services, Services and their endpoints come from Kubernetes, and what is about neither from\n" +
			"services in the file. It serves those with the label service.kubernetes.io/service-proxy-name:\n" +
			"culvert, beside kube-proxy; with --services=all also those without that label, in place of kube-proxy.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			load, err := k.loader(file)
			if err != nil {
				return err
			}
			c, err := load()
			if err != nil {
				return err
			}
			if check {
				printNode(cmd.OutOrStdout(), file, c)
				return nil
			}
			return runNode(cmd.Context(), load, c, k)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `FILE` (YAML)")
	cmd.Flags().BoolVar(&check, "check", false, "validate the configuration, compare it with this machine, and exit")
	k.add(cmd)
	return cmd
}

// nodeKube says whether and how Services come from Kubernetes.
type nodeKube struct{ mode, name, namespace, kubeconfig string }

func (k *nodeKube) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&k.mode, "services", "off", "serve Services of Kubernetes: `WHICH` is labelled, all or off")
	cmd.Flags().Lookup("services").NoOptDefVal = "labelled"
	cmd.Flags().StringVar(&k.name, "node-name", os.Getenv("NODE_NAME"), "`NAME` of the Node under Kubernetes (default: $NODE_NAME)")
	cmd.Flags().StringVar(&k.namespace, "lease-namespace", cmp.Or(os.Getenv("POD_NAMESPACE"), "kube-system"), "`NAMESPACE` of the Leases of nodes that announce addresses, the same for all (default: $POD_NAMESPACE)")
	cmd.Flags().StringVar(&k.kubeconfig, "kubeconfig", "", "`FILE` that leads to the API server, outside of a pod")
	cmd.RegisterFlagCompletionFunc("services", cobra.FixedCompletions([]string{"labelled", "all", "off"}, cobra.ShellCompDirectiveNoFileComp))
}

func (k *nodeKube) on() bool { return k.mode != "off" }

// loader returns what reads the configuration.
func (k *nodeKube) loader(file string) (load func() (*node.Config, error), err error) {
	switch k.mode {
	case "off":
		if file == "" {
			return nil, errors.New("--config: missing; want a file, or --services")
		}
		return func() (*node.Config, error) { return node.LoadConfig(file) }, nil
	case "labelled", "all":
		e := new(configfile.Errors)
		if e.Name("--node-name", k.name, configfile.MaxDomain); e.Err() != nil {
			return nil, e.Err()
		}
		return func() (*node.Config, error) { return node.LoadUnderKubernetes(file, k.name) }, nil
	}
	return nil, fmt.Errorf("--services: %q is not labelled, all or off", k.mode)
}

func runNode(ctx context.Context, load func() (*node.Config, error), c *node.Config, k *nodeKube) error {
	log, err := newLogger("info", "text")
	if err != nil {
		return err
	}
	hup := make(chan os.Signal, 1)
	if c.Services != nil {
		// One that comes before rules are whole would end the process, and leave them. Not undone: one that comes when all has ended must not
		// turn that into a failure.
		signal.Notify(hup, syscall.SIGHUP)
	}
	if c.Services != nil && c.Services.Mode != services.Sockets && !(c.Tunnel && c.Mode == node.TUN) {
		chooseProcs()
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
		open := serveFile
		if k.on() {
			open = k.serve
		}
		serve, change, err := open(c.Services, log)
		if err != nil {
			return err
		}
		go rereadServices(ctx, hup, load, c, change, log)
		run(serve)
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

// serveFile returns what serves the Services of a file until its context ends, and what serves others from then on.
func serveFile(c *services.Config, log *logrus.Logger) (serve func(context.Context) error, change func(context.Context, *services.Config) error, err error) {
	s, err := newServer(c, false, log)
	if err != nil {
		return nil, nil, err
	}
	return s.Run, s.Apply, nil
}

// A server serves Services in one of their modes.
type server interface {
	Run(context.Context) error
	Apply(context.Context, *services.Config) error
}

// newServer returns one by c. A tolerant one goes on without addresses that the machine lacks, and by sockets without the ports that it cannot have.
func newServer(c *services.Config, tolerant bool, log *logrus.Logger) (server, error) {
	if c.Mode == services.Sockets {
		return newSockets(c, tolerant, log)
	}
	return services.New(c, tolerant, log)
}

// rereadServices serves what the file says at each SIGHUP. A file that is bad in any way, or changes what is about the tunnel, changes nothing.
func rereadServices(ctx context.Context, hup <-chan os.Signal, load func() (*node.Config, error), c *node.Config,
	change func(context.Context, *services.Config) error, log logrus.FieldLogger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
		}
		next, err := load()
		if err == nil && !c.SameTunnel(next) {
			err = errors.New("only services change while a node runs; restart it")
		}
		if err == nil {
			err = change(ctx, next.Services)
		}
		if err != nil {
			log.WithError(err).Error("configuration refused, the running one stays")
			continue
		}
		log.Info("configuration applied")
	}
}

func printNode(w io.Writer, file string, c *node.Config) {
	if c.Tunnel {
		fmt.Fprintf(w, "%s: good: %s to the gateway at %s, VNI %d, %d routes\n", file, c.Name, c.Gateway, c.VNI, len(c.Routes))
	}
	if c.Services != nil && len(c.Services.Services) > 0 {
		fmt.Fprintf(w, "%s: good: %s serves %d ports of Services\n", file, c.Name, len(c.Services.Services))
	} else if c.Services != nil {
		fmt.Fprintf(w, "%s: good: %s serves Services\n", file, c.Name)
	}
	for _, warning := range c.Warnings {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
	if c.Services != nil && c.Services.Mode == services.Sockets {
		for _, err := range checkSockets(c.Services) {
			fmt.Fprintf(w, "warning: %s\n", err)
		}
	}
}
