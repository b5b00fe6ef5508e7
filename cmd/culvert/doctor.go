package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway"
	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/gateway/procs"
)

func newDoctorCommand() *cobra.Command {
	var file string
	c := newClientCommand(&cobra.Command{
		Use:   "doctor [--config FILE | --socket SOCKET]",
		Short: "Show whether this machine suits a gateway, and how to improve it",
		Long: "Show whether this machine suits a gateway: socket buffers, offloads, memory, free ports, and a " +
			"correct and fast cipher. \"poor\" means that it costs performance; \"bad\" means that a gateway cannot " +
			"work, and the exit status is 1. Ports used by your own gateway are no fault: name its file with " +
			"--config. With --socket, ask a running gateway what it has.",
		Example: "  culvert doctor\n" +
			"  culvert doctor -o json\n" +
			"  culvert doctor --config rome/gateway.yaml\n" +
			"  culvert doctor --socket rome",
		Args: cobra.NoArgs,
	}, "text", "json", "yaml")
	c.Flags().Lookup("socket").
		Usage = "ask the gateway with this control `SOCKET`, or with a name such as rome or rome-milan"
	c.Flags().StringVar(&file, "config", "",
		"configuration `FILE` of the ports to check; without it, the default ports")
	c.MarkFlagsMutuallyExclusive("config", "socket")
	c.RunE = func(*cobra.Command, []string) error {
		conditions, err := c.examine(file)
		if err != nil {
			return err
		}
		if c.output == "text" {
			err = printConditions(c.OutOrStdout(), conditions)
		} else {
			err = c.print(conditions)
		}
		if err != nil {
			return err
		}
		for _, x := range conditions {
			if x.State == "bad" {
				return cli.Failed(errors.New(x.Name + ": " + x.Found + "; " + x.Remedy))
			}
		}
		return nil
	}
	return c.Command
}

// examine asks the selected gateway, or examines this machine.
func (c *clientCommand) examine(file string) ([]control.Condition, error) {
	if c.Flags().Changed("socket") {
		g, err := c.gateway()
		if err != nil {
			return nil, err
		}
		return g.Doctor(c.Context())
	}
	var wanted *config.Config
	if file != "" {
		var err error
		if wanted, err = config.Load(file); err != nil {
			return nil, err
		}
	}
	cpus := 0
	if wanted != nil {
		cpus = wanted.CPUs
	}
	procs.Use(cpus) // as a gateway does
	return gateway.Examine(wanted, c.running(wanted)), nil
}

// running returns the running gateways of this user whose ports are not a fault: that of the file,
// or all. There may be none.
func (c *clientCommand) running(wanted *config.Config) map[int]string {
	clients, _ := control.Running(c.Context(), "")
	if wanted != nil && wanted.Control != "" && wanted.Control != config.ControlAuto {
		clients = append(clients, control.NewClient(wanted.Control))
	}
	names := make(map[int]string)
	for _, client := range clients {
		s, err := client.Status(c.Context())
		if err == nil && (wanted == nil || s.Cluster == wanted.Cluster && s.Peer == wanted.Peer) {
			names[s.PID] = s.Cluster + " to " + s.Peer
		}
	}
	return names
}

func printConditions(w io.Writer, conditions []control.Condition) error {
	t := cli.NewTable(w)
	for _, x := range conditions {
		fmt.Fprintf(t, "%s\t%s\t%s\n", x.State, x.Name, x.Found)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, x := range conditions {
		if x.State == "good" {
			continue
		}
		costs, remedy := fmt.Sprintf("%s is %s: %s", x.Name, x.State, x.Costs), "do: "+x.Remedy
		if _, err := fmt.Fprintf(w, "\n%s\n  %s\n", cli.Wrap(costs, cli.Width(w)),
			cli.Wrap(remedy, max(0, cli.Width(w)-2))); err != nil {
			return err
		}
	}
	return nil
}
