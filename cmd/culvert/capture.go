package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"culvert/gateway/control"
)

var captureStages = []string{"geneve", "pre", "post", "wireguard"}

func newCaptureCommand() *cobra.Command {
	var o control.CaptureOptions
	var flags filterFlags
	var file string
	c := newClientCommand(&cobra.Command{
		Use:   "capture",
		Short: "Record packets on their way through a running gateway, as pcapng",
		Long: "Record packets on their way through a running gateway, until interrupted, as pcapng with an\n" +
			"interface for each stage: geneve, datagrams of nodes; pre and post, inner packets before and after\n" +
			"translation; wireguard, messages of the tunnel. Comments say what becomes of each packet and why.\n" +
			"Filters are for inner packets and their connections, of wireguard for the outer addresses; --rule\n" +
			"has each packet explained first, which takes time. Packets never wait for a capture: it loses what\n" +
			"it has no room for, and says how much.",
		Example: "  culvert capture --at pre,post --address 10.0.1.5 -w pod.pcapng\n" +
			"  culvert capture --reason no-route,filtered -w refused.pcapng\n" +
			"  culvert capture --drops | tshark -r - -T fields -e frame.interface_name -e frame.comment -e ip.dst",
		Args: cobra.NoArgs,
	})
	flags.add(c, false)
	c.Flags().StringSliceVar(&o.At, "at", nil, "`STAGES` such as pre,post; without it, all")
	c.Flags().BoolVar(&o.Drops, "drops", false, "only what is dropped")
	c.Flags().StringSliceVar(&o.Reasons, "reason", nil, "only what is dropped for one of `REASONS`, as culvert status names them")
	c.Flags().StringVar(&o.Verdict, "verdict", "", "only what becomes that: "+strings.Join(control.Verdicts, ", "))
	c.Flags().StringVar(&o.Rule, "rule", "", "only what meets `RULE`, by its name or table/chain/name; packets of an established connection meet none")
	c.Flags().StringVarP(&file, "write", "w", "-", "`FILE`; - is standard output")
	c.Flags().Uint64VarP(&o.Count, "count", "c", 0, "end after so many packets")
	c.Flags().IntVar(&o.Snaplen, "snaplen", 0, "keep so many bytes of each packet; 0 is all")
	c.RegisterFlagCompletionFunc("verdict", cobra.FixedCompletions(control.Verdicts, cobra.ShellCompDirectiveNoFileComp))
	c.RegisterFlagCompletionFunc("reason", c.reasonNames)
	c.RegisterFlagCompletionFunc("at", cobra.FixedCompletions(captureStages, cobra.ShellCompDirectiveNoFileComp))
	c.RunE = func(*cobra.Command, []string) error {
		query, err := flags.query()
		if err != nil {
			return err
		}
		if o.Filter, err = control.ParseFilter(query); err != nil {
			return err
		}
		if o.Verdict != "" && !slices.Contains(control.Verdicts, o.Verdict) {
			return fmt.Errorf("--verdict: %q is none of %s", o.Verdict, strings.Join(control.Verdicts, ", "))
		}
		gateway, err := c.gateway()
		if err != nil {
			return err
		}
		out, finish, err := c.captureFile(file)
		if err != nil {
			return err
		}
		packets, lost, err := gateway.Capture(c.Context(), &o, out)
		if err := errors.Join(err, finish()); err != nil {
			return err
		}
		fmt.Fprintf(c.ErrOrStderr(), "%d packets captured, %d lost\n", packets, lost)
		return nil
	}
	return c.Command
}

// captureFile opens the destination of a capture.
func (c *clientCommand) captureFile(name string) (w io.Writer, finish func() error, err error) {
	if name != "-" {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return nil, nil, fmt.Errorf("--write: %w", err)
		}
		return f, f.Close, nil
	}
	if f, ok := c.OutOrStdout().(*os.File); ok && isTerminal(f) {
		return nil, nil, errors.New("--write: standard output is a terminal; give a file, or pipe it to tshark -r -")
	}
	return c.OutOrStdout(), func() error { return nil }, nil
}

// reasonNames completes current drop reasons.
func (c *clientCommand) reasonNames(*cobra.Command, []string, string) (names []string, d cobra.ShellCompDirective) {
	if gateway, err := c.gateway(); err == nil {
		if s, err := gateway.Status(c.Context()); err == nil {
			for _, drop := range slices.Concat(s.Outbound.Drops, s.Inbound.Drops) {
				names = append(names, drop.Reason)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}
