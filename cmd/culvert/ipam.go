package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"culvert/gateway"
	"culvert/ipam"
)

func newIPAMCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ipam",
		Short: "Show and change the remaps that were chosen for this cluster's gateways",
		Long: "Show and change what is remembered for the word auto in the configurations of this cluster's\n" +
			"gateways. Say where: --config takes ipam.file, or state, of a gateway's configuration; --file is\n" +
			"the file itself, which needs no configuration and knows none.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("ipam: want list, acquire, release or check; see --help")
		},
	}
	cmd.AddCommand(newIPAMListCommand(), newIPAMAcquireCommand(), newIPAMReleaseCommand(), newIPAMCheckCommand())
	return cmd
}

// ipamFlags say which memory is meant, and how to print.
type ipamFlags struct {
	file, config string
	isJSON       func() (bool, error)
}

func (f *ipamFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.file, "file", "", "the `FILE` that remembers, such as /var/lib/culvert/rome/ipam.json")
	cmd.Flags().StringVar(&f.config, "config", "", "a gateway's configuration `FILE`, which says where that is")
	cmd.MarkFlagsOneRequired("file", "config")
	cmd.MarkFlagsMutuallyExclusive("file", "config")
	f.isJSON = outputFlag(cmd)
}

// open returns the memory, and the configuration if one was given.
func (f *ipamFlags) open() (s *ipam.Store, c *gateway.Config, asJSON bool, err error) {
	if asJSON, err = f.isJSON(); err != nil {
		return nil, nil, false, err
	}
	if f.config == "" {
		return ipam.Open(f.file), nil, asJSON, nil
	}
	if c, err = gateway.LoadConfig(f.config); err != nil {
		return nil, nil, false, err
	}
	if c.IPAM.File == "" {
		return nil, nil, false, fmt.Errorf("%s: neither state nor ipam.file: it remembers nothing", f.config)
	}
	return ipam.Open(c.IPAM.File), c, asJSON, nil
}

// given is an entry as these commands print it.
type given struct {
	Peer     string    `json:"peer"`
	Kind     ipam.Kind `json:"kind"`
	Real     string    `json:"real"`
	Remapped string    `json:"remapped"`
	Since    time.Time `json:"since"`
	Used     *bool     `json:"used,omitempty"` // by the configuration, if there is one
	New      *bool     `json:"new,omitempty"`  // acquired just now
}

func newGiven(e ipam.Entry) given {
	return given{Peer: e.Peer, Kind: e.Kind, Real: e.Real, Remapped: e.RemappedText(), Since: e.Since}
}

func newIPAMListCommand() *cobra.Command {
	var flags ipamFlags
	cmd := &cobra.Command{Use: "list", Short: "List what was given to whom", Args: cobra.NoArgs}
	flags.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		store, c, asJSON, err := flags.open()
		if err != nil {
			return err
		}
		ledger, err := store.Read()
		if err != nil {
			return err
		}
		used := map[ipam.Owner]bool{}
		if c != nil {
			for _, o := range c.Owners() {
				used[o] = true
			}
		}
		entries := []given{}
		for _, e := range ledger.Entries() {
			g := newGiven(e)
			if c != nil {
				inUse := used[e.Owner]
				g.Used = &inUse
			}
			entries = append(entries, g)
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), entries)
		}
		return printGiven(cmd.OutOrStdout(), entries)
	}
	return cmd
}

func printGiven(w io.Writer, entries []given) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PEER\tKIND\tREAL\tREMAPPED\tSINCE\tUSED")
	for _, g := range entries {
		used := "-"
		if g.Used != nil {
			used = map[bool]string{true: "yes", false: "no"}[*g.Used]
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", g.Peer, g.Kind, g.Real, g.Remapped, g.Since.Format(time.RFC3339), used)
	}
	return t.Flush()
}

func newIPAMAcquireCommand() *cobra.Command {
	var flags ipamFlags
	var want, network string
	cmd := &cobra.Command{
		Use:   "acquire [PEER KIND REAL]",
		Short: "Choose and remember remaps, before a gateway does or in place of it",
		Long: "Choose and remember what each auto of --config stands for, as its gateway would; or something for\n" +
			"one owner. KIND is pod or external, REAL its CIDR; or KIND is address or service, REAL the host's\n" +
			"address or the service's name. Who has something already keeps it.",
		Example: "  culvert ipam acquire --config rome.yaml\n" +
			"  culvert ipam acquire --file ipam.json milan pod 10.0.0.0/16 --want 10.71.0.0/16\n" +
			"  culvert ipam acquire --file ipam.json milan service web --network 10.70.0.0/16",
		Args: func(_ *cobra.Command, args []string) error { return wantArgs(args, 0, 3) },
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&want, "want", "", "the `CIDR` to give if it is free (default REAL)")
	cmd.Flags().StringVar(&network, "network", "", "the local external `CIDR` that an address comes from (default the first of --config)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		store, c, asJSON, err := flags.open()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeoutCause(cmd.Context(), lockPatience, errLockPatience)
		defer cancel()
		var entries []given
		if len(args) == 0 {
			entries, err = acquireAll(ctx, c)
		} else {
			entries, err = acquireOne(ctx, store, c, ipam.Owner{Peer: args[0], Kind: ipam.Kind(args[1]), Real: args[2]}, want, network)
		}
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), entries)
		}
		for _, g := range entries {
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s %s: %s, %s\n", g.Peer, g.Kind, g.Real, g.Remapped, remembered(*g.New))
		}
		return nil
	}
	return cmd
}

func wantArgs(args []string, counts ...int) error {
	for _, n := range counts {
		if len(args) == n {
			return nil
		}
	}
	return fmt.Errorf("%d arguments; see --help", len(args))
}

func acquireAll(ctx context.Context, c *gateway.Config) ([]given, error) {
	if c == nil {
		return nil, errors.New("without --config, say for whom: PEER KIND REAL")
	}
	r, err := gateway.Remap(ctx, c, time.Now(), false, gateway.Check)
	if err != nil {
		return nil, err
	}
	entries := []given{}
	for _, choice := range r.Choices {
		g := newGiven(choice.Entry)
		g.New = &choice.New
		entries = append(entries, g)
	}
	return entries, nil
}

func acquireOne(ctx context.Context, s *ipam.Store, c *gateway.Config, o ipam.Owner, want, network string) ([]given, error) {
	var pools []netip.Prefix
	taken := gateway.Connected()
	if c != nil {
		pools, taken = c.IPAM.Pools, c.Taken()
		if network == "" && len(c.Local.ExternalCIDRs) > 0 {
			network = c.Local.ExternalCIDRs[0].String()
		}
	}
	plan, err := ipam.NewPlan(pools, taken)
	if err != nil {
		return nil, err
	}
	if err := o.Check(); err != nil {
		return nil, err
	}
	var g given
	err = s.Update(ctx, func(l *ipam.Ledger) (err error) {
		_, known := l.Find(o)
		isNew := !known
		if o.Kind == ipam.Pod || o.Kind == ipam.External {
			wish := netip.MustParsePrefix(o.Real) // Check has parsed it
			if want != "" {
				if wish, err = netip.ParsePrefix(want); err != nil {
					return fmt.Errorf("--want: %q is no CIDR", want)
				}
			}
			_, err = l.Network(plan, o, wish, time.Now())
		} else {
			var from netip.Prefix
			if from, err = netip.ParsePrefix(network); err != nil {
				return fmt.Errorf("--network: %q is no CIDR; an address needs one to come from", network)
			}
			_, err = l.Address(plan, o, from, time.Now())
		}
		e, _ := l.Find(o)
		g = newGiven(e)
		g.New = &isNew
		return err
	})
	return []given{g}, err
}

func newIPAMReleaseCommand() *cobra.Command {
	var flags ipamFlags
	var force bool
	cmd := &cobra.Command{
		Use:   "release PEER [KIND REAL]",
		Short: "Forget the remap of one owner, or all of a peer",
		Long: "Forget the remap of one owner, or all of a peer, so that it can be chosen for others. What the\n" +
			"gateway towards PEER may be using is kept, unless --force: its connections would go wrong.",
		Args: func(_ *cobra.Command, args []string) error { return wantArgs(args, 1, 3) },
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "also while the gateway towards PEER runs")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		store, _, asJSON, err := flags.open()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeoutCause(cmd.Context(), lockPatience, errLockPatience)
		defer cancel()
		if !force {
			exclusive, err := store.Exclude(ctx, args[0])
			if errors.Is(err, ipam.ErrRunning) {
				return fmt.Errorf("%w, or add --force", err)
			} else if err != nil {
				return err
			}
			defer exclusive.Close()
		}
		released := []given{}
		err = store.Update(ctx, func(l *ipam.Ledger) error {
			for _, e := range l.Entries() {
				if e.Peer == args[0] && (len(args) == 1 || string(e.Kind) == args[1] && e.Real == args[2]) {
					released = append(released, newGiven(e))
				}
			}
			if len(args) == 1 {
				return l.ReleasePeer(args[0])
			}
			return l.Release(ipam.Owner{Peer: args[0], Kind: ipam.Kind(args[1]), Real: args[2]})
		})
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), released)
		}
		for _, g := range released {
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s %s: %s released\n", g.Peer, g.Kind, g.Real, g.Remapped)
		}
		return nil
	}
	return cmd
}
