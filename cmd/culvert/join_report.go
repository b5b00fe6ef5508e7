//go:build !nokube

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/kube/join/terms"
	"culvert/kube/peering"
)

// An endReport is the result for one end.
type endReport struct {
	Cluster  string       `json:"cluster"`
	Context  string       `json:"context"`
	Peer     string       `json:"peer"`
	Role     string       `json:"role"`
	Endpoint string       `json:"endpoint,omitempty"`
	Nodes    string       `json:"nodes"`
	RTT      string       `json:"rtt,omitempty"`
	Sees     []seenAs     `json:"sees"`
	Found    []terms.Line `json:"found"`
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

// report returns the results for both ends.
func (p *pair) report(ctx context.Context) (all []endReport, err error) {
	for _, e := range p.ends {
		status, err := e.Status(ctx, e.spec.Peer)
		if err != nil {
			return nil, e.of(err)
		}
		all = append(all, endReport{Cluster: e.name, Context: e.context, Peer: e.spec.Peer, Role: e.spec.Role,
			Endpoint: e.spec.Endpoint, Nodes: status.NodesReady, RTT: status.RTT, Sees: sees(e.spec),
			Found: e.lines})
	}
	return all, nil
}

// report prints what each cluster sees of the others, and returns what is missing.
func (x *joining) report(asJSON bool) error {
	all := []endReport{}
	failed := slices.Clone(x.absent)
	for _, p := range x.pairs {
		var ends []endReport
		if p.err == nil {
			ends, p.err = p.report(x.Context())
		}
		if p.err != nil {
			failed = append(failed, p.err)
			continue
		}
		all = append(all, ends...)
	}
	print := printEnds
	switch {
	case len(x.contexts) == 2 && len(failed) > 0:
		print = func(*cobra.Command, []endReport) error { return nil }
	case asJSON:
		print = func(cmd *cobra.Command, all []endReport) error {
			e := json.NewEncoder(cmd.OutOrStdout())
			e.SetIndent("", "  ")
			return e.Encode(all)
		}
	case len(x.contexts) > 2:
		print = x.printMatrix
	}
	if err := print(x.Command, all); err != nil {
		return err
	}
	if len(failed) > 0 {
		return cli.Failed(errors.Join(failed...))
	}
	return nil
}

// printMatrix prints a line for each cluster: how it sees the pods of each other one.
func (x *joining) printMatrix(cmd *cobra.Command, all []endReport) error {
	out, names := cmd.OutOrStdout(), x.clusters()
	t := cli.NewTable(out)
	fmt.Fprintln(out, "Pods of each cluster (column) as each other cluster (line) sees them:")
	fmt.Fprintf(t, "\t%s\n", strings.Join(names, "\t"))
	for _, name := range names {
		fmt.Fprint(t, name)
		for _, peer := range names {
			fmt.Fprintf(t, "\t%s", x.cell(all, name, peer))
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// cell returns how a cluster sees the pods of another, or why it does not.
func (x *joining) cell(all []endReport, name, peer string) string {
	if name == peer {
		return "–"
	}
	for _, end := range all {
		if end.Cluster == name && end.Peer == peer {
			var pods []string
			for _, s := range end.Sees {
				if s.What == "pods" {
					pods = append(pods, s.As)
				}
			}
			return strings.Join(pods, ",")
		}
	}
	if x.named(name) == nil || x.named(peer) == nil {
		return "not reached"
	}
	if slices.ContainsFunc(x.pairs, func(p *pair) bool {
		return p.err != nil && (p.ends[0].name == name && p.ends[1].name == peer ||
			p.ends[0].name == peer && p.ends[1].name == name)
	}) {
		return "failed"
	}
	return "not joined"
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
					example = fmt.Sprintf("%s is %s in %s", terms.Nth(from, 261), terms.Nth(to, 261), end.Cluster)
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
