//go:build !nokube

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	"sigs.k8s.io/mcs-api/config/crd"

	"culvert/cmd/internal/cli"
	"culvert/gateway/configfile"
	"culvert/gateway/role"
	"culvert/kube"
	"culvert/kube/election"
	"culvert/kube/multicluster"
	"culvert/kube/peering"
)

// A multiclusterRun is one run of culvert multicluster.
type multiclusterRun struct {
	namespace, pod, kubeconfig string
	health, level, format      string
	elected                    bool
}

func newMulticlusterCommand() *cobra.Command {
	var x multiclusterRun
	cmd := &cobra.Command{
		Use:   "multicluster",
		Short: "Make Services of several clusters one (ServiceExport, ServiceImport)",
		Long: "Make Services of several clusters one, as KEP-1645 says: read this cluster's ServiceExports and what\n" +
			"peers export, and write ServiceImports, Services with their addresses, and EndpointSlices. It carries no\n" +
			"packets and needs no privilege. culvert kube template --values prints its manifest, with\n" +
			"multicluster.enabled in the values.",
		Example: "  culvert multicluster --kubeconfig rome.yaml\n  culvert multicluster crds | kubectl apply -f -",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return x.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&x.namespace, "namespace", cmp.Or(os.Getenv("POD_NAMESPACE"), peering.GatewayNamespace),
		"`NAMESPACE` of Peerings (default: $POD_NAMESPACE)")
	flags.StringVar(&x.pod, "pod-name", os.Getenv("POD_NAME"), "`NAME` of its own pod (default: $POD_NAME)")
	flags.BoolVar(&x.elected, "leader-election", false, "be one of several, of which one writes")
	flags.StringVar(&x.kubeconfig, "kubeconfig", "", "`FILE` (default: the pod's own account)")
	flags.StringVar(&x.health, "health-probe-bind-address", "", "`ADDRESS` for /healthz and /readyz")
	flags.StringVar(&x.level, "log-level", "info", "least `LEVEL` that is logged: debug, info, warning or error")
	flags.StringVar(&x.format, "log-format", "text", "`FORMAT` of the log: text or json")
	cmd.AddCommand(&cobra.Command{
		Use:   "crds",
		Short: "Print the CRDs of ServiceExport and ServiceImport",
		Long: "Print the CustomResourceDefinitions of ServiceExport and ServiceImport, from sigs.k8s.io/mcs-api, for\n" +
			"kubectl apply. Where others have installed a newer version, leave theirs.",
		Example: "  culvert multicluster crds | kubectl apply -f -",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\n---\n%s\n", strings.TrimSpace(string(crd.ServiceExportCRD)),
				strings.TrimSpace(string(crd.ServiceImportCRD)))
			return err
		},
	})
	return cmd
}

// run follows the cluster until ctx ends.
func (x *multiclusterRun) run(ctx context.Context) error {
	e := new(configfile.Errors)
	e.Name("--namespace", x.namespace, configfile.MaxLabel)
	if x.elected {
		e.Name("--pod-name", x.pod, configfile.MaxDomain)
	}
	health := listenAddress(e, "--health-probe-bind-address", x.health)
	client, clientErr := newClient(x.kubeconfig)
	if err := errors.Join(e.Err(), clientErr); err != nil {
		return err
	}
	klog.SetLogger(klog.Logger{}) // the source logs what matters
	log, err := newLogger(x.level, x.format)
	if err != nil {
		return err
	}
	entry := logrus.NewEntry(log)
	speaks := func() bool { return true }
	var tasks sync.WaitGroup
	defer tasks.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var source *multicluster.Source
	if x.elected {
		const lease = 15 * time.Second // as controllers have it
		one := election.New(
			election.Options{Client: client, Namespace: x.namespace, Name: "culvert-multicluster", Pod: x.pod,
				Times: role.Times{Lease: lease, Patience: lease}, Retry: 2 * time.Second, Deadline: 10 * time.Second,
				Label: election.Label{Selector: "app=culvert-multicluster"}, Log: entry, Causes: kube.NewCauses(entry),
				Changed: func() { source.Wake() }},
		)
		speaks = func() bool { return one.Role().Speaks() }
		defer func() {
			giving, done := context.WithTimeout(context.Background(), lease)
			defer done()
			one.Leave(giving)
		}()
		one.Drive(noPackets{}, nil)
		defer tasks.Wait()
		tasks.Go(func() { one.Run(ctx) })
	}
	source = multicluster.NewSource(client, x.namespace, cmp.Or(x.pod, "culvert-multicluster"), speaks, entry)
	if health != "" {
		l, err := net.Listen("tcp", health)
		if err != nil {
			return cli.Failed(fmt.Errorf("--health-probe-bind-address: %w", err))
		}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/readyz" && !source.Ready() {
				http.Error(w, source.Waiting(), http.StatusServiceUnavailable)
			}
		}), ReadHeaderTimeout: time.Second}
		tasks.Go(func() { server.Serve(l) })
		defer server.Close()
	}
	source.Run(ctx)
	return nil
}

// noPackets is what is elected here: its role matters to the source alone.
type noPackets struct{}

func (noPackets) Become(role.Role)  {}
func (noPackets) Signs() role.Signs { return role.Signs{} }
func (noPackets) Call()             {}
