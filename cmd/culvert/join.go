//go:build !nokube

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/kube/join"
)

func newJoinCommand() *cobra.Command {
	j := &joiner{}
	r := &join.Request{Options: &j.Options}
	cmd := &cobra.Command{
		Use:   "join",
		Short: "Join two or more Kubernetes clusters whose kubeconfigs are at hand",
		Long: "Join two or more Kubernetes clusters, each with each other: find their CIDRs, choose those under " +
			"which each sees the others, show all of it and ask, install gateways and agents, exchange public keys, " +
			"wait until packets pass, and print what each cluster sees of the others.\n\n" +
			"Run it again to repair what was removed, or with --push or another --image to upgrade. What stands is " +
			"not changed: CIDRs and remaps are in the Peerings and stay. Without kubeconfigs of both clusters: " +
			"culvert invite.\n\n" +
			"Of three or more clusters, one that cannot be joined does not keep the others; the same command goes " +
			"on later.\n\n" +
			"Exit status 1: it was begun, and something is missing; the same command goes on. 2: nothing was changed.",
		Example: "  culvert join --context rome --context milan --push registry.example/culvert\n" +
			"  culvert join --context rome --context milan --context turin --pairs rome-milan,rome-turin \\\n" +
			"    --image registry.example/culvert:1.0\n" +
			"  culvert join --context admin@rome --context admin@milan --name rome --name milan \\\n" +
			"    --pod-cidr milan=10.0.0.0/16 --expose NodePort --yes --image registry.example/culvert:1.0",
		Args: cobra.NoArgs,
	}
	j.addCluster(cmd, "`NAME` of the context of a cluster; give two or more")
	cmd.Flags().StringArrayVar(&j.names, "name", nil,
		"`NAME` of each cluster, in the order of contexts (default: made of those)")
	cmd.Flags().StringSliceVar(&r.Pairs, "pairs", nil,
		"`NAME-NAME` of clusters to join, with commas (default: each with each other)")
	j.addInstall(cmd, "CLUSTER=")
	cmd.Flags().StringArrayVar(&r.Servers, "server", nil, "`CONTEXT` of a cluster whose gateway is reached by the "+
		"others (default: one with load balancers, or the later one); may be repeated")
	j.addExpose(cmd)
	isJSON := cli.OutputFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		asJSON, err := isJSON()
		if err == nil {
			err = j.check(false)
		}
		if err == nil {
			err = checkContexts(j.contexts)
		}
		if err != nil {
			return err
		}
		r.Contexts, r.Names = j.contexts, j.names
		if len(r.Names) != 0 && len(r.Names) != len(r.Contexts) {
			return errors.New("--name: give one for each context, in the same order, or none")
		}
		for _, server := range r.Servers {
			if !slices.Contains(r.Contexts, server) {
				return fmt.Errorf("--server: %q is none of the contexts %s", server, strings.Join(r.Contexts, ", "))
			}
		}
		if r.Endpoint != "" && len(r.Contexts) > 2 {
			return errors.New("--endpoint: it is that of one Server for one Client: give it with two contexts")
		}
		return j.join(r, asJSON)
	}
	return cmd
}

// join joins clusters.
func (j *joiner) join(r *join.Request, asJSON bool) error {
	plan, err := join.NewPlan(j.Context(), r)
	if err != nil {
		return j.unchanged(err)
	}
	if err := showPlan(j.ErrOrStderr(), plan); err != nil {
		return err
	}
	if !plan.Stands() || len(plan.Absent) > 0 {
		if err := j.confirm("Apply this?"); err != nil {
			return err
		}
	}
	if err := j.pushed(); err != nil {
		return err
	}
	plan.Apply(j.Context())
	results, missing := plan.Results(j.Context())
	if err := printResults(j.OutOrStdout(), plan, results, asJSON); err != nil {
		return err
	}
	if len(missing) > 0 {
		return cli.Failed(errors.Join(missing...))
	}
	return nil
}

// checkContexts returns an error if contexts cannot be those of two or more clusters.
func checkContexts(contexts []string) error {
	if len(contexts) < 2 {
		return errors.New("--context: give two or more, one for each cluster; see kubectl config get-contexts")
	}
	return nil
}

// checkTwice returns an error if a context is given twice.
func checkTwice(contexts []string) error {
	for i, name := range contexts {
		if slices.Contains(contexts[:i], name) {
			return fmt.Errorf("--context: %s is given twice", name)
		}
	}
	return nil
}
