//go:build !nokube

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"culvert/cmd/internal/cli"
	"culvert/gateway/configfile"
	"culvert/kube/manifests"
	"culvert/kube/objects"
	"culvert/kube/template"
)

// templateFlags say which templates are taken over.
type templateFlags struct {
	operator
	namespace, server, client string
	image                     string
	replicas                  int
	offline, nodes            bool
	release, services         string
}

func newLiqoTemplateCommand() *cobra.Command {
	var f templateFlags
	cmd := &cobra.Command{
		Use:   "template",
		Short: "Print the templates by which Liqo starts culvert",
		Long: "Print a " + template.ServerKind + " and a " + template.ClientKind + ", " + template.ServerName + " and " +
			template.ClientName + ", for kubectl apply. They are made of Liqo's own, which are read from the cluster: " +
			"names, labels, selectors, the Service, scheduling, pull secrets and the values of flags are the same, so " +
			"that a gateway that is there can be switched. Standard error has a line for each thing that is left " +
			"out.\n\n" +
			"With --replicas 2, gateways elect which of their pods forwards, and each gateway that there is gets a " +
			"PodDisruptionBudget: a template has no room for one. Print again when there is a new gateway.\n\n" +
			"With --nodes, print the DaemonSet for nodes whose kernel has no Geneve, and its rights. With --services " +
			"as well, the same DaemonSet serves Services on the nodes, those with culvert's label or, with =all, all.",
		Example: "  culvert liqo template --image registry.example/culvert:1.0 | kubectl apply -f -\n" +
			"  culvert liqo template --image registry.example/culvert:1.0 --offline --release liqo\n" +
			"  culvert liqo template --image registry.example/culvert:1.0 --nodes --services >nodes.yaml",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.image == "" {
				return errors.New("--image: missing; name culvert's image in a registry that your nodes reach, such " +
					"as registry.example/culvert:1.0")
			}
			if err := f.checkServices(); err != nil {
				return err
			}
			if f.nodes {
				_, err := io.WriteString(cmd.OutOrStdout(), manifests.LiqoNodesOf(f.image, f.namespace, f.services))
				return err
			}
			e := new(configfile.Errors)
			if checkReplicas(e, f.replicas); e.Err() != nil {
				return e.Err()
			}
			if cmd.Flags().Changed("release") && !f.offline {
				return errors.New("--release: only with --offline; the templates in the cluster have it")
			}
			stocks, err := f.stock(cmd.Context())
			if err != nil {
				return err
			}
			if err := printTemplates(cmd.OutOrStdout(), cmd.ErrOrStderr(), f.image, f.replicas, stocks); err != nil ||
				f.replicas == 1 {
				return err
			}
			return f.printBudgets(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&f.namespace, "namespace", "liqo", "`NAMESPACE` of Liqo and its templates")
	cmd.Flags().StringVar(&f.server, "server-template", "wireguard-server", "`NAME` of Liqo's "+template.ServerKind)
	cmd.Flags().StringVar(&f.client, "client-template", "wireguard-client", "`NAME` of Liqo's "+template.ClientKind)
	cmd.Flags().StringVar(&f.image, "image", "", "`NAME` of culvert's image in your registry (required)")
	cmd.Flags().IntVar(&f.replicas, "replicas", 1, "`NUMBER` of pods of each gateway, of which one forwards")
	cmd.Flags().BoolVar(&f.offline, "offline", false, "read no cluster: take what Liqo's chart has by default")
	cmd.Flags().BoolVar(&f.nodes, "nodes", false,
		"print the DaemonSet for nodes without Geneve instead; reads no cluster")
	cmd.Flags().StringVar(&f.services, "services", "",
		"with --nodes: have the DaemonSet serve Services too: `WHICH` is labelled or all")
	cmd.Flags().Lookup("services").NoOptDefVal = "labelled"
	cli.FlagValues(cmd, "services", "labelled", "all")
	cmd.Flags().StringVar(&f.release, "release", "liqo",
		"with --offline: `NAME` of Liqo's Helm release, which is part of every selector")
	for _, name := range []string{"kubeconfig", "context", "server-template", "client-template"} {
		cmd.MarkFlagsMutuallyExclusive("offline", name)
	}
	return cmd
}

// checkServices returns what is wrong with --services.
func (f *templateFlags) checkServices() error {
	switch {
	case f.services == "":
		return nil
	case f.services != "labelled" && f.services != "all":
		return fmt.Errorf("--services: %q is not labelled or all", f.services)
	case !f.nodes:
		return errors.New("--services: only with --nodes; gateways serve none")
	}
	return nil
}

// stock returns Liqo's own templates.
func (f *templateFlags) stock(ctx context.Context) ([]map[string]any, error) {
	if f.offline {
		return []map[string]any{template.Default(true, f.release, f.namespace), template.Default(false, f.release,
			f.namespace)}, nil
	}
	client, err := f.operator.client()
	if err != nil {
		return nil, err
	}
	var stocks []map[string]any
	var errs []error
	for _, t := range []struct{ flag, kind, name string }{
		{"--server-template", "WgGatewayServerTemplate", f.server},
		{"--client-template", "WgGatewayClientTemplate", f.client},
	} {
		resource := objects.LiqoResource(t.kind)
		o, err := client.Resource(resource).Namespace(f.namespace).Get(ctx, t.name, metav1.GetOptions{})
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %s in --namespace %s: %w; see kubectl get %s --all-namespaces", t.flag,
				t.name, f.namespace, err, resource.Resource))
			continue
		}
		stocks = append(stocks, o.Object)
	}
	return stocks, errors.Join(errs...)
}

const templatesHeader = "# Templates by which Liqo starts culvert's gateways: culvert liqo template. Then: culvert " +
	"liqo check.\n"

func printTemplates(out, diag io.Writer, image string, replicas int, stocks []map[string]any) error {
	text := []byte(templatesHeader)
	var told []string
	var errs []error
	for i, stock := range stocks {
		made, notes, err := template.From(stock, image, replicas)
		if err != nil {
			errs = append(errs, fmt.Errorf("%v %v: %w", stock["kind"], template.Field(stock, "metadata", "name"), err))
			continue
		}
		for _, note := range notes {
			if !slices.Contains(told, note) {
				told = append(told, note)
				fmt.Fprintf(diag, "culvert: note: %s\n", note)
			}
		}
		doc, err := yaml.Marshal(made)
		if err != nil {
			return err
		}
		if i > 0 {
			text = append(text, "---\n"...)
		}
		text = append(text, doc...)
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	_, err := out.Write(text)
	return err
}

// printBudgets prints a PodDisruptionBudget for each gateway in the cluster.
func (f *templateFlags) printBudgets(ctx context.Context, out, diag io.Writer) error {
	if f.offline {
		fmt.Fprintln(diag,
			"culvert: note: no PodDisruptionBudgets are printed with --offline; without it, each gateway of the "+
				"cluster gets one")
		return nil
	}
	client, err := f.operator.client()
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, kind := range []string{"GatewayServer", "GatewayClient"} {
		resource := objects.LiqoResource(kind)
		all, err := client.Resource(resource).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("--replicas: list the %s, each of which gets a PodDisruptionBudget: %w",
				resource.Resource, err)
		}
		for i := range all.Items {
			g := &all.Items[i]
			text.WriteString(manifests.Budget(kind, g.GetName(), g.GetNamespace(), string(g.GetUID())))
		}
	}
	_, err = io.WriteString(out, text.String())
	return err
}
