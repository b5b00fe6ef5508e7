package main

import (
	"errors"
	"fmt"
	"io"
	"os"

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
			"Filters are for inner packets and their connections, of wireguard for the outer addresses. Packets\n" +
			"never wait for a capture: it loses what it has no room for, and says how much.",
		Example: "  culvert capture --at pre,post --address 10.0.1.5 -w pod.pcapng\n" +
			"  culvert capture --drops | tshark -r - -T fields -e frame.interface_name -e frame.comment -e ip.src -e ip.dst",
		Args: cobra.NoArgs,
	})
	flags.add(c, false)
	c.Flags().StringSliceVar(&o.At, "at", nil, "`STAGES` such as pre,post; without it, all")
	c.Flags().BoolVar(&o.Drops, "drops", false, "only what is dropped")
	c.Flags().StringVarP(&file, "write", "w", "-", "`FILE`; - is standard output")
	c.Flags().Uint64VarP(&o.Count, "count", "c", 0, "end after so many packets")
	c.Flags().IntVar(&o.Snaplen, "snaplen", 0, "keep so many bytes of each packet; 0 is all")
	c.RegisterFlagCompletionFunc("at", cobra.FixedCompletions(captureStages, cobra.ShellCompDirectiveNoFileComp))
	c.RunE = func(*cobra.Command, []string) error {
		query, err := flags.query()
		if err != nil {
			return err
		}
		if o.Filter, err = control.ParseFilter(query); err != nil {
			return err
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

// captureFile opens where a capture goes to.
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
