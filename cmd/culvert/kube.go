//go:build !nokube

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway/configfile"
	"culvert/kube/join/terms"
	"culvert/kube/manifests"
)

func newKubeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "kube",
		Short:   "Join Kubernetes clusters without Liqo",
		Long:    "Join Kubernetes clusters without Liqo.",
		Example: "  culvert kube template --image registry.example/culvert:1.0 --peering milan | kubectl apply -f -",
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return errors.New("kube: want template; see --help") },
	}
	cmd.AddCommand(newKubeTemplateCommand())
	return cmd
}

// templating is one run of culvert kube template.
type templating struct {
	manifests.Gateway // what flags say of all gateways
	values            valuesFile
	peerings          []string
	alone, common     bool // gateways only, all but gateways
}

func newKubeTemplateCommand() *cobra.Command {
	var x templating
	cmd := &cobra.Command{
		Use:   "template",
		Short: "Print what culvert has in a cluster",
		Long: "Print what culvert has in a cluster, for kubectl apply: its kinds Peering and TunnelNode, two " +
			"namespaces, the agent of every node, and rights. With --peering, also the gateway of each Peering of " +
			"that name; otherwise those of --values. The Peering itself is not printed: docs/kubernetes.md has " +
			"one.\n\n" +
			"kubectl delete with the output removes culvert, with all its peerings. With --gateways-only it removes " +
			"the gateways alone; delete their Peerings first, so that nodes are cleaned.",
		Example: "  culvert kube template --image registry.example/culvert:1.0 --peering milan | kubectl apply -f -\n" +
			"  culvert kube template --values values.yaml --peering milan --gateways-only >milan.yaml",
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&x.Image, "image", "", "`NAME` of culvert's image in your registry (required, or in --values)")
	x.values.add(cmd, "")
	flags.StringArrayVar(&x.peerings, "peering", nil,
		"`NAME` of a Peering whose gateway is printed too; may be repeated (default: those of --values)")
	flags.BoolVar(&x.alone, "gateways-only", false, "leave out what all peerings of the cluster share")
	flags.BoolVar(&x.common, "common-only", false, "leave out gateways")
	flags.StringVar(&x.Expose, "expose", "LoadBalancer", "`TYPE` of the Service by which a peer reaches the gateway")
	flags.StringVar(&x.Imports, "imports", "",
		"`NAMESPACE` for Services that the peer exports, which has to be there; of one gateway")
	flags.IntVar(&x.Replicas, "replicas", 1, "`NUMBER` of pods of each gateway, of which one forwards")
	cli.FlagValues(cmd, "expose", "LoadBalancer", "NodePort", "ClusterIP")
	cmd.MarkFlagsMutuallyExclusive("gateways-only", "common-only")
	cmd.MarkFlagsMutuallyExclusive("peering", "common-only")
	cmd.RunE = func(*cobra.Command, []string) error {
		var err error
		if x.Values, err = x.values.read(); err != nil {
			return err
		}
		x.alone = x.alone || x.Values.GatewaysOnly()
		all := x.gateways(flags.Changed)
		if err := x.check(all); err != nil {
			return err
		}
		return x.print(cmd.OutOrStdout(), all)
	}
	return cmd
}

// gateways returns those that are to be printed. A flag that was given counts more than the values.
func (x *templating) gateways(given func(flag string) bool) (all []manifests.Gateway) {
	x.Image = cmp.Or(x.Image, x.Values.Image())
	switch {
	case x.common:
		return nil
	case len(x.peerings) == 0:
		all = x.Values.Gateways()
	}
	for _, name := range x.peerings {
		g := x.Gateway
		if g.Peering = name; x.Values.Gateway(name) != nil {
			g = *x.Values.Gateway(name)
		}
		all = append(all, g)
	}
	for i := range all {
		g := &all[i]
		g.Image = x.Image
		if given("expose") {
			g.Expose = x.Expose
		}
		if given("imports") {
			g.Imports = x.Imports
		}
		if given("replicas") {
			g.Replicas = x.Replicas
		}
	}
	return all
}

func (x *templating) check(all []manifests.Gateway) error {
	e := new(configfile.Errors)
	if x.Image == "" {
		e.Add("--image",
			"missing; name culvert's image in a registry that your nodes reach, such as registry.example/culvert:1.0")
	}
	for _, g := range all {
		terms.CheckName(e, "--peering", g.Peering)
	}
	if x.Imports != "" {
		e.Name("--imports", x.Imports, configfile.MaxLabel)
		if len(all) != 1 {
			e.Add("--imports", "belongs to one Peering; give --peering exactly once")
		}
	}
	if x.alone && len(all) == 0 {
		e.Add("--gateways-only", "needs --peering, or peerings in --values")
	}
	e.OneOf("--expose", configfile.Scalar(x.Expose), "LoadBalancer", "NodePort", "ClusterIP")
	checkReplicas(e, x.Replicas)
	return e.Err()
}

func (x *templating) print(w io.Writer, all []manifests.Gateway) error {
	var parts []string
	if !x.alone {
		parts = append(parts, manifests.Common(x.Image, x.Values))
	}
	for _, g := range all {
		parts = append(parts, g.YAML())
	}
	_, err := fmt.Fprint(w, strings.Join(parts, "---\n"))
	return err
}

// A valuesFile is the flag --values.
type valuesFile string

// add adds the flag. of is the prefix by which its value names a cluster.
func (f *valuesFile) add(cmd *cobra.Command, of string) {
	cmd.Flags().StringVar((*string)(f), "values", "",
		"`"+of+"FILE` with values of the chart: image pull secrets, node selectors, and more")
}

// read returns the values; nil if there is no file.
func (f valuesFile) read() (*manifests.Values, error) {
	if f == "" {
		return nil, nil
	}
	text, err := configfile.Read(string(f), configfile.MaxSize)
	if err != nil {
		return nil, fmt.Errorf("--values: %s: %w", f, err)
	}
	return manifests.ReadValues(string(f), text)
}

// maxReplicas is the maximum number of pods of one gateway. One forwards, and each of the others
// holds all of its connections.
const maxReplicas = 3

func checkReplicas(e *configfile.Errors, n int) {
	if n < 1 || n > maxReplicas {
		e.Add("--replicas", "%d is not between 1 and %d; 2 is enough, because one of them forwards", n, maxReplicas)
	}
}
