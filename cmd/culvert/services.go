//go:build !nokube

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/kube/multicluster"
)

func newServicesCommand() *cobra.Command {
	j := &joiner{}
	cmd := &cobra.Command{
		Use:   "services",
		Short: "Show the multi-cluster Services of Kubernetes clusters: who exports them, and where they lead",
		Long: "Show the multi-cluster Services of Kubernetes clusters: under which address each is reached, to which " +
			"peers the cluster exports it, how many endpoints of each cluster it has, and what is wrong with it. It " +
			"only reads, with your rights in the clusters.",
		Example: "  culvert services --context rome --context milan\n  culvert services -o json | jq '.[].services'",
		Args:    cobra.NoArgs,
	}
	isJSON := cli.OutputFlag(cmd)
	cmd.Flags().StringVar(&j.kubeconfig, "kubeconfig", "", "`FILE` that leads to the clusters (default: what kubectl takes)")
	cmd.Flags().StringArrayVar(&j.contexts, "context", nil,
		"`NAME` of the context of a cluster (default: the current one); may be repeated")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := isJSON()
		if err = cmp.Or(err, checkTwice(j.contexts)); err == nil {
			err = j.orCurrent()
		}
		if err != nil {
			return err
		}
		all := []viewed{}
		var errs []error
		for _, name := range j.contexts {
			client, err := (&operator{j.kubeconfig, name}).client()
			var v *multicluster.View
			if err == nil {
				v, err = multicluster.Look(cmd.Context(), client)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
				continue
			}
			all = append(all, viewed{name, v})
		}
		if asJSON {
			errs = append(errs, json.NewEncoder(cmd.OutOrStdout()).Encode(all))
		} else {
			errs = append(errs, printViews(cmd.OutOrStdout(), all))
		}
		return errors.Join(errs...)
	}
	return cmd
}

// viewed is the View of a context's cluster.
type viewed struct {
	Context string `json:"context"`
	*multicluster.View
}

func printViews(w io.Writer, all []viewed) error {
	for i, v := range all {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s (context %s):\n", cmp.Or(v.Cluster, "a cluster"), v.Context)
		t := cli.NewTable(w)
		if len(v.Services) > 0 {
			fmt.Fprintln(t, "  NAME\tADDRESS\tEXPORTED TO\tENDPOINTS READY")
		}
		notes := v.Notes
		for _, s := range v.Services {
			var endpoints []string
			for _, c := range s.Clusters {
				text := fmt.Sprintf("%s %d", c.Cluster, c.Ready)
				if c.All != c.Ready {
					text += fmt.Sprintf(" of %d", c.All)
				}
				endpoints = append(endpoints, text)
			}
			address := cmp.Or(strings.Join(s.Addresses, ","), "–")
			if s.Type == "Headless" {
				address = "headless"
			}
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", s.Name, address, cmp.Or(strings.Join(s.To, ","), "–"),
				cmp.Or(strings.Join(endpoints, ", "), "–"))
			for _, text := range s.Notes {
				notes = append(notes, s.Name+": "+text)
			}
		}
		if err := t.Flush(); err != nil {
			return err
		}
		for _, text := range notes {
			fmt.Fprintln(w, cli.Wrap(cli.Printable(text), cli.Width(w)))
		}
	}
	return nil
}
