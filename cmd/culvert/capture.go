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
		Long: "Record packets on their way through a running gateway, as pcapng, until interrupted. Each stage has " +
			"an interface: geneve has the datagrams of nodes, pre and post have inner packets before and after " +
			"translation, wireguard has the messages of the tunnel. A comment says what happened to each packet and " +
			"why.\n\n" +
			"Filters apply to inner packets and their connections; for wireguard they apply to the outer addresses. " +
			"A capture never delays packets: it drops what it has no room for, and says how much.",
		Example: "  culvert capture --at pre,post --address 10.0.1.5 -w pod.pcapng\n" +
			"  culvert capture --reason no-route,filtered -w refused.pcapng\n" +
			"  culvert capture --drops | tshark -r - -T fields -e frame.interface_name -e frame.comment -e ip.dst",
		Args: cobra.NoArgs,
	})
	flags.add(c, false)
	c.Flags().StringSliceVar(&o.At, "at", nil, "`STAGES` such as pre,post; without it, all stages")
	c.Flags().BoolVar(&o.Drops, "drops", false, "only dropped packets")
	c.Flags().StringSliceVar(&o.Reasons, "reason", nil,
		"only packets dropped for one of these `REASONS`, as culvert status names them")
	c.Flags().StringVar(&o.Verdict, "verdict", "", "only packets with this verdict: "+
		strings.Join(control.Verdicts, ", "))
	c.Flags().StringVarP(&file, "write", "w", "-", "`FILE` to write; - is standard output")
	c.Flags().Uint64VarP(&o.Count, "count", "c", 0, "stop after this number of packets")
	c.Flags().IntVar(&o.Snaplen, "snaplen", 0, "keep this number of bytes of each packet; 0 keeps all")
	c.RegisterFlagCompletionFunc("verdict", cobra.FixedCompletions(control.Verdicts,
		cobra.ShellCompDirectiveNoFileComp))
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
		named := captureFile{name: file}
		var out io.Writer = &named
		if file == "-" {
			out = c.OutOrStdout()
			if f, ok := out.(*os.File); ok && isTerminal(f) {
				return errors.New("--write: standard output is a terminal; give a file, or pipe it to tshark -r -")
			}
		}
		packets, lost, err := gateway.Capture(c.Context(), &o, out)
		if err := errors.Join(err, named.Close()); err != nil {
			return err
		}
		fmt.Fprintf(c.ErrOrStderr(), "%d packets captured, %d lost\n", packets, lost)
		return nil
	}
	return c.Command
}

// A captureFile is created when the first bytes arrive, so that a refused capture does not change
// the previous file.
type captureFile struct {
	name string
	file *os.File // nil: not yet
}

func (f *captureFile) Write(b []byte) (n int, err error) {
	if f.file == nil {
		if f.file, err = os.OpenFile(f.name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
			return 0, fmt.Errorf("--write: %w", err)
		}
	}
	return f.file.Write(b)
}

// Close returns an error if some written bytes may be missing from the file.
func (f *captureFile) Close() error {
	if f.file == nil {
		return nil
	}
	return f.file.Close()
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
