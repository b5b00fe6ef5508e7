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

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway/configfile"
	"culvert/gateway/node"
	"culvert/gateway/node/services/steer"
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
		Long: "Run a node's end of the tunnel to a gateway: a Geneve, VXLAN or TUN link, its address and its routes. " +
			"If the file has services, serve them as kube-proxy does, but without netfilter: cluster addresses, node " +
			"ports, external and load balancer addresses, by a TUN device, routes and policy routing. SIGHUP reads " +
			"them again. At exit the command removes everything that it made, except what keepLinks and " +
			"services.state keep for the next run; --remove removes that too. It needs CAP_NET_ADMIN in its network " +
			"namespace, except for services alone with mode: sockets.\n\n" +
			"With --services, Services and their endpoints come from Kubernetes, and all other settings from " +
			"services in the file. The node serves Services with the label service.kubernetes.io/service-proxy-name: " +
			"culvert, beside kube-proxy; with --services=all also those without that label, instead of " +
			"kube-proxy.\n\n" +
			"With --takeover it takes over from the node that serves with the same services.state, which hands over " +
			"its TUN device and its connections, and exits. As process 1 of a container, the old node waits instead, " +
			"and serves again if the new one dies. SIGUSR2 makes a node start the program at its own path in this " +
			"way.\n\n" +
			"With --liqo it makes the tunnel links that Liqo's resources ask for, on a node whose kernel has no " +
			"Geneve; Liqo's own agent sets the routes. The links stay when this process stops; --liqo --remove " +
			"deletes them.\n\n" +
			"With --kube it makes the tunnel links and routes that Peerings ask for, and exempts packets from pods " +
			"to other clusters from masquerade, by nftables. They stay when this process stops, but not when its " +
			"DaemonSet is deleted; --kube --remove deletes them.",
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
		"`NAMESPACE` of the Leases of nodes that announce addresses; the same on all nodes; $POD_NAMESPACE if that "+
			"is set")
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
