//go:build !nokube

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"culvert/cmd/internal/cli"
	"culvert/kube/join"
	"culvert/kube/join/terms"
)

// showPlan prints what each cluster that is to be joined has and will get.
func showPlan(w io.Writer, plan *join.Plan) error {
	for _, s := range plan.Sites {
		if ends := plan.Ends(s); len(ends) > 0 {
			if err := showEnds(w, ends); err != nil {
				return err
			}
		}
	}
	return nil
}

// showEnds prints what a cluster has and what its ends will get.
func showEnds(w io.Writer, ends []*join.End) error {
	print := func(lines []terms.Line) error {
		t := cli.NewTable(w)
		for _, l := range lines {
			fmt.Fprintf(t, "  %s\t%s\t%s\n", l.What, l.Value, l.Source)
		}
		return t.Flush()
	}
	s, nodes := ends[0].Site, "nodes"
	if s.Found.Nodes == 1 {
		nodes = "node"
	}
	title := s.Name
	if len(ends) == 1 {
		title = ends[0].Title
	}
	fmt.Fprintf(w, "%s (context %s, Kubernetes %s, %d %s)", title, s.Context, s.Version, s.Found.Nodes, nodes)
	if len(ends) == 1 {
		fmt.Fprintf(w, ", %s:\n", ends[0].Spec.Role)
		return print(ends[0].Lines)
	}
	fmt.Fprintln(w, ":")
	inAll := func(l terms.Line) bool {
		return !slices.ContainsFunc(ends, func(e *join.End) bool { return !slices.Contains(e.Lines, l) })
	}
	var shared []terms.Line
	for _, l := range ends[0].Lines {
		if inAll(l) {
			shared = append(shared, l)
		}
	}
	if err := print(shared); err != nil {
		return err
	}
	for _, e := range ends {
		fmt.Fprintf(w, "%s with %s, %s", s.Name, e.Spec.Peer, e.Spec.Role)
		if e.Stands() {
			fmt.Fprintln(w, ": as it is")
			continue
		}
		fmt.Fprintln(w, ":")
		if err := print(slices.DeleteFunc(slices.Clone(e.Lines), inAll)); err != nil {
			return err
		}
	}
	return nil
}

// printResults prints what each cluster sees of the others. Of two clusters that are not joined, it
// prints nothing.
func printResults(w io.Writer, plan *join.Plan, results []join.Result, asJSON bool) error {
	switch {
	case len(plan.Names) == 2 && len(results) == 0:
		return nil
	case asJSON:
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(results)
	case len(plan.Names) > 2:
		return printMatrix(w, plan, results)
	}
	return printEnds(w, results)
}

// printMatrix prints a line for each cluster: how it sees the pods of each other one.
func printMatrix(w io.Writer, plan *join.Plan, results []join.Result) error {
	t := cli.NewTable(w)
	fmt.Fprintln(w, "Pods of each cluster (column) as each other cluster (line) sees them:")
	fmt.Fprintf(t, "\t%s\n", strings.Join(plan.Names, "\t"))
	for _, name := range plan.Names {
		fmt.Fprint(t, name)
		for _, peer := range plan.Names {
			fmt.Fprintf(t, "\t%s", cell(plan, results, name, peer))
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// cell returns how a cluster sees the pods of another, or why it does not.
func cell(plan *join.Plan, results []join.Result, name, peer string) string {
	if name == peer {
		return "–"
	}
	for _, end := range results {
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
	if plan.Site(name) == nil || plan.Site(peer) == nil {
		return "not reached"
	}
	if slices.ContainsFunc(plan.Pairs, func(p *join.Pair) bool {
		a, b := p.Ends[0].Name, p.Ends[1].Name
		return p.Err != nil && (a == name && b == peer || a == peer && b == name)
	}) {
		return "failed"
	}
	return "not joined"
}

func printEnds(w io.Writer, results []join.Result) error {
	for _, end := range results {
		rtt := ""
		if end.RTT != "" {
			rtt = ", round trip " + end.RTT
		}
		fmt.Fprintf(w, "%s is connected, %s\n", end.Cluster, cli.Printable(end.Nodes+" nodes"+rtt))
		t := cli.NewTable(w)
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
