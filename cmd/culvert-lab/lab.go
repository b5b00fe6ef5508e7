package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway/node"
	"culvert/integration/lab"
	"culvert/integration/lab/fault"
	"culvert/integration/lab/holder"
	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
)

// inHolder calls fn in the holder of a new lab: a second run of this command, inside the lab's
// namespaces.
func inHolder(cmd *cobra.Command, fn func(dir string) error) error {
	if dir, ok := holder.Inside(); ok {
		if err := holder.Enter(); err != nil {
			return err
		}
		err := fn(dir)
		if err != nil && cmd.Context().Err() != nil {
			os.Exit(cli.ExitFailed) // the interrupting process reports it
		}
		return err
	}
	status, err := holder.Isolate(cmd.Context(), os.Args[1:])
	if err != nil {
		return cli.Failed(err)
	}
	if status != 0 { // the holder has reported the cause
		os.Exit(status)
	}
	return nil
}

// labFlags select the kinds of labs.
type labFlags struct{ mode, offloads string }

func (f *labFlags) add(cmd *cobra.Command, mode, offloads string) {
	cmd.Flags().StringVar(&f.mode, "mode", mode, "what the nodes use: geneve, vxlan, tun, or all that there are")
	cli.FlagValues(cmd, "mode", "geneve", "vxlan", "tun", "all")
	cmd.Flags().StringVar(&f.offloads, "offloads", offloads,
		"on the underlay: on (super-frames), off (ordinary frames), or both")
	cli.FlagValues(cmd, "offloads", "on", "off", "both")
}

// parse returns the requested modes and offloads. A mode named explicitly must be available;
// missing is called for modes that "all" skips.
func (f *labFlags) parse(missing func(node.Mode, error)) (modes []node.Mode, offloads []bool, err error) {
	switch f.offloads {
	case "on":
		offloads = []bool{true}
	case "off":
		offloads = []bool{false}
	case "both":
		offloads = []bool{true, false}
	default:
		return nil, nil, errors.New("--offloads: want on, off or both")
	}
	all := []node.Mode{node.Geneve, node.VXLAN, node.TUN}
	wanted := all
	if f.mode != "all" {
		wanted = []node.Mode{node.Mode(f.mode)}
	}
	if !slices.Contains(all, wanted[0]) {
		return nil, nil, errors.New("--mode: want geneve, vxlan, tun or all")
	}
	modes, not := netns.Modes(wanted)
	for _, m := range wanted {
		if err := not[m]; err != nil && f.mode != "all" {
			return nil, nil, fmt.Errorf("--mode: no %s here: %w", m, err)
		} else if err != nil {
			missing(m, err)
		}
	}
	if len(modes) == 0 {
		return nil, nil, errors.New("no mode works here; see: culvert-lab probe")
	}
	return modes, offloads, nil
}

func newUpCommand() *cobra.Command {
	var flags labFlags
	var culvert program
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Build a lab and leave it running",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			file, err := culvert.find(cmd)
			if err != nil {
				return err
			}
			if dir, ok := holder.Inside(); ok {
				return holdLab(cmd, dir, file, &flags)
			}
			if err := holder.Detach(cmd.Context(), os.Args[1:], reportTo(cmd.OutOrStdout())); errors.Is(err,
				holder.ErrInterrupted) {
				return cli.Failed(err)
			} else if err != nil {
				return err
			}
			s, err := holder.GetStatus(cmd.Context())
			if err != nil {
				return cli.Failed(err)
			}
			if err := printStatus(cmd.OutOrStdout(), s); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "try: culvert-lab exec rome/pod1 ping milan/pod1")
			fmt.Fprintln(cmd.OutOrStdout(), "see: culvert page    # both gateways in a browser")
			return nil
		},
	}
	flags.add(cmd, "all", "on")
	culvert.add(cmd)
	return cmd
}

// holdLab is the holder's part of up.
func holdLab(cmd *cobra.Command, dir, culvert string, flags *labFlags) error {
	if err := holder.Enter(); err != nil {
		return err
	}
	modes, offloads, err := flags.parse(func(node.Mode, error) {})
	if err != nil {
		holder.Ready(err)
		return err
	}
	o := lab.Standard(modes[0], offloads[0])
	o.Culvert = culvert
	built, err := lab.Start(cmd.Context(), dir, o)
	l := &fault.Lab{Lab: built}
	if err == nil {
		err = holder.Serve(cmd.Context(), l, func() { holder.Ready(nil) })
	} else {
		holder.Ready(err)
	}
	return errors.Join(err, l.Stop())
}

// reportTo returns a function that prints lines.
func reportTo(out io.Writer) func(format string, args ...any) {
	return func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
}

func newDownCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop the running lab, and remove whatever any lab left behind",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := holder.Down(reportTo(cmd.OutOrStdout())); err != nil {
				return cli.Failed(err)
			}
			return nil
		},
	}
}

func newExecCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec CLUSTER/HOST [--] COMMAND [ARGUMENT…]",
		Short: "Run a command inside a host of the running lab",
		Long: "Run a command inside a host of the running lab. Flags after the host belong to the command. There,\n" +
			"milan/pod1 (or milan-pod1, for programs that accept no slash) resolves to the address of that host as seen from there.",
		Example: "  culvert-lab exec rome/pod1 ping -c 3 milan/pod1\n  culvert-lab exec milan/node1 bash",
		Args: func(_ *cobra.Command, args []string) error {
			_, _, err := splitExec(args)
			return err
		},
		RunE: func(_ *cobra.Command, args []string) error {
			host, command, err := splitExec(args)
			if err != nil {
				return err
			}
			code, err := holder.Exec(host, command)
			if err != nil {
				return err
			}
			os.Exit(code)
			return nil
		},
	}
	cmd.ValidArgsFunction = completeFirst(plan.HostNames()...)
	cmd.Flags().SetInterspersed(false) // the first argument ends the flags
	return cmd
}

// splitExec splits the arguments of exec, in which "--" may precede the command.
func splitExec(args []string) (host string, command []string, err error) {
	if len(args) > 1 && args[1] == "--" {
		args = slices.Delete(slices.Clone(args), 1, 2)
	}
	if len(args) < 2 {
		return "", nil, errors.New("exec: want CLUSTER/HOST and a command")
	}
	return args[0], args[1:], nil
}

func newStatusCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "status", Short: "Show the running lab", Args: cobra.NoArgs}
	isJSON := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := isJSON()
		if err != nil {
			return err
		}
		s, err := holder.GetStatus(cmd.Context())
		if err != nil {
			return cli.Failed(err)
		}
		if asJSON {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(s)
		}
		return printStatus(cmd.OutOrStdout(), s)
	}
	return cmd
}

func printStatus(out io.Writer, s *holder.Status) error {
	fmt.Fprintf(out, "%s; files in %s\n", s.Description, s.Dir)
	w := cli.NewTable(out)
	fmt.Fprintln(w, "HOST\tADDRESS\tSEEN BY THE OTHER CLUSTER AS")
	for _, h := range s.Hosts {
		fmt.Fprintf(w, "%s\t%s\t%s\n", h.Name, h.Address, h.Seen)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "PROCESS\tLOG\tSTATE")
	for _, p := range s.Processes {
		state := "running"
		if !p.Running {
			state = p.Ended
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", p.Name, strings.TrimPrefix(p.Log, s.Dir+"/"), state)
	}
	err := w.Flush()
	if len(s.Broken) > 0 {
		fmt.Fprintf(out, "FAULTS  %s; culvert-lab mend\n", strings.Join(s.Broken, ", "))
	}
	return err
}
