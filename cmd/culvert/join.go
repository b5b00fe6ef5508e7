//go:build !nokube

package main

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/kube/deploy"
	"culvert/kube/join/terms"
)

func newJoinCommand() *cobra.Command {
	x := &joining{joiner: &joiner{}}
	cmd := &cobra.Command{
		Use:   "join",
		Short: "Join two or more Kubernetes clusters whose kubeconfigs are at hand",
		Long: "Join two or more Kubernetes clusters, each with each other: find their CIDRs, choose those under which each sees the others, show " +
			"all of it and ask, install gateways and agents, exchange public keys, wait until packets pass, and print what each cluster sees of " +
			"the others.\n\n" +
			"Run it again to repair what was removed, or with --push or another --image to upgrade. What stands is not changed: CIDRs and remaps are " +
			"in the Peerings and stay. Without kubeconfigs of both clusters: culvert invite.\n\n" +
			"Of three or more clusters, one that cannot be reached does not keep the others; the same command goes on later.\n\n" +
			"Exit status 1: it was begun, and something is missing; the same command goes on. 2: nothing was changed.",
		Example: "  culvert join --context rome --context milan --push registry.example/culvert\n" +
			"  culvert join --context rome --context milan --context turin --pairs rome-milan,rome-turin \\\n" +
			"    --image registry.example/culvert:1.0\n" +
			"  culvert join --context admin@rome --context admin@milan --name rome --name milan \\\n" +
			"    --pod-cidr milan=10.0.0.0/16 --expose NodePort --yes --image registry.example/culvert:1.0",
		Args: cobra.NoArgs,
	}
	x.addCluster(cmd, "`NAME` of the context of a cluster; give two or more")
	cmd.Flags().StringArrayVar(&x.names, "name", nil,
		"`NAME` of each cluster, in the order of contexts (default: made of those)")
	addPairs(cmd, &x.pairing, "join")
	x.addInstall(cmd, "CLUSTER=")
	cmd.Flags().StringArrayVar(&x.servers, "server", nil,
		"`CONTEXT` of a cluster whose gateway is reached by the others (default: one with load balancers, or the later one); may be repeated")
	x.addExpose(cmd)
	isJSON := cli.OutputFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		asJSON, err := isJSON()
		if err == nil {
			err = x.check(false)
		}
		if err == nil {
			err = checkContexts(x.contexts)
		}
		if err != nil {
			return err
		}
		if len(x.names) != 0 && len(x.names) != len(x.contexts) {
			return errors.New("--name: give one for each context, in the same order, or none")
		}
		for _, server := range x.servers {
			if !slices.Contains(x.contexts, server) {
				return fmt.Errorf("--server: %q is none of the contexts %s", server, strings.Join(x.contexts, ", "))
			}
		}
		if x.endpoint != "" && len(x.contexts) > 2 {
			return errors.New("--endpoint: it is that of one Server for one Client: give it with two contexts")
		}
		return x.run(asJSON)
	}
	return cmd
}

// joining is one run of culvert join.
type joining struct {
	*joiner
	pairing []string // --pairs
	servers []string // contexts
	sites   []*site  // in the order of contexts, without those that cannot be reached
	absent  []error  // why those cannot
	pairs   []*pair
}

// A pair is two clusters that are joined.
type pair struct {
	ends [2]*end // the client, the server
	err  error   // why they are not
}

// stands reports whether the proposal changes nothing.
func (p *pair) stands() bool { return p.ends[0].stands() && p.ends[1].stands() }

func (x *joining) run(asJSON bool) error {
	if err := x.look(); err != nil {
		return x.unchanged(err)
	}
	if err := x.plan(); err != nil {
		return x.unchanged(err)
	}
	if !x.stands() || len(x.absent) > 0 {
		if err := x.confirm("Apply this?"); err != nil {
			return err
		}
	}
	if err := x.pushed(); err != nil {
		return err
	}
	x.apply()
	return x.report(asJSON)
}

// stands reports whether the proposal changes nothing.
func (x *joining) stands() bool {
	return !slices.ContainsFunc(x.pairs, func(p *pair) bool { return !p.stands() })
}

// look surveys the clusters, and decides which are to be joined.
func (x *joining) look() error {
	sites := make([]*site, len(x.contexts))
	errs := make([]error, len(x.contexts))
	var tasks sync.WaitGroup
	for i, name := range x.contexts {
		tasks.Go(func() {
			if sites[i], errs[i] = x.lookAt(i); errs[i] != nil {
				errs[i] = fmt.Errorf("%s: %w", name, errs[i])
			}
		})
	}
	tasks.Wait()
	for i, s := range sites {
		if errs[i] != nil {
			x.absent = append(x.absent, errs[i])
		} else {
			x.sites = append(x.sites, s)
		}
	}
	if len(x.absent) > 0 && len(x.contexts) == 2 || len(x.sites) < 2 || x.Context().Err() != nil {
		return errors.Join(x.absent...)
	}
	if err := x.distinct(); err != nil {
		return err
	}
	all, err := pairsOf(x.pairing, x.clusters())
	if err != nil {
		return err
	}
	for _, names := range all {
		a, b := x.named(names[0]), x.named(names[1])
		if a == nil || b == nil {
			continue
		}
		server, why := x.guess(a, b)
		client := a
		if server == a {
			client = b
		}
		p := &pair{ends: [2]*end{client.end(), server.end()}}
		of := ""
		if len(x.contexts) > 2 {
			of = " of " + client.name
			p.ends[0].title += " with " + server.name
			p.ends[1].title += " with " + client.name
		}
		x.say("%s is the Server%s: %s", server.name, of, why)
		x.pairs = append(x.pairs, p)
	}
	for _, err := range x.absent {
		x.say("left out: %v", err)
	}
	if len(x.pairs) == 0 {
		return errors.Join(append([]error{errors.New("no pair is left to join")}, x.absent...)...)
	}
	return nil
}

// clusters returns the names of all clusters, also of those that cannot be reached.
func (x *joining) clusters() (names []string) {
	for i, context := range x.contexts {
		k := slices.IndexFunc(x.sites, func(s *site) bool { return s.context == context })
		switch {
		case k >= 0:
			names = append(names, x.sites[k].name)
		case len(x.names) > 0:
			names = append(names, x.names[i])
		default:
			names = append(names, terms.NameOf(context))
		}
	}
	return names
}

func (x *joining) named(name string) *site {
	if k := slices.IndexFunc(x.sites, func(s *site) bool { return s.name == name }); k >= 0 {
		return x.sites[k]
	}
	return nil
}

// lookAt surveys the cluster of a context.
func (x *joining) lookAt(i int) (*site, error) {
	ctx, own := x.Context(), ""
	if len(x.names) > 0 {
		own = x.names[i]
	}
	s, err := x.connect(ctx, x.contexts[i], deploy.InstallRights())
	if err == nil {
		s.id, err = s.ID(ctx)
	}
	if err == nil {
		err = x.survey(ctx, s, own)
	}
	if err == nil {
		err = s.found.CheckOwn()
	}
	return s, err
}

// distinct returns an error if two contexts are of the same cluster, if two clusters have the same
// name, or if a flag names a cluster that there is not.
func (x *joining) distinct() error {
	for i, b := range x.sites {
		for _, a := range x.sites[:i] {
			if a.id == b.id {
				return fmt.Errorf("--context: %s and %s lead to the same cluster", a.context, b.context)
			}
		}
	}
	names := x.clusters()
	for i, name := range names {
		if k := slices.Index(names, name); k < i {
			return fmt.Errorf("--name: the clusters of contexts %s and %s would both be %s; give each a name",
				x.contexts[k], x.contexts[i], name)
		}
	}
	for flag, of := range map[string]iter.Seq[string]{"--pod-cidr": maps.Keys(x.pods),
		"--service-cidr": maps.Keys(x.services), "--imports": maps.Keys(x.imports), "--values": maps.Keys(x.values)} {
		for name := range of {
			if !slices.Contains(names, name) {
				return fmt.Errorf("%s: %q is the name of no cluster here; they are %s", flag, name,
					strings.Join(names, ", "))
			}
		}
	}
	return nil
}

// guess decides which of two clusters is the server, and says why.
func (x *joining) guess(a, b *site) (s *site, why string) {
	role := cmp.Or(a.found.Role(b.name), map[string]string{"Server": "Client",
		"Client": "Server"}[b.found.Role(a.name)])
	first, second := slices.Contains(x.servers, a.context), slices.Contains(x.servers, b.context)
	switch {
	case role == "Server":
		return a, "its Peering says so"
	case role == "Client":
		return b, "the Peering says so"
	case first && !second:
		return a, "--server"
	case second && !first:
		return b, "--server"
	case a.found.Balanced != b.found.Balanced && a.found.Balanced:
		return a, "its load balancers have addresses, and the other cluster has none; --server changes it"
	case a.found.Balanced != b.found.Balanced:
		return b, "its load balancers have addresses, and the other cluster has none; --server changes it"
	case a.found.Public && !b.found.Public && !a.found.Balanced:
		return a, "its nodes have external addresses, and those of the other cluster have none; --server changes it"
	}
	return b, "it was named last; --server changes it"
}

// plan proposes all ends, one pair after the other so that none takes a CIDR of another, has the
// API servers check them, and shows them.
func (x *joining) plan() error {
	for _, p := range x.pairs {
		specs, lines, err := terms.Pair(p.ends[0].found, p.ends[1].found, x.endpoint)
		if err != nil {
			return err
		}
		for i, e := range p.ends {
			e.spec, e.lines = specs[i], lines[i]
		}
	}
	err := x.each(x.pairs, func(p *pair) error {
		for _, e := range p.ends {
			if err := x.wanted(e); err != nil {
				return e.of(err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return x.showAll()
}

// showAll prints what each cluster that is to be joined has and will get.
func (x *joining) showAll() error {
	for _, s := range x.sites {
		var ends []*end
		for _, p := range x.pairs {
			for _, e := range p.ends {
				if e.site == s {
					ends = append(ends, e)
				}
			}
		}
		if len(ends) == 0 {
			continue
		}
		if err := x.show(ends); err != nil {
			return err
		}
	}
	return nil
}

// each calls do for each of some pairs, side by side, and returns the errors in the order of pairs.
func (x *joining) each(pairs []*pair, do func(*pair) error) error {
	errs := make([]error, len(pairs))
	var tasks sync.WaitGroup
	for i, p := range pairs {
		tasks.Go(func() { errs[i] = do(p) })
	}
	tasks.Wait()
	return errors.Join(errs...)
}

// A clusterPair is two names of clusters.
type clusterPair [2]string

func addPairs(cmd *cobra.Command, to *[]string, verb string) {
	cmd.Flags().StringSliceVar(to, "pairs", nil, "`NAME-NAME` of clusters to "+verb+", with commas (default: each with each other)")
}

// checkContexts returns an error if contexts cannot be those of two or more clusters.
func checkContexts(contexts []string) error {
	if len(contexts) < 2 {
		return errors.New("--context: give two or more, one for each cluster; see kubectl config get-contexts")
	}
	return checkTwice(contexts)
}

func checkTwice(contexts []string) error {
	for i, name := range contexts {
		if slices.Contains(contexts[:i], name) {
			return fmt.Errorf("--context: %s is given twice", name)
		}
	}
	return nil
}

// pairsOf returns the pairs of clusters that texts name; if there are no texts, all pairs.
func pairsOf(texts, names []string) (pairs []clusterPair, err error) {
	var all []clusterPair
	for i, b := range names {
		for _, a := range names[:i] {
			all = append(all, clusterPair{a, b})
		}
	}
	if len(texts) == 0 {
		return all, nil
	}
	for _, text := range texts {
		var fits []clusterPair
		for _, p := range all {
			if text == p[0]+"-"+p[1] || text == p[1]+"-"+p[0] {
				fits = append(fits, p)
			}
		}
		switch {
		case len(fits) == 0:
			return nil, fmt.Errorf("--pairs: %q is no two clusters with a dash between them; they are %s", text,
				strings.Join(names, ", "))
		case len(fits) > 1:
			return nil, fmt.Errorf("--pairs: %q may be %s and %s or %s and %s; give other names by --name", text,
				fits[0][0], fits[0][1], fits[1][0], fits[1][1])
		case !slices.Contains(pairs, fits[0]):
			pairs = append(pairs, fits[0])
		}
	}
	return pairs, nil
}
