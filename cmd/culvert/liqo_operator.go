//go:build !nokube

package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// kubeCommands returns the commands that need Kubernetes.
func kubeCommands() []*cobra.Command {
	cmd := &cobra.Command{
		Use:   "liqo",
		Short: "Replace Liqo's gateways",
		Long:  "Replace Liqo's gateways. The commands only read from the cluster.",
		Example: "  culvert liqo template --image registry.example/culvert:1.0 | kubectl apply -f -\n" +
			"  culvert liqo check liqo-tenant-milan/milan\n" +
			"  culvert liqo check",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("liqo: want template or check; see --help")
		},
	}
	cmd.AddCommand(newLiqoTemplateCommand(), newLiqoCheckCommand())
	return []*cobra.Command{cmd, newKubeCommand(), newJoinCommand(), newInviteCommand(), newAcceptCommand(),
		newLeaveCommand(),
		newVerifyCommand(), newImageCommand(), newMulticlusterCommand(), newServicesCommand(), newProbeCommand()}
}

// An operator reads from a cluster with the user's permissions.
type operator struct{ kubeconfig, context string }

func (o *operator) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `FILE` of the cluster (default: as for kubectl)")
	cmd.Flags().StringVar(&o.context, "context", "", "`NAME` of a context in the kubeconfig (default: the current one)")
}

func (o *operator) loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: o.context})
}

// current returns the name of the context that is used without a flag.
func (o *operator) current() (string, error) {
	raw, err := o.loader().RawConfig()
	if err == nil && raw.CurrentContext == "" {
		err = errors.New("there is no current context; give --context")
	}
	if err != nil {
		return "", fmt.Errorf("--kubeconfig: %w", err)
	}
	return raw.CurrentContext, nil
}

func (o *operator) config() (*rest.Config, error) {
	c, err := o.loader().ClientConfig()
	if err != nil {
		raw, _ := o.loader().RawConfig()
		if there := slices.Sorted(maps.Keys(raw.Contexts)); o.context != "" && len(there) > 0 &&
			raw.Contexts[o.context] == nil {
			return nil, fmt.Errorf("--context: there is no context %q; there are %s", o.context,
				strings.Join(there, ", "))
		}
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	c.QPS, c.Burst, c.UserAgent = clientQPS, clientBurst, "culvert"
	return c, nil
}

func (o *operator) client() (dynamic.Interface, error) {
	c, err := o.config()
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	return client, nil
}
