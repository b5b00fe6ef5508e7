package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway/config"
	"culvert/ipam"
)

func newIPAMCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ipam",
		Short: "List and change the remaps chosen for this cluster's gateways",
		Long: "List and change what was chosen for the word auto in the configurations of this cluster's gateways. " +
			"--config names a gateway's configuration, whose ipam.file or state says where the choices are kept. " +
			"--file names that file directly and needs no configuration.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("ipam: want list, acquire, release or check; see --help")
		},
	}
	cmd.AddCommand(newIPAMListCommand(), newIPAMAcquireCommand(), newIPAMReleaseCommand(), newIPAMCheckCommand())
	return cmd
}

// memoryFlags select the store of remaps, and the output format.
type memoryFlags struct {
	file, config string
	isJSON       func() (bool, error)
}

func (f *memoryFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.file, "file", "", "the `FILE` with the choices, such as /var/lib/culvert/rome/ipam.json")
	cmd.Flags().StringVar(&f.config, "config", "",
		"a gateway's configuration `FILE`, which names the file with the choices")
	cmd.MarkFlagsOneRequired("file", "config")
	cmd.MarkFlagsMutuallyExclusive("file", "config")
	f.isJSON = cli.OutputFlag(cmd)
}

// open returns the store, and the configuration if one was given.
func (f *memoryFlags) open() (*ipam.Store, *config.Config, error) {
	if _, err := f.isJSON(); err != nil {
		return nil, nil, err
	}
	if f.config == "" {
		return ipam.Open(f.file), nil, nil
	}
	c, err := config.Load(f.config)
	if err == nil && c.IPAM.File == "" {
		err = fmt.Errorf("%s: it has neither state nor ipam.file, so nothing is remembered; add one of them", f.config)
	}
	if err != nil {
		return nil, nil, err
	}
	return ipam.Open(c.IPAM.File), c, nil
}

// given is an entry as printed by these commands.
type given struct {
	Peer     string    `json:"peer"`
	Kind     ipam.Kind `json:"kind"`
	Real     string    `json:"real"`
	Remapped string    `json:"remapped"`
	Since    time.Time `json:"since"`
	State    string    `json:"state"` // known, or with --config used | unused; new | remembered; released
}

func newGiven(e ipam.Entry, state string) given {
	return given{e.Peer, e.Kind, e.Real, e.RemappedText(), e.Since, state}
}

func (f *memoryFlags) print(cmd *cobra.Command, entries []given) error {
	if asJSON, err := f.isJSON(); asJSON || err != nil {
		return errors.Join(err, printJSON(cmd.OutOrStdout(), entries))
	}
	rows := [][]string{{"PEER", "KIND", "REAL", "REMAPPED", "SINCE", "STATE"}}
	for _, g := range entries {
		rows = append(rows, []string{g.Peer, string(g.Kind), g.Real, g.Remapped, g.Since.Format(time.RFC3339), g.State})
	}
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, text := range row {
			widths[i] = max(widths[i], len(text))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, text := range row[:len(row)-1] {
			b.WriteString(text + strings.Repeat(" ", widths[i]-len(text)+2))
		}
		b.WriteString(row[len(row)-1] + "\n")
	}
	_, err := io.WriteString(cmd.OutOrStdout(), b.String())
	return err
}

func newIPAMListCommand() *cobra.Command {
	var flags memoryFlags
	cmd := &cobra.Command{Use: "list", Short: "List the choices and their owners", Args: cobra.NoArgs}
	flags.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		store, c, err := flags.open()
		if err != nil {
			return err
		}
		ledger, err := store.Read()
		if err != nil {
			return err
		}
		state, used := "known", map[ipam.Owner]string{}
		if c != nil {
			state = "unused"
			for _, o := range c.Owners() {
				used[o] = "used"
			}
		}
		entries := []given{}
		for _, e := range ledger.Entries() {
			entries = append(entries, newGiven(e, cmp.Or(used[e.Owner], state)))
		}
		return flags.print(cmd, entries)
	}
	return cmd
}

func newIPAMAcquireCommand() *cobra.Command {
	var flags memoryFlags
	var want, network string
	cmd := &cobra.Command{
		Use:   "acquire [PEER KIND REAL]",
		Short: "Choose remaps and remember them, before a gateway does",
		Long: "Choose and remember a value for each auto in the file of --config, as its gateway would, or for one " +
			"owner. KIND is pod or external, and REAL its CIDR; or KIND is address, service or service-ipv6, and " +
			"REAL the host's address or the service's name. An owner that already has a value keeps it.",
		Example: "  culvert ipam acquire --config rome.yaml\n" +
			"  culvert ipam acquire --file ipam.json milan pod 10.0.0.0/16 --want 10.71.0.0/16\n" +
			"  culvert ipam acquire --file ipam.json milan service web --network 10.70.0.0/16",
		Args: countArgs(0, 3),
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&want, "want", "", "the `CIDR` to give if it is free (default REAL)")
	cmd.Flags().StringVar(&network, "network", "", "the local external `CIDR` to take an address from")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		store, c, err := flags.open()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeoutCause(cmd.Context(), lockPatience, errLockPatience)
		defer cancel()
		var entries []given
		switch {
		case len(args) == 3:
			entries, err = acquireOne(ctx, store, c, ipam.Owner{Peer: args[0], Kind: ipam.Kind(args[1]), Real: args[2]},
				want, network)
		case c == nil:
			err = errors.New("without --config, name an owner: PEER KIND REAL")
		default:
			var r *config.Remapped
			if r, err = config.Remap(ctx, c, time.Now(), false, config.Check); err == nil {
				for _, choice := range r.Choices {
					entries = append(entries, newGiven(choice.Entry, remembered(choice.New)))
				}
			}
		}
		if err != nil {
			return err
		}
		return flags.print(cmd, entries)
	}
	return cmd
}

// countArgs requires one of several numbers of arguments.
func countArgs(counts ...int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if !slices.Contains(counts, len(args)) {
			return fmt.Errorf("%d arguments; see --help", len(args))
		}
		return nil
	}
}

func acquireOne(ctx context.Context, s *ipam.Store, c *config.Config, o ipam.Owner, want,
	network string) ([]given, error) {
	var pools []netip.Prefix
	taken := config.Connected()
	if c != nil {
		pools, taken = c.IPAM.Pools, c.Taken()
	}
	plan, err := ipam.NewPlan(pools, taken)
	if err == nil {
		err = o.Check()
	}
	if err != nil {
		return nil, err
	}
	flag, text := "--want", cmp.Or(want, o.Real)
	address := o.Kind.OneAddress()
	if address {
		flag, text = "--network", network
	}
	cidr, err := netip.ParsePrefix(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %q is no CIDR", flag, text)
	}
	var g given
	err = s.Update(ctx, func(l *ipam.Ledger) (err error) {
		_, known := l.Find(o)
		if address {
			_, err = l.Address(plan, o, cidr, time.Now())
		} else {
			_, err = l.Network(plan, o, cidr, time.Now())
		}
		e, _ := l.Find(o)
		g = newGiven(e, remembered(!known))
		return err
	})
	return []given{g}, err
}

func newIPAMReleaseCommand() *cobra.Command {
	var flags memoryFlags
	var force bool
	cmd := &cobra.Command{
		Use:   "release PEER [KIND REAL]",
		Short: "Forget the remap of one owner, or all remaps of a peer",
		Long: "Forget the remap of one owner, or all remaps of a peer, so that they can be given to others. Remaps " +
			"that a running gateway towards PEER may be using are kept unless you give --force, because its " +
			"connections would break.",
		Args: countArgs(1, 3),
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "also while the gateway towards PEER runs")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		store, _, err := flags.open()
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
					released = append(released, newGiven(e, "released"))
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
		return flags.print(cmd, released)
	}
	return cmd
}
