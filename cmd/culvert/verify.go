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
	"sync"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/kube/verify"
)

func newVerifyCommand() *cobra.Command {
	var kubeconfig string
	var contexts []string
	var o verify.Options
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Prove that the pods of Kubernetes clusters reach each other, or say what is wrong",
		Long: "Prove that the pods of two or more Kubernetes clusters reach each other, or say what is wrong and " +
			"what to do. Pods of culvert's own image ask each other from node to node around a ring of at most ten " +
			"nodes of each cluster, with the image of the gateway: TCP, UDP, the largest packet, 10 MiB there and " +
			"back, a NodePort, an exported Service by its name where spec.imports of a Peering names a namespace for " +
			"it, the names of multi-cluster Services, and under which address the far end sees them. They need no privilege, and are in a temporary " +
			"namespace that is removed in any case.\n\n" +
			"It asks with your rights in the clusters, and says which are missing. Of three or more clusters, it " +
			"asks each pair that is joined, and prints one table: how many paths lead from the cluster of the line " +
			"to that of the column.\n\n" +
			"Exit status 0: all is well; 1: something is wrong, which lines that begin with \"wrong\" say; 2: it " +
			"cannot look.",
		Example: "  culvert verify --context rome --context milan\n" +
			"  culvert verify --context rome --context milan --all-nodes -o json",
		Args: cobra.NoArgs,
	}
	isJSON := cli.OutputFlag(cmd)
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "",
		"`FILE` that leads to both clusters (default: what kubectl takes)")
	cmd.Flags().StringArrayVar(&contexts, "context", nil, "`NAME` of a context there; give two or more")
	cmd.Flags().BoolVar(&o.AllNodes, "all-nodes", false, "ask from each node to each node of the other cluster")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := isJSON()
		if err == nil {
			err = cmp.Or(checkContexts(contexts), checkTwice(contexts))
		}
		if err != nil {
			return err
		}
		clusters := make([]verify.Cluster, len(contexts))
		for i, name := range contexts {
			client, err := (&operator{kubeconfig, name}).client()
			if err != nil {
				return fmt.Errorf("--context %s: %w", name, err)
			}
			clusters[i] = verify.NewCluster(client)
		}
		pairs := verifyPairs(cmd, contexts, clusters, o)
		if len(pairs) == 1 && pairs[0].Report == nil {
			return pairs[0].err
		}
		switch {
		case asJSON && len(contexts) == 2:
			err = json.NewEncoder(cmd.OutOrStdout()).Encode(pairs[0].Report)
		case asJSON:
			err = json.NewEncoder(cmd.OutOrStdout()).Encode(pairs)
		case len(contexts) == 2:
			err = printVerified(cmd.OutOrStdout(), pairs[0].Report)
		default:
			err = printVerifiedPairs(cmd.OutOrStdout(), contexts, pairs)
		}
		return errors.Join(err, verdictOfPairs(pairs))
	}
	return cmd
}

// A verifiedPair is the result for two clusters: a Report, or an error if it could not look. A
// report can have an error too, if the removal failed.
type verifiedPair struct {
	Contexts [2]string      `json:"contexts"`
	Report   *verify.Report `json:"report,omitempty"`
	Error    string         `json:"error,omitempty"`
	Joined   bool           `json:"joined"`
	err      error
}

// verifyPairs runs all pairs, side by side where they have no cluster in common.
func verifyPairs(cmd *cobra.Command, contexts []string, clusters []verify.Cluster, o verify.Options) []*verifiedPair {
	var all []*verifiedPair
	var tasks sync.WaitGroup
	busy := make([]sync.Mutex, len(contexts))
	var one sync.Mutex // pairs speak side by side
	for k := range contexts {
		for i := range k {
			p := &verifiedPair{Contexts: [2]string{contexts[i], contexts[k]}}
			all = append(all, p)
			tasks.Go(func() {
				busy[i].Lock()
				defer busy[i].Unlock()
				busy[k].Lock()
				defer busy[k].Unlock()
				o := o
				o.Contexts = p.Contexts
				o.Progress = func(text string) {
					if len(contexts) > 2 {
						text = p.String() + ": " + text
					}
					one.Lock()
					defer one.Unlock()
					fmt.Fprintln(cmd.ErrOrStderr(), cli.Wrap(text, cli.Width(cmd.ErrOrStderr())))
				}
				p.Report, p.err = verify.Run(cmd.Context(), clusters[i], clusters[k], o)
				if errors.Is(cmd.Context().Err(), context.Canceled) {
					p.err = cli.Failed(fmt.Errorf("interrupted: %w", cmp.Or(p.err, cmd.Context().Err())))
				}
				if p.Joined = !verify.NotJoined(p.err); p.err != nil {
					p.Error = p.err.Error()
				}
			})
		}
	}
	tasks.Wait()
	return all
}

func (p *verifiedPair) String() string { return p.Contexts[0] + " and " + p.Contexts[1] }

// verdictOfPairs returns the error for pairs of which one has a fault or could not be asked. Of
// three or more clusters, two that are not joined are no fault, unless no pair is joined.
func verdictOfPairs(pairs []*verifiedPair) error {
	var wrong, errs []error
	joined := false
	for _, p := range pairs {
		joined = joined || p.Joined
		if p.err != nil && p.Joined {
			errs = append(errs, p.of(p.err, len(pairs)))
		}
		if p.Report != nil {
			if err := verifyVerdict(p.Report); err != nil {
				wrong = append(wrong, p.of(err, len(pairs)))
			}
		}
	}
	switch all := errors.Join(append(wrong, errs...)...); {
	case len(wrong) > 0:
		return cli.Failed(all)
	case all == nil && !joined:
		return errors.New("no two of these clusters are joined: culvert join")
	default:
		return all
	}
}

// of adds the pair to an error, if it is not the only one.
func (p *verifiedPair) of(err error, pairs int) error {
	if pairs == 1 {
		return err
	}
	return fmt.Errorf("%s: %w", p, err)
}

// printVerifiedPairs prints a table of all pairs, and what is wrong with each. Notes are for those
// who look at one pair.
func printVerifiedPairs(w io.Writer, contexts []string, pairs []*verifiedPair) error {
	t := cli.NewTable(w)
	fmt.Fprintf(t, "\t%s\n", strings.Join(contexts, "\t"))
	for _, from := range contexts {
		fmt.Fprint(t, from)
		for _, to := range contexts {
			cell := "–"
			for _, p := range pairs {
				if p.Contexts == [2]string{from, to} || p.Contexts == [2]string{to, from} {
					cell = p.cell(from)
				}
			}
			fmt.Fprintf(t, "\t%s", cell)
		}
		fmt.Fprintln(t)
	}
	err := t.Flush()
	for _, p := range pairs {
		if p.Report == nil {
			continue
		}
		for _, f := range p.Report.Findings {
			if f.Wrong {
				printFinding(w, f, p.String())
			}
		}
	}
	if err == nil && verdictOfPairs(pairs) == nil {
		_, err = fmt.Fprintln(w, "All is well.")
	}
	return err
}

// cell says how many paths lead from a context's cluster to the other one, or why none was asked.
func (p *verifiedPair) cell(from string) string {
	switch {
	case !p.Joined:
		return "not joined"
	case p.Report == nil:
		return "not asked"
	}
	var name string
	for _, c := range p.Report.Clusters {
		if c.Context == from {
			name = c.Cluster
		}
	}
	wrong, all := 0, 0
	for i := range p.Report.Paths {
		path := &p.Report.Paths[i]
		cluster, _, _ := strings.Cut(path.From, "/")
		other, _, _ := strings.Cut(path.To, "/")
		if cluster != name || other == name {
			continue
		}
		if all++; len(path.Faults) > 0 {
			wrong++
		}
	}
	if wrong > 0 {
		return fmt.Sprintf("%d of %d wrong", wrong, all)
	}
	return fmt.Sprintf("%d ok", all)
}

// printVerified prints a line for each path, and the findings.
func printVerified(w io.Writer, r *verify.Report) error {
	for i := range r.Clusters {
		c := &r.Clusters[i]
		nodes := fmt.Sprintf("%d nodes", c.Nodes)
		if c.Asked < c.Nodes {
			nodes = fmt.Sprintf("%d of %d nodes are asked (--all-nodes asks all)", c.Asked, c.Nodes)
		}
		fmt.Fprintf(w, "%s: Peering %s, gateway on node %s, %s\n", c.Cluster, c.Peering,
			cli.Printable(cmp.Or(c.Gateway, "none")), nodes)
	}
	if len(r.Paths) > 0 {
		t := cli.NewTable(w)
		fmt.Fprintf(t, "\n%s\n", verify.Columns)
		for _, row := range r.Rows() {
			fmt.Fprintln(t, cli.Printable(strings.Join(row, "\t")))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	fmt.Fprintln(w)
	for _, f := range r.Findings {
		printFinding(w, f, "")
	}
	if !r.OK {
		return nil
	}
	_, err := fmt.Fprintln(w, "All is well.")
	return err
}

// printFinding prints a finding about a cluster, or about a pair.
func printFinding(w io.Writer, f verify.Finding, pair string) {
	words := []string{"note"}
	if f.Wrong {
		words[0] = "wrong"
	}
	for _, of := range []string{pair, f.Cluster} {
		if of != "" {
			words = append(words, of)
		}
	}
	fmt.Fprintln(w, cli.Wrap(strings.Join(append(words, f.Text), ": "), cli.Width(w)))
}

// verifyVerdict returns the error for a report that has a fault.
func verifyVerdict(r *verify.Report) error {
	if r.OK {
		return nil
	}
	wrong := 0
	for i := range r.Paths {
		if len(r.Paths[i].Faults) > 0 {
			wrong++
		}
	}
	return cli.Failed(fmt.Errorf("verify: %d of %d paths have faults; correct what is wrong above", wrong,
		len(r.Paths)))
}
