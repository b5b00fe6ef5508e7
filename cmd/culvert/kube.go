//go:build !nokube

package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway/configfile"
	"culvert/kube/join"
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

func newKubeTemplateCommand() *cobra.Command {
	var image, expose, imports string
	var replicas int
	var peerings []string
	var alone bool
	cmd := &cobra.Command{
		Use:   "template",
		Short: "Print what culvert has in a cluster",
		Long: "Print what culvert has in a cluster, for kubectl apply: its kinds Peering and TunnelNode, two namespaces, the\n" +
			"agent of every node, and rights. With --peering, also the gateway of each Peering of that name. The Peering\n" +
			"itself is not printed: docs/kubernetes.md has one.\n\n" +
			"kubectl delete with the output removes culvert, with all its peerings. With --gateways-only it removes the\n" +
			"gateways of --peering alone; delete their Peerings first, so that nodes are cleaned.",
		Example: "  culvert kube template --image registry.example/culvert:1.0 --peering milan | kubectl apply -f -",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e := new(configfile.Errors)
			if image == "" {
				e.Add("--image",
					"missing; name culvert's image in a registry that your nodes reach, such as registry.example/culvert:1.0")
			}
			for _, p := range peerings {
				join.CheckName(e, "--peering", p)
			}
			if imports != "" {
				e.Name("--imports", imports, configfile.MaxLabel)
				if len(peerings) != 1 {
					e.Add("--imports", "belongs to one Peering; give --peering exactly once")
				}
			}
			if alone && len(peerings) == 0 {
				e.Add("--gateways-only", "needs --peering")
			}
			e.OneOf("--expose", configfile.Scalar(expose), "LoadBalancer", "NodePort", "ClusterIP")
			checkReplicas(e, replicas)
			if err := e.Err(); err != nil {
				return err
			}
			g := manifests.Gateway{Image: image, Expose: expose, Imports: imports, Replicas: replicas}
			return printKube(cmd.OutOrStdout(), g, peerings, alone)
		},
	}
	cmd.Flags().StringVar(&image, "image", "", "`NAME` of culvert's image in your registry (required)")
	cmd.Flags().StringArrayVar(&peerings, "peering", nil,
		"`NAME` of a Peering whose gateway is printed too; may be repeated")
	cmd.Flags().BoolVar(&alone, "gateways-only", false,
		"with --peering: leave out what all peerings of the cluster share")
	cmd.Flags().StringVar(&expose, "expose", "LoadBalancer",
		"with --peering: `TYPE` of the Service by which a peer reaches the gateway")
	cmd.Flags().StringVar(&imports, "imports", "",
		"with --peering: `NAMESPACE` for Services that the peer exports, which has to be there")
	cmd.Flags().IntVar(&replicas, "replicas", 1,
		"with --peering: `NUMBER` of pods of each gateway, of which one forwards")
	cli.FlagValues(cmd, "expose", "LoadBalancer", "NodePort", "ClusterIP")
	return cmd
}

func printKube(w io.Writer, g manifests.Gateway, peerings []string, alone bool) error {
	var parts []string
	if !alone {
		parts = append(parts, manifests.Common(g.Image))
	}
	for _, g.Peering = range peerings {
		parts = append(parts, g.YAML())
	}
	_, err := fmt.Fprint(w, strings.Join(parts, "---\n"))
	return err
}

// maxReplicas is the maximum number of pods of one gateway. One forwards, and each of the others
// holds all of its connections.
const maxReplicas = 3

func checkReplicas(e *configfile.Errors, n int) {
	if n < 1 || n > maxReplicas {
		e.Add("--replicas", "%d is not between 1 and %d; 2 is enough, because one of them forwards", n, maxReplicas)
	}
}
