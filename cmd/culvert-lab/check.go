package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway/node"
	"culvert/integration/lab"
	"culvert/integration/lab/check"
	"culvert/integration/lab/fault"
	"culvert/integration/lab/netns"
)

// checking has the flags of culvert-lab check.
type checking struct {
	labs                   labFlags
	culvert                program
	sandbox                lab.Sandbox
	faults, brief, verbose bool
	named                  []string
}

func newCheckCommand() *cobra.Command {
	x := &checking{}
	cmd := &cobra.Command{
		Use:   "check [" + strings.Join(check.LabNames(), "|") + "]…",
		Short: "Build labs, check them, take them down; exit status 0 only if all passed",
		Long: "Build labs, check them, take them down; exit status 0 only if all passed. Without a name, all labs are checked:\n" +
			"ipv4 (IPv4 inside the tunnels), dual (both families inside), restart (gateways are restarted), attacks (gateways and nodes\n" +
			"are flooded), v6-inside (only IPv6 inside), and v6-outside (both families inside, tunnels over IPv6).",
		Args:      cobra.OnlyValidArgs,
		ValidArgs: check.LabNames(),
	}
	flags := cmd.Flags()
	x.labs.add(cmd, "all", "both")
	x.culvert.add(cmd)
	flags.StringVar(&x.sandbox.Runsc, "runsc", "",
		"run the gateways in gVisor, with this runsc; needs root and a static busybox")
	flags.StringVar(&x.sandbox.Groups, "runsc-groups", "",
		"control groups of these gateways, without -rome and -milan")
	flags.MarkHidden("runsc-groups") // for the tests, which read gateways' memory use
	flags.BoolVar(&x.faults, "faults", false,
		"instead, make each fault of break, check its symptom, and mend it; in v6-inside and v6-outside, over IPv6")
	flags.StringSliceVar(&x.named, "named", nil,
		"instead, make these `FAULTS` of break, or all, and wait until culvert status names each")
	flags.BoolVar(&x.brief, "brief", false,
		"a line for each lab, super-frames only, services in one mode; without a name, no v6-inside and v6-outside")
	flags.BoolVarP(&x.verbose, "verbose", "v", false, "with --brief: a line for each check too")
	cmd.MarkFlagsMutuallyExclusive("faults", "named")
	isJSON := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		names, err := x.choose(cmd, names)
		if err != nil {
			return err
		}
		asJSON, err := isJSON()
		if err != nil {
			return err
		}
		return x.run(cmd, names, x.style(asJSON))
	}
	return cmd
}

// choose checks the flags, and returns the names of the labs: those that are given, or those that
// fit the flags and this kernel.
func (x *checking) choose(cmd *cobra.Command, names []string) ([]string, error) {
	if err := fault.ValidNames(x.named); err != nil {
		return nil, fmt.Errorf("--named: %w", err)
	}
	if x.verbose && !x.brief {
		return nil, errors.New("--verbose: works only with --brief; without it, every check has a line")
	}
	instead := x.faults || len(x.named) > 0
	for _, name := range names {
		if instead && name != "ipv4" && !(x.faults && strings.HasPrefix(name, "v6-")) {
			return nil, fmt.Errorf(
				"%s: this lab makes no faults; name ipv4 instead or, with --faults, v6-inside or v6-outside", name)
		}
	}
	switch {
	case len(names) > 0:
		return names, nil
	case instead:
		return []string{"ipv4"}, nil
	}
	names = check.LabNames()
	if x.brief {
		names = slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, "v6-") })
	}
	if err := netns.Probe("ipv6"); err != nil {
		fmt.Fprintln(cmd.ErrOrStderr(), "left out: the labs with IPv6, which this kernel lacks:", err)
		names = slices.DeleteFunc(names, func(name string) bool {
			return name == "dual" || strings.HasPrefix(name, "v6-")
		})
	}
	return names, nil
}

func (x *checking) style(asJSON bool) check.Style {
	switch {
	case asJSON:
		return check.JSON
	case x.brief && x.verbose:
		return check.Verbose
	case x.brief:
		return check.Brief
	}
	return check.Table
}

// run checks labs.
func (x *checking) run(cmd *cobra.Command, names []string, style check.Style) error {
	if x.brief && !cmd.Flags().Changed("offloads") {
		x.labs.offloads = "on"
	}
	file, err := x.culvert.find(cmd)
	if err != nil {
		return err
	}
	return inHolder(cmd, func(dir string) error {
		o := check.Options{Culvert: file, Labs: names, Sandbox: x.sandbox, Faults: x.faults, Short: x.brief,
			Named: x.named, Style: style, Missing: make(map[node.Mode]error)}
		var err error
		o.Modes, o.Offloads, err = x.labs.parse(func(m node.Mode, err error) { o.Missing[m] = err })
		if err != nil {
			return err
		}
		if err := check.Run(cmd.Context(), dir, o, cmd.OutOrStdout()); err != nil {
			return cli.Failed(err)
		}
		return nil
	})
}
