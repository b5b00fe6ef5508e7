//go:build !nokube

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway/configfile"
	"culvert/kube/deploy"
	"culvert/kube/join/terms"
)

func newLeaveCommand() *cobra.Command {
	var peer string
	var all bool
	j := &joiner{}
	cmd := &cobra.Command{
		Use:   "leave",
		Short: "Undo a peering of a Kubernetes cluster, or remove all of culvert from it",
		Long: "Undo a peering of a Kubernetes cluster, or remove all of culvert from it. Agents remove links, routes " +
			"and the exception from masquerade from all nodes first; then gateways, agents, rights, kinds and " +
			"namespaces go, and what stands for Services of the peer, in whatever namespace. The other cluster keeps " +
			"its end until culvert leave runs there.\n\n" +
			"It can be interrupted and run again. With several clusters, one that cannot be reached does not keep " +
			"the others.",
		Example: "  culvert leave --context rome --peer milan\n" +
			"  culvert leave --context rome --context milan --all --yes",
		Args: cobra.NoArgs,
	}
	j.addCluster(cmd, "`NAME` of the context of a cluster (default: the current one); may be repeated")
	cmd.Flags().StringVar(&peer, "peer", "", "`NAME` of the cluster that is left")
	cmd.Flags().BoolVar(&all, "all", false, "leave every cluster, and remove everything of culvert's")
	cmd.RunE = func(*cobra.Command, []string) error {
		switch {
		case all == (peer != ""):
			return errors.New("--peer: give the name of a cluster, or --all for everything")
		case peer != "":
			e := new(configfile.Errors)
			if terms.CheckName(e, "--peer", peer); e.Err() != nil {
				return e.Err()
			}
		}
		if err := j.orCurrent(); err != nil {
			return err
		}
		return j.leave(peer)
	}
	return cmd
}

// leaving says what to remove from one cluster.
type leaving struct {
	*deploy.Cluster
	context string
	names   []string // of Peerings
}

// leave removes a peering from each cluster; "" removes all of culvert.
func (j *joiner) leave(peer string) error {
	var sites []leaving
	var unreached []error
	for _, name := range j.contexts {
		c, err := j.cluster(name)
		if err == nil {
			_, err = c.Check(j.Context(), deploy.LeaveRights())
		}
		var names []string
		if err == nil {
			names, err = c.Peerings(j.Context())
		}
		if err != nil {
			unreached = append(unreached,
				fmt.Errorf("%s: %w; nothing was removed there: run the same command when it can be", name, err))
			continue
		}
		if peer != "" {
			if names = slices.DeleteFunc(names, func(n string) bool { return n != peer }); len(names) == 0 {
				j.say("%s: there is no Peering %s", name, peer)
				continue
			}
		}
		sites = append(sites, leaving{c, name, names})
	}
	if len(sites) == 0 {
		return errors.Join(unreached...)
	}
	for _, s := range sites {
		what := "the peering with " + peer
		if peer == "" {
			what = "all of culvert, with the peerings " + cmp.Or(strings.Join(s.names, ", "), "(none)")
		}
		j.say("%s: will remove %s", s.context, what)
	}
	if err := j.confirm("Remove this?"); err != nil {
		return err
	}
	errs := unreached
	for _, s := range sites {
		if err := j.leaveOne(s, peer); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return cli.Failed(err)
	}
	return nil
}

func (j *joiner) leaveOne(s leaving, peer string) (err error) {
	ctx, cancel := context.WithTimeout(j.Context(), j.Timeout)
	defer cancel()
	if peer != "" {
		err = s.Leave(ctx, peer, j.Waiting(s.context))
	} else {
		err = s.LeaveAll(ctx, j.Waiting(s.context))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.context, err)
	}
	if owner := s.Owner(); owner != "" {
		j.say("%s: the Peerings are gone, and nothing of them is left on nodes; the rest is for %s to remove",
			s.context, owner)
	} else {
		j.say("%s: done", s.context)
	}
	if kept := s.Kept(); kept != "" {
		j.say("%s: %s", s.context, kept)
	}
	for _, name := range s.names {
		if !slices.ContainsFunc(j.contexts, func(context string) bool { return terms.NameOf(context) == name }) {
			j.say("%s keeps its end until culvert leave --peer runs there, with the name of this cluster", name)
		}
	}
	return nil
}
