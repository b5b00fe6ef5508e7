//go:build !nokube

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/kube/deploy"
	"culvert/kube/join"
	"culvert/kube/peering"
)

func newJoinCommand() *cobra.Command {
	var server string
	j := &joiner{}
	cmd := &cobra.Command{
		Use:   "join",
		Short: "Join two Kubernetes clusters whose kubeconfigs are at hand",
		Long: "Join two Kubernetes clusters: find their CIDRs, choose those under which each sees the other, show all of it and ask, install " +
			"gateways and agents, exchange public keys, wait until packets pass, and print what each cluster sees of the other.\n\n" +
			"Run it again to repair what was removed, or with --push or another --image to upgrade. What stands is not changed: CIDRs and remaps are " +
			"in the Peerings and stay. Without kubeconfigs of both clusters: culvert invite.\n\n" +
			"Exit status 1: it was begun, and something is missing; the same command goes on. 2: nothing was changed.",
		Example: "  culvert join --context rome --context milan --push registry.example/culvert\n" +
			"  culvert join --context admin@rome --context admin@milan --name rome --name milan \\\n" +
			"    --pod-cidr milan=10.0.0.0/16 --expose NodePort --yes --image registry.example/culvert:1.0",
		Args: cobra.NoArgs,
	}
	j.addCluster(cmd, "`NAME` of the context of a cluster; give two")
	cmd.Flags().StringArrayVar(&j.names, "name", nil,
		"`NAME` of each cluster, in the order of contexts (default: made of those)")
	j.addInstall(cmd, "CLUSTER=")
	cmd.Flags().StringVar(&server, "server", "",
		"`CONTEXT` of the cluster whose gateway is reached by the other (default: one with load balancers, or the second)")
	j.addExpose(cmd)
	isJSON := cli.OutputFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		asJSON, err := isJSON()
		if err == nil {
			err = j.check(false)
		}
		switch {
		case err != nil:
			return err
		case len(j.contexts) != 2 || j.contexts[0] == j.contexts[1]:
			return errors.New("--context: give two, one for each cluster")
		case len(j.names) != 0 && len(j.names) != 2:
			return errors.New("--name: give two, in the order of contexts, or none")
		case server != "" && !slices.Contains(j.contexts, server):
			return fmt.Errorf("--server: %q is none of the contexts %s and %s", server, j.contexts[0], j.contexts[1])
		}
		return (&joining{joiner: j}).run(server, asJSON)
	}
	return cmd
}

// joining is one run of culvert join.
type joining struct {
	*joiner
	ends  [2]*site // the client, the server
	specs [2]*peering.Spec
	lines [2][]join.Line
}

func (x *joining) run(server string, asJSON bool) error {
	ctx := x.Context()
	if err := x.look(ctx, server); err != nil {
		return x.unchanged(err)
	}
	stands, err := x.plan()
	if err != nil {
		return x.unchanged(err)
	}
	if !stands {
		if err := x.confirm("Apply this?"); err != nil {
			return err
		}
	}
	if err := x.pushed(); err != nil {
		return err
	}
	if err := x.apply(); err != nil {
		return cli.Failed(err)
	}
	return x.report(asJSON)
}

// look surveys both clusters, and decides which of them is the server.
func (x *joining) look(ctx context.Context, server string) error {
	var ids [2]string
	for i, name := range x.contexts {
		s, err := x.site(ctx, name, deploy.InstallRights())
		if err == nil {
			ids[i], err = s.ID(ctx)
		}
		own := ""
		if len(x.names) > 0 {
			own = x.names[i]
		}
		if err == nil {
			err = x.survey(ctx, s, own)
		}
		if err == nil {
			err = s.found.CheckOwn()
		}
		if x.ends[i] = s; err != nil {
			return (&site{context: name}).of(err)
		}
	}
	a, b := x.ends[0], x.ends[1]
	switch {
	case ids[0] == ids[1]:
		return fmt.Errorf("--context: %s and %s lead to the same cluster", a.context, b.context)
	case a.name == b.name:
		return fmt.Errorf("--name: both clusters would be %s; give two names", a.name)
	}
	for flag, names := range map[string]iter.Seq[string]{"--pod-cidr": maps.Keys(x.pods),
		"--service-cidr": maps.Keys(x.services), "--imports": maps.Keys(x.imports)} {
		for name := range names {
			if name != a.name && name != b.name {
				return fmt.Errorf("%s: %q is the name of neither cluster; they are %s and %s", flag, name,
					a.name, b.name)
			}
		}
	}
	if which, why := x.guess(server); which == a {
		x.ends = [2]*site{b, a}
		x.say("%s is the Server: %s", a.name, why)
	} else {
		x.say("%s is the Server: %s", b.name, why)
	}
	return nil
}

// guess decides which cluster is the server, and says why.
func (x *joining) guess(server string) (s *site, why string) {
	a, b := x.ends[0], x.ends[1]
	role := cmp.Or(a.found.Role(b.name), map[string]string{"Server": "Client",
		"Client": "Server"}[b.found.Role(a.name)])
	switch {
	case role == "Server":
		return a, "its Peering says so"
	case role == "Client":
		return b, "the Peering says so"
	case server == a.context:
		return a, "--server"
	case server == b.context:
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

// plan proposes both ends and shows them. stands says that the proposal changes nothing.
func (x *joining) plan() (stands bool, err error) {
	client, server := x.ends[0], x.ends[1]
	if x.specs, x.lines, err = join.Pair(client.found, server.found, x.endpoint); err != nil {
		return false, err
	}
	stands = true
	for i, s := range x.ends {
		peer := x.ends[1-i].name
		if err := x.wanted(s, x.specs[i], &x.lines[i]); err != nil {
			return false, s.of(err)
		}
		if err := x.show(s, x.specs[i].Role, x.lines[i]); err != nil {
			return false, err
		}
		old := s.found.Old(peer)
		stands = stands && old != nil && reflect.DeepEqual(old, x.specs[i]) && *s.had == *s.wants
	}
	return stands, nil
}

// apply applies the plan to both clusters, and waits until packets pass.
func (x *joining) apply() error {
	ctx, cancel := x.bounded()
	defer cancel()
	client, server := x.ends[0], x.ends[1]
	for _, s := range x.ends {
		x.say("%s: installing", s.name)
		if err := s.Install(ctx, s.plan); err != nil {
			return s.of(err)
		}
	}
	if err := server.ApplyPeering(ctx, x.specs[1], server.notes(x.specs[1], "")); err != nil {
		return server.of(err)
	}
	if err := server.lacksGateway(); err != nil {
		return server.of(err)
	}
	was := x.specs[0].Endpoint
	// an administrator may have given a better one
	if was == "" || was == client.found.Reached(server.name) || x.endpoint != "" || !x.works(ctx, client, server.name) {
		var err error
		if x.specs[0].Endpoint, err = x.reached(ctx, server, client.name, was); err != nil {
			return server.of(err)
		}
	}
	// of its Service, which may change
	found, _, err := server.Endpoint(ctx, client.name, server.found.NodeAddress(was))
	if err != nil {
		return server.of(err)
	}
	endpoints := [2]string{found, ""}
	if err := client.ApplyPeering(ctx, x.specs[0], client.notes(x.specs[0], endpoints[0])); err != nil {
		return client.of(err)
	}
	if err := client.lacksGateway(); err != nil {
		return client.of(err)
	}
	for i, s := range x.ends {
		key, err := x.key(ctx, s, x.ends[1-i].name)
		if err != nil {
			return s.of(err)
		}
		x.specs[1-i].PublicKey = key
	}
	for i, s := range x.ends {
		if err := s.ApplyPeering(ctx, x.specs[i], s.notes(x.specs[i], endpoints[i])); err != nil {
			return s.of(err)
		}
	}
	for i, s := range x.ends {
		if err := x.connected(ctx, s, x.ends[1-i].name); err != nil {
			return s.of(err)
		}
	}
	return nil
}

// reached waits until a Server's gateway has an address, and returns it. was is the one before,
// whose node stays if it can.
func (j *joiner) reached(ctx context.Context, s *site, peer, was string) (endpoint string, err error) {
	if j.endpoint != "" {
		return j.endpoint, nil
	}
	err = deploy.Await(ctx, j.waiting(s), func(ctx context.Context) (missing string, err error) {
		endpoint, missing, err = s.Endpoint(ctx, peer, s.found.NodeAddress(was))
		return missing, err
	})
	return endpoint, err
}

// key waits until what was applied runs and the gateway has its key, and returns the public one.
func (j *joiner) key(ctx context.Context, s *site, peer string) (key string, err error) {
	err = deploy.Await(ctx, j.waiting(s), func(ctx context.Context) (missing string, err error) {
		if missing, err = s.Rolled(ctx, peer); missing == "" && err == nil {
			key, missing, err = s.Key(ctx, peer)
		}
		return missing, err
	})
	return key, err
}

// works reports whether packets pass.
func (j *joiner) works(ctx context.Context, s *site, peer string) bool {
	status, err := s.Status(ctx, peer)
	return err == nil && slices.ContainsFunc(status.Conditions, func(c *peering.Condition) bool {
		return c.Type == peering.Connected && c.Status == "True"
	})
}

// connected waits until what was applied runs, and packets pass through every node.
func (j *joiner) connected(ctx context.Context, s *site, peer string) error {
	if _, err := j.key(ctx, s, peer); err != nil { // otherwise a gateway that ends may say that all is well
		return err
	}
	return deploy.Await(ctx, j.waiting(s), func(ctx context.Context) (missing string, err error) {
		status, err := s.Status(ctx, peer)
		if err != nil {
			return "", err
		}
		for _, kind := range []string{peering.Accepted, peering.NodesReady, peering.Connected} {
			i := slices.IndexFunc(status.Conditions, func(c *peering.Condition) bool { return c.Type == kind })
			if i < 0 || status.Conditions[i].Status != "True" {
				why, err := s.Trouble(ctx, peer)
				return kind + ": " + cmp.Or(why, status.Message, "the gateway is starting"), err
			}
		}
		return "", nil
	})
}

// An endReport is the result for one end.
type endReport struct {
	Cluster  string      `json:"cluster"`
	Context  string      `json:"context"`
	Role     string      `json:"role"`
	Endpoint string      `json:"endpoint,omitempty"`
	Nodes    string      `json:"nodes"`
	RTT      string      `json:"rtt,omitempty"`
	Sees     []seenAs    `json:"sees"`
	Found    []join.Line `json:"found"`
}

// seenAs is a CIDR of the other cluster.
type seenAs struct {
	Cluster string `json:"cluster"`
	What    string `json:"what"`
	CIDR    string `json:"cidr"`
	As      string `json:"as"`
}

// sees lists the other cluster's CIDRs in a Peering.
func sees(spec *peering.Spec) (all []seenAs) {
	for _, r := range spec.Remote.PodCIDRs {
		all = append(all, seenAs{spec.Peer, "pods", r.CIDR, cmp.Or(r.Remap, r.CIDR)})
	}
	if r := spec.Remote.ExternalCIDR; r != nil {
		all = append(all, seenAs{spec.Peer, "nodes and Services", r.CIDR, cmp.Or(r.Remap, r.CIDR)})
	}
	return all
}

// report prints what each cluster sees of the other.
func (x *joining) report(asJSON bool) error {
	var all []endReport
	for i, s := range x.ends {
		status, err := s.Status(x.Context(), x.ends[1-i].name)
		if err != nil {
			return cli.Failed(s.of(err))
		}
		all = append(all, endReport{Cluster: s.name, Context: s.context, Role: x.specs[i].Role,
			Endpoint: x.specs[i].Endpoint, Nodes: status.NodesReady,
			RTT: status.RTT, Sees: sees(x.specs[i]), Found: x.lines[i]})
	}
	if asJSON {
		e := json.NewEncoder(x.OutOrStdout())
		e.SetIndent("", "  ")
		return e.Encode(all)
	}
	return printEnds(x.Command, all)
}

func printEnds(cmd *cobra.Command, all []endReport) error {
	out := cmd.OutOrStdout()
	for _, end := range all {
		rtt := ""
		if end.RTT != "" {
			rtt = ", round trip " + end.RTT
		}
		fmt.Fprintf(out, "%s is connected, %s\n", end.Cluster, cli.Printable(end.Nodes+" nodes"+rtt))
		t := cli.NewTable(out)
		for _, x := range end.Sees {
			example := ""
			if from, err := netip.ParsePrefix(x.CIDR); err == nil && x.What == "pods" {
				if to, err := netip.ParsePrefix(x.As); err == nil {
					example = fmt.Sprintf("%s is %s in %s", join.Nth(from, 261), join.Nth(to, 261), end.Cluster)
				}
			}
			fmt.Fprintf(t, "  %s of %s\t%s\tas %s\t%s\n", x.What, x.Cluster, x.CIDR, x.As, example)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}
