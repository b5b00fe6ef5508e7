//go:build !nokube

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"culvert/cmd/internal/cli"
	"culvert/kube"
	"culvert/kube/check"
	"culvert/kube/liqo"
	"culvert/kube/objects"
	"culvert/kube/template"
)

func newLiqoCheckCommand() *cobra.Command {
	var o operator
	var templates string
	cmd := &cobra.Command{
		Use:   "check [NAMESPACE/NAME]",
		Short: "Say what would happen if a gateway of Liqo were switched to culvert, or which links nodes have",
		Long: "Say what would happen if the GatewayServer or GatewayClient NAME were switched to culvert, and print " +
			"the commands to switch and to go back. It only reads: with your rights, not with those of the gateway. " +
			"Exit status 0: it would work; 1: it would not, and the lines that begin with \"wrong\" say why; 2: it " +
			"cannot look.\n\n" +
			"Without a name, say for each node and gateway whether Liqo's link, culvert's or none is there, and what " +
			"to do. That is in the logs of Liqo's agent and of culvert's pods, which your rights must let you read. " +
			"Exit status 1: a link is not there.",
		Example: "  culvert liqo check liqo-tenant-milan/milan\n  culvert liqo check",
		Args:    cobra.MaximumNArgs(1),
		// The names exist only in the cluster.
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return checkNodes(cmd.Context(), &o, cmd.OutOrStdout())
			}
			namespace, name, ok := strings.Cut(args[0], "/")
			if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
				return fmt.Errorf("%q: want NAMESPACE/NAME of a GatewayServer or GatewayClient; see kubectl get "+
					"gatewayservers,gatewayclients -A", args[0])
			}
			client, err := o.client()
			if err != nil {
				return err
			}
			c, err := (&liqoReader{ctx: cmd.Context(), client: client}).read(namespace, name, templates)
			if err != nil {
				return err
			}
			report, err := check.Check(c)
			if err != nil {
				return err
			}
			return printReport(cmd.OutOrStdout(), report)
		},
	}
	o.add(cmd)
	cmd.Flags().StringVar(&templates, "template-namespace", "",
		"`NAMESPACE` of culvert's templates (default: that of the gateway's present one)")
	return cmd
}

func printReport(w io.Writer, r *check.Report) error {
	lines := []string{cli.Printable(r.Gateway)}
	for _, f := range r.Findings {
		word := "note"
		if f.Wrong {
			word = "wrong"
		}
		lines = append(lines, cli.Wrap(word+": "+f.Text, cli.Width(w)))
	}
	verdict, works := "culvert would work here.", r.Works()
	if !works {
		verdict = "culvert would not work here."
	}
	lines = append(lines, verdict)
	for _, c := range r.Commands {
		lines = append(lines, c.Purpose+":", "    "+c.Line)
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	if err == nil && !works {
		err = cli.Failed(errors.New("it would not work; correct what is wrong above"))
	}
	return err
}

// A liqoReader reads the objects to check, and collects errors about those that it cannot read.
type liqoReader struct {
	ctx    context.Context
	client dynamic.Interface
	errs   []error
}

// gatewayResources are the resources for gateways, with the label by which Liqo marks them; own
// ones are in the tenant's namespace.
var gatewayResources = []struct {
	kind, labels string
	own          bool
}{
	{liqo.KindFirewall, "networking.liqo.io/firewall-category=gateway", false},
	{liqo.KindRoute, "networking.liqo.io/route-category=gateway", false},
	{liqo.KindNode, "", false},
	{liqo.KindFabric, "", true}, {liqo.KindTunnel, "", true}, {liqo.KindPublicKey, "", true},
}

func (r *liqoReader) read(namespace, name, templates string) (*check.Cluster, error) {
	c := &check.Cluster{Gateway: r.get(objects.LiqoResource("GatewayServer"), namespace, name)}
	kind, ours, stock := "WgGatewayServerTemplate", template.ServerName, "wireguard-server"
	reference := "serverTemplateRef"
	if c.Gateway == nil && r.errs == nil {
		c.Gateway = r.get(objects.LiqoResource("GatewayClient"), namespace, name)
		kind, ours, stock, reference = "WgGatewayClientTemplate", template.ClientName, "wireguard-client",
			"clientTemplateRef"
	}
	if c.Gateway == nil {
		return nil, errors.Join(append(r.errs,
			fmt.Errorf(
				"%s/%s: no such GatewayServer or GatewayClient; see kubectl get gatewayservers,gatewayclients -A",
				namespace, name))...)
	}
	present, _ := template.Field(c.Gateway, "spec", reference, "namespace").(string)
	c.TemplateNamespace = cmp.Or(templates, present, "liqo")
	c.Template = r.get(objects.LiqoResource(kind), c.TemplateNamespace, ours)
	if template.Field(c.Gateway, "spec", reference, "name") == ours {
		c.Stock = r.get(objects.LiqoResource(kind), c.TemplateNamespace, stock)
	}
	c.Namespace = r.get(objects.Namespaces, "", namespace)
	c.Deployment = r.get(objects.Deployments, namespace, "gw-"+name)
	c.Pods = r.list(objects.Pods, namespace,
		"networking.liqo.io/component=gateway,networking.liqo.io/gateway-name="+name)
	c.Controllers = r.list(objects.Pods, "", controllerLabels)
	c.Policies = r.list(objects.NetworkPolicies, namespace, "")
	for _, in := range gatewayResources {
		resource, of := objects.LiqoResource(in.kind), ""
		if in.own {
			of = namespace
		}
		for _, o := range r.list(resource, of, in.labels) {
			x := &objects.Object{}
			text, err := json.Marshal(o)
			if err == nil {
				err = json.Unmarshal(text, x)
			}
			if err != nil {
				r.errs = append(r.errs, fmt.Errorf("%s: %w", resource.Resource, err))
				continue
			}
			c.Resources = append(c.Resources, x)
		}
	}
	return c, errors.Join(r.errs...)
}

// controllerLabels are those of Liqo's controller.
const controllerLabels = "app.kubernetes.io/name=controller-manager,app.kubernetes.io/component=controller-manager"

// get returns an object; nil if it does not exist.
func (r *liqoReader) get(resource schema.GroupVersionResource, namespace, name string) map[string]any {
	o, err := r.client.Resource(resource).Namespace(namespace).Get(r.ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		// If the cluster lacks the resource type, the error is also "not found", but without a
		// name.
		if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Details != nil &&
			status.Status().Details.Name != "" {
			return nil
		}
	}
	if err != nil {
		r.errs = append(r.errs, fmt.Errorf("get %s %s: %w", resource.Resource, name, err))
		return nil
	}
	return o.Object
}

func (r *liqoReader) list(resource schema.GroupVersionResource, namespace, labels string) (all []map[string]any) {
	err := kube.Each(r.ctx, r.client.Resource(resource).Namespace(namespace), metav1.ListOptions{LabelSelector: labels},
		func(u *unstructured.Unstructured) error {
			all = append(all, u.Object)
			return nil
		})
	if err != nil {
		r.errs = append(r.errs, fmt.Errorf("list %s: %w", resource.Resource, err))
		return nil
	}
	return all
}
