package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway/configfile"
	"culvert/gateway/control"
	"culvert/gateway/node"
	"culvert/gateway/node/services"
	"culvert/gateway/node/services/steer"
	"culvert/gateway/procs"
)

// nodeFlags are the flags of culvert node.
type nodeFlags struct {
	file                    string
	check, remove, takeOver bool
	kube                    *nodeKube
	liqo                    *nodeLiqo
	peerings                *nodePeerings
}

func newNodeCommand() *cobra.Command {
	f := &nodeFlags{kube: &nodeKube{}, liqo: &nodeLiqo{}}
	f.peerings = &nodePeerings{links: f.liqo}
	cmd := &cobra.Command{
		Use:   "node --config FILE | --services[=all] | --liqo | --kube",
		Short: "Run the node end of the tunnel to a gateway, or serve Services on a node",
		Long: "Run a node's end of the tunnel to a gateway: a Geneve, VXLAN or TUN link, its address and its routes. If the\n" +
			"file has services, serve them as kube-proxy does, but without netfilter: cluster addresses, node ports,\n" +
			"external and load balancer addresses, by a TUN device, routes and policy routing. SIGHUP reads them again. At\n" +
			"exit the command removes everything that it made, except what keepLinks and services.state keep for the next\n" +
			"run; --remove removes that too. It needs CAP_NET_ADMIN in its network namespace, except for services alone\n" +
			"with mode: sockets.\n\n" +
			"With --services, Services and their endpoints come from Kubernetes, and all other settings from services in\n" +
			"the file. The node serves Services with the label service.kubernetes.io/service-proxy-name: culvert, beside\n" +
			"kube-proxy; with --services=all also those without that label, instead of kube-proxy.\n\n" +
			"With --takeover it takes over from the node that serves with the same services.state, which hands over its TUN\n" +
			"device and its connections, and exits. As process 1 of a container, the old node waits instead, and serves\n" +
			"again if the new one dies. SIGUSR2 makes a node start the program at its own path in this way.\n\n" +
			"With --liqo it makes the tunnel links that Liqo's resources ask for, on a node whose kernel has no Geneve;\n" +
			"Liqo's own agent sets the routes. The links stay when this process stops; --liqo --remove deletes them.\n\n" +
			"With --kube it makes the tunnel links and routes that Peerings ask for, and exempts packets from pods to other\n" +
			"clusters from masquerade, by nftables. They stay when this process stops, but not when its DaemonSet is\n" +
			"deleted; --kube --remove deletes them.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	cmd.Flags().StringVar(&f.file, "config", "", "configuration `FILE` (YAML)")
	cmd.Flags().BoolVar(&f.check, "check", false, "validate the configuration, compare it with this machine, and exit")
	cmd.Flags().BoolVar(&f.remove, "remove", false,
		"remove what earlier runs left of Services (with --liqo or --kube: of links), and exit")
	cmd.Flags().BoolVar(&f.takeOver, "takeover", false,
		"take over from the node that serves with the same services.state")
	f.kube.add(cmd)
	f.liqo.add(cmd)
	f.peerings.add(cmd)
	return cmd
}

// linked reports whether the node has links that follow objects of a cluster.
func (f *nodeFlags) linked() bool { return f.liqo.on || f.peerings.on }

// misplaced returns an error for each flag that has no effect, because the flag that it
// belongs to is not given.
func (f *nodeFlags) misplaced(given func(flag string) bool) error {
	var errs []error
	for _, rule := range []struct {
		on    bool
		by    string // what turns it on
		names []string
	}{
		{f.peerings.on, "--kube", []string{"peering-namespace", "node-namespace"}},
		{f.linked(), "--liqo or --kube", []string{"geneve-port", "links-metrics"}},
		{f.kube.on(), "--services", []string{"lease-namespace"}},
		{f.kube.on() || f.linked(), "--services, --liqo or --kube", []string{"daemonset", "node-name", "kubeconfig"}},
	} {
		for _, name := range rule.names {
			if !rule.on && given(name) {
				errs = append(errs, fmt.Errorf("--%s: only with %s; add that, or remove this flag", name, rule.by))
			}
		}
	}
	return errors.Join(errs...)
}

// run does what the flags say.
func (f *nodeFlags) run(cmd *cobra.Command) error {
	if err := errors.Join(f.misplaced(cmd.Flags().Changed), f.liqo.check(), f.peerings.check(f.liqo)); err != nil {
		return err
	}
	followsOnly := f.linked() && f.file == "" && !f.kube.on()
	switch {
	case f.remove && f.linked():
		return removeLinks(cmd.OutOrStdout())
	case f.remove:
		return removeRemains(cmd.OutOrStdout())
	case f.linked() && f.takeOver:
		return fmt.Errorf("--takeover: %w", errLinksStay)
	case followsOnly && f.check:
		return errors.New("--check: only with --config or --services; links follow objects of a cluster, and there " +
			"is no file to check")
	case followsOnly:
		signal.Ignore(syscall.SIGHUP) // there is no file to read again
		chooseProcs(0)
		return runLinks(cmd.Context(), f.kube, f.peerings, new(linkStatus), nil)
	}
	c, load, err := f.load()
	if err != nil {
		return err
	}
	if f.check {
		return printNode(cmd.OutOrStdout(), f.file, c)
	}
	if f.linked() {
		status := new(linkStatus)
		if c.Services != nil {
			f.kube.remotes.services = c.Services.ServiceCIDRs
		}
		return runLinks(cmd.Context(), f.kube, f.peerings, status, func(ctx context.Context) error {
			return runNode(ctx, load, c, f.kube, status)
		})
	}
	if err := runNode(cmd.Context(), load, c, f.kube, nil); err != nil || !f.kube.on() || f.liqo.daemonSet == "" {
		return err
	}
	return f.liqo.leaveServices(context.WithoutCancel(cmd.Context()), f.kube)
}

// load reads the configuration. It also returns a function that reads it again.
func (f *nodeFlags) load() (c *node.Config, again func() (*node.Config, error), err error) {
	read, err := f.kube.loader(f.file)
	if err != nil {
		return nil, nil, err
	}
	again = func() (*node.Config, error) { return withCPUs(read, f.file) }
	if c, err = again(); err != nil || !f.takeOver {
		return c, again, err
	}
	if err := mayTakeOver(c); err != nil {
		return nil, nil, fmt.Errorf("--takeover: %w", err)
	}
	c.Services.TakeOver = true
	return c, again, nil
}

// withCPUs checks that a configuration requests no more CPUs than this process may use.
func withCPUs(read func() (*node.Config, error), file string) (*node.Config, error) {
	c, err := read()
	if err != nil {
		return nil, err
	}
	return c, checkCPUs(file, c.CPUs, &c.Warnings)
}

// removeRemains removes remains of earlier runs and prints how many. It fails while Services are
// served.
func removeRemains(w io.Writer) error {
	found, err := steer.RemoveRemains(true)
	if err != nil {
		return cli.Failed(err)
	}
	fmt.Fprintf(w, "removed %d rules and devices\n", found)
	return nil
}

// leaveRemains removes the remains of an earlier run that served Services by a TUN device, if this
// run does not: rules that lead to no device and, if this run serves Services by sockets, a waiting
// device. It ignores what it cannot inspect, for example without privilege in some sandboxes.
func leaveRemains(c *services.Config, log logrus.FieldLogger) {
	if c != nil && c.Mode != services.Sockets {
		return // this run continues with them
	}
	found, err := steer.RemoveRemains(c != nil)
	switch {
	case found > 0 && err != nil:
		log.WithError(err).WithField("remedy", "run as root: culvert node --remove").Warn(
			"an earlier run has left rules that lead packets for Services elsewhere")
	case found > 0:
		log.WithField("removed", found).Info("leftovers of an earlier run's Services are removed")
	}
}

// mayTakeOver returns why no node with configuration c can take over from another, or nil.
func mayTakeOver(c *node.Config) error {
	switch {
	case c.Tunnel:
		return errors.New("the file has a tunnel, which only a restart changes; run a node of its own for services")
	case c.Services.State == "":
		return errors.New("the file has no services.state; add it, with the same value for both nodes")
	}
	return nil
}

// nodeKube says whether and how Services come from Kubernetes.
type nodeKube struct {
	mode, name, namespace, kubeconfig string
	remotes                           remotes
}

// remotes are the CIDRs of other clusters to which links of this process lead. The part of the
// process that serves Services needs them.
type remotes struct {
	services []netip.Prefix // the addresses of Services that this process serves; set before links are made

	mu   sync.Mutex
	all  []netip.Prefix
	tell func([]netip.Prefix) // nil: nobody
}

func (r *remotes) set(all []netip.Prefix) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all = all; r.tell != nil {
		r.tell(all)
	}
}

// follow calls tell with the CIDRs now, and whenever they change.
func (r *remotes) follow(tell func([]netip.Prefix)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tell = tell
	tell(r.all)
}

func (k *nodeKube) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&k.mode, "services", "off", "serve Services of Kubernetes: `WHICH` is labelled, all or off")
	cmd.Flags().Lookup("services").NoOptDefVal = "labelled"
	cmd.Flags().StringVar(&k.name, "node-name", os.Getenv("NODE_NAME"),
		"`NAME` of the Node under Kubernetes (default: $NODE_NAME)")
	cmd.Flags().StringVar(&k.namespace, "lease-namespace", cmp.Or(os.Getenv("POD_NAMESPACE"), "kube-system"),
		"`NAMESPACE` of the Leases of nodes that announce addresses; the same on all nodes; $POD_NAMESPACE if that is set")
	cmd.Flags().StringVar(&k.kubeconfig, "kubeconfig", "", "kubeconfig `FILE`, outside of a pod")
	cmd.RegisterFlagCompletionFunc("services", cobra.FixedCompletions([]string{"labelled", "all", "off"},
		cobra.ShellCompDirectiveNoFileComp))
}

func (k *nodeKube) on() bool { return k.mode != "off" }

// loader returns a function that reads the configuration.
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

// runNode runs the node described by c. links also shows the status of links; nil: there are none.
func runNode(ctx context.Context, load func() (*node.Config, error), c *node.Config, k *nodeKube,
	links *linkStatus) error {
	log, err := newLogger("info", "text")
	if err != nil {
		return err
	}
	// A signal that arrives before the rules are complete would end the process, and leave them.
	// This is never undone: a signal after everything has stopped must not turn success into a
	// failure.
	hup, usr2 := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	if c.Services != nil {
		signal.Notify(usr2, syscall.SIGUSR2)
	}
	chooseProcs(c.CPUs)
	log.WithFields(logrus.Fields{"version": control.ReadVersion(), "node": c.Name}).Info("node starting")
	for _, w := range c.Warnings {
		log.Warn(w)
	}
	leaveRemains(c.Services, log)
	whole := ctx
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go nodeLoad.Run(ctx, c.Name, c.CPUs == 0 && k.on(), log)
	if c.Services != nil && c.Services.Mode != services.Sockets {
		nodeLoad.Devices(func() []string { return []string{c.Services.Interface} })
	}
	ends := make(chan error, 2)
	running := 0
	run := func(part func(context.Context) error) {
		running++
		go func() { ends <- part(ctx) }()
	}
	var change func(context.Context, *services.Config) error
	if c.Services != nil {
		open := serveFile
		if k.on() {
			open = k.serve
		}
		var serve func(context.Context) error
		show, may := showServices, func() error { return mayTakeOver(c) }
		if links != nil {
			show, may = links.beside, func() error { return errLinksStay }
		}
		serve, change, err = open(c.Services, show, log)
		if err != nil {
			return err
		}
		(&successor{may: may, args: []string{"--takeover"}, log: log}).watch(ctx, usr2)
		run(serve)
	}
	go rereadServices(ctx, hup, load, c, change, log)
	if c.Tunnel {
		n, err := node.New(ctx, c, log)
		if err != nil {
			stop()
			for range running {
				err = errors.Join(err, <-ends)
			}
			return err
		}
		if device, socket, ok := n.Carrier(); ok {
			nodeLoad.Devices(func() []string { return []string{device} })
			nodeLoad.Socket("the gateway", socket)
		}
		run(n.Run)
	}
	if err := notify("READY=1"); err != nil {
		log.WithError(err).Warn("the service manager cannot be told that this node runs")
	}
	var handed *services.HandedOver
	for range running {
		if ended := <-ends; !errors.As(ended, &handed) {
			err = errors.Join(err, ended)
		}
		stop() // neither continues without the other
	}
	if handed != nil && err == nil {
		return afterHandOver(whole, c.Services, handed, log)
	}
	if err != nil {
		return cli.Failed(err)
	}
	return nil
}

// afterHandOver ends this process after another one has taken over. As process 1 of a container it
// waits instead: otherwise the container would be restarted and take over in turn. If the other
// process dies, this program restarts itself.
func afterHandOver(ctx context.Context, c *services.Config, to *services.HandedOver, log logrus.FieldLogger) error {
	if os.Getpid() != 1 {
		if to.Process == 0 {
			return nil
		}
		if err := notify(fmt.Sprintf("MAINPID=%d", to.Process)); err != nil {
			log.WithError(err).Warn("the service manager cannot be told that another process serves")
		}
		return nil
	}
	log.Info("waiting, to serve again if the other process dies")
	if !services.Await(ctx, c) {
		return nil
	}
	log.Warn("the other process has died: starting again")
	return cli.Failed(syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// serveFile returns a function that serves the Services of a file until its context ends, and one
// that replaces them.
func serveFile(c *services.Config, show shower, log *logrus.Logger) (serve func(context.Context) error,
	change func(context.Context, *services.Config) error, err error) {
	s, err := newServer(c, false, log)
	if s == nil {
		return nil, nil, err
	}
	if err != nil { // a Server that has taken over serves even with an error
		log.WithError(err).Error("not all is served: a change of the file or SIGHUP tries again")
	}
	return func(ctx context.Context) error { return runServer(ctx, s, c.Node, show, log) }, s.Apply, nil
}

// A server serves Services in one of their modes.
type server interface {
	Run(context.Context) error
	Apply(context.Context, *services.Config) error
	Status() control.NodeStatus
}

// runServer runs a server, and shows its status.
func runServer(ctx context.Context, s server, name string, show shower, log logrus.FieldLogger) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() { show(ctx, name, s.Status, log) })
	err := s.Run(ctx)
	stop()
	return err
}

// newServer returns a server for c. A tolerant one runs without addresses that the machine lacks
// and, by sockets, without ports that it cannot get.
func newServer(c *services.Config, tolerant bool, log *logrus.Logger) (server, error) {
	if c.Mode == services.Sockets {
		return newSockets(c, tolerant, log)
	}
	s, err := services.New(c, tolerant, log)
	if s == nil {
		return nil, err
	}
	return s, err
}

// rereadServices serves the file's Services again at each SIGHUP; change is nil if none are served.
// A file with any fault, or with changes to the tunnel, changes nothing.
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
			err = errors.New("only services and cpus change while a node runs; restart it, and set keepLinks: true first where its link is to carry packets meanwhile")
		}
		if err == nil && change != nil {
			err = change(ctx, next.Services)
		}
		if err == nil {
			procs.Use(next.CPUs)
		}
		if err != nil {
			log.WithError(err).Error("configuration refused, the running one stays")
			continue
		}
		log.Info("configuration applied")
	}
}
