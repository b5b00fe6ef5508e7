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
		Short: "Prove that the pods of two Kubernetes clusters reach each other, or say what is wrong",
		Long: "Prove that the pods of two Kubernetes clusters reach each other, or say what is wrong and what to do.\n" +
			"Pods of culvert's own image ask each other from node to node around a ring of at most ten nodes of each cluster,\n" +
			"with the image of the gateway: TCP, UDP, the largest packet, 10 MiB there and back, a NodePort, an exported\n" +
			"Service by its name where spec.imports of a Peering names a namespace for it, and under which address the far end\n" +
			"sees them. They need no privilege, and are in a temporary namespace that is removed in any case.\n\n" +
			"It asks with your rights in both clusters, and says which are missing.\n\n" +
			"Exit status 0: all is well; 1: something is wrong, which lines that begin with \"wrong\" say; 2: it cannot look.",
		Example: "  culvert verify --context rome --context milan\n  culvert verify --context rome --context milan --all-nodes -o json",
		Args:    cobra.NoArgs,
	}
	isJSON := cli.OutputFlag(cmd)
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "",
		"`FILE` that leads to both clusters (default: what kubectl takes)")
	cmd.Flags().StringArrayVar(&contexts, "context", nil, "`NAME` of a context there; give two")
	cmd.Flags().BoolVar(&o.AllNodes, "all-nodes", false, "ask from each node to each node of the other cluster")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := isJSON()
		if err != nil {
			return err
		}
		if len(contexts) != 2 || contexts[0] == contexts[1] {
			return errors.New("--context: want two, one of each cluster; see kubectl config get-contexts")
		}
		o.Progress = func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), cli.Wrap(text, cli.Width(cmd.ErrOrStderr()))) }
		o.Contexts = [2]string(contexts)
		var clusters [2]verify.Cluster
		for i, name := range contexts {
			client, err := (&operator{kubeconfig, name}).client()
			if err != nil {
				return fmt.Errorf("--context %s: %w", name, err)
			}
			clusters[i] = verify.NewCluster(client)
		}
		report, err := verify.Run(cmd.Context(), clusters[0], clusters[1], o)
		if errors.Is(cmd.Context().Err(), context.Canceled) {
			if err == nil {
				err = cmd.Context().Err()
			}
			return cli.Failed(fmt.Errorf("interrupted: %w", err))
		}
		if report == nil {
			return err
		}
		if asJSON {
			return errors.Join(json.NewEncoder(cmd.OutOrStdout()).Encode(report), verifyVerdict(report), err)
		}
		return errors.Join(printVerified(cmd.OutOrStdout(), report), err)
	}
	return cmd
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
		word := "note"
		if f.Wrong {
			word = "wrong"
		}
		if f.Cluster != "" {
			word += ": " + f.Cluster
		}
		fmt.Fprintln(w, cli.Wrap(word+": "+f.Text, cli.Width(w)))
	}
	if err := verifyVerdict(r); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, "All is well.")
	return err
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
